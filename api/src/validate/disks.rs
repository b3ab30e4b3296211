//! Rules for disks, each alone and together with volumes.

use super::{Cause, Path};
use crate::gates::{DECLARATIVE_HOTPLUG_VOLUMES, Gates};
use crate::pci;
use crate::syntax::{DNS_LABEL, is_dns_label, is_serial, quoted};
use crate::v1::{BlockSize, Disk, FeatureState, VirtualMachineInstanceSpec, Volume};
use std::collections::HashMap;

/// Longest serial number: the API's limit.
const SERIAL_LIMIT: usize = 256;
/// Smallest and largest size of a sector.
const SECTORS: std::ops::RangeInclusive<i32> = 512..=2 << 20;

pub(super) fn validate(
    path: &Path,
    spec: &VirtualMachineInstanceSpec,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let field = path.child("domain.devices.disks");
    let volumes: HashMap<&str, &Volume> =
        spec.volumes.iter().map(|volume| (volume.name.as_str(), volume)).collect();
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
        match volumes.get(disk.name.as_str()) {
            Some(volume) => shown(&field_disk, disk, volume, causes),
            None => missing(&field_disk, disk, gates, causes),
        }
        // The name becomes the name of a container.
        if !is_dns_label(&disk.name) && !disk.name.is_empty() {
            let field = field_disk.child("name");
            causes
                .push(Cause::invalid(&field, format!("{field} '{}' is not {DNS_LABEL}", quoted(&disk.name))));
        }
        target(&field_disk, disk, causes);
        attributes(&field_disk, disk, causes);
        if let Some(size) = &disk.block_size {
            sectors(&field_disk.child("blockSize"), disk, size, causes);
        }
    }
}

/// The API's name of a disk's target.
pub(super) fn target_name(disk: &Disk) -> &'static str {
    match disk {
        _ if disk.is_cdrom() => "cdrom",
        _ if disk.is_lun() => "lun",
        _ => "disk",
    }
}

/// No volume has the disk's name: only a CD drive can be empty.
fn missing(field: &Path, disk: &Disk, gates: &Gates, causes: &mut Vec<Cause>) {
    if !disk.is_cdrom() {
        causes.push(Cause::invalid(
            &field.child("name"),
            format!("{} '{}' not found.", field.child("Name"), quoted(&disk.name)),
        ));
    } else if !gates.is_on(DECLARATIVE_HOTPLUG_VOLUMES) {
        causes.push(Cause::invalid(
            &field.child("name"),
            format!(
                "{DECLARATIVE_HOTPLUG_VOLUMES} feature gate not enabled, cannot define an empty CD-ROM disk"
            ),
        ));
    }
}

/// Rules about a disk and its volume.
fn shown(field: &Path, disk: &Disk, volume: &Volume, causes: &mut Vec<Cause>) {
    if disk.lun.is_some() && volume.persistent_volume_claim.is_none() && volume.data_volume.is_none() {
        let field = field.child("lun");
        causes.push(Cause::invalid(
            &field,
            format!("{field} can only be mapped to a DataVolume or PersistentVolumeClaim volume."),
        ));
    }
    if volume.is_hotpluggable() && disk.boot_order.is_some() && !disk.is_cdrom() {
        let what = "of a disk that is plugged into a running machine";
        causes.push(Cause::not_supported_yet(&field.child("bootOrder"), what));
    }
    let address = disk.disk.as_ref().and_then(|target| target.pci_address.as_deref());
    if volume.is_hotpluggable() && address.is_some_and(|address| !address.is_empty()) {
        let what = "of a disk that is plugged into a running machine";
        causes.push(Cause::not_supported_yet(&field.child("disk.pciAddress"), what));
    }
    let tray = disk.cdrom.as_ref().and_then(|drive| drive.tray.as_deref());
    if volume.is_hotpluggable() && tray == Some("open") {
        let what = "'open' of a drive whose volume is hotpluggable";
        causes.push(Cause::not_supported_yet(&field.child("cdrom.tray"), what));
    }
    if volume.downward_metrics.is_some() {
        let field = field.child("disk");
        match disk.disk.as_ref().map(|target| target.bus.as_deref()) {
            None => causes.push(Cause::required(
                &field,
                format!("DownwardMetrics volume must be mapped to a disk, but disk is not set on {field}."),
            )),
            Some(None | Some("" | "virtio")) => {}
            Some(Some(bus)) => {
                let field = field.child("bus");
                causes.push(Cause::invalid(
                    &field,
                    format!(
                        "DownwardMetrics volume must be mapped to virtio bus, but {field} is set to {}",
                        quoted(bus)
                    ),
                ));
            }
        }
    }
}

