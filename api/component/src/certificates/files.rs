//! Files that the kubelet mounts from secrets and config maps, and replaces when those change.

use super::{Authorities, CertificateError, Pair, Shown, Trusted};
use crate::error::chain;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

/// How often the files are read. The kubelet brings a change within about a minute and a half.
pub const LOOK: Duration = Duration::from_secs(2);

/// Follows `tls.crt` and `tls.key` in a directory, for as long as the result has a receiver.
pub fn pair(directory: &Path) -> Shown {
    follow_pair(directory, None)
}

/// The same, with a pair to show until the files exist.
pub fn pair_or(directory: &Path, until_then: Pair) -> Shown {
    follow_pair(directory, Some(until_then))
}

fn follow_pair(directory: &Path, until_then: Option<Pair>) -> Shown {
    let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
    let (sender, receiver) = watch::channel(until_then.map(Arc::new));
    tokio::spawn(follow(directory.to_owned(), sender, async move || {
        Pair::read(&read(&certificate).await?, &read(&key).await?)
    }));
    receiver
}

/// Follows a bundle of authorities, for as long as the result has a receiver.
pub fn authorities(file: &Path) -> Trusted {
    let (sender, receiver) = watch::channel(None);
    let path = file.to_owned();
    tokio::spawn(follow(file.to_owned(), sender, async move || Authorities::read(&read(&path).await?)));
    receiver
}

async fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let bytes = tokio::fs::read(path).await;
    bytes.map_err(|source| CertificateError::Read { path: path.to_owned(), source })
}

async fn follow<T: PartialEq>(
    path: PathBuf,
    sender: watch::Sender<Option<Arc<T>>>,
    read: impl AsyncFn() -> Result<T, CertificateError>,
) {
    // The last error that was logged: each new error is logged once.
    let mut told = None;
    while !sender.is_closed() {
        match read().await {
            Ok(new) => {
                let changed = sender.send_if_modified(|present| {
                    let changed = present.as_deref() != Some(&new);
                    if changed {
                        *present = Some(Arc::new(new));
                    }
                    changed
                });
                if changed {
                    info!(path = %path.display(), "certificates taken over");
                }
                told = None;
            }
            Err(error) => {
                let error = chain(&error);
                if told.as_ref() != Some(&error) {
                    if sender.borrow().is_some() {
                        // Perhaps only half of the files were replaced so far.
                        warn!(path = %path.display(), error, "certificates could not be reloaded");
                    } else {
                        info!(path = %path.display(), error, "waiting for certificates");
                    }
                    told = Some(error);
                }
            }
        }
        sleep(LOOK).await;
    }
}
