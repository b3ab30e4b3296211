//! Carries out effects of the state machine: starts QEMU, sends it commands on its monitor, and sends
//! signals.

use std::future::Future;
use std::time::Duration;

use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Options, Qmp};
use nix::sys::signal::Signal;
use tokio::time::sleep;

use super::{COMMAND, Launch, Outcome, Supervisor};
use crate::cards::{Card, set_link};
use crate::guest_end::GuestEnd;
use crate::lifecycle::{CONTINUE, Effect, Event};
use crate::process::Process;

/// How long a QEMU that has closed its monitor during the start may take to exit.
const GIVING_UP: Duration = Duration::from_secs(5);

/// QEMU cannot be started, or its guest is not started because its threads are not on their planned CPUs.
fn not_started(error: &dyn std::error::Error) -> GuestEnd {
    let source = error.source().map(|source| format!(": {source}"));
    GuestEnd::failed("StartFailed", format!("{error}{}", source.unwrap_or_default()))
}

/// Sets QEMU's action when its guest powers itself off.
async fn on_shutdown(qmp: &Qmp, action: qmp::ShutdownAction, by: Deadline) -> Result<(), Error> {
    let action = qmp::set_action { shutdown: Some(action), panic: None, reboot: None, watchdog: None };
    qmp.execute(action, by).await.map(drop)
}

/// Takes links down before the guest runs.
async fn set_links(qmp: &Qmp, cards: &[Card]) -> Result<(), Error> {
    for card in cards.iter().filter(|card| card.down) {
        set_link(qmp, &card.id, true).await?;
    }
    Ok(())
}

