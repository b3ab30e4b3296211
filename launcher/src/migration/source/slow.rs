//! What limits a migration that is not complete after half of its time.

use std::time::Duration;

use super::{Source, Stage, bottleneck};

impl Source {
    /// Notes what limits the memory transfer, if half of the total time has passed. The note stays as it is: the instance's
    /// status has it, and must not change with each figure.
    pub(super) fn note_slowness(&mut self, now: Duration) {
        let is_due = self.stage == Stage::Sending && !self.is_assisted() && self.is_half_over(now);
        if is_due && self.slow.is_none() {
            self.slow = bottleneck::slow(&self.progress, &self.limits);
        }
    }

    fn is_half_over(&self, now: Duration) -> bool {
        let times = self.began.zip(self.limits.completion);
        times.is_some_and(|(began, limit)| now >= began.saturating_add(limit / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{begun, limits as usual};
    use super::super::{Event, Limits, Progress, QemuState};
    use super::*;
    use crate::migration::{Bottleneck, Slow};

    const S: Duration = Duration::from_secs(1);
    const MIB: u64 = 1 << 20;

    fn limits() -> Limits {
        Limits { completion_per_gib: Duration::ZERO, progress: None, may_pause: true, ..usual() }
    }

    /// What is reported after these MiB/s were sent and written.
    fn look(source: &mut Source, second: u32, sent: u64, written: u64) -> Option<Slow> {
        let (rate, dirty_rate) = (sent * MIB, written * MIB);
        let progress = Progress { remaining: 9, total: 9, rate, dirty_rate, ..Progress::default() };
        source.step(second * S, Event::Progress(progress));
        source.tick(second * S);
        source.report(false).slow
    }

    #[test]
    fn what_limits_it_is_reported_once_after_half_of_its_time() {
        let mut source = begun(limits());
        assert_eq!(look(&mut source, 5, 1, 2), None);
        // Nothing limits it now.
        assert_eq!(look(&mut source, 6, 2, 1), None);
        let told = look(&mut source, 7, 1, 2);
        let slow = told.clone().unwrap();
        assert_eq!(slow.bottleneck, Bottleneck::DirtyRate);
        assert!(slow.text.contains("writes 2.0 MiB/s and the network takes 1.0 MiB/s"), "{}", slow.text);
        // Neither other figures nor what follows changes it.
        assert_eq!(look(&mut source, 8, 3, 4), told);
        assert_eq!(look(&mut source, 9, 3, 1), told);
        source.step(9 * S, Event::QemuState(QemuState::PreSwitchover));
        source.step(9 * S, Event::QemuState(QemuState::Completed));
        assert_eq!((source.stage, source.report(false).slow), (Stage::Sent, told));
    }

    #[test]
    fn each_bottleneck_has_its_word() {
        let limited = Limits { bandwidth: Some(MIB), ..limits() };
        let word = |told: Option<Slow>| told.map(|slow| slow.bottleneck);
        assert_eq!(word(look(&mut begun(limited), 6, 1, 2)), Some(Bottleneck::Bandwidth));
        let mut source = begun(limits());
        let expected_downtime = 2 * S;
        let progress = Progress { rate: MIB, expected_downtime, ..Progress::default() };
        source.step(6 * S, Event::Progress(progress));
        source.tick(6 * S);
        assert_eq!(word(source.report(false).slow), Some(Bottleneck::Downtime));
    }

    #[test]
    fn a_migration_that_has_help_or_all_the_time_is_not_slow() {
        let mut source = begun(limits());
        // It has no figures before its time is up. Then the guest is paused.
        source.tick(11 * S);
        assert_eq!((source.report(false).paused, look(&mut source, 12, 1, 2)), (true, None));
        let mut source = begun(Limits { completion: None, ..limits() });
        assert_eq!(look(&mut source, 99, 1, 2), None);
        // Disks are copied, and no memory is sent yet.
        let mut source = Source::begin("m".to_owned(), limits(), S).0;
        source.step(S, Event::Copies { bytes: 0 });
        assert_eq!(look(&mut source, 8, 1, 2), None);
    }
}
