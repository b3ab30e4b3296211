//! Freezing and thawing of the guest's file systems, with the time after which they are thawed in any case.

use std::time::Duration;

use barevirt_api::freeze::{DEFAULT as THAW_AFTER, LONGEST};
use barevirt_qmp::Error;
use barevirt_qmp::qapi::qga;

use super::{ANSWER, NotDone, Task, Timer, is_frozen};

/// How long freezing may take: everything that was written has to reach the disks first.
const FREEZE: Duration = Duration::from_secs(40);
/// How long thawing may take.
const THAW: Duration = Duration::from_secs(30);

impl Task {
    pub(super) fn saw_frozen(&mut self, frozen: bool) {
        self.known.frozen = Some(frozen);
        if !frozen {
            self.thaw = None;
        } else if self.thaw.is_none() {
            // An agent that came back knows that its file systems are frozen: they are not left so.
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
        // Before the command: when its answer is lost they may be frozen all the same.
        self.thaw_in(if thaw_after.is_zero() { THAW_AFTER } else { thaw_after.min(LONGEST) });
        match self.ask(qga::guest_fsfreeze_freeze {}, FREEZE).await {
            Ok(count) => {
                tracing::info!(%count, "file systems of the guest are frozen");
                self.known.frozen = Some(true);
                self.publish();
                Ok(())
            }
            Err(error @ Error::Refused { .. }) => {
                // The agent has thawed what it had frozen by then.
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
        // Hooks in the guest run with a thaw: one that is not needed is not done.
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
