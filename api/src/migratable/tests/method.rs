//! `status.migrationMethod`.

use super::*;

#[test]
fn of_disks_on_the_node_only_cds_that_are_only_read_do_not_count_as_copied() {
    let method = |device: Value, source: Value| {
        let (mut disk, mut volume) = (json!({"name": "root"}), json!({"name": "root"}));
        merge(&mut disk, device);
        merge(&mut volume, source);
        let change = json!({"spec": {"domain": {"devices": {"disks": [disk]}}, "volumes": [volume]}});
        method_when_served(&instance("ReadWriteMany", change))
    };
    for (device, expected) in [
        (json!({"cdrom": {"bus": "sata"}}), "LiveMigration"),
        (json!({"cdrom": {"bus": "sata", "readonly": true}}), "LiveMigration"),
        (json!({"cdrom": {"bus": "sata", "readonly": false}}), "BlockMigration"),
        (json!({"disk": {"bus": "virtio", "readonly": true}}), "BlockMigration"),
        (json!({"lun": {"bus": "scsi", "readonly": true}}), "BlockMigration"),
    ] {
        assert_eq!(method(device.clone(), json!({"configMap": {"name": "a"}})), expected, "{device}");
    }
    for (shared, expected) in [(true, "LiveMigration"), (false, "BlockMigration")] {
        let source = json!({"hostDisk": {"path": "/a", "type": "Disk", "shared": shared}});
        assert_eq!(method(json!({"disk": {}}), source), expected, "{shared}");
    }
}

#[test]
fn volumes_that_move_count_as_copied_although_their_claims_are_shared() {
    let moved = json!([{"volumeName": "root", "sourcePVCInfo": {"claimName": "data"}}]);
    let vmi = instance("ReadWriteMany", json!({"status": {"migratedVolumes": moved}}));
    assert_eq!(method_when_served(&vmi), "BlockMigration");
}
