//! Freezing and thawing of the guest's file systems, with the time after which they are thawed in any case.

use std::time::Duration;

use barevirt_api::freeze::{DEFAULT as THAW_AFTER, LONGEST};
use barevirt_qmp::Error;
use barevirt_qmp::qapi::qga;

use super::{ANSWER, NotDone, Task, Timer, is_frozen};

/// Time limit for freezing: all written data must reach the disks first.
const FREEZE: Duration = Duration::from_secs(40);
/// Time limit for thawing.
const THAW: Duration = Duration::from_secs(30);

impl Task {
    pub(super) fn saw_frozen(&mut self, frozen: bool) {
        self.known.frozen = Some(frozen);
        if !frozen {
            self.thaw = None;
        } else if self.thaw.is_none() {
            // An agent that has reconnected knows that its file systems are frozen. They must not stay so
            // forever.
            self.thaw_in(THAW_AFTER);
        }
    }

    fn thaw_in(&mut self, after: Duration) {
        self.thaw = Some(Timer { at: self.now() + after, wait: Duration::from_secs(1) });
    }

    pub(super) async fn freeze(&mut self, thaw_after: Duration) -> Result<(), NotDone> {
        self.reachable()?;
        let status = self.ask(qga::guest_fsfreeze_status {}, ANSWER).await?;
        self.saw_frozen(is_frozen(status));
        if self.is_frozen() {
            return Ok(());
        }
        // Before the command: if its answer is lost, the file systems may still be frozen.
        self.thaw_in(if thaw_after.is_zero() { THAW_AFTER } else { thaw_after.min(LONGEST) });
        match self.ask(qga::guest_fsfreeze_freeze {}, FREEZE).await {
            Ok(count) => {
                tracing::info!(%count, "file systems of the guest are frozen");
                self.known.frozen = Some(true);
                self.publish();
                Ok(())
            }
            Err(error @ Error::Refused { .. }) => {
                // The agent has thawed the file systems that it had frozen until then.
                self.thaw = None;
                Err(error.into())
            }
            Err(error) => {
                self.thaw_in(Duration::ZERO);
                Err(error.into())
            }
        }
    }

    pub(super) async fn thaw_now(&mut self) -> Result<(), NotDone> {
        // A thaw runs hooks in the guest, so an unneeded one is avoided.
        let status = self.ask(qga::guest_fsfreeze_status {}, ANSWER).await;
        if !status.is_ok_and(|status| !is_frozen(status)) {
            let count = self.ask(qga::guest_fsfreeze_thaw {}, THAW).await?;
            tracing::info!(%count, "file systems of the guest are thawed");
        }
        self.saw_frozen(false);
        self.publish();
        Ok(())
    }
}
