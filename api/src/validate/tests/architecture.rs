use super::*;

#[test]
fn amd64_rules() {
    check(rows![
        ["/spec/architecture" => "vax"] => "spec.architecture", "unsupported architecture: vax";
        ["/spec/domain/devices/watchdog" => {"name": "dog", "diag288": {}}] => "spec.domain.devices.watchdog", "amd64 only supports I6300ESB watchdog device";
        ["/spec/domain/devices/video" => {"type": "qxl"}] => "spec.domain.devices.video.type", "video model 'qxl' is not supported on amd64 architecture";
        ["/spec/domain/devices/video" => {}] => "spec.domain.devices.video.type", "video model '' is not supported on amd64 architecture";
    ]);
    accepts(&[
        &[("/spec/domain/devices/watchdog", json!({"name": "dog"}))],
        &[("/spec/domain/devices/video", json!({"type": "virtio"}))],
    ]);
}

/// On arm64: the change of each row, and the causes in addition to the one that the architecture is not
/// supported yet.
#[test]
fn arm64_rules() {
    let architecture = "spec.architecture arm64 is not supported yet";
    let bus = "Arm64 not support this disk bus type, please use virtio or scsi";
    let arm = |changes: Vec<(&str, Value)>| {
        let base = [
            ("/spec/architecture", json!("arm64")),
            ("/spec/domain/machine/type", json!("virt")),
            ("/spec/domain/cpu/model", json!("host-passthrough")),
            ("/spec/domain/devices/disks/1/cdrom/bus", json!("scsi")),
        ];
        let object =
            base.into_iter().chain(changes).fold(right(), |object, (at, value)| with(object, at, value));
        let causes = causes_of(&object);
        rules_of(&causes)
            .into_iter()
            .map(|cause| (cause.field.clone(), cause.message.clone()))
            .collect::<Vec<_>>()
    };
    let told = |field: &str, message: &str| (field.to_owned(), message.to_owned());
    let not_there = told("spec.architecture", architecture);
    assert_eq!(arm(vec![]), std::slice::from_ref(&not_there));
    for (changes, field, message) in [
        (
            vec![("/spec/domain/firmware/bootloader", json!({"bios": {}}))],
            "spec.domain.firmware.bootloader.bios",
            "Arm64 does not support bios boot, please change to uefi boot",
        ),
        (
            vec![("/spec/domain/cpu/model", json!("host-model"))],
            "spec.domain.cpu.model",
            "currently, host-passthrough is the only model supported on Arm64",
        ),
        (
            vec![("/spec/domain/devices/disks/0/disk/bus", json!("sata"))],
            "spec.domain.devices.disks[0].disk.bus",
            bus,
        ),
        (
            vec![("/spec/domain/devices/disks/1/cdrom/bus", json!("sata"))],
            "spec.domain.devices.disks[1].cdrom.bus",
            bus,
        ),
        (
            vec![("/spec/domain/devices/watchdog", json!({"name": "dog"}))],
            "spec.domain.devices.watchdog",
            "Arm64 not support Watchdog device",
        ),
        (
            vec![("/spec/domain/devices/sound", json!({"name": "sound"}))],
            "spec.domain.devices.sound",
            "Arm64 not support sound device",
        ),
        (
            vec![("/spec/domain/devices/video", json!({"type": "vga"}))],
            "spec.domain.devices.video.type",
            "video model 'vga' is not supported on arm64 architecture",
        ),
    ] {
        assert_eq!(arm(changes), [told(field, message), not_there.clone()]);
    }
    // There is one cause for a field: that of the rule replaces the refusal.
    assert_eq!(
        arm(vec![("/spec/domain/cpu/threads", json!(2))]),
        [told(
            "spec.architecture",
            "threads must not be greater than 1 at spec.domain.cpu.threads (got 2) when spec.architecture is arm64"
        )]
    );
}

#[test]
fn s390x_rules() {
    let architecture = "spec.architecture s390x is not supported yet";
    check(rows![
        ["/spec/architecture" => "s390x", "/spec/domain/machine/type" => "s390-ccw-virtio", "/spec/domain/devices/watchdog" => {"name": "dog", "i6300esb": {}}]
            => "spec.domain.devices.watchdog", "s390x only supports Diag288 watchdog device", "spec.architecture", architecture;
        ["/spec/architecture" => "s390x", "/spec/domain/machine/type" => "s390-ccw-virtio", "/spec/domain/devices/video" => {"type": "vga"}]
            => "spec.domain.devices.video.type", "video model 'vga' is not supported on s390x architecture", "spec.architecture", architecture;
        ["/spec/architecture" => "s390x", "/spec/domain/machine/type" => "s390-ccw-virtio", "/spec/domain/devices/panicDevices" => [{}]]
            => "spec.architecture", architecture, "spec.domain.devices.panicDevices", "custom panic devices are not supported on s390x architecture";
        ["/spec/architecture" => "s390x"] => "spec.architecture", architecture, "spec.domain.machine.type", "(allowed values: [s390-ccw-virtio*])";
    ]);
}
