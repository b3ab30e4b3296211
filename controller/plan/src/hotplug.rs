//! Hotpluggable volumes of a machine while its instance runs, and their disks. Pure.
//!
//! ```text
//!   in the instance, not in the machine   --> removed
//!   in the machine, not in the instance   --> added, once the status lists no volume of that name any more
//!   in both, and not the same             --> removed, then added
//! ```
//!
//! A volume that was added to the instance alone stays, as long as the machine has none of that name. One that is to move
//! to another claim with the guest ([`volume_migration`](crate::volume_migration)) stays, too.
//!
//! Each change is checked by admission's rules: a change that admission would refuse is reported here, and the other volumes
//! are still added and removed.

use barevirt_api::gates::Gates;
use barevirt_api::hotplug;
use barevirt_api::names::EPHEMERAL_VOLUMES_ANNOTATION;
use barevirt_api::v1::{Disk, VirtualMachineInstance, VirtualMachineInstanceSpec, Volume};
use barevirt_api::validate::{self, Requester};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The volumes and disks that an instance is to have next.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plugs {
    /// All its volumes.
    pub volumes: Vec<Volume>,
    /// All its disks.
    pub disks: Vec<Disk>,
    /// Volumes that wait until a former volume of the same name has left the guest.
    pub waits: BTreeSet<String>,
    /// Volumes that need a restart, each with the reason.
    pub refused: BTreeMap<String, String>,
}

/// Whether a machine or its instance has any hotpluggable volume.
pub fn concerns(wanted: &VirtualMachineInstanceSpec, vmi: &VirtualMachineInstance) -> bool {
    [wanted, &vmi.spec].into_iter().any(|spec| !hotplug::names(spec).is_empty())
}

/// Names of the volumes that are hotpluggable in the machine or in the instance, and not permanent in the other.
pub(crate) fn names(wanted: &VirtualMachineInstanceSpec, vmi: &VirtualMachineInstance) -> BTreeSet<String> {
    let stays =
        |name: &String| volume(&vmi.spec.volumes, name).is_some_and(|volume| !volume.is_hotpluggable());
    let mut names = hotplug::names(wanted);
    names.extend(hotplug::names(&vmi.spec));
    // A volume that is hotpluggable in only one of the two needs a restart; the comparison with the start reports it.
    let fixed = |name: &String| volume(&wanted.volumes, name).is_some_and(|volume| !volume.is_hotpluggable());
    let ephemeral = hotplug::ephemeral(&vmi.metadata);
    let alone = |name: &String| ephemeral.contains(name.as_str()) && volume(&wanted.volumes, name).is_none();
    let moves = |name: &String| hotplug::moved(vmi, name).is_some();
    names.retain(|name| !stays(name) && !fixed(name) && !alone(name) && !moves(name));
    names
}

/// The change of the annotation about volumes of the instance alone, where the machine has volumes of their names: these are
/// the machine's from then on, also when it takes them away again.
pub fn adopted(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
) -> Option<(&'static str, Value)> {
    let noted = hotplug::ephemeral(&vmi.metadata);
    let mut left = noted.clone();
    left.retain(|name| volume(&wanted.volumes, name).is_none());
    if left == noted {
        return None;
    }
    let names: Vec<&str> = left.into_iter().collect();
    let value = if names.is_empty() { Value::Null } else { json!(names.join(",")) };
    Some((EPHEMERAL_VOLUMES_ANNOTATION, value))
}

