//! Keeps objects correct by looking at them regularly: objects outside the installation, which may have other owners.

use super::cache::Cache;
use super::target::deciding;
use barevirt_component::error::chain;
use barevirt_component::request::Error;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// Pause between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// Looks repeatedly while there is an installation. `what` names the object in the log.
pub(super) async fn follow<K>(cache: Arc<Cache>, what: &'static str, keep: impl Fn() -> K)
where
    K: Future<Output = Result<(), Error>>,
{
    loop {
        let objects = cache.kubevirts().unwrap_or_default();
        let wanted = deciding(&objects).is_some_and(|object| object.metadata.deletion_timestamp.is_none());
        if wanted && let Err(error) = keep().await {
            warn!(error = %chain(&error), "{what} is not kept");
        }
        tokio::time::sleep(LOOK).await;
    }
}
