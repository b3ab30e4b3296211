//! The last status that a launcher sent.

use barevirt_protocol::v1::LauncherStatus;
use tokio::sync::watch;

use crate::launchers::{Launcher, Statuses};
use crate::status::out_of_memory;

/// The launcher's last report.
#[derive(Debug, Clone, Default)]
pub struct LauncherReport {
    /// Its last status.
    pub status: Option<LauncherStatus>,
    /// Whether the stream of statuses has ended.
    pub lost: bool,
    /// How often pings had begun to fail at the time of the first status. An earlier handler has reported
    /// those failures.
    pub failed_pings_before: Option<u64>,
}

/// Stores the launcher's statuses until the stream ends, beginning with its first status.
pub(super) async fn listen(
    first: LauncherStatus,
    mut statuses: Statuses,
    launcher: Launcher,
    report: watch::Sender<LauncherReport>,
) {
    let oom_kills = || launcher.counters().memory().and_then(|memory| memory.oom_kills).unwrap_or_default();
    // Kills that were counted before the first status concern other processes, unless QEMU had already ended.
    let before = if out_of_memory::is_killed(&first) { 0 } else { oom_kills() };
    let mut next = Some(first);
    while let Some(status) = next {
        let killed = out_of_memory::is_killed(&status);
        // The launcher still exists, and so does the control group. A moment later they may be gone.
        let memory = if killed { launcher.counters().memory() } else { None };
        let status = out_of_memory::explain(status, before, &memory.unwrap_or_default());
        report.send_modify(|report| {
            report.failed_pings_before.get_or_insert(status.failed_pings);
            report.status = Some(status);
        });
        next = statuses.next().await.unwrap_or_else(|status| {
            tracing::debug!(code = ?status.code(), message = status.message(), "launcher's status stream broke off");
            None
        });
    }
    report.send_modify(|report| report.lost = true);
}
