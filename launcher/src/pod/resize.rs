//! Keeps the processors and the memory of the running machine at the wanted size.
//!
//! ```text
//!  accepted Sync ──> look ──> plan ──> commands ──> look again ──> Circumstances
//!                     ^                                 │
//!                     └── 0.5 s while a change is in progress, 10 s while memory is plugged in ──┘
//! ```
//!
//! The current state is always queried, so a repeated Sync, or one from a restarted handler, changes nothing.
//! If a guest does not give back processors or memory within [`TIMEOUT`], this is reported as trouble, and
//! the guest is asked again.

use std::sync::Arc;
use std::time::Duration;

use barevirt_machine::{Bytes, Command, Pinning, Plugged, Processors};
use barevirt_protocol::v1::MachineSize;
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use tokio::sync::watch;
use tokio::time::Instant;

use super::report::Circumstances;
use super::rest::rest;
use super::wanted::Wanted;
use crate::pins::{self, Pins};

/// Time limit for one command of QEMU.
const COMMAND: Duration = Duration::from_secs(10);
/// Interval of checks during a change.
const SOON: Duration = Duration::from_millis(500);
/// The same when nothing changes: after a reboot a guest takes its memory again.
const LATER: Duration = Duration::from_secs(10);
/// Delay before a guest is asked again for what it has not given back.
const AGAIN: Duration = Duration::from_secs(5);
/// Time limit for giving back.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The wanted size of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goal {
    /// Sockets with processors.
    pub sockets: u32,
    /// Memory in addition to that at the start.
    pub memory: Bytes,
}

impl Goal {
    fn of(wanted: &Wanted, boot: Bytes) -> Self {
        let memory = Bytes(wanted.vmi.guest_memory().saturating_sub(boot.0));
        Self { sockets: wanted.vmi.topology().sockets, memory }
    }
}

/// The observed size of the machine.
#[derive(Debug, Clone)]
pub struct ObservedSize {
    processors: Processors,
    plugged: Option<Plugged>,
}

impl ObservedSize {
    /// The commands that QEMU still needs.
    #[must_use]
    pub fn steps(&self, goal: Goal) -> Vec<Command> {
        let memory = self.plugged.and_then(|plugged| plugged.step(goal.memory));
        self.processors.steps(goal.sockets).into_iter().chain(memory).collect()
    }

    /// The status to report. `late` says that the guest's time is over.
    #[must_use]
    pub fn report(&self, goal: Goal, boot: Bytes, late: bool) -> MachineSize {
        let sockets = self.processors.sockets(goal.sockets);
        let (size, requested) = self.plugged.map_or((0, 0), |plugged| (plugged.size.0, plugged.requested.0));
        let keeps =
            |what: &str| format!("the guest has not given back {what} within {} s", TIMEOUT.as_secs());
        MachineSize {
            sockets,
            memory_bytes: boot.0.saturating_add(size),
            requested_memory_bytes: boot.0.saturating_add(requested),
            processor_trouble: if late && sockets > goal.sockets {
                keeps("processors")
            } else {
                String::new()
            },
            memory_trouble: if late && size > requested { keeps("memory") } else { String::new() },
        }
    }

    /// Delay until the next check; `None` if nothing changes by itself.
    fn pause(&self, goal: Goal) -> Option<Duration> {
        let moves = self.plugged.is_some_and(|plugged| plugged.size != plugged.requested);
        if moves || !self.steps(goal).is_empty() {
            return Some(SOON);
        }
        self.plugged.is_some_and(|plugged| plugged.requested > Bytes(0)).then_some(LATER)
    }
}

/// Serves the machine, which started with this much memory, to its end.
pub async fn serve(
    mut people: watch::Receiver<Option<Qmp>>,
    mut wanted: watch::Receiver<Option<Arc<Wanted>>>,
    boot: Bytes,
    pins: Option<Pins>,
    circumstances: watch::Sender<Circumstances>,
) {
    let mut goal: Option<(Goal, Instant)> = None;
    let mut asked: Option<Instant> = None;
    let mut refused = Refused::default();
    loop {
        let qmp = people.borrow_and_update().clone();
        let latest = wanted.borrow_and_update().clone();
        let now = latest.as_deref().map(|wanted| Goal::of(wanted, boot));
        let places = pins.as_ref().zip(latest.as_deref()).map(|(pins, latest)| pins.again(&latest.vmi));
        if let Some(now) = now
            && goal.is_none_or(|(before, _)| before != now)
        {
            goal = Some((now, Instant::now()));
            asked = None;
            refused = Refused::default();
        }
        let mut pause = None;
        if let (Some(qmp), Some((goal, since))) = (qmp, goal) {
            let ask = asked.is_none_or(|asked| asked.elapsed() >= AGAIN);
            match turn(&qmp, goal, ask, places.as_ref()).await {
                Ok((seen, acted)) => {
                    if let Some(answer) = acted {
                        asked = Some(Instant::now());
                        refused = answer;
                    }
                    // A kubelet may change the CPUs of a container at any time.
                    pause = seen.pause(goal).or(places.is_some().then_some(LATER));
                    let size = refused.add_to(seen.report(goal, boot, since.elapsed() >= TIMEOUT));
                    circumstances.send_if_modified(|told| {
                        let new = told.size.as_ref() != Some(&size);
                        told.size = Some(size);
                        new
                    });
                }
                // The end of the stream means the end of QEMU.
                Err(error) if error.is_closed() => {}
                Err(error) => {
                    tracing::warn!(%error, "processors and memory could not be looked at");
                    pause = Some(LATER);
                }
            }
        }
        let on = tokio::select! {
            changed = people.changed() => changed.is_ok(),
            changed = wanted.changed() => changed.is_ok(),
            () = rest(pause) => true,
        };
        if !on {
            return;
        }
    }
}

