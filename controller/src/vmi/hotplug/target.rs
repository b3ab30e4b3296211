//! Hot-plugged disks of a migrating guest: each is offered on the target node by its own pod, before the guest is handed
//! over.
//!
//! The target's launcher pod owns these pods, and they are deleted with it. Volumes that are being added or removed come
//! first: the guest arrives with the volumes that it had at the hand-over.
//!
//! A volume that moves to another claim has that claim there. If the claim waits for its first consumer, a pod only for
//! that goes first, as on the guest's own node.

use super::attachments::{Attachments, PodState};
use super::is_reported_by_handler;
use super::volumes::{Stage, entries, pod_of, wanted};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::expectations::{Key, Kind};
use crate::vmi::status::taken;
use barevirt_api::hotplug::{moved, plugged};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use barevirt_plan::pod::attachment::{self, Access, Wanted};
use barevirt_plan::pod::claims::Mode;
use barevirt_plan::pod::first_consumer;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::time::Instant;

/// The state of the disks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TargetDisks {
    /// A volume is being added to the guest, or removed from it.
    Unsettled,
    /// The claim that a volume moves to is still being filled.
    BeingFilled,
    /// Another guest has, or may have in a moment, the device that a volume moves to; this message says which.
    Withheld(String),
    /// Not all are offered yet. These pods are to be made, each for a volume.
    Waits(Vec<(Box<Pod>, String)>),
    /// A disk cannot be offered, for this reason.
    Failed(String),
    /// All are offered: the UIDs of their pods, in the order of [`plugged`].
    Ready(Vec<String>),
}

impl Default for TargetDisks {
    fn default() -> Self {
        Self::Ready(Vec::new())
    }
}

/// Whether no volume is being added to the guest, or removed from it.
pub(crate) fn is_settled(vmi: &VirtualMachineInstance) -> bool {
    let wanted = wanted(vmi);
    entries(vmi).all(|(entry, _)| match Stage::of(entry) {
        Stage::Waiting | Stage::Left => true,
        Stage::Leaving => false,
        // The guest does not have a disk that QEMU refused.
        Stage::Offered => is_reported_by_handler(entry),
        Stage::Taken => {
            // The name of its pod depends on the claim.
            let pod = entry.hotplug_volume.as_ref().and_then(|noted| noted.attach_pod_name.as_deref());
            pod_of(vmi, entry).as_deref() == pod
                && wanted.iter().any(|wanted| Some(wanted.pod.as_str()) == pod)
        }
    })
}

/// Looks for the pods that offer the disks on that launcher pod's node. `None` while the pods' cache lags behind our own
/// writes.
pub(in crate::vmi) fn find(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    target: &Pod,
) -> Option<Attachments> {
    let (namespace, now) = (vmi.namespace().unwrap_or_default(), Instant::now());
    let mut found = Attachments::default();
    for name in names(vmi, target) {
        if cluster.expectations.owes(&Key::new(Kind::Pod, &namespace, &name), now) {
            return None;
        }
        let cached = cluster.pods.get(&ObjectRef::new(&name).within(&namespace));
        if let Some(pod) = cached.and_then(|pod| pod.unpack().ok()) {
            found.pods.insert(name.clone(), pod);
        }
        let left = cluster.pauses.left(&namespace, &name, now);
        if !left.is_zero() {
            found.pauses.insert(name, left);
        }
    }
    Some(found)
}

/// The wanted form of each disk, in the order of [`plugged`]. The disks exist: only one that moves to another claim is
/// created.
fn disks(vmi: &VirtualMachineInstance) -> Vec<Wanted<'_>> {
    let told = vmi.status.iter().flat_map(|status| &status.volume_status);
    let told: Vec<_> = told.collect();
    let disk = |name: &str| {
        let volume = vmi.spec.volumes.iter().find(|volume| volume.name == name)?;
        let claim = volume.claim()?;
        let entry = told.iter().find(|entry| entry.name == name)?;
        let moved = moved(vmi, name);
        let info = match moved {
            Some(moved) => moved.destination_pvc_info.as_ref()?,
            None => entry.persistent_volume_claim_info.as_ref()?,
        };
        let mode = Mode::of(info.volume_mode.as_deref());
        let access = Access::of(&vmi.spec, name, claim);
        let size = vmi.status.as_ref().and_then(|status| status.moved_disk_bytes(name));
        Some(Wanted { volume: &volume.name, claim, mode, size, exact: moved.is_some(), access })
    };
    plugged(vmi).into_iter().filter_map(|plugged| disk(plugged.volume)).collect()
}

