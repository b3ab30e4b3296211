use super::*;

#[test]
fn peripheral_rules() {
    let ramfb = json!({"name": "a", "deviceName": "x/y", "virtualGPUOptions": {"display": {}}});
    let other = json!({"name": "c", "deviceName": "x/y", "virtualGPUOptions": {"display": {}}});
    let plain = json!({"name": "b", "deviceName": "x/y", "virtualGPUOptions": {"display": {"ramFB": {"enabled": false}}}});
    check(rows![
        ["/spec/domain/devices/inputs" => [{"name": "a", "type": "tablet", "bus": "ps2"}]] => "spec.domain.devices.inputs[0].bus", "Input device can have only virtio or usb bus.";
        ["/spec/domain/devices/inputs" => [{"name": "a", "type": "mouse"}]] => "spec.domain.devices.inputs[0].type", "Input device can have only tablet type.";
        ["/spec/domain/devices/sound" => {"name": "a", "model": "sb16"}] => "spec.domain.devices.sound.model", "Sound device type is not supported. Options: 'ich9' or 'ac97'";
        ["/spec/domain/devices/sound" => {"name": ""}] => "spec.domain.devices.sound.name", "Sound device requires a name field.";
        ["/spec/domain/devices/panicDevices" => [{"model": "loud"}]] => "spec.domain.devices.panicDevices[0].model", "invalid PanicDeviceModel(loud)";
        ["/spec/domain/devices/video" => {"type": "vga"}, "/spec/domain/devices/autoattachGraphicsDevice" => false] => "spec.domain.devices.video", "Video configuration is not allowed when autoattachGraphicsDevice is set to false";
        ["/spec/domain/devices/gpus" => [ramfb, other]] => "spec.domain.devices.gpus", "configuring multiple displays with ramfb is not valid";
        ["/spec/domain/ioThreadsPolicy" => "many"] => "spec.domain.ioThreadsPolicy", "Invalid IOThreadsPolicy (many)";
        ["/spec/domain/ioThreadsPolicy" => "supplementalPool"] => "spec.domain.ioThreads.supplementalPoolThreadCount", "the number of iothreads needs to be set and positive for the dedicated policy";
        ["/spec/domain/ioThreadsPolicy" => "supplementalPool", "/spec/domain/ioThreads" => {"supplementalPoolThreadCount": 0}] => "spec.domain.ioThreads.supplementalPoolThreadCount", "needs to be set and positive";
    ]);
    accepts(&[
        &[("/spec/domain/devices/gpus", json!([ramfb, plain]))],
        &[("/spec/domain/devices/inputs", json!([{"name": "a", "type": "tablet", "bus": "usb"}]))],
        &[("/spec/domain/devices/sound", json!({"name": "a", "model": "ac97"}))],
        &[("/spec/domain/devices/panicDevices", json!([{"model": "isa"}, {}]))],
        &[
            ("/spec/domain/ioThreadsPolicy", json!("supplementalPool")),
            ("/spec/domain/ioThreads", json!({"supplementalPoolThreadCount": 2})),
        ],
        &[(
            "/spec/domain/clock",
            json!({"utc": {"offsetSeconds": 5}, "timer": {"hpet": {"present": false}, "hyperv": {}}}),
        )],
        &[("/spec/domain/chassis", json!({"asset": "a", "serial": "b"}))],
        &[("/spec/domain/cpu/features", json!([{"name": "aes", "policy": "require"}]))],
    ]);
}

#[test]
fn launch_security_rules() {
    let field = "spec.domain.launchSecurity";
    let at = "/spec/domain/launchSecurity";
    let firmware = "/spec/domain/firmware";
    let smm = "/spec/domain/features";
    let efi = json!({"bootloader": {"efi": {"secureBoot": false}}});
    let kept = json!({"bootloader": {"efi": {"secureBoot": false, "persistent": true}}});
    let secure = json!({"bootloader": {"efi": {}}});
    let bootable = "/spec/domain/devices/interfaces/0/bootOrder";
    check_with(
        &Gates::all(),
        rows![
            [at => {}, bootable => null] => field, "One and only one launchSecurity type can be set";
            [at => {"sev": {}, "tdx": {}}, bootable => null] => field, "One and only one launchSecurity type can be set";
            [at => {"sev": {}}, bootable => null] => field, "SEV requires OVMF (UEFI)";
            [at => {"snp": {}}, firmware => secure, smm => {"smm": {}}, bootable => null] => field, "SNP does not work along with SecureBoot";
            [at => {"tdx": {}}, firmware => kept, bootable => null] => field, "TDX does not work along with Persistent EFI variables";
            [at => {"tdx": {}}, firmware => secure, smm => {"smm": {}}, bootable => null] => field, "TDX does not work along with SMM";
            [at => {"sev": {"attestation": {}}}, firmware => efi, bootable => null] => field, "SEV attestation requires VMI StartStrategy 'Paused'";
            [at => {"sev": {}}, firmware => efi] => field, "SEV does not work with bootable NICs: default";
            [at => {"sev": {}}, "/spec/architecture" => "arm64", "/spec/domain/machine/type" => "virt", "/spec/domain/cpu/model" => "host-passthrough", "/spec/domain/devices/disks/1/cdrom/bus" => "scsi"]
                => "spec.architecture", "arm64 is not supported yet", "spec.architecture", "No launchSecurity support for architecture: arm64";
        ],
    );
}
