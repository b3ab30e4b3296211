//! The part of a machine's change that its running instance takes over: sockets, memory, placement, hotpluggable volumes
//! ([`hotplug`]) and network cards ([`cards`](crate::cards)). Pure.
//!
//! The instance's specification is changed in place; the instance's own reconciler and the node's handler change the pod and
//! the guest. A change that cannot be taken over is reported in KubeVirt's words, as a reason to restart. Unlike in
//! KubeVirt, the number of sockets can also be reduced.

use crate::{cards, hotplug, is_on_its_way, merge};
use barevirt_api::gates::Gates;
use barevirt_api::names::{
    CONDITION_HOT_MEMORY_CHANGE, CONDITION_HOT_VCPU_CHANGE, CONDITION_LIVE_MIGRATABLE,
    CONDITION_MIGRATION_REQUIRED, PHASE_RUNNING,
};
use barevirt_api::networks::LINK_STATE_SERVED;
use barevirt_api::quantity;
use barevirt_api::settings::Settings;
use barevirt_api::sizing;
use barevirt_api::v1::{Condition, VirtualMachineInstance, VirtualMachineInstanceSpec};
use barevirt_api::validate;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

/// What instances take over while they run, according to the installation's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follows {
    /// Sockets, memory and placement.
    pub size: bool,
    /// Hotpluggable volumes.
    pub volumes: bool,
    /// Hotplugged network cards, and their links.
    pub cards: bool,
    /// Feature gates, for validation.
    pub(crate) gates: Gates,
}

impl Follows {
    /// Reads the settings.
    pub fn of(settings: &Settings) -> Self {
        Follows {
            size: settings.guest.live_update.is_some(),
            volumes: settings.gates.plugs_volumes(),
            // A version that does not serve cards refuses their changes with the reason.
            cards: LINK_STATE_SERVED,
            gates: settings.gates.clone(),
        }
    }

    /// The same, where another change needs a restart: size and placement wait for it.
    #[must_use]
    pub fn before_a_restart(self) -> Self {
        Follows { size: false, ..self }
    }
}

/// The next step for the instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Live {
    /// Nothing more can be applied.
    #[default]
    Done,
    /// A merge patch of its specification.
    Apply {
        /// The patch.
        spec: Box<Value>,
        /// Whether it contains every change.
        whole: bool,
    },
    /// An earlier change is in progress, or the guest does not run yet.
    Wait,
    /// The change needs a restart, for this reason.
    Refused(String),
}

/// Why the change in progress cannot be completed, as the instance's conditions say.
pub fn failure(vmi: &VirtualMachineInstance) -> Option<String> {
    let conditions = vmi.status.as_ref()?.conditions.as_slice();
    let failed = |type_: &str| Condition::find(conditions, type_).filter(|found| found.status == "False");
    let told = |what: &str, found: &Condition| {
        format!("{what} updated in template spec: {}", found.message.as_deref().unwrap_or_default())
    };
    failed(CONDITION_HOT_VCPU_CHANGE)
        .map(|found| told("CPU sockets", found))
        .or_else(|| failed(CONDITION_HOT_MEMORY_CHANGE).map(|found| told("memory", found)))
        .or_else(|| {
            // A change that needs a migration, where the guest cannot migrate.
            let stays = !Condition::is_set(conditions, CONDITION_LIVE_MIGRATABLE);
            let waits = Condition::find(conditions, CONDITION_MIGRATION_REQUIRED);
            waits.filter(|found| stays && found.is_true()).map(|found| told("network interfaces", found))
        })
}

/// Plans the update. `wanted` is the machine's template with its instance type, preference and defaults.
pub fn plan(wanted: &VirtualMachineInstanceSpec, vmi: &VirtualMachineInstance, follows: &Follows) -> Live {
    if !is_running(vmi) {
        return Live::Wait;
    }
    let mut next = vmi.spec.clone();
    let mut turns = Vec::new();
    if follows.size {
        next.node_selector.clone_from(&wanted.node_selector);
        next.affinity.clone_from(&wanted.affinity);
        next.tolerations.clone_from(&wanted.tolerations);
        turns.extend([sockets(wanted, vmi, &mut next), memory(wanted, vmi, &mut next)]);
    }
    if follows.volumes {
        turns.push(volumes(wanted, vmi, follows, &mut next));
    }
    if follows.cards {
        let cards = cards::plan(wanted, vmi, &follows.gates);
        (next.domain.devices.interfaces, next.networks) = (cards.interfaces, cards.networks);
        turns.push(match cards.refused {
            Some(why) => Turn::Refused(why),
            None if cards.waits => Turn::Wait,
            None => Turn::Taken,
        });
    }
    // Our types always have a JSON form: their maps have only string keys.
    let (old, new) = (
        serde_json::to_value(&vmi.spec).unwrap_or_default(),
        serde_json::to_value(&next).unwrap_or_default(),
    );
    if let Some(patch) = merge::difference(&old, &new) {
        let whole = turns.iter().all(|turn| matches!(turn, Turn::Taken));
        return Live::Apply { spec: Box::new(patch), whole };
    }
    let mut live = Live::Done;
    for turn in turns {
        match turn {
            Turn::Refused(why) => return Live::Refused(why),
            Turn::Wait => live = Live::Wait,
            Turn::Taken => {}
        }
    }
    live
}

