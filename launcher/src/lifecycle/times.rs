//! Time limits and intervals.

use std::time::Duration;

/// How long the first `cont` may take: it opens images for writing and may wait for storage.
pub const CONTINUE: Duration = Duration::from_secs(60);

/// Delay before the power button is pressed again.
pub const PRESS_AGAIN: Duration = Duration::from_secs(3);
/// How long QEMU may take to end after a guest has shut down by itself.
pub const LEAVE: Duration = Duration::from_secs(60);
/// The same for a guest that was asked to shut down, beyond its grace period.
pub const LEAVE_ASKED: Duration = Duration::from_secs(3);
/// How long `quit`, and then SIGTERM, may take. Both fit in the ten seconds that the pod has beyond the guest's
/// grace period.
pub const FORCE: Duration = Duration::from_secs(3);
/// The same without a grace period, when the pod has a second in total.
pub const FORCE_AT_ONCE: Duration = Duration::from_millis(300);

/// Delay before a guest whose disk failed is resumed for the first time; doubled each time, up to
/// [`RETRY_LONGEST`].
pub const RETRY: Duration = Duration::from_secs(1);
/// Longest delay between two attempts.
pub const RETRY_LONGEST: Duration = Duration::from_secs(10);
/// How long the guest has to run after such an attempt before its storage counts as healthy.
pub const STEADY: Duration = Duration::from_secs(2);
/// How long a guest may take to shut down for a soft reboot. A later power-off is the guest's own decision.
pub const REBOOT: Duration = Duration::from_secs(300);
/// How long the reset after the shutdown may take.
pub const RESET: Duration = Duration::from_secs(30);
