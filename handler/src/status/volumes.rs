//! Volumes in a VMI's status: those that the guest starts with, and plugged ones from the moment at which the launcher is
//! involved. Of plugged ones the controller writes earlier phases, and that a volume is to be removed.

use std::collections::BTreeSet;

use barevirt_api::names::{REASON_DISK_NOT_GROWN, REASON_HOTPLUG_FAILED, VOLUME_READY, VOLUME_UNMOUNTED};
use barevirt_api::v1::{Disk, VirtualMachineInstance, VirtualMachineInstanceStatus, Volume, VolumeStatus};
use barevirt_api::{cloud_init, disk_names, hotplug, object_volume};
use barevirt_protocol::names;
use barevirt_protocol::v1::{HotDisk, LauncherStatus};

/// The guest has the volume. This and the next reason are KubeVirt's.
const REASON_READY: &str = "VolumeReady";
/// The launcher has released the volume.
const REASON_UNMOUNTED: &str = "VolumeUnMountedFromPod";

/// Writes an entry for each volume that the guest started with, and the name of its disk, as KubeVirt does. A name that is
/// there stays: a plugged disk may have gone meanwhile. Entries are in the order of their names.
pub(super) fn report_started(volumes: &mut Vec<VolumeStatus>, vmi: &VirtualMachineInstance) {
    for volume in vmi.spec.volumes.iter().filter(|volume| !volume.is_hotpluggable()) {
        if volumes.iter().all(|entry| entry.name != volume.name) {
            volumes.push(VolumeStatus { name: volume.name.clone(), ..VolumeStatus::default() });
        }
    }
    let mut taken: BTreeSet<String> = volumes.iter().map(|entry| entry.target.clone()).collect();
    for disk in vmi.spec.domain.devices.disks.iter().filter(|disk| starts(vmi, disk)) {
        let entry = volumes.iter_mut().find(|entry| entry.name == disk.name);
        if entry.as_ref().is_some_and(|entry| !entry.target.is_empty()) {
            continue;
        }
        let prefix = if disk.bus() == Some("virtio") { "vd" } else { "sd" };
        let name = disk_names::first_free(prefix, |name| !taken.contains(name));
        taken.insert(name.clone());
        // An empty CD drive has a name, too; its disc is reported when it is inserted.
        if let Some(entry) = entry.filter(|entry| entry.hotplug_volume.is_none()) {
            entry.target = name;
        }
    }
    volumes.sort_by(|one, other| one.name.cmp(&other.name));
}

/// Whether the guest started with the disk, or with the CD drive.
fn starts(vmi: &VirtualMachineInstance, disk: &Disk) -> bool {
    let mut volumes = vmi.spec.volumes.iter();
    disk.is_cdrom() || volumes.any(|volume| volume.name == disk.name && !volume.is_hotpluggable())
}

/// Writes the launcher's report. The launcher does not mention a disk that it does not have. Such a disk is
/// gone if the report `is_current`: if it is newer than the launcher's current specification.
pub(super) fn report(
    volumes: &mut [VolumeStatus],
    vmi: &VirtualMachineInstance,
    launcher: &LauncherStatus,
    is_current: bool,
) {
    for entry in volumes.iter_mut().filter(|entry| is_offered(entry)) {
        let Some(claim) = claim(entry).map(str::to_owned) else { continue };
        let is_it = |disk: &&HotDisk| disk.volume == entry.name && disk.claim == claim;
        let (reason, message) = match launcher.hot_disks.iter().find(is_it) {
            Some(disk) if !disk.trouble.is_empty() => (REASON_HOTPLUG_FAILED, disk.trouble.clone()),
            Some(disk) if disk.plugged && is_wanted(vmi, &entry.name, &claim) => {
                entry.phase = Some(VOLUME_READY.to_owned());
                entry.target.clone_from(&disk.target);
                (REASON_READY, format!("Successfully attach hotplugged volume {} to VM", entry.name))
            }
            // The disk is being plugged in or removed.
            Some(_) => continue,
            None if is_current && is_gone(vmi, &entry.name, &claim, launcher) => {
                entry.phase = Some(VOLUME_UNMOUNTED.to_owned());
                entry.target.clear();
                let text = format!("Volume {} has been unmounted from virt-launcher pod", entry.name);
                (REASON_UNMOUNTED, text)
            }
            None => continue,
        };
        entry.reason = Some(reason.to_owned());
        entry.message = Some(message);
    }
}

