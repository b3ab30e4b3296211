//! Limits on the speed and duration of a migration.

use std::time::Duration;

/// The downtime that is allowed at the switch, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Downtime {
    pub(super) allowed: Duration,
    pub(super) since: Duration,
}

/// Limits of one migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes per second; `None` means unlimited.
    pub bandwidth: Option<u64>,
    /// How long the guest may be paused at the end.
    pub downtime: Duration,
    /// Whether its CPUs may be slowed down so that it writes less.
    pub auto_converge: bool,
    /// Limit on the total time; `None` means unlimited.
    pub completion: Option<Duration>,
    /// How much longer the total time is for each GiB of disks that are copied.
    pub completion_per_gib: Duration,
    /// How long it may make no progress; `None` means forever.
    pub progress: Option<Duration>,
    /// Whether the guest is paused at the end of the total time, until everything is sent, instead of giving
    /// up.
    pub may_pause: bool,
    /// Whether the guest is handed over at the end of the total time. The rest of its memory is then sent while
    /// it runs on the target. Only set if the target supports this.
    pub post_copy: bool,
    /// How the allowed downtime is raised while memory is sent. `None` means that the longest one is allowed from the
    /// beginning.
    pub tuning: Option<DowntimeTuning>,
}

/// How the allowed downtime is raised while memory is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DowntimeTuning {
    /// What is allowed at the beginning.
    pub initial: Duration,
    /// In how many equal steps it reaches the longest downtime.
    pub steps: u32,
    /// The pass over the memory from which on it is raised.
    pub start_after: u64,
    /// The least time between two steps.
    pub cooldown: Duration,
}

/// What QEMU allows if nothing is configured.
pub const QEMUS_DOWNTIME: Duration = Duration::from_millis(300);

/// Whole milliseconds.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Limits {
    /// QEMU's bandwidth without a limit, because QEMU has no value for that. It is more than any network has,
    /// and not more than QEMU accepts.
    pub const UNLIMITED: u64 = 1 << 50;
    /// Longest downtime that QEMU accepts.
    const LONGEST_DOWNTIME: Duration = Duration::from_secs(2000);
    /// Shortest downtime: without any, QEMU would switch without checking what the guest has written.
    const SHORTEST_DOWNTIME: Duration = Duration::from_millis(1);

    /// The limits of a migration that also copies this many bytes of disks.
    #[must_use]
    pub fn with_disks(self, bytes: u64) -> Self {
        let more = self.completion_per_gib.as_millis().saturating_mul(bytes.into()) >> 30;
        let more = Duration::from_millis(u64::try_from(more).unwrap_or(u64::MAX));
        Self { completion: self.completion.map(|limit| limit.saturating_add(more)), ..self }
    }

    /// The longest downtime in milliseconds, as QEMU accepts it.
    #[must_use]
    pub fn downtime_ms(&self) -> u64 {
        milliseconds(self.longest_downtime())
    }

    fn longest_downtime(&self) -> Duration {
        self.downtime.clamp(Self::SHORTEST_DOWNTIME, Self::LONGEST_DOWNTIME)
    }

    /// The downtime that is allowed at the beginning.
    #[must_use]
    pub fn first_downtime(&self) -> Duration {
        let longest = self.longest_downtime();
        self.tuning.map_or(longest, |tuning| tuning.initial.clamp(Self::SHORTEST_DOWNTIME, longest))
    }

    /// The downtime that is allowed one step after this one; `None` if it is not raised any more.
    #[must_use]
    pub fn raised(&self, allowed: Duration) -> Option<Duration> {
        let steps = self.tuning?.steps.max(1);
        let longest = self.longest_downtime();
        let step = milliseconds(longest.saturating_sub(self.first_downtime())) / u64::from(steps);
        let next = allowed.saturating_add(Duration::from_millis(step.max(1))).min(longest);
        (next > allowed).then_some(next)
    }

    /// Bytes per second for each of so many copies of disks, which are made at the same time, as QEMU expects them: 0 means
    /// unlimited.
    #[must_use]
    pub fn of_each_copy(&self, copies: usize) -> u64 {
        let copies = u64::try_from(copies).unwrap_or(u64::MAX).max(1);
        self.bandwidth.filter(|bytes| *bytes > 0).map_or(0, |bytes| (bytes / copies).max(1))
    }

    /// Bytes per second, as QEMU expects them.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        self.bandwidth.filter(|bytes| *bytes > 0).map_or(Self::UNLIMITED, |bytes| bytes.min(Self::UNLIMITED))
    }
}