/// Plans the volumes. `wanted` is the machine's template with its instance type, preference and defaults.
pub(crate) fn plan(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    gates: &Gates,
) -> Plugs {
    let mut next = vmi.clone();
    let (mut waits, mut refused) = (BTreeSet::new(), BTreeMap::new());
    for name in names(wanted, vmi) {
        let (is, wants) = (volume(&vmi.spec.volumes, &name), volume(&wanted.volumes, &name));
        let (disk_is, disk_wants) =
            (disk(&vmi.spec.domain.devices.disks, &name), disk(&wanted.domain.devices.disks, &name));
        let drive = |disk: Option<&Disk>| disk.is_some_and(Disk::is_cdrom);
        let mut changed = next.clone();
        match (is, wants) {
            (Some(is), Some(wants)) if is == wants && disk_is == disk_wants => continue,
            (Some(is), Some(wants)) if is == wants => {
                refused.insert(name, "the disk of a volume that is plugged in was changed".to_owned());
                continue;
            }
            (Some(_), wants) => {
                changed.spec.volumes.retain(|volume| volume.name != name);
                // A CD drive stays until the guest's end.
                if !drive(disk_is) {
                    changed.spec.domain.devices.disks.retain(|disk| disk.name != name);
                }
                if wants.is_some() {
                    waits.insert(name.clone());
                }
            }
            (None, Some(_)) if is_reported(vmi, &name) => {
                waits.insert(name);
                continue;
            }
            (None, Some(wants)) => {
                changed.spec.volumes.push(wants.clone());
                if disk_is.is_none() {
                    changed.spec.domain.devices.disks.extend(disk_wants.cloned());
                }
            }
            (None, None) => continue,
        }
        match validate::vmi_update(vmi, &changed, Requester::Component, gates).first() {
            None => next = changed,
            Some(cause) => {
                waits.remove(&name);
                refused.insert(name, cause.to_string());
            }
        }
    }
    Plugs { volumes: next.spec.volumes, disks: next.spec.domain.devices.disks, waits, refused }
}

/// Whether the instance's status lists a volume of that name, which may be one that is leaving.
fn is_reported(vmi: &VirtualMachineInstance, name: &str) -> bool {
    let told = vmi.status.iter().flat_map(|status| &status.volume_status);
    told.into_iter().any(|volume| volume.name == name)
}

pub(crate) fn volume<'a>(volumes: &'a [Volume], name: &str) -> Option<&'a Volume> {
    volumes.iter().find(|volume| volume.name == name)
}

