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
//! Never two, never none. QEMU on the target is started so that it never lets an arrived guest go by itself. QEMU on the source
//! lets its guest go on by itself after every failure, up to the moment at which it says `completed`, and never after that.
//! So `completed` is where the guest's only owner changes: whoever says go to the target has seen it, and from there on the
//! source stands still until somebody knows the outcome. That is the handler, from the instance's status: the target has the
//! guest (`Left`), or has lost it for certain, and the guest goes on here.

pub mod connections;
pub mod disks;
pub mod limits;
pub mod qemu;
pub mod relay;
pub mod source;
pub mod target;

use std::time::Duration;

pub use connections::Connections;
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

/// What QEMU says of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Memory is sent, and the guest may run.
    Active,
    /// The guest stands still, and nothing of its devices was sent.
    PreSwitchover,
    /// All was sent, or received.
    Completed,
    /// It failed, with the reason. The source's guest is as it was before.
    Failed(String),
    /// It was cancelled. The source's guest is as it was before.
    Cancelled,
}

/// Figures of a migration that is under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that were sent.
    pub transferred: u64,
    /// Bytes that are left to send.
    pub remaining: u64,
    /// Bytes of the guest's memory.
    pub total: u64,
    /// How long the guest stood still.
    pub downtime: Duration,
}

/// Something that happened to a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The guest is to be sent.
    Send {
        /// UID of the migration.
        uid: String,
        /// Its bounds.
        limits: Limits,
    },
    /// QEMU has begun to copy disks.
    Copies,
    /// How far the copies are.
    Copied {
        /// Bytes that are left.
        remaining: u64,
        /// Bytes in all.
        total: u64,
        /// All is there, and what is written from now on is written on both sides.
        done: bool,
    },
    /// QEMU has begun to send.
    Begun,
    /// The guest is to be received: key and connection are there.
    Receive,
    /// QEMU says how it is.
    Said(Said),
    /// Figures.
    Seen(Progress),
    /// A command failed that it takes.
    CannotGoOn(String),
    /// It is to be given up.
    Abort,
    /// Where the guest is, after it was sent.
    Verdict {
        /// The target has it.
        went: bool,
    },
    /// The source has sent everything, and its guest stands still for good: the one here is the only one.
    Go {
        /// It was paused by somebody, and stays so.
        hold: bool,
    },
}

/// Something to do about a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Begin to send: disks first, where there are any.
    Send,
    /// Begin to send memory, once disks are copied.
    SendMemory,
    /// Ask how far disks are copied.
    LookAtDisks,
    /// Begin to receive.
    Receive,
    /// Ask for figures.
    Look,
    /// Send the last of it: the guest's devices.
    Switch,
    /// Give up.
    Cancel,
    /// Have the guest stand still, so that the copy can end.
    Pause,
    /// Take back what was made for it.
    CleanUp,
}

/// What it means for the guest here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing new.
    None,
    /// It is here, and is the only one.
    Arrived {
        /// It stays paused.
        hold: bool,
    },
    /// It stands still, is the only one, and goes on here.
    Back,
    /// It is elsewhere: what is here ends.
    Left,
    /// It will never come, with the reason.
    Lost(String),
    /// Nobody has said where it is, and what is here has to end.
    Undecided,
}

/// Where a migration is, for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The target waits for it.
    Awaited,
    /// The target takes it in.
    Receiving,
    /// The target has all of it, and waits for the word to let it go.
    Received,
    /// The guest is the target's.
    Arrived,
    /// The source sends.
    Sending,
    /// The source's guest stands still for the last of it.
    Switching,
    /// The source has sent everything, and its guest stands still.
    Sent,
    /// The source's guest is elsewhere.
    Left,
    /// It is over, and the guest is the source's.
    Over,
}

/// What is told of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Its UID.
    pub uid: String,
    /// Where it is.
    pub state: State,
    /// Figures.
    pub progress: Progress,
    /// Why it is over, as a sentence.
    pub reason: String,
    /// The guest was stopped so that the copy could end.
    pub paused: bool,
    /// It was given up because somebody asked for it.
    pub aborted: bool,
    /// The guest was paused by somebody.
    pub hold: bool,
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
            Self::Goes(source) => !matches!(source.stage, source::Stage::Sent | source::Stage::Left),
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
            Self::Comes(target) => matches!(target.stage, target::Stage::Receiving),
            Self::Goes(source) => matches!(source.stage, source::Stage::Sending | source::Stage::Switching),
        }
    }

    /// The guest stands still, or may at any moment: it is not to be acted on.
    #[must_use]
    pub fn is_switching(&self) -> bool {
        match self {
            Self::Goes(source) => {
                matches!(source.stage, source::Stage::Switching | source::Stage::Sent | source::Stage::Left)
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
