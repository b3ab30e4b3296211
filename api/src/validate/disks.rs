//! Disks, each for itself and against volumes.

use super::text::{is_serial, quoted};
use super::{Cause, CauseKind, Path};
use crate::v1::{Disk, VirtualMachineInstanceSpec};
use std::collections::{HashMap, HashSet};

/// Longest serial number: the API's limit.
const SERIAL_LIMIT: usize = 256;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let field = path.child("domain.devices.disks");
    let volumes: HashSet<&str> = spec.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (index, disk) in spec.domain.devices.disks.iter().enumerate() {
        let field_disk = field.index(index);
        match first.get(disk.name.as_str()) {
            Some(earlier) => causes.push(Cause::invalid(
                &field_disk.child("name"),
                format!("{field_disk} and {} must not have the same Name.", field.index(*earlier)),
            )),
            None => {
                first.insert(&disk.name, index);
            }
        }
        if !volumes.contains(disk.name.as_str()) {
            if disk.is_cdrom() {
                causes.push(Cause::not_supported_yet(
                    &field_disk.child("cdrom"),
                    &format!("without a volume named '{}' (an empty drive)", quoted(&disk.name)),
                ));
            } else {
                causes.push(Cause::invalid(
                    &field_disk.child("name"),
                    format!("{} '{}' not found.", field_disk.child("Name"), quoted(&disk.name)),
                ));
            }
        }
        target(&field_disk, disk, causes);
        attributes(&field_disk, disk, causes);
    }
}

fn target(field: &Path, disk: &Disk, causes: &mut Vec<Cause>) {
    if [disk.disk.is_some(), disk.cdrom.is_some(), disk.lun.is_some()].iter().filter(|set| **set).count() > 1
    {
        causes.push(Cause::invalid(field, format!("{field} can only have a single target type defined")));
        return;
    }
    let kind = match disk {
        _ if disk.is_cdrom() => "cdrom",
        Disk { lun: Some(_), .. } => "lun",
        _ => "disk",
    };
    let field_bus = field.child(kind).child("bus");
    match disk.bus() {
        None | Some("") => {}
        Some("ide") => causes.push(Cause::invalid(&field_bus, "IDE bus is not supported")),
        Some("virtio") if disk.is_cdrom() => {
            causes.push(Cause::invalid(&field_bus, "Bus type virtio is invalid for CD-ROM device"));
        }
        Some("virtio" | "scsi") => {}
        Some("sata") => {
            if disk.disk.as_ref().is_some_and(|target| target.readonly == Some(true)) {
                causes.push(Cause::invalid(&field_bus, "sata hard-disks do not support read-only."));
            }
        }
        Some(known @ "usb") => causes.push(Cause::not_supported_yet(&field_bus, known)),
        Some(other) => causes.push(Cause::invalid(
            &field_bus,
            format!(
                "{field} is set with an unrecognized bus {}, must be one of: [virtio sata scsi usb]",
                quoted(other)
            ),
        )),
    }
}

fn attributes(field: &Path, disk: &Disk, causes: &mut Vec<Cause>) {
    if let Some(serial) = disk.serial.as_deref().filter(|serial| !serial.is_empty()) {
        let field_serial = field.child("serial");
        if !is_serial(serial) {
            causes.push(Cause::invalid(
                &field_serial,
                format!("{field} must be made up of the following characters [A-Za-z0-9_.+-], if specified"),
            ));
        }
        if serial.chars().count() > SERIAL_LIMIT {
            causes.push(Cause::invalid(
                &field_serial,
                format!("{field} must be less than or equal to {SERIAL_LIMIT} in length, if specified"),
            ));
        }
    }
    if let Some(cache) = disk.cache.as_deref()
        && !matches!(cache, "" | "none" | "writethrough" | "writeback")
    {
        let field = field.child("cache");
        causes.push(Cause::invalid(&field, format!("{field} has invalid value {}", quoted(cache))));
    }
    if let Some(io) = disk.io.as_deref()
        && !matches!(io, "" | "native" | "threads")
    {
        causes.push(Cause::new(
            CauseKind::NotSupported,
            &field.child("io"),
            format!("Disk IO mode for {field} is not supported. Supported modes are: native, threads."),
        ));
    }
}
