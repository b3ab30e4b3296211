use super::*;

#[test]
fn disk_rules() {
    check(rows![
        ["/spec/domain/devices/disks/-" => {"name": "root", "disk": {}}] => "spec.domain.devices.disks[3].name", "spec.domain.devices.disks[3] and spec.domain.devices.disks[0] must not have the same Name.";
        ["/spec/domain/devices/disks/-" => {"name": "none", "disk": {}}] => "spec.domain.devices.disks[3].name", "spec.domain.devices.disks[3].Name 'none' not found.";
        ["/spec/domain/devices/disks/0/cdrom" => {"bus": "sata"}] => "spec.domain.devices.disks[0]", "spec.domain.devices.disks[0] can only have a single target type defined";
        ["/spec/domain/devices/disks/0/disk/bus" => "ide"] => "spec.domain.devices.disks[0].disk.bus", "IDE bus is not supported";
        ["/spec/domain/devices/disks/1/cdrom/bus" => "usb"] => "spec.domain.devices.disks[1].cdrom.bus", "usb is not supported yet";
        ["/spec/domain/devices/disks/0/disk/bus" => "nvme"] => "spec.domain.devices.disks[0].disk.bus", "spec.domain.devices.disks[0] is set with an unrecognized bus nvme, must be one of: [";
        ["/spec/domain/devices/disks/1/cdrom/bus" => "virtio"] => "spec.domain.devices.disks[1].cdrom.bus", "Bus type virtio is invalid for CD-ROM device";
        ["/spec/domain/devices/disks/2/disk/bus" => "sata"] => "spec.domain.devices.disks[2].disk.bus", "sata hard-disks do not support read-only.";
        ["/spec/domain/devices/disks/0/bootOrder" => 0] => "spec.domain.devices.disks[0].bootOrder", "spec.domain.devices.disks[0] must have a boot order > 0, if supplied";
        ["/spec/domain/devices/disks/1/bootOrder" => 1] => "spec.domain.devices.disks[1].bootOrder", "Boot order for spec.domain.devices.disks[1].bootOrder already set for a different device.";
        ["/spec/domain/devices/interfaces/0/bootOrder" => 1] => "spec.domain.devices.interfaces[0].bootOrder", "Boot order for spec.domain.devices.interfaces[0].bootOrder already set for a different device.";
        ["/spec/domain/devices/disks/0/lun" => {"bus": "scsi"}, "/spec/domain/devices/disks/0/disk" => null] => "spec.domain.devices.disks[0].lun", "spec.domain.devices.disks[0].lun can only be mapped to a DataVolume or PersistentVolumeClaim volume.";
        ["/spec/domain/devices/disks/2/dedicatedIOThread" => true] => "spec.domain.devices.disks[2].dedicatedIOThread", "IOThreads are not supported for disks on a scsi bus";
        ["/spec/domain/devices/disks/2/disk/pciAddress" => "0000:81:01.0"] => "spec.domain.devices.disks[2].disk.pciAddress", "disk spec.domain.devices.disks[2].name - setting a PCI address is only possible with bus type virtio.";
        ["/spec/domain/devices/disks/0/disk/pciAddress" => "0000:81:01.8"] => "spec.domain.devices.disks[0].disk.pciAddress", "disk spec.domain.devices.disks[0].name has malformed PCI address (0000:81:01.8).";
        ["/spec/domain/devices/disks/0/disk/pciAddress" => "0000:04:10.0"] => "spec.domain.devices.disks[0].disk.pciAddress", "Invalid PCI address 0000:04:10.0: a bus other than 00 is that of one device, at 00.0, or of conventional PCI cards (model e1000, ne2k_pci, pcnet or rtl8139), at 01.0 and up";
        ["/spec/domain/devices/disks/0/errorPolicy" => "panic"] => "spec.domain.devices.disks[0].errorPolicy", "spec.domain.devices.disks[0].errorPolicy has invalid value \"panic\"";
        ["/spec/volumes/0" => {"name": "root", "downwardMetrics": {}}, "/spec/domain/devices/disks/0/disk/bus" => "sata"]
            => "spec.domain.devices.disks[0].disk.bus", "DownwardMetrics volume must be mapped to virtio bus, but spec.domain.devices.disks[0].disk.bus is set to sata", "spec.volumes[0]", "DownwardMetrics";
        ["/spec/volumes/1" => {"name": "seed", "downwardMetrics": {}}]
            => "spec.domain.devices.disks[1].disk", "DownwardMetrics volume must be mapped to a disk, but disk is not set on spec.domain.devices.disks[1].disk.", "spec.volumes[1]", "DownwardMetrics";
        ["/spec/domain/devices/disks/0/serial" => "a b"] => "spec.domain.devices.disks[0].serial", "spec.domain.devices.disks[0] must be made up of the following characters [A-Za-z0-9_.+-], if specified";
        ["/spec/domain/devices/disks/0/cache" => "unsafe"] => "spec.domain.devices.disks[0].cache", "spec.domain.devices.disks[0].cache has invalid value unsafe";
        ["/spec/domain/devices/disks/0/io" => "io_uring"] => "spec.domain.devices.disks[0].io", "Supported modes are: native, threads.";
    ]);
    let long = "a".repeat(257);
    check(
        rows![["/spec/domain/devices/disks/0/serial" => long] => "spec.domain.devices.disks[0].serial", "spec.domain.devices.disks[0] must be less than or equal to 256 in length, if specified";],
    );
}