/// The pods that go before those with the disks of these volumes, which move to claims that wait for a consumer. Each comes
/// with its volume.
pub(in crate::vmi) fn consumers(
    vmi: &VirtualMachineInstance,
    target: &Pod,
    volumes: &[&str],
    config: &Config,
) -> Result<Vec<(Box<Pod>, String)>, String> {
    let valid = ValidVmi::new(vmi.clone()).map_err(|causes| Cause::joined(&causes))?;
    let wanted = disks(vmi).into_iter().filter(|wanted| volumes.contains(&wanted.volume));
    let pod = |wanted: Wanted<'_>| {
        let pod = first_consumer::beside(&valid, &wanted, target, config);
        (Box::new(pod), wanted.volume.to_owned())
    };
    Ok(wanted.map(pod).collect())
}

fn names(vmi: &VirtualMachineInstance, target: &Pod) -> Vec<String> {
    let (uid, target) = (vmi.metadata.uid.as_deref().unwrap_or_default(), target.name_any());
    let name = |wanted: Wanted<'_>| {
        attachment::name(uid, wanted.volume, wanted.claim.name, wanted.access, Some(&target))
    };
    disks(vmi).into_iter().map(name).collect()
}

/// Judges the state of the disks by what was found. Pure.
pub(in crate::vmi) fn judge(
    vmi: &VirtualMachineInstance,
    target: &Pod,
    found: &Attachments,
    config: &Config,
) -> TargetDisks {
    let valid = match ValidVmi::new(vmi.clone()) {
        Ok(valid) => valid,
        Err(causes) => return TargetDisks::Failed(Cause::joined(&causes)),
    };
    let (mut uids, mut make, mut waits) = (Vec::new(), Vec::new(), false);
    for (wanted, name) in disks(vmi).into_iter().zip(names(vmi, target)) {
        match found.state(&name, vmi, target) {
            PodState::Serves(pod) => uids.push(pod.uid().unwrap_or_default()),
            PodState::Starts(_) => waits = true,
            PodState::Ended(_) => {
                return TargetDisks::Failed(format!("attachment pod {name} of the target has ended"));
            }
            PodState::Foreign => return TargetDisks::Failed(taken(&name)),
            PodState::Absent if found.pauses.contains_key(&name) => waits = true,
            PodState::Absent => {
                let pod = attachment::build(&valid, &wanted, target, config);
                make.push((Box::new(pod), wanted.volume.to_owned()));
            }
        }
    }
    if waits || !make.is_empty() { TargetDisks::Waits(make) } else { TargetDisks::Ready(uids) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::settings::Settings;
    use serde_json::{Value, json};

    const TARGET: &str = "virt-launcher-a-there";

    fn config() -> Config {
        Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: None,
            settings: Settings::default(),
        }
    }

    fn vmi(phases: &[(&str, &str)]) -> VirtualMachineInstance {
        let name = |volume: &str| attachment::name("u1", volume, "c", Access::Writes, None);
        let volume = |(name, _): &(&str, &str)| json!({"name": name, "persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}});
        let disk = |(name, _): &(&str, &str)| json!({"name": name, "disk": {"bus": "scsi"}});
        let told = |(volume, phase): &(&str, &str)| {
            json!({"name": volume, "target": "", "phase": phase,
                "persistentVolumeClaimInfo": {"claimName": "c", "volumeMode": "Block"},
                "hotplugVolume": {"attachPodName": name(volume), "attachPodUID": "a"}})
        };
        let all = |of: &dyn Fn(&(&str, &str)) -> Value| phases.iter().map(of).collect::<Vec<_>>();
        serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "ns", "uid": "u1"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": all(&disk)}}, "volumes": all(&volume)},
            "status": {"phase": "Running", "nodeName": "node01", "volumeStatus": all(&told)},
        }))
        .unwrap()
    }

    fn target() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": TARGET, "namespace": "ns", "uid": "t0",
                "labels": {"kubevirt.io/created-by": "u1", "kubevirt.io/migrationJobUID": "m1"}},
            "spec": {"nodeName": "node02", "containers": [{"name": "compute"}]},
        }))
        .unwrap()
    }

    #[test]
    fn volumes_being_plugged_or_unplugged_are_finished_first() {
        for (phase, settled) in [
            ("Bound", true),
            ("AttachedToNode", false),
            ("Ready", true),
            ("Detaching", false),
            ("UnMountedFromPod", true),
        ] {
            assert_eq!(is_settled(&vmi(&[("data", phase)])), settled, "{phase}");
        }
        let mut refused = vmi(&[("data", "AttachedToNode")]);
        refused.status.as_mut().unwrap().volume_status[0].reason = Some("FailedHotplugSync".to_owned());
        assert!(is_settled(&refused));
        // The guest has it, and it is not wanted, or on another claim.
        let mut unwanted = vmi(&[("data", "Ready")]);
        unwanted.spec.volumes[0].persistent_volume_claim.as_mut().unwrap().claim_name = "d".to_owned();
        assert!(!is_settled(&unwanted));
        unwanted.spec.volumes.clear();
        assert!(!is_settled(&unwanted));
    }

    /// The instance, whose volume is to move to another claim.
    fn moving() -> VirtualMachineInstance {
        let mut vmi = vmi(&[("data", "Ready"), ("logs", "Ready")]);
        vmi.spec.volumes[0].persistent_volume_claim.as_mut().unwrap().claim_name = "new".to_owned();
        let status = vmi.status.as_mut().unwrap();
        status.volume_status[0].size = Some((5 << 20) - 1);
        let moved = json!([{"volumeName": "data", "sourcePVCInfo": {"claimName": "c"},
            "destinationPVCInfo": {"claimName": "new", "requests": {"storage": "9Mi"}}}]);
        status.migrated_volumes = serde_json::from_value(moved).unwrap();
        vmi
    }

    #[test]
    fn a_volume_that_moves_gets_a_disk_as_large_on_its_new_claim() {
        let mut moving = moving();
        assert!(is_settled(&moving), "the guest has it on the former claim");
        let args = |vmi: &VirtualMachineInstance| {
            let TargetDisks::Waits(make) = judge(vmi, &target(), &Attachments::default(), &config()) else {
                panic!()
            };
            let pod = serde_json::to_value(&make[0].0).unwrap();
            assert_eq!(pod["spec"]["volumes"][1]["persistentVolumeClaim"]["claimName"], "new");
            assert!(pod["spec"]["containers"][0]["volumeDevices"].is_null(), "it is a file system");
            let other = serde_json::to_string(&make[1].0).unwrap();
            assert!(other.contains("volumeDevices") && !other.contains("--size"), "{other}");
            pod["spec"]["containers"][0]["args"].clone()
        };
        let size = 5 << 20;
        let expected = json!(["--volume", "data", "--size", size.to_string(), "--claim-tolerance", "0"]);
        assert_eq!(args(&moving), expected);
        moving.status.as_mut().unwrap().volume_status[0].size = None;
        assert_eq!(args(&moving)[3], (9 << 20).to_string());
    }

    #[test]
    fn a_claim_that_waits_for_a_consumer_gets_one_on_the_targets_node() {
        let made = consumers(&moving(), &target(), &["data"], &config()).unwrap();
        assert_eq!(made.iter().map(|(_, volume)| volume.as_str()).collect::<Vec<_>>(), ["data"]);
        let (pod, names) = (&made[0].0, names(&moving(), &target()));
        assert_eq!(pod.name_any(), first_consumer::name_beside(&names[0]));
        assert_eq!(pod.owner_references()[0].uid, "t0");
        let text = serde_json::to_string(pod).unwrap();
        assert!(text.contains("node02") && text.contains(r#""claimName":"new""#), "{text}");
    }

    #[test]
    fn each_disk_gets_a_pod_on_the_targets_node_and_all_are_waited_for() {
        let vmi = vmi(&[("logs", "Ready"), ("later", "Bound"), ("data", "Ready")]);
        let mut found = Attachments::default();
        let TargetDisks::Waits(make) = judge(&vmi, &target(), &found, &config()) else { panic!() };
        assert_eq!(make.iter().map(|(_, volume)| volume.as_str()).collect::<Vec<_>>(), ["data", "logs"]);
        let names = names(&vmi, &target());
        for ((pod, _), name) in make.iter().zip(&names) {
            assert_eq!(pod.name_any(), *name);
            assert_ne!(*name, attachment::name("u1", "data", "c", Access::Writes, None));
            assert_eq!(pod.owner_references()[0].uid, "t0");
            let text = serde_json::to_string(pod).unwrap();
            assert!(text.contains("node02") && text.contains("volumeDevices"), "{text}");
        }
        let offers = |pod: &Pod, uid: &str, ready: bool| {
            let mut pod = pod.clone();
            pod.metadata.uid = Some(uid.to_owned());
            let said = json!({"phase": "Running", "containerStatuses": [{"name": "hotplug-disk", "image": "",
                "imageID": "", "ready": ready, "restartCount": 0}]});
            pod.status = serde_json::from_value(said).unwrap();
            pod
        };
        found.pods.insert(names[0].clone(), offers(&make[0].0, "p1", true));
        found.pods.insert(names[1].clone(), offers(&make[1].0, "p2", false));
        assert_eq!(judge(&vmi, &target(), &found, &config()), TargetDisks::Waits(vec![]));
        found.pods.insert(names[1].clone(), offers(&make[1].0, "p2", true));
        let both = TargetDisks::Ready(vec!["p1".to_owned(), "p2".to_owned()]);
        assert_eq!(judge(&vmi, &target(), &found, &config()), both);
        // Another owner's pod of that name, and a pod that has ended.
        found.pods.get_mut(&names[0]).unwrap().metadata.owner_references = None;
        assert!(matches!(judge(&vmi, &target(), &found, &config()), TargetDisks::Failed(_)));
        let mut ended = offers(&make[0].0, "p1", false);
        ended.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        found.pods.insert(names[0].clone(), ended);
        assert!(matches!(judge(&vmi, &target(), &found, &config()), TargetDisks::Failed(_)));
    }
}
