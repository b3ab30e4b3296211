//! The copies of disks, which come before the memory.

use std::time::Duration;

use super::{Effect, Outcome, Progress, SOON, Source, Stage};
use crate::migration::bottleneck::CopySpeed;

/// How long a measurement of the speed takes. QEMU copies in bursts.
const MEASURED: Duration = Duration::from_secs(3);

/// Measures the speed of the copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Speedometer {
    /// The result of the last measurement.
    pub(super) speed: CopySpeed,
    /// When the present one began, and what was copied and in all to be copied then. The first one begins once something is
    /// copied: before that, QEMU still finds out how much there is.
    from: Option<(Duration, u64, u64)>,
}

impl Speedometer {
    fn seen(&mut self, now: Duration, copied: u64, total: u64) {
        let Some((since, copied_before, total_before)) = self.from else {
            self.from = (copied > 0).then_some((now, copied, total));
            return;
        };
        let passed = now.saturating_sub(since);
        if passed < MEASURED {
            return;
        }
        let per_second = |bytes: u64| {
            u64::try_from(u128::from(bytes) * 1000 / passed.as_millis().max(1)).unwrap_or(u64::MAX)
        };
        // QEMU counts each write of the guest to what was copied before in both figures.
        let written = total.saturating_sub(total_before);
        let all = copied.saturating_sub(copied_before);
        self.speed =
            CopySpeed { copied: per_second(all.saturating_sub(written)), written: per_second(written) };
        self.from = Some((now, copied, total));
    }
}

impl Source {
    /// QEMU has begun to copy this many bytes of disks.
    pub(super) fn copies(&mut self, now: Duration, bytes: u64) -> (Vec<Effect>, Outcome) {
        if self.stage != Stage::Preparing {
            return (vec![], Outcome::None);
        }
        (self.stage, self.look) = (Stage::Copying, now + SOON);
        (self.least, self.began) = ((u64::MAX, now), Some(now));
        self.limits = self.limits.with_disks(bytes);
        // It was given up before it had begun.
        self.why.clone().map_or((vec![], Outcome::None), |why| self.is_over(why))
    }

    /// Figures of the copies.
    pub(super) fn copied(&mut self, now: Duration, remaining: u64, total: u64, done: bool) -> Vec<Effect> {
        if self.stage != Stage::Copying {
            return vec![];
        }
        let transferred = total.saturating_sub(remaining);
        self.progress = Progress { remaining, total, transferred, ..self.progress };
        self.speedometer.seen(now, transferred, total);
        if remaining < self.least.0 {
            self.least.1 = now;
        }
        // Nothing remains while QEMU still finds out how much of a disk there is to copy.
        self.least.0 = remaining;
        if !done {
            return vec![];
        }
        self.stage = Stage::Preparing;
        vec![Effect::SendMemory]
    }
}
