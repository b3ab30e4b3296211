//! How a process that works behind a lease begins and ends: virt-controller, and virt-operator.

use crate::certificates;
use crate::lease::Candidate;
use crate::log::{self, Level};
use anyhow::Context;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

/// Runs the work to its end, with TLS and the log set up before.
///
/// # Errors
/// The work's own, and where there can be no runtime.
pub fn run<W>(work: impl FnOnce(Level) -> W) -> anyhow::Result<ExitCode>
where
    W: Future<Output = anyhow::Result<ExitCode>>,
{
    // Before any TLS: exactly one provider is built in, and it is named rather than guessed.
    certificates::install_provider();
    let level = log::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("runtime")?;
    let code = runtime.block_on(work(level))?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(code)
}

/// Ends when the process is asked to.
///
/// # Errors
/// Where signals cannot be waited for.
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

/// The end of the work, which nothing is written after: why it came, or none where it was asked for. Then another may lead
/// at once.
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
