//! What happens to a migration, what is to be done about it, what it means for the guest, and what is told of it.

use std::time::Duration;

use super::limits::Limits;

/// What QEMU says of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Memory is sent, and the guest may run.
    Active,
    /// The guest stands still, and nothing of its devices was sent.
    PreSwitchover,
    /// The guest is the target's, which fetches the rest of its memory as it runs.
    PostCopy,
    /// In post-copy the connection broke.
    Broken,
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
    /// Bytes per second that are sent.
    pub rate: u64,
    /// Bytes per second that the guest writes anew.
    pub dirty_rate: u64,
    /// How long the guest would stand still if the rest were sent now.
    pub expected_downtime: Duration,
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
    /// Whether the target's QEMU could let the guest run before all of its memory is there.
    Offers(bool),
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
    /// Ask whether the guest could run here before all of its memory is here.
    Probe,
    /// Hand the guest over now, and send the rest of its memory afterwards.
    PostCopy,
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
    /// It was handed over in post-copy and is lost for good, with the reason.
    Gone(String),
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
    /// The target has all of it, and waits for the word to let it go. In post-copy it has the guest, which runs after the word,
    /// and not all of its memory.
    Received,
    /// The guest is the target's.
    Arrived,
    /// The source sends.
    Sending,
    /// The source's guest stands still for the last of it.
    Switching,
    /// The source has sent everything, or the rest is the target's to fetch, and its guest stands still.
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
    /// The guest was handed over before all of its memory was sent.
    pub post_copy: bool,
    /// The target could take a guest over like that.
    pub offers_post_copy: bool,
}

impl Told {
    /// The guest stands still here, for the last of it or for good: nobody may let it run, or change what is sent.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Switching | State::Sent | State::Left)
    }
}
