//! Post-copy at the source: the guest is handed over before all of its memory is sent.

use std::time::Duration;

use super::{Effect, LOOK, Outcome, Progress, QemuState, Recovery, Source, Stage};

/// How long a broken connection is replaced before the guest is given up. The target waits
/// [longer](crate::migration::target::ORPHANED).
pub const RECOVERY: Duration = Duration::from_secs(300);
/// Time for one attempt: QEMU connects, and both ends compare what has arrived.
const ATTEMPT: Duration = Duration::from_secs(30);
/// How long nothing may be sent before the connection counts as broken.
pub(super) const STALL: Duration = Duration::from_secs(30);
/// Pause before the second attempt. It doubles from one attempt to the next.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The state of post-copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PostCopy {
    /// Post-copy is not used.
    No,
    /// QEMU was ordered to start post-copy.
    Asked,
    /// The target has the guest, and fetches the missing memory.
    Began,
    /// The target has all of the memory.
    Done,
}

/// The connection between both ends in post-copy.
///
/// ```text
///  Whole ──broken──> Awaited ──rejoin──> Joining ──post-copy──> Whole
///                       ^                   │ broken, refused
///                       └────── Paused <────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// It works.
    Whole,
    /// It is broken, and the handler has to make a new one.
    Awaited,
    /// QEMU takes the new one. Answers that QEMU gave before it `accepted` it do not count.
    Joining { accepted: bool, until: Duration },
    /// The last attempt failed. The next one follows at this moment.
    Paused(Duration),
}

/// What is known about the connection, and what was done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Connection {
    link: Link,
    tries: u32,
    /// When the guest is given up. Unset once a new connection has sent anything.
    ends: Option<Duration>,
    /// What remained when the connection broke.
    left: u64,
    /// What had been sent, and since when nothing more was.
    sent: (u64, Duration),
}

impl Connection {
    pub(super) const fn new() -> Self {
        Self { link: Link::Whole, tries: 0, ends: None, left: 0, sent: (0, Duration::ZERO) }
    }

    /// Whether QEMU is queried: not while it is known to wait for a new connection.
    fn is_looked_at(&self) -> bool {
        matches!(self.link, Link::Whole | Link::Joining { accepted: true, .. })
    }

    fn wait(&mut self, now: Duration) {
        let factor = 1_u32.checked_shl(self.tries.saturating_sub(1)).unwrap_or(u32::MAX);
        let pause = if self.tries == 0 { Duration::ZERO } else { PAUSE.saturating_mul(factor) };
        self.link =
            if pause.is_zero() { Link::Awaited } else { Link::Paused(now + pause.min(LONGEST_PAUSE)) };
    }

    fn broke(&mut self, now: Duration, left: u64) {
        match self.link {
            Link::Whole => {
                self.ends.get_or_insert(now + RECOVERY);
                self.left = left;
                self.wait(now);
            }
            Link::Joining { accepted: true, .. } => self.wait(now),
            Link::Joining { accepted: false, .. } | Link::Awaited | Link::Paused(_) => {}
        }
    }

    /// A new connection counts once it has carried memory.
    fn report(&self) -> Option<Recovery> {
        let awaits_connection = self.link == Link::Awaited;
        (self.link != Link::Whole || self.ends.is_some())
            .then_some(Recovery { tries: self.tries, awaits_connection })
    }
}

impl Source {
    /// The guest was handed over and may have run on the target. The guest here is out of date and must not run.
    pub(super) fn lost(&mut self, why: &str) -> (Vec<Effect>, Outcome) {
        self.stage = Stage::Lost;
        (vec![], Outcome::Gone(self.why.get_or_insert_with(|| why.to_owned()).clone()))
    }

    /// Whether the target still fetches memory from here.
    #[must_use]
    pub fn is_fetched(&self) -> bool {
        self.stage == Stage::Sent && self.post_copy == PostCopy::Began
    }

    /// Whether a pause or post-copy already helps the migration to end.
    pub(super) fn is_assisted(&self) -> bool {
        self.paused || self.post_copy != PostCopy::No
    }

    /// QEMU has handed the guest over, or says so late: the connection is broken already.
    pub(super) fn hand_over(&mut self, now: Duration, state: &QemuState) -> (Vec<Effect>, Outcome) {
        (self.stage, self.post_copy) = (Stage::Sent, PostCopy::Began);
        self.look = now + LOOK;
        self.connection.sent = (self.progress.transferred, now);
        let _ = self.fetched(now, state);
        (vec![Effect::Look], Outcome::None)
    }