/// Writes the size of empty disks and of disks that move to other claims, for the target of a migration, and removes it from
/// disks that do not move.
pub(super) fn report_moved(
    status: &mut VirtualMachineInstanceStatus,
    vmi: &VirtualMachineInstance,
    launcher: &LauncherStatus,
) {
    let is_empty =
        |name: &str| vmi.spec.volumes.iter().any(|volume| volume.name == name && volume.empty_disk.is_some());
    let VirtualMachineInstanceStatus { volume_status, migrated_volumes, .. } = status;
    for entry in volume_status.iter_mut() {
        let moves = migrated_volumes.iter().any(|moved| moved.volume_name == entry.name);
        let Some(disk) = launcher.claim_disks.iter().find(|disk| disk.volume == entry.name) else { continue };
        entry.size = (moves || is_empty(&entry.name)).then(|| i64::try_from(disk.bytes).unwrap_or(i64::MAX));
    }
}

/// Writes the sizes of disks that were made of the manifest and of objects, for the target of a migration, and removes that of
/// a disk of which the launcher does not tell it.
pub(super) fn report_made(
    volumes: &mut [VolumeStatus],
    vmi: &VirtualMachineInstance,
    launcher: &LauncherStatus,
) {
    let is_made = |volume: &&Volume| cloud_init::of(volume).is_some() || object_volume::of(volume).is_some();
    for Volume { name, .. } in vmi.spec.volumes.iter().filter(is_made) {
        let disk = launcher.made_disks.iter().find(|disk| disk.volume == *name);
        if let Some(entry) = volumes.iter_mut().find(|entry| entry.name == *name) {
            entry.size = disk.map(|disk| i64::try_from(disk.bytes).unwrap_or(i64::MAX));
        }
    }
}

/// Writes which disks could not grow with their claims.
pub(super) fn report_growth(volumes: &mut [VolumeStatus], launcher: &LauncherStatus) {
    for entry in volumes {
        if let Some(trouble) = launcher.not_grown.iter().find(|trouble| trouble.volume == entry.name) {
            entry.reason = Some(REASON_DISK_NOT_GROWN.to_owned());
            entry.message = Some(trouble.text.clone());
        } else if entry.reason.as_deref() == Some(REASON_DISK_NOT_GROWN) {
            (entry.reason, entry.message) = (None, None);
        }
    }
}

/// Disks that have to be handed to the launcher, each with the UID of the pod that offers it.
pub fn missing(vmi: &VirtualMachineInstance, launcher: &LauncherStatus) -> Vec<(names::HotDisk, String)> {
    let volumes = vmi.status.iter().flat_map(|status| &status.volume_status);
    let offered = volumes.filter_map(|entry| {
        let pod = entry.hotplug_volume.as_ref()?.attach_pod_uid.clone().filter(|uid| !uid.is_empty())?;
        let disk = names::HotDisk { volume: entry.name.clone(), claim: claim(entry)?.to_owned() };
        let is_missing = is_wanted(vmi, &disk.volume, &disk.claim)
            && entry.phase.as_deref() != Some(VOLUME_UNMOUNTED)
            && !launcher.descriptors.contains(&disk.descriptor());
        is_missing.then_some((disk, pod))
    });
    offered.collect()
}

/// Disks that an arriving guest got while it ran. The launcher needs them before the guest arrives.
pub fn arriving(vmi: &VirtualMachineInstance, launcher: &LauncherStatus) -> Vec<(names::HotDisk, String)> {
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    let pods = state.into_iter().flat_map(hotplug::target_pods);
    let arriving = hotplug::plugged(vmi).into_iter().zip(pods).filter_map(|(plugged, pod)| {
        let hotplug::Plugged { volume, claim } = hotplug::at_target(vmi, plugged)?;
        let disk = names::HotDisk { volume: volume.to_owned(), claim: claim.to_owned() };
        let is_missing = !launcher.descriptors.contains(&disk.descriptor());
        is_missing.then(|| (disk, pod.to_owned()))
    });
    arriving.collect()
}

fn is_offered(entry: &VolumeStatus) -> bool {
    let pod = entry.hotplug_volume.as_ref().and_then(|hotplug| hotplug.attach_pod_uid.as_deref());
    pod.is_some_and(|uid| !uid.is_empty())
}

