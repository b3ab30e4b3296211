//! What a machine's change means while its instance runs, field by field: shown before the change is made, and decided by
//! the code that the controller uses ([`revision`](crate::revision) and [`live_update`]).

use crate::cards;
use crate::fields::{Change, changed};
use crate::hotplug;
use crate::live_update::{self, Follows, Live};
use crate::merge;
use crate::revision::Comparison;
use crate::volume_migration;
use barevirt_api::networks;
use barevirt_api::v1::{Interface, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// When a changed field takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// While the guest runs.
    InPlace,
    /// With a migration of the guest.
    Migration,
    /// Once a change in progress has ended.
    Waits,
    /// With a restart, for this reason.
    Restart(String),
    /// With the next start; no condition says that a restart is required.
    NextStart,
}

/// Why a field waits for a restart that would otherwise be applied in place.
const TOGETHER: &str = "nothing is applied in place as long as another change takes a restart";
/// Why every other field needs a restart.
const NOT_LIVE: &str = "cannot be changed while the guest runs";

/// All differences of a machine from its running instance. `wanted` is its template with instance type, preference and
/// defaults; `comparison` compares it with what the instance was started from; `follows` is what the installation applies in
/// place.
pub fn of(
    vm: &VirtualMachine,
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    comparison: Comparison,
    follows: &Follows,
) -> Vec<(Change, When)> {
    let (then, now) = comparison.guests();
    let mut differences: Vec<(Change, When)> = changed("spec", &then, &now)
        .into_iter()
        .map(|change| {
            let is_metadata = change.path.starts_with("spec.template.metadata");
            let when = if is_metadata { When::NextStart } else { When::Restart(NOT_LIVE.to_owned()) };
            (change, when)
        })
        .collect();
    let blocked = differences.iter().any(|(_, when)| matches!(when, When::Restart(_)));
    let moves = if volume_migration::is_asked(&vm.spec) {
        volume_migration::changed(wanted, vmi)
    } else {
        BTreeMap::new()
    };
    differences.extend(moves.iter().flat_map(|(name, claims)| moved(name, *claims)));
    if follows.volumes {
        let others =
            hotplug::names(wanted, vmi).into_iter().filter(|name| !moves.contains_key(name.as_str()));
        differences.extend(volumes(wanted, vmi, follows, others));
    }
    if follows.cards {
        // What needs a restart is in the list already, completely.
        differences.extend(network_cards(wanted, vmi, follows, &differences));
    }
    if follows.size {
        let follows = Follows { volumes: false, cards: false, ..follows.clone() };
        differences.extend(in_place(wanted, vmi, &follows, blocked));
    }
    differences
}

/// A volume that moves to another claim with the guest.
fn moved(name: &str, (from, to): (&str, &str)) -> Vec<(Change, When)> {
    let moved = changed(&format!("spec.template.spec.volumes[{name}]"), &json!(from), &json!(to));
    moved.into_iter().map(|change| (change, When::Migration)).collect()
}

/// Hotpluggable volumes, with their disks, each as a whole.
fn volumes(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    follows: &Follows,
    names: impl Iterator<Item = String>,
) -> Vec<(Change, When)> {
    let plugs = hotplug::plan(wanted, vmi, &follows.gates);
    let runs = live_update::is_running(vmi);
    let mut differences = Vec::new();
    for name in names {
        let when = match plugs.refused.get(&name) {
            Some(why) => When::Restart(why.clone()),
            None if !runs || plugs.waits.contains(&name) => When::Waits,
            None => When::InPlace,
        };
        let volume = |spec: &VirtualMachineInstanceSpec| json!(hotplug::volume(&spec.volumes, &name));
        let disk =
            |spec: &VirtualMachineInstanceSpec| json!(hotplug::disk(&spec.domain.devices.disks, &name));
        for (field, from, to) in [
            ("volumes", volume(&vmi.spec), volume(wanted)),
            ("domain.devices.disks", disk(&vmi.spec), disk(wanted)),
        ] {
            let path = format!("spec.template.spec.{field}[{name}]");
            differences.extend(changed(&path, &from, &to).into_iter().map(|change| (change, when.clone())));
        }
    }
    differences
}