#[test]
fn more_devices_than_the_machine_has_room_for() {
    let many = |count: usize, bus: &str| {
        let disks: Vec<Value> =
            (0..count).map(|n| json!({"name": format!("d{n}"), "disk": {"bus": bus}})).collect();
        let volumes: Vec<Value> =
            (0..count).map(|n| json!({"name": format!("d{n}"), "emptyDisk": {"capacity": "1Mi"}})).collect();
        let object = with(right(), "/spec/domain/devices/disks", json!(disks));
        causes_of(&with(object, "/spec/volumes", json!(volumes)))
    };
    assert_eq!(many(24, "sata"), []);
    assert!(many(25, "sata")[0].message.contains("more than 24 sata drives are not supported yet"));
    assert_eq!(many(169, "virtio"), []);
    assert!(many(170, "virtio")[0].message.contains("more than 170 virtio disks and interfaces together"));
}

#[test]
fn sector_rules() {
    let size = |custom: Value| json!({"custom": custom});
    let at = "/spec/domain/devices/disks/0/blockSize";
    let sata = "/spec/domain/devices/disks/1/blockSize";
    let (field, logical) =
        ("spec.domain.devices.disks[0].blockSize", "spec.domain.devices.disks[0].blockSize.custom.logical");
    let both = json!({"custom": {"logical": 512, "physical": 512}, "matchVolume": {}});
    let (larger, small, large, odd) = (
        size(json!({"logical": 4096, "physical": 512})),
        size(json!({"logical": 256, "physical": 512})),
        size(json!({"logical": 512, "physical": 4194304})),
        size(json!({"logical": 512, "physical": 1536})),
    );
    let on_sata = size(json!({"logical": 4096, "physical": 4096}));
    let granularity = size(json!({"logical": 512, "physical": 512, "discardGranularity": 700}));
    check(rows![
        [at => both] => field, "Block size matching can't be enabled together with a custom value";
        [at => larger] => logical, "Logical size 4096 must be the same or less than the physical size of 512";
        [sata => on_sata] => "spec.domain.devices.disks[1].blockSize.custom.logical", "Logical size 4096 must be 512 for SATA devices";
        [at => granularity] => "spec.domain.devices.disks[0].blockSize.custom.discardGranularity", "Discard granularity 700 must be multiples of logical size 512";
        [at => small] => logical, "Provided size of 256 is less than the supported minimum size of 512";
        [at => large] => "spec.domain.devices.disks[0].blockSize.custom.physical", "Provided size of 4194304 is greater than the supported maximum size of 2097152";
        [at => odd] => "spec.domain.devices.disks[0].blockSize.custom.physical", "Provided size of 1536 is not a power of 2";
    ]);
    let right = size(json!({"logical": 512, "physical": 4096, "discardGranularity": 1024}));
    accepts(&[&[(at, right)]]);
    // On SATA too, where the guest sees only the volume's physical size.
    let off = json!({"custom": {"logical": 512, "physical": 512}, "matchVolume": {"enabled": false}});
    accepts(&[
        &[(at, json!({"matchVolume": {}})), (sata, json!({"matchVolume": {"enabled": true}}))],
        &[(at, off)],
    ]);
}
