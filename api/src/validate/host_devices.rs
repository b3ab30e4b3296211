//! Rules for GPUs and other devices of the node that are requested by a device plugin's resource.

use super::{Cause, Path};
use crate::syntax::is_resource_name;
use crate::syntax::quoted;
use crate::v1::VirtualMachineInstanceSpec;
use std::collections::HashSet;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let devices = &spec.domain.devices;
    let path = path.child("domain.devices");
    let gpus = devices.gpus.iter().map(|gpu| (&gpu.name, &gpu.device_name));
    entries(&path.child("gpus"), gpus, causes);
    let others = devices.host_devices.iter().map(|device| (&device.name, &device.device_name));
    entries(&path.child("hostDevices"), others, causes);
}

fn entries<'a>(
    field: &Path,
    entries: impl Iterator<Item = (&'a String, &'a Option<String>)>,
    causes: &mut Vec<Cause>,
) {
    let mut names = HashSet::new();
    for (index, (name, resource)) in entries.enumerate() {
        let field = field.index(index);
        // Devices given by a claim have their own rules.
        if resource.is_some() && !names.insert(name) {
            let field = field.child("name");
            causes.push(Cause::invalid(&field, format!("{field} '{}' is given before", quoted(name))));
        }
        if let Some(resource) = resource.as_deref().filter(|resource| !is_resource_name(resource))
            && !resource.is_empty()
        {
            let field = field.child("deviceName");
            let message = format!("{field} '{}' is not the name of a resource", quoted(resource));
            causes.push(Cause::invalid(&field, message));
        }
    }
}