/// Whether the guest runs: an instance takes nothing over before.
pub(crate) fn is_running(vmi: &VirtualMachineInstance) -> bool {
    crate::phase(vmi) == PHASE_RUNNING
}

/// The result for one part of a change.
enum Turn {
    /// It is in the next specification, or nothing had to change.
    Taken,
    Wait,
    Refused(String),
}

fn refused(why: &str) -> Turn {
    Turn::Refused(why.to_owned())
}

/// Whether the condition of a change in progress allows another change: not before it has ended, and after a failure only a
/// change back to the present state.
fn free(vmi: &VirtualMachineInstance, condition: &str, goes_back: bool) -> Result<(), Turn> {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    match Condition::find(conditions, condition) {
        None => Ok(()),
        Some(_) if goes_back => Ok(()),
        Some(found) if found.is_true() => Err(Turn::Wait),
        Some(_) => Err(Turn::Refused(failure(vmi).unwrap_or_default())),
    }
}

fn volumes(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    follows: &Follows,
    next: &mut VirtualMachineInstanceSpec,
) -> Turn {
    let plugs = hotplug::plan(wanted, vmi, &follows.gates);
    // A guest arrives with what it had when it left its source.
    if is_on_its_way(vmi) {
        let same = plugs.volumes == vmi.spec.volumes && plugs.disks == vmi.spec.domain.devices.disks;
        return if same && plugs.refused.is_empty() && plugs.waits.is_empty() {
            Turn::Taken
        } else {
            Turn::Wait
        };
    }
    next.volumes = plugs.volumes;
    next.domain.devices.disks = plugs.disks;
    match plugs.refused.into_iter().next() {
        Some((name, why)) => Turn::Refused(format!("volume {name} updated in template spec. {why}")),
        None if !plugs.waits.is_empty() => Turn::Wait,
        None => Turn::Taken,
    }
}

fn sockets(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    next: &mut VirtualMachineInstanceSpec,
) -> Turn {
    let count = |value: Option<u32>| value.unwrap_or(1).max(1);
    let (Some(wanted), Some(cpu)) = (&wanted.domain.cpu, next.domain.cpu.as_mut()) else {
        return Turn::Taken;
    };
    let wanted = count(wanted.sockets);
    let now = count(cpu.sockets);
    if wanted == now {
        return Turn::Taken;
    }
    let there = vmi.status.as_ref().and_then(|status| status.current_cpu_topology);
    let goes_back = there.and_then(|there| there.sockets) == Some(wanted);
    if let Err(turn) = free(vmi, CONDITION_HOT_VCPU_CHANGE, goes_back) {
        return turn;
    }
    if cpu.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough.is_some()) {
        // NUMA nodes and their memory are bound to the first CPUs.
        return refused(
            "CPU sockets updated in template spec. CPU-hotplug is not available with NUMA mapping",
        );
    }
    if wanted > cpu.max_sockets.unwrap_or(0).max(now) {
        return refused("CPU sockets updated in template spec to a value higher than what's available");
    }
    cpu.sockets = Some(wanted);
    Turn::Taken
}

