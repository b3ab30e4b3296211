//! Claims that are devices: one guest writes to each at a time, unless all of them share it. Pure.
//!
//! On the same node the launcher opens the device exclusively, and a second guest fails. Two nodes do not know of each
//! other: so an instance waits here until the earlier one has ended. The order does not depend on the state of the cache:
//! instances that have left `Pending` come first, then older ones.

use barevirt_api::names::{PHASE_PENDING, is_final_phase};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_plan::phase;
use kube::ResourceExt;

/// A claim that a guest writes to, and whether it shares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written<'a> {
    pub(super) claim: &'a str,
    shared: bool,
}

/// The claims that an instance's guest writes to.
pub(super) fn written(vmi: &VirtualMachineInstance) -> impl Iterator<Item = Written<'_>> {
    let volume = |name: &str| vmi.spec.volumes.iter().find(|volume| volume.name == name);
    let disks = vmi.spec.domain.devices.disks.iter().filter(|disk| !disk.is_readonly());
    disks.filter_map(move |disk| {
        let claim = volume(&disk.name)?.claim().filter(|claim| !claim.is_ephemeral && !claim.is_read_only)?;
        Some(Written { claim: claim.name, shared: disk.shareable == Some(true) })
    })
}

/// Message about the first of these claims that an earlier instance of the namespace has.
pub(super) fn taken(
    vmi: &VirtualMachineInstance,
    devices: &[Written<'_>],
    others: impl IntoIterator<Item = VirtualMachineInstance>,
) -> Option<String> {
    others.into_iter().filter(|other| is_before(other, vmi)).find_map(|other| {
        let clash = |theirs: &Written<'_>| {
            devices.iter().find(|own| own.claim == theirs.claim && !(own.shared && theirs.shared))
        };
        let claim = written(&other).find_map(|theirs| clash(&theirs))?.claim;
        Some(format!(
            "PVC {claim} is a device that VMI {} writes to; disks that guests are to share need shareable",
            other.name_any()
        ))
    })
}

/// Whether another instance may use its claims before this one.
fn is_before(other: &VirtualMachineInstance, vmi: &VirtualMachineInstance) -> bool {
    if other.metadata.uid == vmi.metadata.uid || is_final_phase(phase(other)) {
        return false;
    }
    let age = |of: &VirtualMachineInstance| {
        (of.metadata.creation_timestamp.as_ref().map(|time| time.0), of.metadata.uid.clone())
    };
    phase(other) != PHASE_PENDING || age(other) < age(vmi)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(uid: &str, phase: &str, second: u32, disk: &Value) -> VirtualMachineInstance {
        let mut disk = disk.clone();
        disk["name"] = json!("data");
        serde_json::from_value(json!({
            "metadata": {"name": format!("vm-{uid}"), "uid": uid,
                "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")},
            "spec": {
                "domain": {"devices": {"disks": [disk]}},
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn running_guests_then_older_guests_hold_a_claim() {
        let own = json!({"disk": {"bus": "virtio"}});
        let shared = json!({"disk": {"bus": "virtio"}, "shareable": true});
        let read = json!({"disk": {"bus": "virtio", "readonly": true}});
        let of = |second: u32, mine: &Value, phase: &str, theirs: &Value| {
            let vmi_ = vmi("b", "Pending", 5, mine);
            let devices: Vec<Written<'_>> = written(&vmi_).collect();
            taken(&vmi_, &devices, [vmi("a", phase, second, theirs)])
        };
        let told = of(9, &own, "Running", &own).unwrap();
        assert!(told.starts_with("PVC data is a device that VMI vm-a writes to"), "{told}");
        assert!(of(9, &own, "Scheduling", &own).is_some());
        assert!(of(1, &own, "Pending", &own).is_some());
        assert!(of(5, &own, "Pending", &own).is_some(), "by its UID");
        assert_eq!(of(9, &own, "Pending", &own), None);
        for ended in ["Succeeded", "Failed"] {
            assert_eq!(of(1, &own, ended, &own), None);
        }
        assert_eq!(of(1, &shared, "Running", &shared), None);
        assert!(of(1, &own, "Running", &shared).is_some() && of(1, &shared, "Running", &own).is_some());
        assert_eq!(of(1, &read, "Running", &own), None);
        assert_eq!(of(1, &own, "Running", &read), None);
    }
}