/// QEMU's messages about what it refused.
#[derive(Debug, Clone, Default)]
struct Refused {
    processors: String,
    memory: String,
}

impl Refused {
    fn add_to(&self, mut size: MachineSize) -> MachineSize {
        let Self { processors, memory } = self.clone();
        if !processors.is_empty() {
            size.processor_trouble = processors;
        }
        if !memory.is_empty() {
            size.memory_trouble = memory;
        }
        size
    }
}

/// Checks, sends the commands that are due, and checks again; then also returns what QEMU refused.
async fn turn(
    qmp: &Qmp,
    goal: Goal,
    ask: bool,
    places: Option<&Result<Pinning, String>>,
) -> Result<(ObservedSize, Option<Refused>), Error> {
    let seen = look(qmp).await?;
    let mut steps = seen.steps(goal);
    if steps.is_empty() || !ask {
        keep_places(qmp, places).await;
        return Ok((seen, None));
    }
    let mut refused = Refused::default();
    if let Some(Err(why)) = places {
        // A processor without its own host CPU would use that of another one.
        refused.processors.clone_from(why);
        steps.retain(|step| step.execute != "device_add");
    }
    for Command { execute, arguments } in steps {
        tracing::info!(execute, %arguments, "the machine changes");
        match qmp.execute_raw(execute, arguments, Deadline::after(COMMAND)).await {
            Ok(_) => {}
            // Nothing can be removed before a system with ACPI runs in the guest: it is asked again, until
            // its time is over.
            Err(Error::Refused { desc, .. }) if execute == "device_del" => {
                tracing::info!(execute, desc, "QEMU still refuses");
            }
            Err(Error::Refused { desc, .. }) => {
                tracing::warn!(execute, desc, "QEMU refuses");
                let of = if execute == "qom-set" { &mut refused.memory } else { &mut refused.processors };
                *of = format!("QEMU refuses {execute}: {desc}");
            }
            Err(error) => return Err(error),
        }
    }
    keep_places(qmp, places).await;
    Ok((look(qmp).await?, Some(refused)))
}

/// Moves threads back that are elsewhere. On a failure a running guest continues.
async fn keep_places(qmp: &Qmp, places: Option<&Result<Pinning, String>>) {
    let outcome = match places {
        None => return,
        Some(Ok(pinning)) => pins::place(qmp, pinning).await.map_err(anyhow::Error::from),
        Some(Err(why)) => Err(anyhow::anyhow!("{why}")),
    };
    if let Err(error) = outcome {
        tracing::warn!(error = format!("{error:#}"), "threads are not on their planned CPUs");
    }
}

async fn look(qmp: &Qmp) -> Result<ObservedSize, Error> {
    let processors = qmp.execute_list(qmp::query_hotpluggable_cpus {}, Deadline::after(COMMAND)).await?;
    let memory = qmp.execute_list(qmp::query_memory_devices {}, Deadline::after(COMMAND)).await?;
    Ok(ObservedSize { processors: Processors::new(processors), plugged: Plugged::find(&memory) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: Bytes = Bytes::mib(1024);

    fn seen(there: u32, size: u64, requested: u64) -> ObservedSize {
        let place = |socket: u32| qmp::HotpluggableCPU {
            qom_path: (socket < there).then(|| format!("/cpu/{socket}")),
            props: qmp::CpuInstanceProperties { socket_id: Some(socket.into()), ..Default::default() },
            type_: "t".to_owned(),
            vcpus_count: 1,
        };
        let plugged =
            Plugged { size: Bytes::mib(size), requested: Bytes::mib(requested), room: Bytes::mib(3072) };
        ObservedSize { processors: Processors::new((0..4).map(place).collect()), plugged: Some(plugged) }
    }

    fn goal(sockets: u32, memory: u64) -> Goal {
        Goal { sockets, memory: Bytes::mib(memory) }
    }

    #[test]
    fn the_machines_size_is_reported_and_unreleased_parts_become_trouble() {
        let shrinking = seen(3, 512, 0);
        let early = shrinking.report(goal(1, 0), BOOT, false);
        assert_eq!(
            (early.sockets, early.memory_bytes >> 20, early.requested_memory_bytes >> 20),
            (3, 1536, 1024)
        );
        assert_eq!((early.processor_trouble.as_str(), early.memory_trouble.as_str()), ("", ""));
        let late = shrinking.report(goal(1, 0), BOOT, true);
        assert!(late.processor_trouble.contains("processors") && late.memory_trouble.contains("memory"));
        // A guest that grows slowly, or lacks a driver, is not reported.
        let growing = seen(2, 0, 512).report(goal(2, 512), BOOT, true);
        assert_eq!((growing.processor_trouble.as_str(), growing.memory_trouble.as_str()), ("", ""));
    }

    #[test]
    fn qemu_is_queried_again_while_the_size_changes() {
        assert_eq!(seen(1, 0, 0).pause(goal(1, 0)), None);
        assert_eq!(seen(1, 0, 0).pause(goal(2, 0)), Some(SOON));
        assert_eq!(seen(1, 0, 512).pause(goal(1, 512)), Some(SOON));
        assert_eq!(seen(1, 512, 512).pause(goal(1, 512)), Some(LATER));
        assert!(seen(1, 512, 512).steps(goal(1, 512)).is_empty());
    }
}
