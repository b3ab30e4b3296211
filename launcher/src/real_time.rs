//! Virtual CPUs that should be realtime. A launcher may not make them so: the handler does, and reports it.
//!
//! ```text
//!   QEMU answers ──> status awaits_real_time ──> handler schedules the threads ──> RealTime ──> the guest starts
//! ```
//!
//! If a handler restarts during this, the next one sees the same status. A guest that requests realtime CPUs
//! never runs without them.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// How long the launcher waits for the report of the handler, which may be restarting.
pub const WITHIN: Duration = Duration::from_secs(60);

/// The handler's report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RealTimeReport {
    /// Process id of the QEMU in question.
    pub qemu: u32,
    /// Why its virtual CPUs are not realtime; empty if they are.
    pub refusal: String,
}

/// The condition under which a guest may start.
#[derive(Debug, Clone)]
pub struct RealTime {
    /// The handler's last report.
    pub report: watch::Receiver<RealTimeReport>,
    /// The time limit.
    pub within: Duration,
}

/// Why virtual CPUs did not become realtime.
#[derive(Debug, thiserror::Error)]
pub enum RealTimeError {
    /// The handler reported nothing.
    #[error("spec.domain.cpu.realtime: virt-handler did not say within {} s that virtual CPUs are realtime", .0.as_secs())]
    Silent(Duration),
    /// The handler could not make them realtime.
    #[error("spec.domain.cpu.realtime: not within {} s: {refusal}", .within.as_secs())]
    Refused {
        /// The time limit.
        within: Duration,
        /// The last obstacle.
        refusal: String,
    },
}

impl RealTime {
    /// Waits until the virtual CPUs of this QEMU are realtime.
    ///
    /// # Errors
    /// If they are not realtime in time.
    pub async fn wait(mut self, qemu: u32) -> Result<(), RealTimeError> {
        let within = self.within;
        let done = |report: &RealTimeReport| report.qemu == qemu && report.refusal.is_empty();
        if matches!(timeout(within, self.report.wait_for(done)).await, Ok(Ok(_))) {
            return Ok(());
        }
        let RealTimeReport { qemu: meant, refusal } = self.report.borrow().clone();
        Err(if meant == qemu && !refusal.is_empty() {
            RealTimeError::Refused { within, refusal }
        } else {
            RealTimeError::Silent(within)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn after(words: &[(u32, &str)]) -> Result<(), String> {
        let report = watch::Sender::new(RealTimeReport::default());
        let waiting = RealTime { report: report.subscribe(), within: Duration::from_secs(1) };
        let saying = async {
            for (qemu, refusal) in words {
                report.send_replace(RealTimeReport { qemu: *qemu, refusal: (*refusal).to_owned() });
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(waiting.wait(12), saying).0.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn only_a_good_report_about_this_qemu_counts() {
        let good = tokio::join!(after(&[(12, "")]), after(&[(12, "not permitted"), (12, "")]));
        assert_eq!(good, (Ok(()), Ok(())));
        let bad = tokio::join!(after(&[]), after(&[(11, "")]), after(&[(12, "not permitted")]));
        let silent =
            "spec.domain.cpu.realtime: virt-handler did not say within 1 s that virtual CPUs are realtime";
        let refused = "spec.domain.cpu.realtime: not within 1 s: not permitted";
        assert_eq!(bad, (Err(silent.to_owned()), Err(silent.to_owned()), Err(refused.to_owned())));
    }
}
