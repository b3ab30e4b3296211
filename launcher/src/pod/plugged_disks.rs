//! Which disks are to be plugged in, by the instance's specification and its status, and which descriptors are of
//! no use. Pure.

use std::collections::BTreeSet;

use barevirt_api::hotplug;
use barevirt_api::valid::ValidVmi;
use barevirt_protocol::names::HotDisk;

/// The disks to plug in, in the order of the list. `has` are those that the guest has, or is asked to release.
///
/// A volume that is to move to another claim stays on the claim on which it is: the former one on the node that the guest
/// leaves, and the new one on the node to which it comes.
pub(super) fn wanted<'a>(vmi: &ValidVmi, has: impl Iterator<Item = &'a HotDisk> + Clone) -> Vec<HotDisk> {
    let hot = vmi.disks().iter().map(|disk| &disk.volume).filter(|volume| volume.is_hotpluggable());
    hot.filter_map(|volume| {
        let moves = hotplug::moved(vmi.vmi(), &volume.name).is_some();
        let stays = has.clone().find(|key| moves && key.volume == volume.name);
        let claim = hotplug::present(vmi.vmi(), volume)?.name;
        let wanted = || HotDisk { volume: volume.name.clone(), claim: claim.to_owned() };
        Some(stays.cloned().unwrap_or_else(wanted))
    })
    .collect()
}

/// Names of the descriptors of disks that are neither wanted nor plugged in. `given` are the descriptors for the revision that
/// wants these disks, or an earlier one: those for a later one may be of disks that only the next Sync names.
pub(super) fn unwanted<'a>(
    given: &BTreeSet<String>,
    wanted: &[HotDisk],
    has: impl Iterator<Item = &'a HotDisk> + Clone,
) -> Vec<String> {
    let of_no_use = |key: &HotDisk| !wanted.contains(key) && !has.clone().any(|plugged| plugged == key);
    given.iter().filter(|name| HotDisk::parse(name).as_ref().is_some_and(of_no_use)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::descriptor_store::DescriptorStore;
    use serde_json::{Value, json};

    #[test]
    fn a_disk_that_moves_stays_on_the_claim_on_which_it_is() {
        let vmi = |claim: &str, moved: Value| {
            ValidVmi::new(
                serde_json::from_value(json!({
                    "metadata": {"name": "a", "namespace": "b", "uid": "u"},
                    "spec": {
                        "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [
                            {"name": "boot", "disk": {"bus": "virtio"}}, {"name": "data", "disk": {"bus": "scsi"}},
                        ]}},
                        "volumes": [
                            {"name": "boot", "persistentVolumeClaim": {"claimName": "boot"}},
                            {"name": "data", "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}},
                        ],
                    },
                    "status": {"migratedVolumes": moved},
                }))
                .unwrap(),
            )
            .unwrap()
        };
        let on = |claim: &str| HotDisk { volume: "data".to_owned(), claim: claim.to_owned() };
        let moved = json!([{"volumeName": "data", "sourcePVCInfo": {"claimName": "old"},
            "destinationPVCInfo": {"claimName": "new"}}]);
        for (vmi, has, expected) in [
            (vmi("old", json!([])), vec![], "old"),
            (vmi("new", moved.clone()), vec![on("old")], "old"),
            (vmi("new", moved.clone()), vec![on("new")], "new"),
            (vmi("new", moved), vec![], "old"),
            // It has moved, or is exchanged without a migration.
            (vmi("new", json!([])), vec![on("new")], "new"),
            (vmi("new", json!([])), vec![on("old")], "new"),
        ] {
            assert_eq!(wanted(&vmi, has.iter()), [on(expected)], "{has:?}");
        }
    }

    #[test]
    fn a_descriptor_for_a_sync_that_comes_meanwhile_is_kept() {
        let on = |volume: &str| HotDisk { volume: volume.to_owned(), claim: format!("on-{volume}") };
        let mut store = DescriptorStore::default();
        for (revision, name) in [(3, on("logs").descriptor()), (5, on("data").descriptor())] {
            store.give(revision, &name, vec![tempfile::tempfile().unwrap().into()]).unwrap();
        }
        store.give(3, "net/default/tap", vec![tempfile::tempfile().unwrap().into()]).unwrap();
        let (more, logs, data) = (on("more"), on("logs"), on("data"));
        for (revision, wanted, has, expected) in [
            // Revision 4 is still acted on when 5 is accepted and its disk is given.
            (4, vec![&more], vec![&more, &logs], vec![]),
            (4, vec![&more], vec![&more], vec![&logs]),
            (5, vec![&more, &data], vec![&more], vec![&logs]),
            (6, vec![&more], vec![&more], vec![&data, &logs]),
            (6, vec![&more], vec![&more, &data], vec![&logs]),
        ] {
            let wanted: Vec<HotDisk> = wanted.into_iter().cloned().collect();
            let expected: Vec<String> = expected.into_iter().map(HotDisk::descriptor).collect();
            let dropped = unwanted(&store.given_by(revision), &wanted, has.iter().copied());
            assert_eq!(dropped, expected, "{revision} {has:?}");
        }
    }
}
