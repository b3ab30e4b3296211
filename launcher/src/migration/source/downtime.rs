//! The downtime that is allowed at the switch, where it is raised while memory is sent.

use std::time::Duration;

use super::{Effect, Source, Stage};
use crate::migration::limits::Downtime;

impl Source {
    /// Raises the allowed downtime, if it is time for that.
    pub(super) fn raise_downtime(&mut self, now: Duration) -> Option<Effect> {
        let tuning = self.limits.tuning?;
        let Downtime { allowed, since } = self.downtime;
        let is_due = self.stage == Stage::Sending
            && self.progress.iteration >= tuning.start_after
            && now >= since.saturating_add(tuning.cooldown);
        let to = self.limits.raised(allowed).filter(|_| is_due)?;
        self.downtime = Downtime { allowed: to, since: now };
        Some(Effect::AllowDowntime { from: allowed, to })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::limits as usual;
    use super::super::{Event, Limits, Progress};
    use super::*;
    use crate::migration::DowntimeTuning;

    const S: Duration = Duration::from_secs(1);

    fn limits(tuning: DowntimeTuning) -> Limits {
        let usual = usual();
        Limits {
            completion: None,
            completion_per_gib: Duration::ZERO,
            progress: None,
            tuning: Some(tuning),
            ..usual
        }
    }

    #[test]
    fn the_allowed_downtime_is_raised_to_the_longest_one() {
        let initial = Duration::from_millis(100);
        let limits = limits(DowntimeTuning { initial, steps: 3, start_after: 2, cooldown: 10 * S });
        assert_eq!(limits.first_downtime(), initial);
        let mut source = Source::begin("m".to_owned(), limits, S).0;
        source.step(5 * S, Event::Begun);
        let mut raised = |second: u32, iteration: u64| {
            let progress = Progress { iteration, remaining: 9, total: 9, ..Progress::default() };
            source.step(second * S, Event::Progress(progress));
            let effects = source.tick(second * S).0;
            effects.into_iter().find_map(|effect| match effect {
                Effect::AllowDowntime { from, to } => Some((from.as_millis(), to.as_millis())),
                _ => None,
            })
        };
        assert_eq!(raised(14, 2), None);
        assert_eq!(raised(16, 1), None);
        assert_eq!(raised(16, 2), Some((100, 366)));
        assert_eq!(raised(25, 9), None);
        assert_eq!(raised(26, 9), Some((366, 632)));
        assert_eq!(raised(36, 9), Some((632, 898)));
        assert_eq!(raised(46, 9), Some((898, 900)));
        assert_eq!(raised(90, 9), None);
    }

    #[test]
    fn the_allowed_downtime_is_never_above_the_longest_one() {
        let limits = limits(DowntimeTuning { initial: 2 * S, steps: 1, start_after: 1, cooldown: S });
        assert_eq!((limits.first_downtime(), limits.downtime_ms()), (Duration::from_millis(900), 900));
        assert_eq!(limits.raised(limits.first_downtime()), None);
        let short = Limits { downtime: Duration::from_millis(3), ..limits };
        let many = DowntimeTuning { initial: Duration::ZERO, steps: 100, start_after: 1, cooldown: S };
        let short = Limits { tuning: Some(many), ..short };
        assert_eq!(short.first_downtime(), Duration::from_millis(1));
        assert_eq!(short.raised(short.first_downtime()), Some(Duration::from_millis(2)));
    }
}