fn memory(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    next: &mut VirtualMachineInstanceSpec,
) -> Turn {
    let bytes = |quantity: Option<&Quantity>| quantity.and_then(|quantity| quantity::bytes(quantity).ok());
    let guest = wanted.domain.memory.as_ref().and_then(|memory| memory.guest.clone());
    let Some(memory) = next.domain.memory.as_ref() else { return Turn::Taken };
    let (Some(guest), Some(wanted_bytes), Some(now)) =
        (guest.clone(), bytes(guest.as_ref()), bytes(memory.guest.as_ref()))
    else {
        return Turn::Taken;
    };
    if wanted_bytes == now {
        return Turn::Taken;
    }
    let told = vmi.status.as_ref().and_then(|status| status.memory.as_ref());
    let goes_back = bytes(told.and_then(|told| told.guest_current.as_ref())) == Some(wanted_bytes);
    if let Err(turn) = free(vmi, CONDITION_HOT_MEMORY_CHANGE, goes_back) {
        return turn;
    }
    let Some(max) = memory.max_guest.clone() else {
        return refused(
            "memory updated in template spec. Memory-hotplug is not available for this VM configuration",
        );
    };
    if bytes(told.and_then(|told| told.guest_at_boot.as_ref())).is_some_and(|boot| wanted_bytes < boot) {
        return refused("memory updated in template spec to a value lower than what the VM started with");
    }
    if bytes(Some(&max)).is_some_and(|max| wanted_bytes > max) {
        return refused("memory updated in template spec to a value higher than what's available");
    }
    let mut grown = next.clone();
    if let Some(memory) = &mut grown.domain.memory {
        memory.guest = Some(guest);
    }
    if let Some(why) = validate::memory_cannot_grow(&grown, Some(&max)) {
        return Turn::Refused(format!("memory hotplug not supported, {why}"));
    }
    // The pod's memory request changes along, as in KubeVirt.
    if let Some(resources) = &mut grown.domain.resources {
        sizing::move_given_memory(resources, now, wanted_bytes);
    }
    *next = grown;
    Turn::Taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(wanted: &VirtualMachineInstanceSpec, vmi: &VirtualMachineInstance) -> Live {
        super::plan(wanted, vmi, &Follows::of(&Settings::default()))
    }

    fn spec(sockets: u32, guest: &str) -> VirtualMachineInstanceSpec {
        serde_json::from_value(json!({
            "architecture": "amd64", "nodeSelector": {"a": "b"},
            "domain": {"devices": {}, "cpu": {"sockets": sockets}, "memory": {"guest": guest},
                "resources": {"requests": {"memory": "1Gi", "cpu": "1"}}},
        }))
        .unwrap()
    }

    fn vmi(conditions: Value) -> VirtualMachineInstance {
        let mut spec = serde_json::to_value(spec(2, "2Gi")).unwrap();
        spec["domain"]["cpu"]["maxSockets"] = json!(4);
        spec["domain"]["memory"]["maxGuest"] = json!("4Gi");
        serde_json::from_value(json!({
            "metadata": {"name": "vm"}, "spec": spec,
            "status": {"phase": "Running", "conditions": conditions, "currentCPUTopology": {"sockets": 1},
                "memory": {"guestAtBoot": "1Gi", "guestCurrent": "1Gi", "guestRequested": "2Gi"}},
        }))
        .unwrap()
    }

    fn applied(wanted: &VirtualMachineInstanceSpec, conditions: Value) -> Value {
        match plan(wanted, &vmi(conditions)) {
            Live::Apply { spec, whole: true } => *spec,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sockets_memory_and_placement_are_taken_over() {
        assert_eq!(plan(&spec(2, "2048Mi"), &vmi(json!([]))), Live::Done);
        assert_eq!(applied(&spec(1, "2Gi"), json!([])), json!({"domain": {"cpu": {"sockets": 1}}}));
        assert_eq!(
            applied(&spec(4, "3Gi"), json!([])),
            json!({"domain": {"cpu": {"sockets": 4}, "memory": {"guest": "3Gi"},
                "resources": {"requests": {"memory": "2Gi"}}}})
        );
        let mut moved = spec(2, "2Gi");
        moved.node_selector = Some([("c".to_owned(), "d".to_owned())].into());
        assert_eq!(applied(&moved, json!([])), json!({"nodeSelector": {"a": null, "c": "d"}}));
        moved.node_selector = None;
        assert_eq!(applied(&moved, json!([])), json!({"nodeSelector": null}));
    }

    #[test]
    fn volumes_come_whatever_else_waits_for_a_restart() {
        let mut wanted = spec(1, "2Gi");
        let volume = |claim: &str| json!({"name": "a", "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}});
        wanted.volumes = vec![serde_json::from_value(volume("a")).unwrap()];
        wanted.domain.devices.disks =
            vec![serde_json::from_value(json!({"name": "a", "disk": {"bus": "scsi"}})).unwrap()];
        let plugged =
            json!({"volumes": wanted.volumes, "domain": {"devices": {"disks": wanted.domain.devices.disks}}});
        let both = applied(&wanted, json!([]));
        assert_eq!((&both["volumes"], &both["domain"]["cpu"]), (&plugged["volumes"], &json!({"sockets": 1})));
        let follows = Follows::of(&Settings::default()).before_a_restart();
        let Live::Apply { spec, whole: true } = super::plan(&wanted, &vmi(json!([])), &follows) else {
            panic!()
        };
        assert_eq!(*spec, plugged);
        // Not while the guest migrates.
        let mut moving = vmi(json!([]));
        let state = |ended: Value| json!({"migrationUid": "m", "completed": ended.is_string(), "endTimestamp": ended});
        for (ended, waits) in [(Value::Null, true), (json!("2026-01-01T00:00:00Z"), false)] {
            moving.status.as_mut().unwrap().migration_state = serde_json::from_value(state(ended)).unwrap();
            assert_eq!(super::plan(&wanted, &moving, &follows) == Live::Wait, waits);
        }
        // Another claim: the former volume has to leave first, so this patch is not the whole change.
        let mut there = vmi(json!([]));
        merge_into(&mut there, &plugged);
        wanted.volumes = vec![serde_json::from_value(volume("b")).unwrap()];
        let Live::Apply { spec, whole: false } = super::plan(&wanted, &there, &follows) else { panic!() };
        assert_eq!(*spec, json!({"volumes": null, "domain": {"devices": {"disks": null}}}));
        let status = json!([{"name": "a", "target": "sda", "hotplugVolume": {}}]);
        merge_into(&mut there, &spec);
        there.status.as_mut().unwrap().volume_status = serde_json::from_value(status).unwrap();
        assert_eq!(super::plan(&wanted, &there, &follows), Live::Wait);
        wanted.domain.devices.disks[0].disk.as_mut().unwrap().bus = Some("sata".to_owned());
        there.status.as_mut().unwrap().volume_status.clear();
        assert!(
            matches!(super::plan(&wanted, &there, &follows), Live::Refused(why) if why.contains("volume a"))
        );
    }

    fn merge_into(vmi: &mut VirtualMachineInstance, patch: &Value) {
        let mut spec = serde_json::to_value(&vmi.spec).unwrap();
        merge::apply(&mut spec, patch);
        vmi.spec = serde_json::from_value(spec).unwrap();
    }

    #[test]
    fn a_link_goes_down_while_the_guest_runs() {
        let mut wanted = spec(2, "2Gi");
        let card = json!({"name": "default", "masquerade": {}});
        wanted.domain.devices.interfaces = vec![serde_json::from_value(card).unwrap()];
        wanted.networks = vec![serde_json::from_value(json!({"name": "default", "pod": {}})).unwrap()];
        let mut there = vmi(json!([]));
        there.spec.domain.devices.interfaces.clone_from(&wanted.domain.devices.interfaces);
        there.spec.networks.clone_from(&wanted.networks);
        assert_eq!(plan(&wanted, &there), Live::Done);
        wanted.domain.devices.interfaces[0].state = Some("down".to_owned());
        let Live::Apply { spec, whole: true } = plan(&wanted, &there) else { panic!() };
        let down = json!([{"name": "default", "masquerade": {}, "state": "down"}]);
        assert_eq!(*spec, json!({"domain": {"devices": {"interfaces": down}}}));
    }

    #[test]
    fn changes_out_of_bounds_need_a_restart() {
        for (sockets, guest, why) in [
            (5, "2Gi", "CPU sockets updated in template spec to a value higher than what's available"),
            (2, "5Gi", "memory updated in template spec to a value higher than what's available"),
            (2, "1022Mi", "memory updated in template spec to a value lower than what the VM started with"),
            (2, "2049Mi", "memory hotplug not supported, Guest memory must be 2Mi aligned"),
        ] {
            assert_eq!(plan(&spec(sockets, guest), &vmi(json!([]))), Live::Refused(why.to_owned()));
        }
        let mut fixed = vmi(json!([]));
        fixed.spec.domain.memory.as_mut().unwrap().max_guest = None;
        assert!(matches!(plan(&spec(2, "3Gi"), &fixed), Live::Refused(why) if why.contains("not available")));
    }

    #[test]
    fn nodes_of_a_guest_stay_as_they_are() {
        let mut mapped = vmi(json!([]));
        let cpu = mapped.spec.domain.cpu.as_mut().unwrap();
        cpu.numa = Some(serde_json::from_value(json!({"guestMappingPassthrough": {}})).unwrap());
        assert!(matches!(plan(&spec(3, "2Gi"), &mapped), Live::Refused(why) if why.contains("NUMA")));
    }

    #[test]
    fn half_a_change_is_not_the_whole() {
        let half = plan(&spec(3, "5Gi"), &vmi(json!([])));
        assert!(matches!(half, Live::Apply { whole: false, .. }), "{half:?}");
    }

    #[test]
    fn one_change_after_another_and_after_a_failure_only_back() {
        let condition =
            |status: &str| json!([{"type": "HotVCPUChange", "status": status, "message": "no room"}]);
        assert_eq!(plan(&spec(3, "2Gi"), &vmi(condition("True"))), Live::Wait);
        assert!(
            matches!(plan(&spec(3, "2Gi"), &vmi(condition("False"))), Live::Refused(why) if why.ends_with("no room"))
        );
        assert_eq!(applied(&spec(1, "2Gi"), condition("False")), json!({"domain": {"cpu": {"sockets": 1}}}));
        let mut starting = vmi(json!([]));
        starting.status.as_mut().unwrap().phase = Some("Scheduled".to_owned());
        assert_eq!(plan(&spec(3, "2Gi"), &starting), Live::Wait);
    }
}
