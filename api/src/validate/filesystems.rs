//! Rules for directories shared by virtiofs, each alone and together with volumes and disks.

use super::{Cause, Path};
use crate::filesystem::{self, TAG_LIMIT};
use crate::syntax::quoted;
use crate::v1::{VirtualMachineInstanceSpec, Volume};
use std::collections::HashMap;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let devices = &spec.domain.devices;
    let field = path.child("domain.devices.filesystems");
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (index, shared) in devices.filesystems.iter().enumerate() {
        let name = shared.name.as_str();
        let field_shared = field.index(index);
        let field_name = field_shared.child("name");
        if let Some(earlier) = first.get(name) {
            causes.push(Cause::invalid(
                &field_name,
                format!("{field_shared} and {} must not have the same Name.", field.index(*earlier)),
            ));
            continue;
        }
        first.insert(name, index);
        let Some(volume) = spec.volumes.iter().find(|volume| volume.name == name) else {
            let message = format!("{} '{}' not found.", field_shared.child("Name"), quoted(name));
            causes.push(Cause::invalid(&field_name, message));
            continue;
        };
        // The name is the tag that the guest mounts by.
        if name.len() > TAG_LIMIT {
            let message = format!(
                "{field_name} '{}' is longer than {TAG_LIMIT} characters, the most of a tag",
                quoted(name)
            );
            causes.push(Cause::invalid(&field_name, message));
        }
        if devices.disks.iter().any(|disk| disk.name == name) {
            causes.push(Cause::not_supported_yet(&field_name, "of a volume that is a disk as well"));
        }
        source(&field_name, volume, causes);
    }
}

/// Only a volume that is a directory in a pod and not a disk can be shared.
fn source(field: &Path, volume: &Volume, causes: &mut Vec<Cause>) {
    if filesystem::directory(volume).is_none() {
        let kinds = "configMap, secret, serviceAccount, downwardAPI, containerPath, persistentVolumeClaim or dataVolume";
        causes.push(Cause::not_supported_yet(field, &format!("of a volume that is no {kinds}")));
    } else if volume.is_hotpluggable() {
        causes.push(Cause::not_supported_yet(field, "of a volume that is plugged into a running machine"));
    }
}
