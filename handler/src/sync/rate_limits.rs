//! Rate limits of a task.

use std::time::Duration;

use barevirt_protocol::pace::Bucket;

use super::plan::Step;

/// Rate limits for actions that a launcher can cause, by its reports or by falling silent. Normal guests stay
/// far below them. A launcher that an attacker controls can overload neither the API server nor the node.
#[derive(Debug)]
pub(super) struct RateLimits {
    /// Writes of the status.
    pub(super) patches: Bucket,
    /// Events. Further ones are dropped.
    pub(super) events: Bucket,
    /// Successful connections.
    pub(super) connections: Bucket,
    /// Other steps on the node, or with the launcher.
    pub(super) steps: Bucket,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            patches: Bucket::new(30, Duration::from_secs(2)),
            events: Bucket::new(25, Duration::from_secs(60)),
            connections: Bucket::new(5, Duration::from_secs(10)),
            steps: Bucket::new(40, Duration::from_secs(1)),
        }
    }
}

impl RateLimits {
    /// The bucket for a step that acts.
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
            | Step::Orphan { .. }
            | Step::Abandon { .. }
            | Step::Move(_)
            | Step::ReportFailedPings(_) => Some(&mut self.steps),
            Step::Wait | Step::Report | Step::Disconnect => None,
        }
    }
}