fn target(field: &Path, disk: &Disk, causes: &mut Vec<Cause>) {
    if [disk.disk.is_some(), disk.cdrom.is_some(), disk.lun.is_some()].iter().filter(|set| **set).count() > 1
    {
        causes.push(Cause::invalid(field, format!("{field} can only have a single target type defined")));
        return;
    }
    pci_address(field, disk, causes);
    let field_bus = field.child(target_name(disk)).child("bus");
    let bus = disk.bus().unwrap_or_default();
    match bus {
        "ide" => causes.push(Cause::invalid(&field_bus, "IDE bus is not supported")),
        "virtio" if disk.is_cdrom() => {
            causes.push(Cause::invalid(&field_bus, "Bus type virtio is invalid for CD-ROM device"));
        }
        "sata" if disk.disk.as_ref().is_some_and(|target| target.readonly == Some(true)) => {
            causes.push(Cause::invalid(&field_bus, "sata hard-disks do not support read-only."));
        }
        // The guest's SCSI commands are passed on to the device of the node, which must be a SCSI device.
        "virtio" | "sata" if disk.lun.is_some() => causes.push(Cause::not_supported_yet(&field_bus, bus)),
        "usb" if disk.is_cdrom() || disk.lun.is_some() => {
            causes.push(Cause::not_supported_yet(&field_bus, bus));
        }
        "" | "virtio" | "scsi" | "sata" | "usb" => {}
        other => causes.push(Cause::invalid(
            &field_bus,
            format!(
                "{field} is set with an unrecognized bus {}, must be one of: [virtio scsi sata usb]",
                quoted(other)
            ),
        )),
    }
    if disk.dedicated_io_thread == Some(true) && !matches!(bus, "" | "virtio") {
        causes.push(Cause::not_supported(
            &field.child("dedicatedIOThread"),
            format!("IOThreads are not supported for disks on a {} bus", quoted(bus)),
        ));
    }
}

fn pci_address(field: &Path, disk: &Disk, causes: &mut Vec<Cause>) {
    let Some(target) = &disk.disk else { return };
    let Some(address) = target.pci_address.as_deref().filter(|address| !address.is_empty()) else { return };
    let field_address = field.child("disk.pciAddress");
    let field_name = field.child("name");
    if target.bus.as_deref() != Some("virtio") {
        causes.push(Cause::invalid(
            &field_address,
            format!("disk {field_name} - setting a PCI address is only possible with bus type virtio."),
        ));
    }
    if pci::parse(address).is_none() {
        causes.push(Cause::invalid(
            &field_address,
            format!("disk {field_name} has malformed PCI address ({}).", quoted(address)),
        ));
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
    if disk.shareable == Some(true)
        && let Some(cache @ ("writethrough" | "writeback")) = disk.cache.as_deref()
    {
        let field = field.child("cache");
        causes.push(Cause::invalid(&field, format!("a sharable disk requires {field} none, not {cache}")));
    }
    // As with libvirt, the guest sees the LUN's own serial number. Its block size cannot be changed either.
    if disk.lun.is_some() && disk.block_size.is_some() {
        causes.push(Cause::not_supported_yet(&field.child("blockSize"), "of a lun"));
    }
    if let Some(io) = disk.io.as_deref()
        && !matches!(io, "" | "native" | "threads")
    {
        causes.push(Cause::not_supported(
            &field.child("io"),
            format!("Disk IO mode for {field} is not supported. Supported modes are: native, threads."),
        ));
    }
    if let Some(policy) = disk.error_policy.as_deref()
        && !matches!(policy, "" | "stop" | "ignore" | "report" | "enospace")
    {
        let field = field.child("errorPolicy");
        causes.push(Cause::invalid(&field, format!("{field} has invalid value \"{}\"", quoted(policy))));
    }
}

fn sectors(field: &Path, disk: &Disk, size: &BlockSize, causes: &mut Vec<Cause>) {
    let Some(custom) = &size.custom else { return };
    if size.match_volume.as_ref().is_some_and(FeatureState::is_enabled) {
        causes
            .push(Cause::invalid(field, "Block size matching can't be enabled together with a custom value"));
        return;
    }
    let field = field.child("custom");
    let (logical, physical) = (custom.logical.unwrap_or(0), custom.physical.unwrap_or(0));
    let granularity = custom.discard_granularity;
    let odd = granularity.filter(|granularity| logical > 0 && granularity % logical != 0);
    if logical > physical {
        causes.push(Cause::invalid(
            &field.child("logical"),
            format!("Logical size {logical} must be the same or less than the physical size of {physical}"),
        ));
    } else if disk.bus() == Some("sata") && logical != *SECTORS.start() {
        causes.push(Cause::invalid(
            &field.child("logical"),
            format!("Logical size {logical} must be {} for SATA devices", SECTORS.start()),
        ));
    } else if let Some(granularity) = odd {
        causes.push(Cause::invalid(
            &field.child("discardGranularity"),
            format!("Discard granularity {granularity} must be multiples of logical size {logical}"),
        ));
    } else {
        sector(&field.child("logical"), logical, causes);
        sector(&field.child("physical"), physical, causes);
    }
}

fn sector(field: &Path, size: i32, causes: &mut Vec<Cause>) {
    let (least, most) = (SECTORS.start(), SECTORS.end());
    let why = if size < *least {
        format!("less than the supported minimum size of {least}")
    } else if size > *most {
        format!("greater than the supported maximum size of {most}")
    } else if size & (size - 1) != 0 {
        "not a power of 2".to_owned()
    } else {
        return;
    };
    causes.push(Cause::invalid(field, format!("Provided size of {size} is {why}")));
}