impl Supervisor<'_> {
    pub(super) fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Spawn => return self.spawn(),
            Effect::Continue => self.let_run(),
            Effect::Resume => {
                self.tell("cont", CONTINUE, |qmp, by| async move {
                    qmp.execute(qmp::cont {}, by).await.map(drop)
                });
            }
            Effect::Hold => {
                self.tell("stop", CONTINUE, |qmp, by| async move {
                    qmp.execute(qmp::stop {}, by).await.map(drop)
                });
            }
            Effect::Reset => self.tell("system_reset", COMMAND, |qmp, by| async move {
                qmp.execute(qmp::system_reset {}, by).await.map(drop)
            }),
            // Both commands are sent together: without the first, the second would end the VM.
            Effect::PressForReboot => self.tell("system_powerdown", COMMAND, |qmp, by| async move {
                on_shutdown(&qmp, qmp::ShutdownAction::pause, by).await?;
                qmp.execute(qmp::system_powerdown {}, by).await.map(drop)
            }),
            Effect::LeaveOnShutdown => self.tell("set-action", COMMAND, |qmp, by| async move {
                on_shutdown(&qmp, qmp::ShutdownAction::poweroff, by).await
            }),
            Effect::Powerdown => self.tell("system_powerdown", COMMAND, |qmp, by| async move {
                qmp.execute(qmp::system_powerdown {}, by).await.map(drop)
            }),
            Effect::Quit => {
                self.tell(
                    "quit",
                    COMMAND,
                    |qmp, by| async move { qmp.execute(qmp::quit {}, by).await.map(drop) },
                );
            }
            Effect::Migrate(effect) => self.migrate(effect),
            Effect::Terminate => self.signal(Signal::SIGTERM),
            Effect::Kill => self.signal(Signal::SIGKILL),
            Effect::Wake(at) => self.wake = Some(self.begun + at),
        }
        None
    }

    fn spawn(&mut self) -> Option<Event> {
        let launch = self.launch.take()?;
        let Launch {
            command,
            tpm,
            monitor,
            answers_within,
            pins,
            real_time,
            cards,
            host_cards,
            agent_port,
            keys,
            disks,
            ..
        } = launch;
        (self.agent_port, self.keys, self.copyable) = (agent_port, keys, disks);
        self.host_cards = host_cards;
        if let Some(error) = pins.as_ref().and_then(|pins| pins.prepare().err()) {
            return Some(Event::CannotStart(not_started(&error)));
        }
        // The TPM is first, because QEMU uses it during its start.
        let started = tpm.map(Process::spawn).transpose().and_then(|tpm| Ok((tpm, Process::spawn(command)?)));
        match started {
            Ok((tpm, process)) => {
                let tpm_pid = tpm.as_ref().map(Process::pid);
                tracing::info!(pid = process.pid(), tpm_pid, "QEMU started");
                (self.tpm, self.process) = (tpm, Some(process));
            }
            Err(error) => {
                return Some(Event::CannotStart(not_started(&error)));
            }
        }
        let pid = self.process.as_ref().map_or(0, Process::pid);
        let status = self.status.clone();
        self.work.push(Box::pin(async move {
            let opened = Qmp::open(monitor, Options::default(), Deadline::after(answers_within)).await;
            if opened.as_ref().is_err_and(Error::is_closed) {
                // QEMU has closed its monitor because it is exiting, and the exit gives more information.
                sleep(GIVING_UP).await;
            }
            if let (Ok((qmp, _)), Some(pins)) = (&opened, pins)
                && let Err(error) = pins.complete(qmp).await
            {
                return Outcome::Happened(vec![Event::CannotRun(not_started(&error))]);
            }
            if let Ok((qmp, _)) = &opened
                && let Err(error) = set_links(qmp, &cards).await
            {
                let message = format!("the links of network cards could not be set: {error}");
                return Outcome::Happened(vec![Event::CannotRun(GuestEnd::failed("StartFailed", message))]);
            }
            if let (Ok(_), Some(real_time)) = (&opened, real_time) {
                status.send_modify(|status| status.awaits_real_time = true);
                let outcome = real_time.wait(pid).await;
                status.send_modify(|status| status.awaits_real_time = false);
                if let Err(error) = outcome {
                    let end = GuestEnd::failed("RealTimeMissing", error.to_string());
                    return Outcome::Happened(vec![Event::CannotRun(end)]);
                }
            }
            Outcome::Opened(Box::new(opened))
        }));
        None
    }

    /// Lets the guest run for the first time. The state machine has the deadline, because only it knows whether QEMU
    /// waits for memory.
    fn let_run(&mut self) {
        let Some(qmp) = self.qmp.clone() else { return };
        // From here on an incoming guest owns its disks.
        let disks = self.disks.clone();
        self.work.push(Box::pin(async move {
            let whenever = Deadline::after(Duration::MAX);
            let run = async {
                disks.unexport(&qmp, whenever).await?;
                qmp.execute(qmp::cont {}, whenever).await
            };
            match run.await {
                Ok(_) => Outcome::Happened(vec![Event::Continued]),
                // The end of the stream means the end of QEMU, which its exit reports.
                Err(error) if error.is_closed() => Outcome::Nothing,
                Err(error) => {
                    let message = format!("the guest could not be made to run: {error}");
                    Outcome::Happened(vec![Event::CannotRun(GuestEnd::failed("StartFailed", message))])
                }
            }
        }));
    }

    /// Executes one command beside the loop.
    pub(super) fn tell<F>(&mut self, name: &'static str, wait: Duration, run: impl FnOnce(Qmp, Deadline) -> F)
    where
        F: Future<Output = Result<(), Error>> + 'static,
    {
        let Some(qmp) = self.qmp.clone() else { return };
        let running = run(qmp, Deadline::after(wait));
        let reply = self.reply.take();
        self.work.push(Box::pin(async move {
            let result = running.await;
            let result = match (result, reply) {
                (Ok(()), Some(reply)) => {
                    let _ = reply.send(Ok(()));
                    return Outcome::Nothing;
                }
                (Err(error), Some(reply)) => {
                    tracing::warn!(%error, name, "command failed");
                    let _ = reply.send(Err(error.into()));
                    return Outcome::Doubt;
                }
                (result, None) => result,
            };
            match result {
                Ok(()) => Outcome::Nothing,
                // The end of the stream means the end of QEMU, which its exit reports.
                Err(error) if error.is_closed() => Outcome::Nothing,
                Err(error) => {
                    tracing::warn!(%error, name, "command failed");
                    Outcome::Doubt
                }
            }
        }));
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            tracing::info!(%signal, "QEMU is sent a signal");
            process.signal(signal);
        }
    }
}