pub(crate) fn disk<'a>(disks: &'a [Disk], name: &str) -> Option<&'a Disk> {
    disks.iter().find(|disk| disk.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A template with the volumes `names`; a claim's name may follow after a colon.
    fn spec(names: &[&str]) -> VirtualMachineInstanceSpec {
        let (mut volumes, mut disks) = (
            vec![json!({"name": "root", "containerDisk": {"image": "a"}})],
            vec![json!({"name": "root", "disk": {"bus": "virtio"}})],
        );
        for name in names {
            let (name, claim) = name.split_once(':').unwrap_or((name, name));
            volumes.push(
                json!({"name": name, "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}}),
            );
            disks.push(json!({"name": name, "disk": {"bus": "scsi"}, "serial": name}));
        }
        serde_json::from_value(json!({
            "architecture": "amd64", "volumes": volumes,
            "domain": {"devices": {"disks": disks}, "memory": {"guest": "1Gi"}},
        }))
        .unwrap()
    }

    fn vmi(names: &[&str], told: &[&str]) -> VirtualMachineInstance {
        let told: Vec<Value> =
            told.iter().map(|name| json!({"name": name, "target": "sda", "hotplugVolume": {}})).collect();
        let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "vm"}, "spec": {"domain": {"devices": {}}},
            "status": {"phase": "Running", "volumeStatus": told},
        }))
        .unwrap();
        vmi.spec = spec(names);
        vmi
    }

    /// Names of volumes after the plan, of those that wait, and of those that are refused.
    fn planned(
        wanted: &VirtualMachineInstanceSpec,
        vmi: &VirtualMachineInstance,
    ) -> (String, String, String) {
        let plugs = plan(wanted, vmi, &Gates::default());
        let volumes: Vec<&str> = plugs.volumes.iter().map(|volume| volume.name.as_str()).collect();
        let disks: Vec<&str> = plugs.disks.iter().map(|disk| disk.name.as_str()).collect();
        assert_eq!(volumes, disks);
        let waits: Vec<String> = plugs.waits.into_iter().collect();
        let refused: Vec<String> = plugs.refused.into_keys().collect();
        (volumes.join(" "), waits.join(" "), refused.join(" "))
    }

    #[test]
    fn volumes_are_plugged_and_unplugged_without_a_restart() {
        for (wanted, has, told, volumes, waits) in [
            (&["a", "b"][..], &[][..], &[][..], "root a b", ""),
            (&[], &["a", "b"], &["a"], "root", ""),
            (&["a", "c"], &["a", "b"], &["a", "b"], "root a c", ""),
            (&["a"], &["a"], &[], "root a", ""),
            // Another claim under the same name, and one whose former volume is still leaving.
            (&["a:x"], &["a"], &["a"], "root", "a"),
            (&["a:x", "b"], &[], &["a"], "root b", "a"),
        ] {
            let (volumes, waits) = (volumes.to_owned(), waits.to_owned());
            assert_eq!(
                planned(&spec(wanted), &vmi(has, told)),
                (volumes, waits, String::new()),
                "{wanted:?}"
            );
        }
    }

    fn noted(vmi: &mut VirtualMachineInstance, names: &str) {
        let noted = [(EPHEMERAL_VOLUMES_ANNOTATION.to_owned(), names.to_owned())];
        vmi.metadata.annotations = Some(noted.into());
    }

    #[test]
    fn a_volume_that_the_machine_has_is_not_the_instances_alone_any_more() {
        let mut vmi = vmi(&["a", "b"], &["a", "b"]);
        assert_eq!(adopted(&spec(&["a", "b"]), &vmi), None);
        noted(&mut vmi, "b,c");
        assert_eq!(adopted(&spec(&["a"]), &vmi), None);
        let annotation = "barevirt.dev/ephemeral-volumes";
        assert_eq!(adopted(&spec(&["a", "b"]), &vmi), Some((annotation, json!("c"))));
        assert_eq!(adopted(&spec(&["b:x", "c"]), &vmi), Some((annotation, Value::Null)));
        // The machine takes it away.
        noted(&mut vmi, "c");
        assert_eq!(planned(&spec(&["a"]), &vmi).0, "root a");
    }

    #[test]
    fn a_volume_of_the_instance_alone_stays_until_the_machine_has_one_of_its_name() {
        let mut vmi = vmi(&["a", "b"], &["a", "b"]);
        noted(&mut vmi, "b,c");
        let nothing = String::new;
        assert_eq!(planned(&spec(&["d"]), &vmi), ("root b d".into(), nothing(), nothing()));
        assert_eq!(planned(&spec(&["b"]), &vmi), ("root b".into(), nothing(), nothing()));
        assert_eq!(planned(&spec(&["b:x"]), &vmi), ("root".into(), "b".into(), nothing()));
    }

    #[test]
    fn a_volume_that_moves_to_another_claim_is_not_unplugged() {
        let mut vmi = vmi(&["a", "b:new"], &["a", "b"]);
        let moved = json!([{"volumeName": "b", "sourcePVCInfo": {"claimName": "b"},
            "destinationPVCInfo": {"claimName": "new"}}]);
        vmi.status.as_mut().unwrap().migrated_volumes = serde_json::from_value(moved).unwrap();
        for wanted in [&["b"][..], &["b:new"], &["b:x"], &[]] {
            let (volumes, waits, refused) = planned(&spec(wanted), &vmi);
            assert_eq!(
                (volumes.as_str(), waits.as_str(), refused.as_str()),
                ("root b", "", ""),
                "{wanted:?}"
            );
        }
    }

    #[test]
    fn a_volume_that_cannot_be_plugged_does_not_block_others() {
        let mut wanted = spec(&["a", "b"]);
        wanted.domain.devices.disks[1].disk.as_mut().unwrap().bus = Some("sata".to_owned());
        let plugs = plan(&wanted, &vmi(&[], &[]), &Gates::default());
        assert_eq!(plugs.volumes.len(), 2);
        assert_eq!(plugs.volumes[1].name, "b");
        assert!(
            plugs.refused["a"].contains("requires bus to be 'scsi' or 'virtio'. [sata] is not permitted.")
        );
        // With another serial number, the disk would be another one.
        let mut wanted = spec(&["a"]);
        wanted.domain.devices.disks[1].serial = Some("other".to_owned());
        assert_eq!(planned(&wanted, &vmi(&["a"], &["a"])), ("root a".into(), String::new(), "a".into()));
    }

    #[test]
    fn volumes_from_the_start_are_not_unplugged() {
        let fixed = |spec: &mut VirtualMachineInstanceSpec| {
            spec.volumes[1].persistent_volume_claim.as_mut().unwrap().hotpluggable = None;
        };
        let (mut here, mut there) = (vmi(&["a"], &[]), spec(&["a"]));
        assert!(concerns(&there, &here));
        fixed(&mut there);
        assert_eq!(names(&there, &here), BTreeSet::new());
        fixed(&mut here.spec);
        assert_eq!(names(&spec(&["a"]), &here), BTreeSet::new());
        assert!(!concerns(&spec(&[]), &here));
        assert_eq!(planned(&spec(&[]), &here), ("root a".into(), String::new(), String::new()));
    }

    #[test]
    fn a_disc_is_inserted_and_ejected_and_its_drive_stays() {
        let drive = |mut spec: VirtualMachineInstanceSpec| {
            let disk = &mut spec.domain.devices.disks[1];
            *disk = serde_json::from_value(json!({"name": "a", "cdrom": {"bus": "sata"}})).unwrap();
            spec
        };
        let with = |names: &[&str]| drive(spec(names));
        let without = |mut spec: VirtualMachineInstanceSpec| {
            spec.volumes.truncate(1);
            spec
        };
        let mut no_drive = spec(&["a"]);
        no_drive.volumes.truncate(1);
        no_drive.domain.devices.disks.truncate(1);
        for (has, told, wanted, volumes, waits) in [
            (without(with(&["a"])), &[][..], with(&["a"]), "root a", false),
            (without(with(&["a"])), &["a"], with(&["a"]), "root", true),
            (with(&["a"]), &["a"], without(with(&["a"])), "root", false),
            (with(&["a"]), &["a"], with(&["a:x"]), "root", true),
            // The drive stays until a restart.
            (with(&["a"]), &["a"], no_drive, "root", false),
        ] {
            let mut vmi = vmi(&[], told);
            vmi.spec = has;
            let plugs = plan(&wanted, &vmi, &Gates::default());
            let names: Vec<&str> = plugs.volumes.iter().map(|volume| volume.name.as_str()).collect();
            assert_eq!((names.join(" ").as_str(), plugs.waits.contains("a")), (volumes, waits));
            assert!(plugs.refused.is_empty() && plugs.disks == vmi.spec.domain.devices.disks);
        }
        // A drive is no disk that is plugged in.
        let plugs = plan(&with(&["a"]), &vmi(&[], &[]), &Gates::default());
        assert_eq!((plugs.disks.len(), plugs.refused.len()), (1, 1));
    }

    fn list() -> impl Strategy<Value = Vec<&'static str>> {
        proptest::sample::subsequence(vec!["a", "b", "c", "d"], 0..=4)
    }

    proptest! {
        /// From any state, the instance reaches what the machine wants, in steps that admission accepts.
        #[test]
        fn the_instance_reaches_the_wanted_state(
            has in list(), wants in list(), moved in any::<bool>(), told in list()
        ) {
            let moved: Vec<String> =
                wants.iter().map(|name| if moved { format!("{name}:x") } else { (*name).to_owned() }).collect();
            let moved: Vec<&str> = moved.iter().map(String::as_str).collect();
            let wanted = spec(&moved);
            let mut vmi = vmi(&has, &told);
            for _ in 0..3 {
                let plugs = plan(&wanted, &vmi, &Gates::default());
                prop_assert!(plugs.refused.is_empty());
                let mut next = vmi.clone();
                next.spec.volumes = plugs.volumes;
                next.spec.domain.devices.disks = plugs.disks;
                let causes = validate::vmi_update(&vmi, &next, Requester::Component, &Gates::default());
                prop_assert!(causes.is_empty());
                // The status lists exactly what the guest has.
                let volumes = next.spec.volumes.iter().map(|volume| volume.name.clone());
                let there: BTreeSet<String> = volumes.collect();
                next.status.as_mut().unwrap().volume_status.retain(|told| there.contains(&told.name));
                vmi = next;
            }
            let sorted = |spec: &VirtualMachineInstanceSpec| {
                let mut names: Vec<String> = spec.volumes.iter().map(|volume| format!("{volume:?}")).collect();
                names.sort();
                names
            };
            prop_assert_eq!(sorted(&vmi.spec), sorted(&wanted));
            let plugs = plan(&wanted, &vmi, &Gates::default());
            prop_assert!(plugs.waits.is_empty());
            prop_assert_eq!(plugs.volumes, vmi.spec.volumes);
        }
    }
}
