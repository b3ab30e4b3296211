//! Which disks are to be plugged in, by the instance's specification and its status. Pure.

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

#[cfg(test)]
mod tests {
    use super::*;
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
}
