//! What the launcher is sent to run while the sockets or the memory of a VMI change. Pure.
//!
//! ```text
//!   grow:    spec ──> controller resizes the pod ──> condition PodResized ──> launcher
//!   shrink:  spec ──> controller sees it: condition ──> launcher ──> status ──> controller resizes the pod
//! ```
//!
//! A guest that got more than its pod has would be killed. So until the controller reports that the pod was
//! resized, the launcher gets the present amount. If the guest had less before the controller saw the change,
//! nothing would seem to have changed to the controller. All of this is in the VMI's status, so a restarted
//! handler decides the same.

use std::borrow::Cow;
use std::cmp::Ordering;

use barevirt_api::names::{CONDITION_HOT_MEMORY_CHANGE, CONDITION_HOT_VCPU_CHANGE, REASON_POD_RESIZED};
use barevirt_api::v1::{Condition, VirtualMachineInstance, are_agent_pings_paused};
use barevirt_api::{identity, quantity, sizing};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The VMI with the amounts that the launcher may have now.
pub fn granted(vmi: &VirtualMachineInstance) -> Cow<'_, VirtualMachineInstance> {
    let (sockets, memory) = (held_sockets(vmi), held_memory(vmi));
    if sockets.is_none() && memory.is_none() {
        return Cow::Borrowed(vmi);
    }
    let mut told = vmi.clone();
    if let (Some(sockets), Some(cpu)) = (sockets, told.spec.domain.cpu.as_mut()) {
        cpu.sockets = Some(sockets);
    }
    if let (Some(memory), Some(guest)) = (memory, told.spec.domain.memory.as_mut()) {
        guest.guest = Some(memory);
    }
    Cow::Owned(told)
}

/// A hash of everything in [`granted`] that the launcher uses. If it changes, the launcher is updated.
pub fn hash(vmi: &VirtualMachineInstance) -> String {
    let mut hash = identity::spec_hash(&granted(vmi).spec);
    if are_agent_pings_paused(&vmi.metadata) {
        hash.push_str("+pings-paused");
    }
    if let Some(bytes) = claimed(vmi) {
        hash.push_str(&format!("+claims-{bytes}"));
    }
    hash
}

/// Sum of the sizes that claims of disks have by the VMI's status. Claims only grow, so it changes if one does.
fn claimed(vmi: &VirtualMachineInstance) -> Option<u64> {
    let volumes = vmi.spec.volumes.iter().filter(|volume| volume.claim().is_some());
    let sizes = volumes.filter_map(|volume| vmi.status.as_ref()?.claim_info(&volume.name)?.disk_bytes());
    sizes.reduce(u64::saturating_add)
}

/// The present number of sockets, if another number is wanted but not allowed yet.
fn held_sockets(vmi: &VirtualMachineInstance) -> Option<u32> {
    let cpu = vmi.spec.domain.cpu.as_ref()?;
    let (wanted, most) = (cpu.sockets?, sizing::Topology::of(Some(cpu)).max_sockets);
    let there = vmi.status.as_ref()?.current_cpu_topology.as_ref()?.sockets?.min(most);
    (!is_time(vmi, CONDITION_HOT_VCPU_CHANGE, wanted.cmp(&there))).then_some(there)
}

/// The amount of memory that was last requested, if another amount is wanted but not allowed yet.
fn held_memory(vmi: &VirtualMachineInstance) -> Option<Quantity> {
    let memory = vmi.spec.domain.memory.as_ref()?;
    memory.max_guest.as_ref()?;
    let there = vmi.status.as_ref()?.memory.as_ref()?.guest_requested.as_ref()?;
    let bytes = |amount| quantity::bytes(amount).ok().map(sizing::whole_mib);
    let than_there = bytes(memory.guest.as_ref()?)?.cmp(&bytes(there)?);
    (!is_time(vmi, CONDITION_HOT_MEMORY_CHANGE, than_there)).then(|| there.clone())
}

