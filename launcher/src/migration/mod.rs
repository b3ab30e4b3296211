//! A guest that moves: away from here ([`source`]), or to here ([`target`]). Pure, except for the modules
//! that talk to QEMU ([`qemu`], [`disks`], [`host_cards`], [`rejoin`], [`yank`]) and connect it ([`channels`], [`connections`],
//! [`relay`]), and for the file of its `key`.
//!
//! ```text
//!   source:  Preparing, Copying, Sending ──pre-switchover──> Switching ──completed──> Sent ──result──> Left
//!               │                            │                      └───result──> Over, the guest runs here
//!               └── failed, cancelled ───────┴──> Over, the guest runs here
//!
//!   target:  Awaited ──key, connection──> Receiving ──completed──> Received ──go──> Arrived
//! ```
//!
//! In post-copy, `postcopy-active` takes the place of `completed`, and the target reports `Arrived` when it has all
//! of the memory. From `postcopy-active` on, the guest never runs at the source again: if the result says that it
//! did not arrive, the guest is lost (`Lost`). If the connection breaks after `postcopy-active`, the guest waits at the
//! target, and both ends get a new connection ([`source::RECOVERY`]).
//!
//! There are never two running guests. QEMU on the target is started so that it
//! never lets an arrived guest run by itself. QEMU on the source resumes its guest by itself after every
//! failure, until it says `completed`, and never after that. So the ownership of the guest changes at
//! `completed`: only a handler that has seen it orders the target to let the guest run, and from then on the
//! source stays paused until the outcome is known. The handler knows it from the instance's status: either
//! the target has the guest (`Left`), or it certainly never ran it, and the guest continues here. If the target has
//! ended and may have run the guest, the guest here is older than its disks, and is lost.

mod bottleneck;
pub mod channels;
pub mod connections;
pub mod disks;
mod event;
pub mod host_cards;
mod key;
pub mod limits;
pub mod qemu;
pub mod rejoin;
pub mod relay;
pub mod source;
mod speedometer;
pub mod target;
pub mod yank;

use std::time::Duration;

pub use connections::Connections;
pub use event::{
    Bottleneck, Effect, Event, Location, MigrationReport, Outcome, Progress, QemuState, Recovery, Slow, State,
};
pub use limits::{DowntimeTuning, Limits};
pub use source::Source;
pub use target::Target;

/// The migration of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Moving {
    /// It started here, and does not move.
    #[default]
    Stays,
    /// It comes, or came, from another node.
    Comes(Target),
    /// It moves to another node, or was to.
    Goes(Box<Source>),
}

impl Moving {
    /// One step; also returns the outcome for the guest.
    pub fn step(&mut self, now: Duration, event: Event) -> (Vec<Effect>, Outcome) {
        if let Event::Send { uid, limits } = event {
            let (source, effects) = Source::begin(uid, limits, now);
            *self = Self::Goes(Box::new(source));
            return (effects, Outcome::None);
        }
        match self {
            Self::Stays => (vec![], Outcome::None),
            Self::Comes(target) => target.step(now, event),
            Self::Goes(source) => source.step(now, event),
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> (Vec<Effect>, Outcome) {
        match self {
            Self::Goes(source) => source.tick(now),
            Self::Comes(target) => target.tick(now),
            Self::Stays => (vec![], Outcome::None),
        }
    }

    /// The next moment at which time alone changes the state.
    #[must_use]
    pub fn wake(&self) -> Option<Duration> {
        match self {
            Self::Goes(source) => source.wake(),
            Self::Comes(target) => target.wake(),
            Self::Stays => None,
        }
    }

    /// Whether the guest may run here.
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

    /// Whether some of the memory of a guest that came here is still at the source.
    #[must_use]
    pub fn is_missing_memory(&self) -> bool {
        match self {
            Self::Comes(target) => target.is_missing_memory(),
            Self::Stays | Self::Goes(_) => false,
        }
    }

    /// Whether QEMU pauses and resumes the guest by itself.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        match self {
            Self::Stays => false,
            Self::Comes(target) => target.stage != target::Stage::Arrived,
            Self::Goes(source) => source.stage != source::Stage::Over,
        }
    }

    /// Whether QEMU's state of a migration is about this one.
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

    /// Whether the guest is paused, or may be at any moment, so that no control may act on it.
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

    /// The published information. `hold` says whether a user wants the guest paused.
    #[must_use]
    pub fn report(&self, hold: bool) -> Option<MigrationReport> {
        match self {
            Self::Stays => None,
            Self::Comes(target) => Some(target.report()),
            Self::Goes(source) => Some(source.report(hold)),
        }
    }
}
