//! How fast disks are copied.

use std::time::Duration;

use super::bottleneck::CopySpeed;

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
    /// Notes how much was copied, and how much is to be copied in all.
    pub(super) fn seen(&mut self, now: Duration, copied: u64, total: u64) {
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
