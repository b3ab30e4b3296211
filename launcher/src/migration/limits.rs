//! How fast and how long a guest is sent.

use std::time::Duration;

/// Bounds of one migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes per second; none: as fast as it goes.
    pub bandwidth: Option<u64>,
    /// How long the guest may stand still at the end.
    pub downtime: Duration,
    /// Its processors may be slowed down so that it writes less.
    pub auto_converge: bool,
    /// How long all of it may take; none: for ever.
    pub completion: Option<Duration>,
    /// How long it may make no progress; none: for ever.
    pub progress: Option<Duration>,
    /// At the end of that time the guest is stopped until all is sent, and nothing is given up.
    pub may_pause: bool,
    /// At the end of that time the guest is handed over, and the rest of its memory is sent while it runs on the target. The
    /// target can do that.
    pub post_copy: bool,
}

impl Limits {
    /// What QEMU is told where there is no limit: it takes nothing for that. More than any network has, and no more than QEMU
    /// takes.
    pub const UNLIMITED: u64 = 1 << 50;
    /// Longest downtime that QEMU takes.
    const LONGEST_DOWNTIME: Duration = Duration::from_secs(2000);

    /// The downtime in milliseconds, as QEMU takes it: never none, with which it would switch without a look at what the guest
    /// has written.
    #[must_use]
    pub fn downtime_ms(&self) -> u64 {
        let bounded = self.downtime.clamp(Duration::from_millis(1), Self::LONGEST_DOWNTIME);
        u64::try_from(bounded.as_millis()).unwrap_or(u64::MAX)
    }

    /// Bytes per second as QEMU takes them.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        self.bandwidth.filter(|bytes| *bytes > 0).map_or(Self::UNLIMITED, |bytes| bytes.min(Self::UNLIMITED))
    }
}
