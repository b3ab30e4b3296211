//! vnc screenshot: what the display shows now.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use http::{Request, StatusCode};
use tokio::io::AsyncWriteExt;

use crate::session::{self, INSTANCES, Session};

/// Arguments of `virtctl vnc screenshot`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Take a VNC screenshot of 'testvmi' in PNG format:\n  virtctl vnc screenshot testvmi -f screenshot.png\n\n  \
    # The same for another program:\n  virtctl vnc screenshot testvmi -f - | display")]
pub(super) struct Screenshot {
    /// Name of the virtual machine instance.
    vmi: String,
    /// Where to store the screenshot in PNG format; '-' for standard output.
    #[arg(short, long)]
    file: PathBuf,
    /// Move the pointer first, so that a screen that sleeps wakes up.
    #[arg(short, long)]
    move_cursor: bool,
}

impl Screenshot {
    pub(super) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let context = || format!("Can't access VMI {}", self.vmi);
        let png = self.take(session).await.with_context(context)?;
        if self.file.as_os_str() == "-" {
            let mut output = tokio::io::stdout();
            output.write_all(&png).await.context("failed to write image to stdout")?;
            output.flush().await.context("failed to write image to stdout")
        } else {
            std::fs::write(&self.file, &png).context("Can't write image to a file")
        }
    }

    async fn take(&self, session: &Session) -> anyhow::Result<Vec<u8>> {
        let path = session::path(&session.namespace, INSTANCES, &self.vmi, "vnc/screenshot");
        let request = Request::get(format!("{path}?moveCursor={}", self.move_cursor))
            .body(kube::client::Body::empty())?;
        let response = session.client.send(request).await.map_err(session::plain)?;
        let status = response.status();
        let body = response.into_body().collect_bytes().await.context("read the picture")?;
        if status == StatusCode::OK {
            return Ok(body.into());
        }
        bail!("{}", session::sentence(&body))
    }
}
