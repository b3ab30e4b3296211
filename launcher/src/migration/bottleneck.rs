//! Explains what prevents a migration from completing, with figures. Pure.

use super::event::{Bottleneck, Progress, Slow};
use super::limits::Limits;

/// What limits the memory transfer of a migration, with advice; how much is left if nothing does. `None` while QEMU has
/// no figures yet.
#[must_use]
pub(super) fn bottleneck(progress: &Progress, limits: &Limits) -> Option<String> {
    let Progress { rate, remaining, .. } = *progress;
    if rate == 0 {
        return None;
    }
    let on_its_way = || format!("{} MiB/s are sent and {} MiB are left", mib(rate), mib(remaining));
    Some(slow(progress, limits).map_or_else(on_its_way, |slow| slow.text))
}

/// What keeps the memory transfer of a migration from completing, with advice; `None` if nothing is known to.
///
/// If the guest writes faster than can be sent, the migration never completes. Otherwise it completes when
/// the rest fits into the allowed downtime.
#[must_use]
pub(super) fn slow(progress: &Progress, limits: &Limits) -> Option<Slow> {
    let Progress { rate, dirty_rate, expected_downtime, .. } = *progress;
    if rate == 0 {
        return None;
    }
    let (sent, written) = (mib(rate), mib(dirty_rate));
    let (bottleneck, text) = if let (Some(allowed), true) = (used_up(rate, limits), dirty_rate >= rate) {
        let text = format!(
            "limited by bandwidth: the guest writes {written} MiB/s and {sent} of the {} MiB/s of bandwidthPerMigration are sent; \
             a higher one helps",
            mib(allowed)
        );
        (Bottleneck::Bandwidth, text)
    } else if dirty_rate >= rate {
        let text = format!(
            "limited by the dirty rate: the guest writes {written} MiB/s and the network takes {sent} MiB/s; {}",
            way_out(limits)
        );
        (Bottleneck::DirtyRate, text)
    } else if expected_downtime > limits.downtime {
        let text = format!(
            "limited by the allowed downtime: the guest would stand still for {} ms, and maxDowntimeMs is {}; a higher one helps",
            expected_downtime.as_millis(),
            limits.downtime_ms()
        );
        (Bottleneck::Downtime, text)
    } else {
        return None;
    };
    Some(Slow { bottleneck, text })
}

/// What becomes of a guest that writes too much, or else which setting helps.
fn way_out(limits: &Limits) -> String {
    let then = match (limits.post_copy, limits.may_pause, limits.auto_converge) {
        (true, _, _) => "it continues on the target, which fetches the rest",
        (false, true, _) => "it is paused until everything is sent",
        (false, false, true) => return "allowWorkloadDisruption helps".to_owned(),
        (false, false, false) => return "allowAutoConverge helps".to_owned(),
    };
    match limits.completion {
        Some(limit) => format!("after {} s (completionTimeoutPerGiB) {then}", limit.as_secs()),
        None => "there is no limit on its time".to_owned(),
    }
}

/// Speed of the copies of disks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CopySpeed {
    /// Bytes per second that are copied for the first time.
    pub(super) copied: u64,
    /// Bytes per second that the guest writes to what was copied before. They are written on both sides.
    pub(super) written: u64,
}

/// What limits the copies of a migration's disks, of which so many bytes remain; `None` while nothing is copied.
///
/// They always complete, because nothing is copied twice. But what the guest writes comes first.
#[must_use]
pub(super) fn of_copies(speed: CopySpeed, remaining: u64, limits: &Limits) -> Option<String> {
    let CopySpeed { copied, written } = speed;
    let (sent, left) = (mib(copied), mib(remaining));
    if copied == 0 && written == 0 {
        return None;
    }
    Some(if let Some(allowed) = used_up(copied, limits) {
        format!(
            "limited by bandwidth: {sent} of the {} MiB/s of bandwidthPerMigration are copied and {left} MiB of disks are left",
            mib(allowed)
        )
    } else if written >= copied {
        format!(
            "limited by the guest's writes: it writes {} MiB/s to its disks, {sent} MiB/s more are copied and {left} MiB are left",
            mib(written)
        )
    } else {
        format!("{sent} MiB/s of disks are copied and {left} MiB are left")
    })
}

