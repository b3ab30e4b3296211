//! Events of a migration, the effects that follow, the outcome for the guest, and the published state.

use std::time::Duration;

use super::limits::Limits;

/// QEMU's state of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QemuState {
    /// Memory is sent, and the guest may run.
    Active,
    /// The guest is paused, and no device state was sent.
    PreSwitchover,
    /// The guest belongs to the target, which fetches the rest of the memory while the guest runs.
    PostCopy,
    /// The connection broke in post-copy. QEMU waits for a new one.
    Broken,
    /// Everything was sent or received.
    Completed,
    /// It failed, with the reason. The source's guest is in its former state.
    Failed(String),
    /// It was cancelled. The source's guest is in its former state.
    Cancelled,
}

/// Figures of a migration that is under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes sent.
    pub transferred: u64,
    /// Remaining bytes.
    pub remaining: u64,
    /// Bytes of the guest's memory.
    pub total: u64,
    /// How long the guest was paused.
    pub downtime: Duration,
    /// Bytes per second that are sent.
    pub rate: u64,
    /// Bytes per second that the guest writes again.
    pub dirty_rate: u64,
    /// How long the guest would be paused if the rest were sent now.
    pub expected_downtime: Duration,
    /// The pass over the memory, from 1 on.
    pub iteration: u64,
}

/// Where a guest is that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// The target has it.
    Target,
    /// The target never ran it, and never will.
    Source,
    /// The target has ended, and may have run it.
    Nowhere,
}

/// An event of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Send the guest.
    Send {
        /// UID of the migration.
        uid: String,
        /// Its limits.
        limits: Limits,
    },
    /// QEMU has begun to copy disks.
    Copies {
        /// How many bytes of them are copied, without what the guest writes from now on.
        bytes: u64,
    },
    /// Progress of the copies.
    Copied {
        /// Remaining bytes.
        remaining: u64,
        /// Total bytes.
        total: u64,
        /// Whether the copies are complete, so that all writes are made on both sides.
        done: bool,
    },
    /// QEMU has begun to send.
    Begun,
    /// Whether the target's QEMU can run the guest before all of its memory has arrived.
    Offers(bool),
    /// Receive the guest: key and connection have arrived.
    Receive,
    /// QEMU's state of the migration.
    QemuState(QemuState),
    /// Figures.
    Progress(Progress),
    /// A command failed that the migration needs.
    CannotGoOn(String),
    /// Give up. A target waits a little longer, because the rest may be on its way.
    Abort,
    /// There is a new connection between both ends, because the first one broke in post-copy.
    Rejoin,
    /// QEMU has the new connection.
    Rejoined,
    /// The source's pod runs nothing any more.
    SourceEnded,
    /// The location of the guest, after it was sent.
    Result(Location),
    /// The source has sent everything, and its guest stays paused: the guest here is the only one.
    Go {
        /// Whether a user had paused it, so that it stays paused.
        hold: bool,
    },
}

/// An action for a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Start sending: disks first, if there are any.
    Send,
    /// Start sending memory, after disks are copied.
    SendMemory,
    /// Query the progress of the disk copies.
    LookAtDisks,
    /// Start receiving.
    Receive,
    /// Query the figures.
    Look,
    /// Send the rest: the guest's device state.
    Switch,
    /// Allow another downtime at the switch.
    AllowDowntime {
        /// What is allowed so far.
        from: Duration,
        /// What is allowed from now on.
        to: Duration,
    },
    /// Give up.
    Cancel,
    /// Pause the guest, so that the copy can complete.
    Pause,
    /// Ask QEMU whether it can run the guest here before all of its memory has arrived.
    Probe,
    /// Pause the guest and hand it over, and send the rest of its memory afterwards.
    PostCopy,
    /// Give up the connection of post-copy, which may be dead without an error. QEMU then waits for a new one.
    BreakOff,
    /// Continue post-copy over the new connection.
    Rejoin,
    /// Give the disks to the guest.
    ReleaseDisks,
    /// Plug in the network cards of this node that the guest drives itself.
    GiveCards,
    /// Undo the preparations.
    CleanUp,
}

/// The outcome for the guest on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing new.
    None,
    /// It is here, and is the only one.
    Arrived {
        /// Whether it stays paused.
        hold: bool,
    },
    /// It is paused, is the only one, and continues here.
    Back,
    /// It is on the other node: the rest here ends.
    Left,
    /// It will never arrive, with the reason.
    Lost(String),
    /// It was handed over and is lost for good, with the reason.
    Gone(String),
    /// Its location is unknown, and the rest here has to end.
    Undecided,
}

/// The published state of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The target waits for it.
    Awaited,
    /// The target receives it.
    Receiving,
    /// The target has received everything, and waits for the order to let the guest run. In post-copy, some of the
    /// memory is still missing.
    Received,
    /// The guest belongs to the target.
    Arrived,
    /// The source sends.
    Sending,
    /// The source's guest is paused while the rest is sent.
    Switching,
    /// The source has sent everything, or in post-copy everything but the memory that the target still fetches. Its
    /// guest is paused.
    Sent,
    /// The source's guest is on the other node.
    Left,
    /// It has ended, and the guest belongs to the source.
    Over,
}

/// What is done about a connection that broke in post-copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// How often a new connection was tried.
    pub tries: u32,
    /// Whether the handler has to make a new connection now.
    pub awaits_connection: bool,
}

/// What keeps a migration from completing while memory is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bottleneck {
    /// The guest writes faster than the migration may send.
    Bandwidth,
    /// The guest writes faster than the network takes.
    DirtyRate,
    /// The rest does not fit into the allowed downtime.
    Downtime,
}

/// Why a migration is slow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slow {
    /// What limits it.
    pub bottleneck: Bottleneck,
    /// The same as a sentence, with figures and the setting that helps.
    pub text: String,
}

/// The published information about a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationReport {
    /// Its UID.
    pub uid: String,
    /// Its state.
    pub state: State,
    /// Figures.
    pub progress: Progress,
    /// Why it has ended, as a sentence.
    pub reason: String,
    /// What limits it while disks are copied or memory is sent, with figures and the setting that helps.
    pub bottleneck: Option<String>,
    /// What limited it after half of its time, while memory was sent. It is set at most once.
    pub slow: Option<Slow>,
    /// Whether the guest was paused so that the copy could complete.
    pub paused: bool,
    /// Whether it was given up on request.
    pub aborted: bool,
    /// Whether a user had paused the guest.
    pub hold: bool,
    /// The guest was handed over before all of its memory was sent.
    pub post_copy: bool,
    /// The target can run a guest before all of its memory has arrived.
    pub offers_post_copy: bool,
    /// The connection broke in post-copy, and was not replaced yet.
    pub recovery: Option<Recovery>,
}

impl MigrationReport {
    /// Whether the guest is paused here for the switch or for good: it must not be resumed, nor may anything
    /// that is sent be changed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Switching | State::Sent | State::Left)
    }

    /// Whether the guest stands still here because it moves, or waits for memory from the other node: it may not answer,
    /// although nothing is wrong with it.
    #[must_use]
    pub fn stands_still(&self) -> bool {
        match self.state {
            State::Awaited
            | State::Receiving
            | State::Received
            | State::Switching
            | State::Sent
            | State::Left => true,
            State::Sending => self.paused,
            State::Arrived | State::Over => false,
        }
    }
}
