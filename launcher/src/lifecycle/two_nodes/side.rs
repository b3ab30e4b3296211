//! A launcher, and the QEMU that it drives, with its known bugs.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::*;
use crate::migration::source::Stage as Going;
use crate::migration::{Effect as Tell, Event as Moves, QemuState};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    None,
    Active,
    PreSwitchover,
    Device,
    /// The stream failed at the switch to post-copy. QEMU 10.0 reports nothing more, and its guest cannot be resumed.
    Stuck,
    /// The guest was handed over, and the target fetches the rest of the memory.
    PostCopy,
    /// The connection broke in post-copy: the QEMU waits for a new one.
    Broken,
    /// It has a new connection.
    Rejoining,
    Completed,
}

impl Stream {
    fn is_fetching(self) -> bool {
        matches!(self, Self::PostCopy | Self::Rejoining)
    }
}

/// A QEMU and its launcher.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) vm: Vm,
    pub(super) inbox: VecDeque<Event>,
    pub(super) alive: bool,
    pub(super) running: bool,
    /// The migration uses post-copy, or QEMU was ordered to start it.
    pub(super) post_copy: bool,
    /// The guest ran when the switch began. QEMU resumes only such a guest by itself.
    pub(super) ran_before: bool,
    pub(super) stream: Stream,
    /// QEMU was sent `cont`, and its main loop waits for memory since then.
    pub(super) told_to_run: Option<Duration>,
    /// It has run the guest later than `cont` may take elsewhere.
    pub(super) ran_late: bool,
    pub(super) now: Duration,
}

impl Side {
    pub(super) fn new(incoming: bool) -> Self {
        let mut side = Self {
            vm: Vm::new(),
            inbox: VecDeque::new(),
            alive: true,
            running: false,
            post_copy: false,
            ran_before: false,
            stream: Stream::None,
            told_to_run: None,
            ran_late: false,
            now: Duration::ZERO,
        };
        let incoming = incoming.then(|| "m".to_owned());
        side.take(Event::Start { acpi: true, paused: false, incoming });
        side.take(Event::Answered);
        while let Some(event) = side.inbox.pop_front() {
            side.take(event);
        }
        side
    }

    pub(super) fn say(&mut self, state: QemuState) {
        self.inbox.push_back(Event::Migration(Moves::QemuState(state)));
    }

    /// The launcher handles an event, and its QEMU carries out the effects.
    pub(super) fn take(&mut self, event: Event) {
        let (vm, effects) = step(self.vm.clone(), self.now, event);
        self.vm = vm;
        for effect in effects {
            if !self.alive {
                return;
            }
            match effect {
                Effect::Continue if self.waits_for_memory() => self.told_to_run = Some(self.now),
                Effect::Continue if !self.refuses_to_run() => self.run(),
                Effect::Resume if !self.refuses_to_run() => {
                    self.running = true;
                    self.inbox.push_back(Event::Resumed);
                }
                Effect::Hold => self.running = false,
                Effect::Quit | Effect::Terminate | Effect::Kill => self.die(),
                Effect::Migrate(Tell::Send) => {
                    self.stream = Stream::Active;
                    self.inbox.push_back(Event::Migration(Moves::Begun));
                }
                Effect::Migrate(Tell::Switch) if self.stream == Stream::PreSwitchover => {
                    self.stream = Stream::Device;
                }
                Effect::Migrate(Tell::PostCopy) if self.stream == Stream::Active => {
                    self.post_copy = true;
                    if std::mem::take(&mut self.running) {
                        self.inbox.push_back(Event::Stopped);
                    }
                }
                // The launcher makes the target's QEMU give up the former connection.
                Effect::Migrate(Tell::Rejoin)
                    if self.stream == Stream::Broken || (!self.is_source() && self.stream.is_fetching()) =>
                {
                    self.stream = Stream::Rejoining;
                    self.inbox.push_back(Event::Migration(Moves::Rejoined));
                }
                Effect::Migrate(Tell::Rejoin) => {
                    let refused = Moves::CannotGoOn("there is no broken migration".to_owned());
                    self.inbox.push_back(Event::Migration(refused));
                }
                Effect::Migrate(Tell::BreakOff) => self.fail(QemuState::Broken),
                Effect::Migrate(Tell::Cancel) => self.fail(QemuState::Cancelled),
                _ => {}
            }
        }
    }

