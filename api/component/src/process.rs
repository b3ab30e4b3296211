//! Start and end of a process that works behind a lease: virt-controller and virt-operator.

use crate::certificates;
use crate::lease::Candidate;
use crate::log::{self, Level};
use anyhow::Context;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

/// Runs the work to its end, after TLS and the log are set up.
///
/// # Errors
/// The work's own errors, and a failure to create the runtime.
pub fn run<W>(work: impl FnOnce(Level) -> W) -> anyhow::Result<ExitCode>
where
    W: Future<Output = anyhow::Result<ExitCode>>,
{
    // Before any use of TLS: the provider is chosen explicitly.
    certificates::install_provider();
    let level = log::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("runtime")?;
    let code = runtime.block_on(work(level))?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(code)
}

/// A future that ends when the process is asked to stop.
///
/// # Errors
/// If signals cannot be received.
pub fn stop() -> anyhow::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate()).context("signal handler")?;
    let mut int = signal(SignalKind::interrupt()).context("signal handler")?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

/// Ends the work: no write may follow. `why` is the reason, or `None` if the process was asked to stop; then
/// another process can lead at once.
pub async fn end(candidate: &Candidate, why: Option<&str>) -> ExitCode {
    if let Some(why) = why {
        error!(why, "ending");
        return ExitCode::FAILURE;
    }
    info!("ending as asked");
    if let Err(error) = candidate.release().await {
        warn!(error = error.message(), "cannot release the lease");
    }
    ExitCode::SUCCESS
}