/// Whether the launcher may get an amount that compares like this with the present one.
fn is_time(vmi: &VirtualMachineInstance, condition: &str, than_there: Ordering) -> bool {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let seen = Condition::find(conditions, condition);
    match than_there {
        Ordering::Less => seen.is_some(),
        Ordering::Equal => true,
        Ordering::Greater => {
            seen.is_some_and(|found| found.is_true() && found.reason.as_deref() == Some(REASON_POD_RESIZED))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(sockets: u32, guest: &str, conditions: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "vm"},
            "spec": {"domain": {"devices": {}, "cpu": {"sockets": sockets, "maxSockets": 4},
                "memory": {"guest": guest, "maxGuest": "4Gi"}}},
            "status": {"currentCPUTopology": {"sockets": 2}, "conditions": conditions,
                "memory": {"guestAtBoot": "1Gi", "guestRequested": "2Gi"}},
        }))
        .unwrap()
    }

    fn granted_size(vmi: &VirtualMachineInstance) -> (u32, String) {
        let told = granted(vmi).into_owned();
        (told.spec.domain.cpu.unwrap().sockets.unwrap(), told.spec.domain.memory.unwrap().guest.unwrap().0)
    }

    #[test]
    fn more_only_once_the_pod_has_it_and_less_once_the_controller_knows() {
        let of = |reason: &str| {
            let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": reason});
            json!([condition("HotVCPUChange"), condition("HotMemoryChange")])
        };
        let both = |sockets: u32, guest: &str| (sockets, guest.to_owned());
        for (sockets, guest, conditions, expected) in [
            (2, "2Gi", json!([]), both(2, "2Gi")),
            // The amount is equal in whole MiB, so the controller would not see a change.
            (2, "2097151Ki", json!([]), both(2, "2097151Ki")),
            (4, "3Gi", json!([]), both(2, "2Gi")),
            (4, "3Gi", of("PodResizing"), both(2, "2Gi")),
            (4, "3Gi", of("PodResized"), both(4, "3Gi")),
            (1, "1Gi", json!([]), both(2, "2Gi")),
            (1, "1Gi", of("PodResizing"), both(1, "1Gi")),
            (1, "3Gi", json!([]), both(2, "2Gi")),
            (1, "3Gi", of("PodResizing"), both(1, "2Gi")),
        ] {
            assert_eq!(
                granted_size(&vmi(sockets, guest, conditions.clone())),
                expected,
                "{sockets} {guest} {conditions}"
            );
        }
    }

    #[test]
    fn the_launcher_gets_only_annotations_that_it_uses() {
        let mut vmi = vmi(2, "2Gi", json!([]));
        let before = hash(&vmi);
        vmi.metadata.annotations = Some([("color".to_owned(), "red".to_owned())].into());
        assert_eq!(hash(&vmi), before);
        let pause = ("kubevirt.io/pause-guest-agent-probes".to_owned(), "true".to_owned());
        vmi.metadata.annotations = Some([pause].into());
        assert_ne!(hash(&vmi), before);
    }

    #[test]
    fn the_launcher_gets_the_new_size_of_a_grown_claim() {
        let mut vmi = vmi(2, "2Gi", json!([]));
        let volumes =
            ["a", "b"].map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        vmi.spec.volumes = serde_json::from_value(json!(volumes)).unwrap();
        let mut hash = |capacity: [&str; 2], volume: &str| {
            let info = |size: &str| json!({"requests": {"storage": "9Gi"}, "capacity": {"storage": size}});
            let told = json!([{"name": "a", "target": "", "persistentVolumeClaimInfo": info(capacity[0])},
                {"name": volume, "target": "", "persistentVolumeClaimInfo": info(capacity[1])}]);
            vmi.status.as_mut().unwrap().volume_status = serde_json::from_value(told).unwrap();
            hash(&vmi)
        };
        let before = hash(["1Gi", "1Gi"], "b");
        assert_ne!(hash(["1Gi", "2Gi"], "b"), before);
        assert_ne!(hash(["2Gi", "1Gi"], "b"), before);
        assert_eq!(hash(["1Gi", "1Gi"], "b"), before);
        assert_eq!(hash(["10Gi", "1Gi"], "b"), hash(["9Gi", "1Gi"], "b"), "no more is asked for");
        assert_eq!(hash(["1Gi", "2Gi"], "c"), hash(["1Gi", "1Gi"], "c"), "it is no disk of the guest");
    }

    #[test]
    fn a_failed_resize_grants_nothing() {
        let failed = json!([{"type": "HotVCPUChange", "status": "False", "reason": "PodResized"}]);
        assert_eq!(granted_size(&vmi(4, "2Gi", failed)).0, 2);
    }
}