/// Hotplugged network cards, and their links, each as a whole.
fn network_cards(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    follows: &Follows,
    told: &[(Change, When)],
) -> Vec<(Change, When)> {
    let lists = ["spec.template.spec.networks", "spec.template.spec.domain.devices.interfaces"];
    if told.iter().any(|(change, _)| lists.iter().any(|list| change.path.starts_with(list))) {
        return Vec::new();
    }
    let next = cards::plan(wanted, vmi, &follows.gates);
    let devices = &vmi.spec.domain.devices;
    let now = if live_update::is_running(vmi) { When::InPlace } else { When::Waits };
    let comes = changed(lists[0], &json!(vmi.spec.networks), &json!(next.networks)).into_iter();
    let comes = comes.chain(changed(lists[1], &json!(devices.interfaces), &json!(next.interfaces)));
    // Only a new pod gets a card of its node.
    let is_new = |card: &Interface| devices.interfaces.iter().all(|is| is.name != card.name);
    let functions = next.interfaces.iter().filter(|card| card.sriov.is_some() && is_new(card));
    let elsewhere: Vec<String> =
        functions.flat_map(|card| lists.map(|list| format!("{list}[{}]", card.name))).collect();
    let when = |change: Change| {
        let moves = now == When::InPlace && elsewhere.contains(&change.path);
        (change, if moves { When::Migration } else { now.clone() })
    };
    let mut differences: Vec<(Change, When)> = comes.map(when).collect();
    let later = next.refused.map_or(When::Waits, When::Restart);
    for card in &wanted.domain.devices.interfaces {
        let is = next.interfaces.iter().find(|is| is.name == card.name);
        let stays =
            is.map_or_else(|| networks::is_absent(card), |is| networks::state(is) == networks::state(card));
        if !stays {
            let to = Interface { state: card.state.clone(), ..is.unwrap_or(card).clone() };
            let path = format!("{}[{}]", lists[1], card.name);
            let rest = changed(&path, &json!(is), &json!(to)).into_iter();
            differences.extend(rest.map(|change| (change, later.clone())));
        }
    }
    differences
}

/// Fields that a running instance can take over.
const LIVE: [&str; 5] =
    ["/nodeSelector", "/affinity", "/tolerations", "/domain/cpu/sockets", "/domain/memory/guest"];

fn in_place(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    follows: &Follows,
    blocked: bool,
) -> Vec<(Change, When)> {
    let json = |spec: &VirtualMachineInstanceSpec| serde_json::to_value(spec).unwrap_or_default();
    let (now, wanted_json) = (json(&vmi.spec), json(wanted));
    let applied = live_update::plan(wanted, vmi, follows);
    let (next, rest) = match applied {
        Live::Apply { spec, whole } => {
            let mut next = now.clone();
            merge::apply(&mut next, &spec);
            // The rest is refused, or waits, for a reason of its own.
            let rest = if whole { Live::Done } else { after(wanted, vmi, follows, &next) };
            (next, rest)
        }
        rest => (now.clone(), rest),
    };
    let mut differences = Vec::new();
    for pointer in LIVE {
        let path = format!("spec.template.spec{}", pointer.replace('/', "."));
        let at = |value: &Value| value.pointer(pointer).cloned().unwrap_or_default();
        let (from, to, taken) = (at(&now), at(&wanted_json), at(&next));
        // The same amount may be written in two ways.
        if from == to || (taken == from && rest == Live::Done) {
            continue;
        }
        let when = match &rest {
            _ if blocked => When::Restart(TOGETHER.to_owned()),
            _ if taken != from => When::InPlace,
            Live::Refused(why) => When::Restart(why.clone()),
            Live::Wait | Live::Done | Live::Apply { .. } => When::Waits,
        };
        differences.extend(changed(&path, &from, &to).into_iter().map(|change| (change, when.clone())));
    }
    differences
}

fn after(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    follows: &Follows,
    next: &Value,
) -> Live {
    let mut vmi = vmi.clone();
    match serde_json::from_value(next.clone()) {
        Ok(spec) => vmi.spec = spec,
        // Cannot happen: `next` was made from a specification a moment ago.
        Err(_) => return Live::Wait,
    }
    live_update::plan(wanted, &vmi, follows)
}

/// Changes of a machine outside its guest, which its controller follows at once.
pub fn of_machine(old: &VirtualMachine, new: &VirtualMachine) -> Vec<Change> {
    let rest = |vm: &VirtualMachine| {
        let mut spec = json!(vm.spec);
        for guest in ["template", "instancetype", "preference"] {
            spec.as_object_mut().and_then(|spec| spec.remove(guest));
        }
        spec
    };
    changed("spec", &rest(old), &rest(new))
}

#[cfg(test)]
mod tests;
