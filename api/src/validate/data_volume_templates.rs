//! DataVolumes that are created for a machine.

use super::supported::given;
use super::{Cause, Path};
use crate::cdi::{self, DataVolumeSpec};
use crate::syntax::{is_dns_label, is_dns_subdomain, quoted};
use crate::v1::{VirtualMachine, VirtualMachineSpec};

/// The templates of a machine's specification.
pub(super) fn validate(path: &Path, spec: &VirtualMachineSpec, causes: &mut Vec<Cause>) {
    for (index, template) in spec.data_volume_templates.iter().enumerate() {
        let field = path.child("dataVolumeTemplates").index(index);
        let name = template.name();
        let earlier = spec.data_volume_templates.iter().take(index).any(|other| other.name() == name);
        let wrong = if name.is_empty() {
            let field = field.child("metadata.name");
            Some(Cause::required(
                &field,
                format!("'name' field must not be empty for DataVolumeTemplate entry {field}."),
            ))
        } else if earlier {
            let field = field.child("metadata.name");
            let message = format!("{field} '{}' is the name of another template, too", quoted(name));
            Some(Cause::duplicate(&field, message))
        } else {
            contents(&field.child("spec"), &template.spec)
        };
        let used = spec.template.spec.volumes.iter().any(|volume| {
            let claim = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.as_str());
            let data = volume.data_volume.as_ref().map(|source| source.name.as_str());
            claim == Some(name) || data == Some(name)
        });
        match wrong {
            Some(cause) => causes.push(cause),
            None if used => {}
            None => causes.push(Cause::required(
                &field,
                format!(
                    "DataVolumeTemplate entry {field} must be referenced in the VMI template's 'volumes' list"
                ),
            )),
        }
    }
}

/// DataVolumes of a machine are created in its namespace. `old` is the machine before the change: unchanged
/// templates are not checked again.
pub(super) fn namespaces(old: Option<&VirtualMachine>, vm: &VirtualMachine, causes: &mut Vec<Cause>) {
    let templates = &vm.spec.data_volume_templates;
    if old.is_some_and(|old| &old.spec.data_volume_templates == templates) {
        return;
    }
    let Some(namespace) = vm.metadata.namespace.as_deref() else { return };
    for (index, template) in templates.iter().enumerate() {
        let other = template.metadata.as_ref().and_then(|metadata| metadata.namespace.as_deref());
        if let Some(other) = other.filter(|other| !other.is_empty() && *other != namespace) {
            causes.push(Cause::invalid(
                &Path::new("spec.dataVolumeTemplates").index(index),
                format!(
                    "Embedded DataVolume namespace {} differs from VM namespace {}",
                    quoted(other),
                    quoted(namespace)
                ),
            ));
        }
    }
}

/// The first fault in the contents of a DataVolume, and its field.
fn contents(field: &Path, spec: &DataVolumeSpec) -> Option<Cause> {
    let populated = match (&spec.pvc, &spec.storage) {
        (None, None) => return Some(Cause::invalid(field, "Missing Data volume PVC or Storage")),
        (Some(_), Some(_)) => {
            return Some(Cause::invalid(
                field,
                "Duplicate storage definition, both target storage and target pvc defined",
            ));
        }
        (Some(pvc), None) => pvc.data_source.is_some() || pvc.data_source_ref.is_some(),
        (None, Some(storage)) => storage.data_source.is_some() || storage.data_source_ref.is_some(),
    };
    let field_source = field.child("source");
    let sourced = spec.source.is_some() || spec.source_ref.is_some();
    if populated && sourced {
        return Some(Cause::invalid(
            &field_source,
            "External population is incompatible with Source and SourceRef",
        ));
    }
    if !populated && !sourced {
        return Some(Cause::invalid(
            &field_source,
            "Data volume should have either Source, SourceRef, or be externally populated",
        ));
    }
    match spec.source.as_ref().map(|source| given(source).len()) {
        Some(0) => Some(Cause::invalid(&field_source, "Missing dataVolume valid source")),
        Some(2..) => Some(Cause::invalid(&field_source, "Multiple dataVolume sources")),
        Some(1) | None => origin(field, spec),
    }
}

/// The first fault in the source of a DataVolume. Names become part of request paths.
fn origin(field: &Path, spec: &DataVolumeSpec) -> Option<Cause> {
    let source = field.child("source");
    let mut places = vec![];
    if let Some(reference) = &spec.source_ref {
        let field = field.child("sourceRef");
        if spec.source.is_some() {
            return Some(Cause::invalid(&field, "Data volume should have either Source or SourceRef"));
        }
        if reference.kind != cdi::DATA_SOURCE {
            let kind = quoted(&reference.kind);
            let message = format!("kind of a data volume's sourceRef is DataSource, not '{kind}'");
            return Some(Cause::not_supported(&field.child("kind"), message));
        }
        places.push((field, reference.namespace.as_deref().unwrap_or_default(), &reference.name));
    }
    if let Some(claim) = spec.source.as_ref().and_then(|source| source.pvc.as_ref()) {
        places.push((source.child("pvc"), &claim.namespace, &claim.name));
    }
    if let Some(snapshot) = spec.source.as_ref().and_then(|source| source.snapshot.as_ref()) {
        places.push((source.child("snapshot"), &snapshot.namespace, &snapshot.name));
    }
    places.into_iter().find_map(|(field, namespace, name)| {
        let named = |member: &str, text: &str, what: &str| {
            let field = field.child(member);
            Some(Cause::invalid(&field, format!("{field} '{}' is not the name of {what}", quoted(text))))
        };
        if !namespace.is_empty() && !is_dns_label(namespace) {
            named("namespace", namespace, "a namespace")
        } else if !is_dns_subdomain(name) {
            named("name", name, "an object")
        } else {
            None
        }
    })
}