    /// The main loop of a target's QEMU may wait for a page while the connection is broken.
    fn waits_for_memory(&self) -> bool {
        !self.is_source() && matches!(self.stream, Stream::Broken | Stream::Rejoining)
    }

    fn run(&mut self) {
        self.running = true;
        self.inbox.extend([Event::Resumed, Event::Continued]);
    }

    /// The target's QEMU fetches memory again, and answers the commands it was sent.
    pub(super) fn fetches(&mut self) {
        self.stream = Stream::PostCopy;
        self.say(QemuState::PostCopy);
        if let Some(told) = self.told_to_run.take() {
            self.ran_late |= self.now > told + CONTINUE;
            self.run();
        }
    }

    fn is_source(&self) -> bool {
        matches!(self.vm.moving, Moving::Goes(_))
    }

    /// QEMU refuses to run the guest between its stop and the end of a stream.
    fn refuses_to_run(&self) -> bool {
        use Stream::{Device, PreSwitchover, Stuck};
        let switches = matches!(self.stream, PreSwitchover | Device | Stuck);
        self.is_source() && (switches || self.is_in_post_copy())
    }

    /// QEMU's own reaction to a broken stream at the source.
    pub(super) fn fail(&mut self, state: QemuState) {
        if !self.alive
            || matches!(self.stream, Stream::None | Stream::Stuck | Stream::Broken | Stream::Completed)
        {
            return;
        }
        match self.stream {
            // The migration pauses, and cannot be cancelled.
            stream if stream.is_fetching() => {
                if state != QemuState::Cancelled {
                    self.stream = Stream::Broken;
                    self.say(QemuState::Broken);
                }
                return;
            }
            Stream::Device if self.post_copy => {
                self.stream = Stream::Stuck;
                return;
            }
            _ => {}
        }
        if matches!(self.stream, Stream::PreSwitchover | Stream::Device) {
            self.resume_by_itself();
        }
        self.stream = Stream::None;
        self.say(state);
    }

    pub(super) fn resume_by_itself(&mut self) {
        if self.ran_before {
            self.running = true;
            self.inbox.push_back(Event::Resumed);
        }
    }

    /// The connection breaks after QEMU has written the last of the memory: it fails, and does not wait for a new
    /// connection.
    pub(super) fn fail_at_the_end(&mut self) {
        self.resume_by_itself();
        self.stream = Stream::None;
        self.say(QemuState::Failed("reset".to_owned()));
    }

    pub(super) fn is_in_post_copy(&self) -> bool {
        self.stream == Stream::Broken || self.stream.is_fetching()
    }

    pub(super) fn awaits_connection(&self) -> bool {
        self.vm
            .moving
            .report(false)
            .and_then(|report| report.recovery)
            .is_some_and(|told| told.awaits_connection)
    }

    pub(super) fn die(&mut self) {
        (self.alive, self.running) = (false, false);
        self.inbox.push_back(Event::Exited(Exit::Signal(9)));
    }

    pub(super) fn hear(&mut self) {
        if let Some(event) = self.inbox.pop_front() {
            self.take(event);
        }
    }

    pub(super) fn is_sent(&self) -> bool {
        matches!(&self.vm.moving, Moving::Goes(source) if source.stage == Going::Sent)
    }

    pub(super) fn has_arrived(&self) -> bool {
        let report = self.vm.moving.report(false);
        report.is_some_and(|report| report.state == crate::migration::State::Arrived)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.vm.end().is_some()
    }
}
