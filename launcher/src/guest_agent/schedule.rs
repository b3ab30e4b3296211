//! When each topic is queried. Pure: moments are time since the launcher started.
//!
//! Each topic has KubeVirt's interval. A topic is queried as soon as the agent has connected, again after ten
//! seconds, and then with doubled delays until the interval is reached, because a booting guest reports more
//! with time. The same delays begin again for a topic of which something has changed.

use std::time::Duration;

/// First delay after the agent has connected.
const FIRST: Duration = Duration::from_secs(10);

/// How long the guest gets to notice a change before the agent is asked about it.
const NOTICE: Duration = Duration::from_secs(2);

/// A topic of queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// The agent itself.
    Version,
    /// Operating system, host name, time zone, network interfaces.
    System,
    /// Mounted file systems.
    FileSystems,
    /// Users who are logged in.
    Users,
    /// Whether file systems are frozen.
    Freeze,
    /// Load of the guest.
    Load,
}

impl Topic {
    /// All topics, in the order of the queries.
    pub const ALL: [Self; 6] =
        [Self::Freeze, Self::System, Self::Version, Self::FileSystems, Self::Users, Self::Load];

    fn interval(self) -> Duration {
        Duration::from_secs(match self {
            Self::Version | Self::FileSystems => 300,
            Self::System => 120,
            Self::Users => 10,
            Self::Load => 30,
            Self::Freeze => 5,
        })
    }

    /// Whether the topic can be queried while file systems are frozen; the agent answers nothing else then.
    fn while_frozen(self) -> bool {
        self == Self::Freeze
    }
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    topic: Topic,
    next: Duration,
    wait: Duration,
}

/// The next turn of each topic.
#[derive(Debug, Clone)]
pub struct Schedule(Vec<Turn>);

impl Schedule {
    /// A schedule from the moment at which the agent connected.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        let turn = |topic: Topic| Turn { topic, next: now, wait: FIRST.min(topic.interval()) };
        Self(Topic::ALL.map(turn).to_vec())
    }

    /// Topics whose turn it is.
    #[must_use]
    pub fn due(&self, now: Duration, frozen: bool) -> Vec<Topic> {
        self.open(frozen).filter(|turn| turn.next <= now).map(|turn| turn.topic).collect()
    }

    /// When the next one is due.
    #[must_use]
    pub fn next(&self, frozen: bool) -> Option<Duration> {
        self.open(frozen).map(|turn| turn.next).min()
    }

    fn open(&self, frozen: bool) -> impl Iterator<Item = &Turn> {
        self.0.iter().filter(move |turn| !frozen || turn.topic.while_frozen())
    }

    /// Has a topic queried soon, and then as often as after the agent has connected.
    pub fn again(&mut self, topic: Topic, now: Duration) {
        for turn in self.0.iter_mut().filter(|turn| turn.topic == topic) {
            turn.next = turn.next.min(now + NOTICE);
            turn.wait = FIRST.min(topic.interval());
        }
    }

    /// Records that the topic was queried, whatever the result.
    pub fn asked(&mut self, topic: Topic, now: Duration) {
        for turn in self.0.iter_mut().filter(|turn| turn.topic == topic) {
            turn.next = now + turn.wait;
            turn.wait = (turn.wait * 2).min(topic.interval());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Moments at which a topic is queried within ten minutes.
    fn moments(wanted: Topic) -> Vec<u64> {
        let mut schedule = Schedule::new(s(0));
        let mut moments = Vec::new();
        while let Some(now) = schedule.next(false).filter(|now| *now <= s(600)) {
            for topic in schedule.due(now, false) {
                schedule.asked(topic, now);
                if topic == wanted {
                    moments.push(now.as_secs());
                }
            }
        }
        moments
    }

    #[test]
    fn often_at_first_and_then_at_its_interval() {
        assert_eq!(moments(Topic::System), [0, 10, 30, 70, 150, 270, 390, 510]);
        assert_eq!(moments(Topic::Version), [0, 10, 30, 70, 150, 310]);
        assert_eq!(moments(Topic::Freeze)[..4], [0, 5, 10, 15]);
        assert_eq!(moments(Topic::Users).len(), 61);
    }

    #[test]
    fn what_has_changed_is_asked_for_soon_and_then_often_at_first() {
        let mut schedule = Schedule::new(s(0));
        for at in [0, 10, 30, 70] {
            schedule.asked(Topic::System, s(at));
        }
        let due = |schedule: &Schedule, at: u64| schedule.due(s(at), false).contains(&Topic::System);
        schedule.again(Topic::System, s(80));
        assert_eq!([81, 82].map(|at| due(&schedule, at)), [false, true]);
        schedule.asked(Topic::System, s(82));
        assert_eq!([91, 92].map(|at| due(&schedule, at)), [false, true]);
        // What is due earlier is not put off.
        schedule.again(Topic::System, s(91));
        assert!(due(&schedule, 92));
    }

    #[test]
    fn a_frozen_guest_is_asked_only_whether_it_is() {
        let mut schedule = Schedule::new(s(0));
        assert_eq!(schedule.due(s(0), true), [Topic::Freeze]);
        schedule.asked(Topic::Freeze, s(0));
        assert_eq!((schedule.due(s(0), true), schedule.next(true)), (vec![], Some(s(5))));
        assert_eq!(schedule.due(s(0), false).len(), 5);
    }
}