fn claim(entry: &VolumeStatus) -> Option<&str> {
    entry.persistent_volume_claim_info.as_ref()?.claim_name.as_deref()
}

fn is_wanted(vmi: &VirtualMachineInstance, name: &str, claim: &str) -> bool {
    hotplug::wants(vmi, hotplug::Plugged { volume: name, claim })
}

/// Whether the volume is not wanted and the launcher holds nothing of it.
fn is_gone(vmi: &VirtualMachineInstance, name: &str, claim: &str, launcher: &LauncherStatus) -> bool {
    let disk = names::HotDisk { volume: name.to_owned(), claim: claim.to_owned() };
    !is_wanted(vmi, name, claim) && !launcher.descriptors.contains(&disk.descriptor())
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_protocol::v1::{ClaimDisk, DiskTrouble, MadeDisk};
    use serde_json::{Value, json};

    fn vmi(claim: Option<&str>, phase: &str) -> VirtualMachineInstance {
        let volumes: Vec<Value> = claim
            .map(|claim| json!({"name": "data", "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {}, "spec": {"domain": {"devices": {}}, "volumes": volumes},
            "status": {"volumeStatus": [
                {"name": "boot", "target": ""},
                {
                    "name": "data", "target": "", "phase": phase, "persistentVolumeClaimInfo": {"claimName": "c"},
                    "hotplugVolume": {"attachPodName": "hp-volume-data", "attachPodUID": "p1"},
                },
            ]},
        }))
        .unwrap()
    }

    fn launcher(held: bool, disk: Option<(bool, &str)>) -> LauncherStatus {
        let disk = disk.map(|(plugged, trouble)| HotDisk {
            volume: "data".to_owned(),
            claim: "c".to_owned(),
            plugged,
            target: "sda".to_owned(),
            trouble: trouble.to_owned(),
        });
        LauncherStatus {
            descriptors: held.then(|| "disk/data/c".to_owned()).into_iter().collect(),
            hot_disks: disk.into_iter().collect(),
            ..LauncherStatus::default()
        }
    }

    #[test]
    fn a_disk_is_ready_when_the_guest_has_it_and_unmounted_when_nothing_is_left_of_it() {
        for (claim, launcher, expected) in [
            (Some("c"), launcher(false, None), ("AttachedToNode", "", None)),
            (Some("c"), launcher(true, None), ("AttachedToNode", "", None)),
            (Some("c"), launcher(true, Some((true, ""))), ("Ready", "sda", Some("VolumeReady"))),
            (
                Some("c"),
                launcher(true, Some((false, "no"))),
                ("AttachedToNode", "", Some("FailedHotplugSync")),
            ),
            (None, launcher(true, Some((true, ""))), ("AttachedToNode", "", None)),
            (None, launcher(true, Some((true, "kept"))), ("AttachedToNode", "", Some("FailedHotplugSync"))),
            (None, launcher(true, None), ("AttachedToNode", "", None)),
            (None, launcher(false, None), ("UnMountedFromPod", "", Some("VolumeUnMountedFromPod"))),
            // The volume is on another claim now, so the disk on this claim is removed.
            (Some("d"), launcher(false, None), ("UnMountedFromPod", "", Some("VolumeUnMountedFromPod"))),
        ] {
            let vmi = vmi(claim, "AttachedToNode");
            let mut volumes = vmi.status.clone().unwrap().volume_status;
            let mut early = volumes.clone();
            report(&mut volumes, &vmi, &launcher, true);
            assert_eq!(volumes[0], vmi.status.as_ref().unwrap().volume_status[0]);
            let entry = &volumes[1];
            let seen = (entry.phase.as_deref().unwrap(), entry.target.as_str(), entry.reason.as_deref());
            assert_eq!(seen, expected, "{claim:?} {launcher:?}");
            report(&mut early, &vmi, &launcher, false);
            assert_ne!(early[1].phase.as_deref(), Some(VOLUME_UNMOUNTED), "it may not know yet");
        }
    }

    #[test]
    fn a_disk_that_moves_to_another_claim_keeps_its_claim_on_the_source_and_has_the_new_one_on_the_target() {
        let mut vmi = vmi(Some("new"), "Ready");
        let status = vmi.status.as_mut().unwrap();
        let moved = json!([{"volumeName": "data", "sourcePVCInfo": {"claimName": "c"},
            "destinationPVCInfo": {"claimName": "new"}}]);
        status.migrated_volumes = serde_json::from_value(moved).unwrap();
        let state = json!({"migrationUid": "m", "targetAttachmentPodUID": "p9"});
        status.migration_state = serde_json::from_value(state).unwrap();
        let here = launcher(true, Some((true, "")));
        let mut volumes = vmi.status.clone().unwrap().volume_status;
        report(&mut volumes, &vmi, &here, true);
        assert_eq!(volumes[1].phase.as_deref(), Some("Ready"));
        assert!(missing(&vmi, &here).is_empty());
        let there = names::HotDisk { volume: "data".to_owned(), claim: "new".to_owned() };
        assert_eq!(arriving(&vmi, &launcher(false, None)), [(there, "p9".to_owned())]);
    }

    #[test]
    fn volumes_from_the_start_have_the_targets_of_their_disks() {
        let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {},
            "spec": {
                "domain": {"devices": {"disks": [
                    {"name": "root", "disk": {"bus": "virtio"}}, {"name": "hot", "disk": {"bus": "scsi"}},
                    {"name": "drive", "cdrom": {"bus": "sata"}}, {"name": "data", "disk": {}},
                    {"name": "extra", "disk": {"bus": "virtio"}},
                ]}},
                "volumes": [
                    {"name": "root", "containerDisk": {"image": "a"}}, {"name": "shared", "configMap": {"name": "c"}},
                    {"name": "hot", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "d"}},
                    {"name": "extra", "emptyDisk": {"capacity": "1Gi"}},
                ],
            },
            "status": {"volumeStatus": [
                {"name": "hot", "target": "", "phase": "Bound", "hotplugVolume": {"attachPodName": "p"}},
                {"name": "data", "target": "", "persistentVolumeClaimInfo": {"claimName": "d"}},
            ]},
        }))
        .unwrap();
        let told = |vmi: &VirtualMachineInstance| {
            let mut volumes = vmi.status.clone().unwrap().volume_status;
            report_started(&mut volumes, vmi);
            volumes
        };
        let names = |volumes: &[VolumeStatus]| {
            volumes.iter().map(|entry| format!("{} {}", entry.name, entry.target)).collect::<Vec<_>>()
        };
        let volumes = told(&vmi);
        assert_eq!(names(&volumes), ["data sdb", "extra vdb", "hot ", "root vda", "shared "]);
        assert_eq!(
            volumes[0].persistent_volume_claim_info.as_ref().unwrap().claim_name.as_deref(),
            Some("d")
        );
        // The guest does not notice a new order, nor that a plugged disk has gone.
        vmi.status.as_mut().unwrap().volume_status = volumes.clone();
        vmi.spec.domain.devices.disks.reverse();
        assert_eq!(told(&vmi), volumes);
    }

    #[test]
    fn a_disk_that_does_not_grow_is_reported_until_it_grows() {
        let vmi = vmi(Some("c"), "Ready");
        let trouble = |volume: &str| DiskTrouble { volume: volume.to_owned(), text: "busy".to_owned() };
        let mut launcher = launcher(true, Some((true, "")));
        launcher.not_grown = vec![trouble("boot"), trouble("data"), trouble("other")];
        let mut volumes = vmi.status.clone().unwrap().volume_status;
        let mut report = |launcher: &LauncherStatus| {
            report(&mut volumes, &vmi, launcher, true);
            report_growth(&mut volumes, launcher);
            let told = volumes.iter().map(|entry| (entry.reason.clone(), entry.message.clone()));
            told.collect::<Vec<_>>()
        };
        let told = (Some("DiskNotGrown".to_owned()), Some("busy".to_owned()));
        assert_eq!(report(&launcher), [told.clone(), told.clone()]);
        launcher.not_grown = vec![trouble("boot")];
        let after = report(&launcher);
        assert_eq!((&after[0], after[1].0.as_deref()), (&told, Some("VolumeReady")));
        launcher.not_grown = vec![];
        assert_eq!(report(&launcher)[0], (None, None));
    }

    #[test]
    fn the_size_of_an_empty_disk_is_in_the_status_and_that_of_a_claim_only_while_it_moves() {
        let mut vmi = vmi(None, "Ready");
        let volumes = json!([{"name": "boot", "persistentVolumeClaim": {"claimName": "a"}},
            {"name": "scratch", "emptyDisk": {"capacity": "1G"}}]);
        vmi.spec.volumes = serde_json::from_value(volumes).unwrap();
        let disk = |volume: &str, bytes| ClaimDisk { volume: volume.to_owned(), bytes };
        let launcher = LauncherStatus {
            claim_disks: vec![disk("boot", 5), disk("scratch", 999_292_928)],
            ..LauncherStatus::default()
        };
        let mut status = vmi.status.clone().unwrap();
        report_started(&mut status.volume_status, &vmi);
        let sizes = |status: &mut VirtualMachineInstanceStatus| {
            report_moved(status, &vmi, &launcher);
            ["boot", "scratch"].map(|volume| status.disk_bytes(volume))
        };
        assert_eq!(sizes(&mut status), [None, Some(999_292_928)]);
        let moved = json!([{"volumeName": "boot", "sourcePVCInfo": {"claimName": "a"}, "destinationPVCInfo": {"claimName": "b"}}]);
        status.migrated_volumes = serde_json::from_value(moved).unwrap();
        assert_eq!(sizes(&mut status), [Some(5), Some(999_292_928)]);
    }

    #[test]
    fn the_size_of_a_generated_disk_is_in_the_status_while_the_launcher_reports_it() {
        let mut vmi = vmi(Some("c"), "Ready");
        let volumes = json!([{"name": "seed", "cloudInitNoCloud": {"userData": "x"}},
            {"name": "settings", "configMap": {"name": "a"}}, {"name": "boot", "containerDisk": {"image": "x"}}]);
        vmi.spec.volumes = serde_json::from_value(volumes).unwrap();
        let made = |volume: &str, bytes| MadeDisk { volume: volume.to_owned(), bytes, read_only: true };
        let mut launcher = LauncherStatus {
            made_disks: vec![made("settings", 4096), made("boot", 5), made("nowhere", 6)],
            ..LauncherStatus::default()
        };
        let mut told = vmi.status.clone().unwrap().volume_status;
        report_started(&mut told, &vmi);
        let mut report = |launcher: &LauncherStatus| {
            report_made(&mut told, &vmi, launcher);
            told.iter().map(|entry| (entry.name.clone(), entry.size)).collect::<Vec<_>>()
        };
        let expected = |size: Option<i64>| {
            [("boot", None), ("data", None), ("seed", None), ("settings", size)]
                .map(|(name, size)| (name.to_owned(), size))
        };
        assert_eq!(report(&launcher), expected(Some(4096)));
        // A launcher of an older version does not tell it.
        launcher.made_disks.clear();
        assert_eq!(report(&launcher), expected(None));
    }

    #[test]
    fn disks_of_an_arriving_guest_come_from_attachment_pods_of_this_node() {
        let coming = |claim: Option<&str>, phase: &str, held: bool| {
            let mut vmi = vmi(claim, phase);
            let state = json!({"migrationUid": "m", "targetAttachmentPodUID": "p9"});
            vmi.status.as_mut().unwrap().migration_state = serde_json::from_value(state).unwrap();
            arriving(&vmi, &launcher(held, None))
                .into_iter()
                .map(|(disk, pod)| (disk.volume, pod))
                .collect::<Vec<_>>()
        };
        assert_eq!(coming(Some("c"), "Ready", false), [("data".to_owned(), "p9".to_owned())]);
        for none in [
            coming(Some("c"), "Ready", true),
            coming(Some("c"), "AttachedToNode", false),
            coming(Some("d"), "Ready", false),
            coming(None, "Ready", false),
        ] {
            assert_eq!(none, []);
        }
        assert_eq!(arriving(&vmi(Some("c"), "Ready"), &launcher(false, None)), []);
    }

    #[test]
    fn an_offered_wanted_disk_is_handed_over_once() {
        let count = |vmi: &VirtualMachineInstance, held| missing(vmi, &launcher(held, None)).len();
        assert_eq!(missing(&vmi(Some("c"), "AttachedToNode"), &launcher(false, None))[0].1, "p1");
        assert_eq!(count(&vmi(Some("c"), "Ready"), false), 1);
        assert_eq!(count(&vmi(Some("c"), "AttachedToNode"), true), 0);
        assert_eq!(count(&vmi(Some("c"), "UnMountedFromPod"), false), 0);
        assert_eq!(count(&vmi(Some("d"), "AttachedToNode"), false), 0);
        assert_eq!(count(&vmi(None, "Detaching"), false), 0);
    }
}
