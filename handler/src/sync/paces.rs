//! How often a task may act.

use std::time::Duration;

use super::plan::Step;
use crate::pace::Bucket;

/// How often a launcher may make its task act, by what it says or by falling silent. Guests in good order stay far below; one
/// whose launcher is not ours any more keeps neither the API server nor the node busy.
#[derive(Debug)]
pub(super) struct Paces {
    /// Writes of the status.
    pub(super) patches: Bucket,
    /// Events. Those beyond are left out.
    pub(super) events: Bucket,
    /// Connections that were made.
    pub(super) connections: Bucket,
    /// Other steps on the node, or with the launcher.
    pub(super) steps: Bucket,
}

impl Default for Paces {
    fn default() -> Self {
        Self {
            patches: Bucket::new(30, Duration::from_secs(2)),
            events: Bucket::new(25, Duration::from_secs(60)),
            connections: Bucket::new(5, Duration::from_secs(10)),
            steps: Bucket::new(40, Duration::from_secs(1)),
        }
    }
}

impl Paces {
    /// The bucket of a step that acts.
    pub(super) fn of(&mut self, step: &Step) -> Option<&mut Bucket> {
        match step {
            Step::Connect(_) => Some(&mut self.connections),
            Step::Prepare
            | Step::Sync
            | Step::RealTime { .. }
            | Step::Plug(_)
            | Step::Shutdown { .. }
            | Step::Await { .. }
            | Step::Claim { .. }
            | Step::Move(_)
            | Step::ReportFailedPings(_) => Some(&mut self.steps),
            Step::Wait | Step::Report | Step::Disconnect => None,
        }
    }
}
