//! Rules of each processor architecture. The rules of architectures that are not supported yet are here, too,
//! so that their causes stay the same later.

use super::{Cause, Path};
use crate::architecture::of;
use crate::syntax::quoted;
use crate::v1::VirtualMachineInstanceSpec;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let field = path.child("architecture");
    match of(spec) {
        "amd64" => amd64(path, spec, causes),
        known @ ("arm64" | "s390x") => {
            let before = causes.len();
            if known == "arm64" {
                arm64(path, spec, causes);
            } else {
                s390x(path, spec, causes);
            }
            if causes[before..].iter().all(|cause| cause.field != field.to_string()) {
                causes.push(Cause::not_supported_yet(&field, known));
            }
        }
        other => {
            causes.push(Cause::invalid(&field, format!("unsupported architecture: {}", quoted(other))));
        }
    }
}

fn amd64(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    // A watchdog without a model is an I6300ESB.
    if spec.domain.devices.watchdog.as_ref().is_some_and(|watchdog| watchdog.diag288.is_some()) {
        causes.push(Cause::not_supported(
            &path.child("domain.devices.watchdog"),
            "amd64 only supports I6300ESB watchdog device",
        ));
    }
    video(path, spec, &["vga", "cirrus", "virtio", "ramfb", "bochs"], causes);
}

fn s390x(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    if spec.domain.devices.watchdog.as_ref().is_some_and(|watchdog| watchdog.i6300esb.is_some()) {
        causes.push(Cause::not_supported(
            &path.child("domain.devices.watchdog"),
            "s390x only supports Diag288 watchdog device",
        ));
    }
    video(path, spec, &["virtio"], causes);
}

fn arm64(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let domain = path.child("domain");
    let bootloader = spec.domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    if bootloader.is_some_and(|bootloader| bootloader.bios.is_some()) {
        causes.push(Cause::not_supported(
            &domain.child("firmware.bootloader.bios"),
            "Arm64 does not support bios boot, please change to uefi boot",
        ));
    }
    let cpu = spec.domain.cpu.as_ref();
    let model = cpu.and_then(|cpu| cpu.model.as_deref()).unwrap_or_default();
    if !matches!(model, "" | "host-passthrough") {
        causes.push(Cause::not_supported(
            &domain.child("cpu.model"),
            "currently, host-passthrough is the only model supported on Arm64",
        ));
    }
    if let Some(threads @ 2..) = cpu.and_then(|cpu| cpu.threads) {
        let (field, at) = (path.child("architecture"), domain.child("cpu.threads"));
        causes.push(Cause::invalid(
            &field,
            format!("threads must not be greater than 1 at {at} (got {threads}) when {field} is arm64"),
        ));
    }
    let devices = &spec.domain.devices;
    let field = domain.child("devices");
    for (index, disk) in devices.disks.iter().enumerate() {
        if !matches!(disk.bus(), None | Some("" | "virtio" | "scsi")) {
            causes.push(Cause::not_supported(
                &field.child("disks").index(index).child(super::disks::target_name(disk)).child("bus"),
                "Arm64 not support this disk bus type, please use virtio or scsi",
            ));
        }
    }
    for (given, name, message) in [
        (devices.watchdog.is_some(), "watchdog", "Arm64 not support Watchdog device"),
        (devices.sound.is_some(), "sound", "Arm64 not support sound device"),
    ] {
        if given {
            causes.push(Cause::not_supported(&field.child(name), message));
        }
    }
    video(path, spec, &["virtio", "ramfb"], causes);
}

fn video(path: &Path, spec: &VirtualMachineInstanceSpec, known: &[&str], causes: &mut Vec<Cause>) {
    let Some(video) = &spec.domain.devices.video else { return };
    let model = video.type_.as_deref().unwrap_or_default();
    if !known.contains(&model) {
        causes.push(Cause::not_supported(
            &path.child("domain.devices.video.type"),
            format!("video model '{}' is not supported on {} architecture", quoted(model), of(spec)),
        ));
    }
}
