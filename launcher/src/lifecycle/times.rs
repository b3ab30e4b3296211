//! How long things may take.

use std::time::Duration;

/// How long to wait for the guest to react before the power button is pressed again.
pub const PRESS_AGAIN: Duration = Duration::from_secs(3);
/// How long QEMU may take to leave after a guest shut down by itself.
pub const LEAVE: Duration = Duration::from_secs(60);
/// The same for a guest that was told to, beyond its grace period.
pub const LEAVE_ASKED: Duration = Duration::from_secs(3);
/// How long `quit`, and then SIGTERM, may take. Both fit in the ten seconds that the pod has beyond the guest's
/// grace period.
pub const FORCE: Duration = Duration::from_secs(3);
/// The same where no grace was given, and the pod has a second in all.
pub const FORCE_AT_ONCE: Duration = Duration::from_millis(300);

/// When a guest whose disk failed is let go again for the first time; doubled each time, up to [`RETRY_LONGEST`].
pub const RETRY: Duration = Duration::from_secs(1);
/// Longest wait between two tries.
pub const RETRY_LONGEST: Duration = Duration::from_secs(10);
/// How long it has to run after such a try until the storage counts as well.
pub const STEADY: Duration = Duration::from_secs(2);
/// How long a guest may take to shut down for a soft reboot. A power-off after that is the guest's own wish.
pub const REBOOT: Duration = Duration::from_secs(300);
/// How long the reset after it may take.
pub const RESET: Duration = Duration::from_secs(30);
