//! A guest that moves: away from here ([`source`]), or to here ([`target`]). Pure, but for what talks to QEMU ([`qemu`], [`disks`])
//! and connects it ([`connections`], [`relay`]).
//!
//! ```text
//!   source:  Preparing, Copying, Sending ──pre-switchover──> Switching ──completed──> Sent ──verdict──> Left
//!               │                            │                      └───verdict──> Over, the guest runs here
//!               └── failed, cancelled ───────┴──> Over, the guest runs here
//!
//!   target:  Awaited ──key, connection──> Receiving ──completed──> Received ──go──> Arrived
//! ```
//!
//! In post-copy `postcopy-active` stands in the place of `completed`, and the target reports `Arrived` when it has all of the
//! memory. From there on the guest never runs at the source again: a verdict that it did not go ends it (`Lost`).
//!
//! Never two, never none. QEMU on the target is started so that it never lets an arrived guest go by itself. QEMU on the source
//! lets its guest go on by itself after every failure, up to the moment at which it says `completed`, and never after that.
//! So `completed` is where the guest's only owner changes: whoever says go to the target has seen it, and from there on the
//! source stands still until somebody knows the outcome. That is the handler, from the instance's status: the target has the
//! guest (`Left`), or has lost it for certain, and the guest goes on here.

mod bottleneck;
pub mod connections;
pub mod disks;
mod event;
pub mod limits;
pub mod qemu;
pub mod relay;
pub mod source;
pub mod target;

use std::time::Duration;

pub use connections::Connections;
pub use event::{Effect, Event, Outcome, Progress, Said, State, Told};
pub use limits::Limits;
pub use source::Source;
pub use target::Target;

/// Whether the guest moves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Moving {
    /// It started here, and stays.
    #[default]
    Stays,
    /// It comes, or came, from another node.
    Comes(Target),
    /// It goes to another node, or was to.
    Goes(Box<Source>),
}

impl Moving {
    /// One step. What it means for the guest comes with it.
    pub fn step(&mut self, now: Duration, event: Event) -> (Vec<Effect>, Outcome) {
        if let Event::Send { uid, limits } = event {
            let (source, effects) = Source::begin(uid, limits, now);
            *self = Self::Goes(Box::new(source));
            return (effects, Outcome::None);
        }
        match self {
            Self::Stays => (vec![], Outcome::None),
            Self::Comes(target) => target.step(event),
            Self::Goes(source) => source.step(now, event),
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> (Vec<Effect>, Outcome) {
        match self {
            Self::Goes(source) => source.tick(now),
            Self::Stays | Self::Comes(_) => (vec![], Outcome::None),
        }
    }

    /// When time by itself changes something.
    #[must_use]
    pub fn wake(&self) -> Option<Duration> {
        match self {
            Self::Goes(source) => source.wake(),
            Self::Stays | Self::Comes(_) => None,
        }
    }

    /// The guest may run here.
    #[must_use]
    pub fn may_run(&self) -> bool {
        match self {
            Self::Stays => true,
            Self::Comes(target) => target.stage == target::Stage::Arrived,
            Self::Goes(source) => {
                !matches!(source.stage, source::Stage::Sent | source::Stage::Left | source::Stage::Lost)
            }
        }
    }

    /// QEMU stops and starts the guest by itself.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        match self {
            Self::Stays => false,
            Self::Comes(target) => target.stage != target::Stage::Arrived,
            Self::Goes(source) => source.stage != source::Stage::Over,
        }
    }

    /// What QEMU says of a migration is said of this one.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        match self {
            Self::Stays => false,
            Self::Comes(target) => target.stage == target::Stage::Receiving || target.is_missing_memory(),
            Self::Goes(source) => {
                matches!(source.stage, source::Stage::Sending | source::Stage::Switching)
                    || source.is_fetched()
            }
        }
    }

    /// The guest stands still, or may at any moment: it is not to be acted on.
    #[must_use]
    pub fn is_switching(&self) -> bool {
        match self {
            Self::Goes(source) => {
                use source::Stage::{Left, Lost, Sent, Switching};
                matches!(source.stage, Switching | Sent | Left | Lost)
            }
            Self::Stays | Self::Comes(_) => false,
        }
    }

    /// What is told of it. `hold`: somebody wants the guest paused.
    #[must_use]
    pub fn told(&self, hold: bool) -> Option<Told> {
        match self {
            Self::Stays => None,
            Self::Comes(target) => Some(target.told()),
            Self::Goes(source) => Some(source.told(hold)),
        }
    }
}
