//! Which volumes of a specification can be plugged and unplugged while a guest runs, and their disks.

use crate::names::{EPHEMERAL_VOLUMES_ANNOTATION, VOLUME_READY};
use crate::v1::{
    StorageMigratedVolumeInfo, VirtualMachineInstance, VirtualMachineInstanceMigrationState,
    VirtualMachineInstanceSpec, Volume, VolumeClaim, VolumeStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeSet;

/// Copies the pluggable volumes and their disks from `now` to `then`. Everything else in `then` stays, and
/// remaining differences need a restart.
pub fn take_over(then: &mut VirtualMachineInstanceSpec, now: &VirtualMachineInstanceSpec) {
    let (were, are) = (names(then), names(now));
    then.volumes = followed(
        &then.volumes,
        &now.volumes,
        |volume| &volume.name,
        |volume| were.contains(&volume.name),
        |volume| are.contains(&volume.name),
    );
    let (before, after) = (&mut then.domain.devices.disks, &now.domain.devices.disks);
    // A CD drive stays; only its disc comes and goes.
    *before = followed(
        before,
        after,
        |disk| &disk.name,
        |disk| were.contains(&disk.name) && !disk.is_cdrom(),
        |disk| are.contains(&disk.name) && !disk.is_cdrom(),
    );
}

/// Names of the volumes that can be plugged and unplugged.
pub fn names(spec: &VirtualMachineInstanceSpec) -> BTreeSet<String> {
    let hot = spec.volumes.iter().filter(|volume| volume.is_hotpluggable());
    hot.map(|volume| volume.name.clone()).collect()
}

/// Names of the volumes that were added to an instance alone. The machine that owns it does not decide about them.
pub fn ephemeral(instance: &ObjectMeta) -> BTreeSet<&str> {
    let listed = instance.annotations.as_ref().and_then(|all| all.get(EPHEMERAL_VOLUMES_ANNOTATION));
    let names = listed.into_iter().flat_map(|names| names.split(','));
    names.filter(|name| !name.is_empty()).collect()
}

/// A volume that was plugged into a running guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Plugged<'a> {
    /// Its name.
    pub volume: &'a str,
    /// The claim that holds it.
    pub claim: &'a str,
}

/// Volumes that were plugged into the running guest and are there now, according to the status, sorted by
/// name. They move along with the guest.
pub fn plugged(vmi: &VirtualMachineInstance) -> Vec<Plugged<'_>> {
    let told = vmi.status.iter().flat_map(|status| &status.volume_status);
    let mut plugged: Vec<_> = told.filter_map(as_plugged).collect();
    plugged.sort_unstable();
    plugged
}

fn as_plugged(told: &VolumeStatus) -> Option<Plugged<'_>> {
    let has = told.hotplug_volume.is_some() && told.phase.as_deref() == Some(VOLUME_READY);
    let claim = told.persistent_volume_claim_info.as_ref()?.claim_name.as_deref()?;
    has.then_some(Plugged { volume: &told.name, claim })
}

/// The claims of a volume that is to move to another one with its guest.
pub fn moved<'a>(vmi: &'a VirtualMachineInstance, volume: &str) -> Option<&'a StorageMigratedVolumeInfo> {
    let mut moved = vmi.status.iter().flat_map(|status| &status.migrated_volumes);
    moved.find(|moved| moved.volume_name == volume)
}

/// The claim on which a volume of the specification is to be now: as long as it is to move to another claim,
/// the specification names that one, and the guest has the former one.
pub fn present<'a>(vmi: &'a VirtualMachineInstance, volume: &'a Volume) -> Option<VolumeClaim<'a>> {
    let claim = volume.claim()?;
    let source = moved(vmi, &volume.name).and_then(|moved| moved.source_pvc_info.as_ref());
    Some(match source.and_then(|source| source.claim_name.as_deref()) {
        // It was filled before the guest got it.
        Some(name) => VolumeClaim { name, is_filled: false, ..claim },
        None => claim,
    })
}

/// Whether an instance is to have this volume on that claim now.
pub fn wants(vmi: &VirtualMachineInstance, plugged: Plugged<'_>) -> bool {
    let mut hot = vmi.spec.volumes.iter().filter(|volume| volume.is_hotpluggable());
    hot.any(|volume| {
        volume.name == plugged.volume && present(vmi, volume).is_some_and(|claim| claim.name == plugged.claim)
    })
}

/// A plugged volume on the node to which its guest moves; `None` if it does not move with the guest.
pub fn at_target<'a>(vmi: &'a VirtualMachineInstance, plugged: Plugged<'a>) -> Option<Plugged<'a>> {
    let volume = vmi.spec.volumes.iter().find(|volume| volume.name == plugged.volume)?;
    let claim = volume.claim().filter(|_| wants(vmi, plugged))?;
    Some(Plugged { claim: claim.name, ..plugged })
}

/// Separator of the pods' UIDs in `status.migrationState.targetAttachmentPodUID`. In KubeVirt one pod has all
/// volumes; here each volume has its own pod.
pub const UID_SEPARATOR: &str = ",";

/// UIDs of the pods that offer these volumes on the target node, in the order of [`plugged`].
pub fn target_pods(state: &VirtualMachineInstanceMigrationState) -> impl Iterator<Item = &str> {
    let uids = state.target_attachment_pod_uid.as_deref().unwrap_or_default();
    uids.split(UID_SEPARATOR).filter(|uid| !uid.is_empty())
}

