//! Rules over several kinds of devices: boot order and how many there may be (kubevirt-api.md 8.2, rules 17 and 20).

use super::{Cause, Path};
use crate::v1::VirtualMachineInstanceSpec;
use std::collections::HashSet;

/// Most disks, and most interfaces: the API's limit.
const MOST: usize = 256;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let devices = &spec.domain.devices;
    let disks = path.child("domain.devices.disks");
    let interfaces = path.child("domain.devices.interfaces");
    for (field, count) in [
        (&disks, devices.disks.len()),
        (&interfaces, devices.interfaces.len()),
        (&path.child("volumes"), spec.volumes.len()),
        (&path.child("networks"), spec.networks.len()),
    ] {
        if count > MOST {
            causes.push(Cause::invalid(
                field,
                format!("{field} list exceeds the {MOST} element limit in length"),
            ));
        }
    }
    let orders =
        devices.disks.iter().enumerate().map(|(index, disk)| (disks.index(index), disk.boot_order)).chain(
            devices
                .interfaces
                .iter()
                .enumerate()
                .map(|(index, interface)| (interfaces.index(index), interface.boot_order)),
        );
    let mut seen = HashSet::new();
    for (device, order) in orders {
        let Some(order) = order else { continue };
        let field = device.child("bootOrder");
        if order < 1 {
            causes.push(Cause::invalid(&field, format!("{device} must have a boot order > 0, if supplied")));
        } else if !seen.insert(order) {
            causes.push(Cause::invalid(
                &field,
                format!("Boot order for {field} already set for a different device."),
            ));
        }
    }
}