    /// QEMU's state while the target fetches memory from here.
    pub(super) fn fetched(&mut self, now: Duration, state: &QemuState) -> (Vec<Effect>, Outcome) {
        let connection = &mut self.connection;
        match state {
            QemuState::Completed => {
                (self.post_copy, connection.link) = (PostCopy::Done, Link::Whole);
                return (vec![Effect::Look], Outcome::None);
            }
            QemuState::PostCopy => {
                if connection.link != Link::Whole {
                    connection.sent.1 = now;
                }
                connection.link = Link::Whole;
            }
            QemuState::Broken => connection.broke(now, self.progress.remaining),
            // QEMU 10.0 cannot replace a connection that breaks after the last byte was written and before the target has
            // confirmed it.
            QemuState::Failed(why) => {
                let why = format!(
                    "the connection broke before the target had confirmed the last of the memory: {why}"
                );
                return self.lost(&why);
            }
            QemuState::Active | QemuState::PreSwitchover | QemuState::Cancelled => {}
        }
        (vec![], Outcome::None)
    }

    /// Figures of QEMU while the target fetches memory from here.
    pub(super) fn fetched_so_far(&mut self, now: Duration, progress: &Progress) {
        let connection = &mut self.connection;
        if progress.transferred > connection.sent.0 {
            connection.sent = (progress.transferred, now);
        }
        if connection.link == Link::Whole && progress.remaining < connection.left {
            (connection.ends, connection.tries) = (None, 0);
        }
    }

    /// There is a new connection.
    pub(super) fn rejoin(&mut self, now: Duration) -> Vec<Effect> {
        if !self.is_fetched() || self.connection.link != Link::Awaited {
            return vec![];
        }
        self.connection.tries = self.connection.tries.saturating_add(1);
        self.connection.link = Link::Joining { accepted: false, until: now + ATTEMPT };
        vec![Effect::Rejoin]
    }

    /// QEMU has the new connection.
    pub(super) fn rejoined(&mut self, now: Duration) {
        if let Link::Joining { accepted, .. } = &mut self.connection.link {
            *accepted = true;
            self.look = now + LOOK;
        }
    }

    /// QEMU did not take the new connection.
    pub(super) fn not_rejoined(&mut self, now: Duration) {
        if matches!(self.connection.link, Link::Joining { .. }) {
            self.connection.wait(now);
        }
    }

    /// Time has passed while the target fetches memory from here.
    pub(super) fn tick_fetched(&mut self, now: Duration) -> (Vec<Effect>, Outcome) {
        let is_broken = self.connection.link != Link::Whole;
        if is_broken && self.connection.ends.is_some_and(|ends| now >= ends) {
            let seconds = RECOVERY.as_secs();
            return self.lost(&format!("the connection broke, and no new one worked for {seconds} seconds"));
        }
        let mut effects = Vec::new();
        if self.connection.is_looked_at() && now >= self.look {
            self.look = now + LOOK;
            effects.push(Effect::Look);
        }
        let remains = self.progress.remaining > 0;
        let connection = &mut self.connection;
        match connection.link {
            // With nothing left to send, QEMU only waits for the target.
            Link::Whole if remains && now >= connection.sent.1 + STALL => {
                connection.sent.1 = now;
                effects.push(Effect::BreakOff);
            }
            Link::Joining { until, .. } if now >= until => {
                connection.link = Link::Joining { accepted: true, until: now + ATTEMPT };
                effects.push(Effect::BreakOff);
            }
            Link::Paused(again) if now >= again => connection.link = Link::Awaited,
            Link::Whole | Link::Awaited | Link::Joining { .. } | Link::Paused(_) => {}
        }
        (effects, Outcome::None)
    }

    /// The next moment at which time alone changes something while the target fetches memory from here.
    pub(super) fn wake_fetched(&self) -> Option<Duration> {
        let connection = &self.connection;
        let look = connection.is_looked_at().then_some(self.look);
        let step = match connection.link {
            Link::Whole | Link::Awaited => None,
            Link::Joining { until, .. } | Link::Paused(until) => Some(until),
        };
        let ends = connection.ends.filter(|_| connection.link != Link::Whole);
        look.into_iter().chain(step).chain(ends).min()
    }

    /// Whether a new connection is to be made now.
    #[must_use]
    pub fn awaits_connection(&self) -> bool {
        self.recovery().is_some_and(|recovery| recovery.awaits_connection)
    }

    /// What is done about a broken connection.
    pub(super) fn recovery(&self) -> Option<Recovery> {
        if self.is_fetched() { self.connection.report() } else { None }
    }
}