/// The former list with its pluggable entries replaced by the current ones, in the current order.
fn followed<T: Clone>(
    then: &[T],
    now: &[T],
    name: impl Fn(&T) -> &String,
    came: impl Fn(&T) -> bool,
    comes: impl Fn(&T) -> bool,
) -> Vec<T> {
    let kept = |item: &&T| !came(item);
    let mut list: Vec<T> = now
        .iter()
        .filter_map(|item| {
            let stays = then.iter().filter(kept).find(|other| name(other) == name(item));
            stays.or_else(|| Some(item).filter(|item| comes(item))).cloned()
        })
        .collect();
    let gone = then.iter().filter(kept).filter(|item| now.iter().all(|other| name(other) != name(item)));
    list.extend(gone.cloned());
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn plugged_volumes_move_with_the_guest() {
        let told = |name: &str, phase: &str, hot: bool| {
            let mut told = json!({"name": name, "target": "", "phase": phase,
                "persistentVolumeClaimInfo": {"claimName": format!("on-{name}")}});
            if hot {
                told["hotplugVolume"] = json!({"attachPodName": "p", "attachPodUID": "u"});
            }
            told
        };
        let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": "on-b", "hotpluggable": true}});
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {}, "spec": {"domain": {"devices": {}}, "volumes": [claim("a"), claim("b")]},
            "status": {"volumeStatus": [
                told("b", "Ready", true), told("boot", "Ready", false), told("c", "AttachedToNode", true),
                told("a", "Ready", true), told("d", "Detaching", true),
            ]},
        }))
        .unwrap();
        let found = plugged(&vmi);
        let names: Vec<_> = found.iter().map(|one| (one.volume, one.claim)).collect();
        assert_eq!(names, [("a", "on-a"), ("b", "on-b")]);
        assert_eq!(found.iter().map(|one| wants(&vmi, *one)).collect::<Vec<_>>(), [false, true]);
        assert_eq!(found.iter().filter_map(|one| at_target(&vmi, *one)).collect::<Vec<_>>(), [found[1]]);
        // One that is to move to another claim.
        let mut moves = vmi.clone();
        let claims = json!([{"volumeName": "a", "sourcePVCInfo": {"claimName": "on-a"},
            "destinationPVCInfo": {"claimName": "on-b"}}]);
        moves.status.as_mut().unwrap().migrated_volumes = serde_json::from_value(claims).unwrap();
        let a = plugged(&moves)[0];
        assert_eq!((a.claim, wants(&moves, a)), ("on-a", true));
        assert!(!wants(&moves, Plugged { claim: "on-b", ..a }));
        assert_eq!(at_target(&moves, a), Some(Plugged { claim: "on-b", ..a }));
        let mut state = VirtualMachineInstanceMigrationState::default();
        assert_eq!(target_pods(&state).count(), 0);
        state.target_attachment_pod_uid = Some("u1,u2".to_owned());
        assert_eq!(target_pods(&state).collect::<Vec<_>>(), ["u1", "u2"]);
    }

    fn spec(volumes: Value, disks: Value) -> VirtualMachineInstanceSpec {
        serde_json::from_value(json!({"volumes": volumes, "domain": {"devices": {"disks": disks}}})).unwrap()
    }

    fn claim(name: &str, claim: &str) -> Value {
        json!({"name": name, "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}})
    }

    fn root() -> Value {
        json!({"name": "root", "containerDisk": {"image": "a"}})
    }

    fn disk(name: &str) -> Value {
        json!({"name": name, "disk": {"bus": "scsi"}})
    }

    #[test]
    fn plugged_and_unplugged_volumes_are_no_difference() {
        let then =
            spec(json!([root(), claim("a", "a"), claim("b", "b")]), json!(["root", "a", "b"].map(disk)));
        for now in [
            spec(json!([root()]), json!([disk("root")])),
            spec(json!([root(), claim("c", "c")]), json!([disk("root"), disk("c")])),
            spec(json!([claim("b", "other"), root()]), json!([disk("b"), disk("root")])),
        ] {
            let mut followed = then.clone();
            take_over(&mut followed, &now);
            assert_eq!(followed, now);
            take_over(&mut followed, &then);
            assert_eq!(followed, then);
        }
    }

    #[test]
    fn everything_else_is() {
        let fixed = json!({"name": "a", "persistentVolumeClaim": {"claimName": "a"}});
        let then = spec(json!([root(), claim("a", "a")]), json!([disk("root"), disk("a")]));
        for now in [
            // Another image, none, a claim that is there from the start, another bus of a disk that stays.
            spec(json!([{"name": "root", "containerDisk": {"image": "b"}}]), json!([disk("root")])),
            spec(json!([claim("a", "a")]), json!([disk("a")])),
            spec(json!([root(), fixed]), json!([disk("root"), disk("a")])),
            spec(
                json!([root(), claim("a", "a")]),
                json!([{"name": "root", "disk": {"bus": "sata"}}, disk("a")]),
            ),
            spec(json!([claim("root", "root")]), json!([disk("root")])),
        ] {
            let mut followed = then.clone();
            take_over(&mut followed, &now);
            assert_ne!(followed, now);
        }
    }

    #[test]
    fn only_the_disc_of_a_drive_is_hotpluggable() {
        let drive = || json!([{"name": "a", "cdrom": {"bus": "sata"}}]);
        let full = spec(json!([claim("a", "a")]), drive());
        let empty = spec(json!([]), drive());
        let without = spec(json!([]), json!([]));
        for (then, now, same) in
            [(&full, &empty, true), (&empty, &full, true), (&full, &without, false), (&without, &full, false)]
        {
            let mut followed = then.clone();
            take_over(&mut followed, now);
            assert_eq!(followed == *now, same, "{then:?} {now:?}");
        }
    }
}