/// The allowed bandwidth, if so many bytes per second use it up.
fn used_up(rate: u64, limits: &Limits) -> Option<u64> {
    limits.bandwidth.filter(|allowed| *allowed > 0 && rate >= allowed / 10 * 9)
}

/// Bytes as MiB with one decimal.
fn mib(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn limits(bandwidth: Option<u64>, auto_converge: bool) -> Limits {
        Limits {
            bandwidth,
            downtime: Duration::from_millis(900),
            auto_converge,
            completion: None,
            completion_per_gib: Duration::ZERO,
            progress: None,
            may_pause: false,
            post_copy: false,
            tuning: None,
        }
    }

    fn progress(rate: u64, dirty_rate: u64, downtime: u64) -> Progress {
        let expected_downtime = Duration::from_millis(downtime);
        Progress { rate, dirty_rate, expected_downtime, remaining: 3 << 20, ..Progress::default() }
    }

    #[test]
    fn each_bottleneck_is_reported_with_its_figures() {
        const MIB: u64 = 1 << 20;
        let text = |progress: Progress, limits: Limits| bottleneck(&progress, &limits).unwrap_or_default();
        assert_eq!(
            text(progress(63 * MIB, 80 * MIB, 0), limits(Some(64 * MIB), false)),
            "limited by bandwidth: the guest writes 80.0 MiB/s and 63.0 of the 64.0 MiB/s of bandwidthPerMigration are sent; \
             a higher one helps"
        );
        assert!(
            text(progress(MIB, 2 * MIB, 0), limits(Some(64 * MIB), false))
                .ends_with("allowAutoConverge helps")
        );
        assert!(text(progress(MIB, MIB, 0), limits(None, true)).ends_with("allowWorkloadDisruption helps"));
        for (post_copy, may_pause, then) in [
            (false, true, "; after 300 s (completionTimeoutPerGiB) it is paused until everything is sent"),
            (
                true,
                true,
                "; after 300 s (completionTimeoutPerGiB) it continues on the target, which fetches the rest",
            ),
        ] {
            let completion = Some(Duration::from_secs(300));
            for auto_converge in [false, true] {
                let limits = Limits { post_copy, may_pause, completion, ..limits(None, auto_converge) };
                let told = text(progress(MIB, MIB, 0), limits);
                assert!(told.ends_with(then) && !told.contains("helps"), "{told}");
                let told = text(progress(MIB, MIB, 0), Limits { completion: None, ..limits });
                assert!(told.ends_with("there is no limit on its time"), "{told}");
            }
        }
        assert_eq!(
            text(progress(8 * MIB, MIB / 2, 2500), limits(Some(0), true)),
            "limited by the allowed downtime: the guest would stand still for 2500 ms, and maxDowntimeMs is 900; \
             a higher one helps"
        );
        assert_eq!(
            text(progress(8 * MIB, 0, 5), limits(None, true)),
            "8.0 MiB/s are sent and 3.0 MiB are left"
        );
        assert_eq!(bottleneck(&progress(0, 9, 9), &limits(None, true)), None);
    }

    #[test]
    fn each_bottleneck_of_disk_copies_is_reported_with_its_figures() {
        const MIB: u64 = 1 << 20;
        let text = |copied: u64, written: u64, bandwidth| {
            let speed = CopySpeed { copied: copied * MIB, written: written * MIB };
            of_copies(speed, 5 * MIB, &limits(bandwidth, false)).unwrap_or_default()
        };
        assert_eq!(
            text(63, 80, Some(64 * MIB)),
            "limited by bandwidth: 63.0 of the 64.0 MiB/s of bandwidthPerMigration are copied and 5.0 MiB of disks are left"
        );
        assert_eq!(
            text(2, 8, Some(64 * MIB)),
            "limited by the guest's writes: it writes 8.0 MiB/s to its disks, 2.0 MiB/s more are copied and 5.0 MiB are left"
        );
        assert_eq!(text(8, 1, Some(0)), "8.0 MiB/s of disks are copied and 5.0 MiB are left");
        assert_eq!(text(0, 0, None), "");
    }
}
