//! Custom resource definitions, made from the types.

use crate::backup::{VirtualMachineBackup, VirtualMachineBackupTracker};
use crate::clone::VirtualMachineClone;
use crate::export::VirtualMachineExport;
use crate::instancetype::{VirtualMachineClusterInstancetype, VirtualMachineInstancetype};
use crate::migrations::MigrationPolicy;
use crate::pool::VirtualMachinePool;
use crate::preference::{VirtualMachineClusterPreference, VirtualMachinePreference};
use crate::restore::VirtualMachineRestore;
use crate::snapshot::{VirtualMachineSnapshot, VirtualMachineSnapshotContent};
use crate::v1::{
    KubeVirt, VERSION_V1ALPHA3, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration,
    VirtualMachineInstancePreset, VirtualMachineInstanceReplicaSet,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    JSONSchemaPropsOrBool,
};
use kube_core::CustomResourceExt;

/// Another version that a kind is served in, with the same schema. KubeVirt converts nothing between versions.
struct Other {
    name: &'static str,
    deprecated: bool,
}

const V1ALPHA3: Other = Other { name: VERSION_V1ALPHA3, deprecated: true };
const V1ALPHA1: Other = Other { name: "v1alpha1", deprecated: false };
const V1BETA1: Other = Other { name: "v1beta1", deprecated: true };

/// All definitions, in the order in which they are installed.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        finished(VirtualMachine::crd(), &[V1ALPHA3]),
        virtual_machine_instance(),
        finished(VirtualMachineInstanceReplicaSet::crd(), &[V1ALPHA3]),
        finished(VirtualMachineInstanceMigration::crd(), &[V1ALPHA3]),
        preset(),
        kubevirt(),
        finished(VirtualMachinePool::crd(), &[V1ALPHA1]),
        finished(VirtualMachineSnapshot::crd(), &[V1ALPHA1]),
        finished(VirtualMachineSnapshotContent::crd(), &[V1ALPHA1]),
        finished(VirtualMachineRestore::crd(), &[V1ALPHA1]),
        finished(VirtualMachineExport::crd(), &[V1BETA1]),
        finished(VirtualMachineClone::crd(), &[V1ALPHA1]),
        finished(VirtualMachineBackup::crd(), &[]),
        finished(VirtualMachineBackupTracker::crd(), &[]),
        finished(VirtualMachineInstancetype::crd(), &[]),
        finished(VirtualMachineClusterInstancetype::crd(), &[]),
        finished(VirtualMachinePreference::crd(), &[]),
        finished(VirtualMachineClusterPreference::crd(), &[]),
        finished(MigrationPolicy::crd(), &[]),
    ]
}

/// `KubeVirt`.
pub fn kubevirt() -> CustomResourceDefinition {
    finished(KubeVirt::crd(), &[V1ALPHA3])
}

/// `VirtualMachineInstance`. It has no status subresource: KubeVirt's clients write status with plain updates.
fn virtual_machine_instance() -> CustomResourceDefinition {
    let mut crd = finished(VirtualMachineInstance::crd(), &[V1ALPHA3]);
    for version in &mut crd.spec.versions {
        version.subresources = None;
    }
    crd
}

/// `VirtualMachineInstancePreset`: deprecated as a whole, and stored in its older version.
fn preset() -> CustomResourceDefinition {
    let mut crd = finished(VirtualMachineInstancePreset::crd(), &[V1ALPHA3]);
    let group = crd.spec.group.clone();
    for version in &mut crd.spec.versions {
        version.storage = version.name == V1ALPHA3.name;
        deprecate(&group, version);
    }
    crd
}

/// A definition without formats that the API server does not know.
pub(crate) fn without_unsigned(crd: CustomResourceDefinition) -> CustomResourceDefinition {
    finished(crd, &[])
}

/// Adds the other versions.
fn finished(mut crd: CustomResourceDefinition, others: &[Other]) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        if let Some(schema) = schema(version) {
            signed_formats(schema);
        }
    }
    let group = crd.spec.group.clone();
    let Some(newest) = crd.spec.versions.first().cloned() else { return crd };
    crd.spec.versions.extend(others.iter().map(|other| {
        let mut version = newest.clone();
        other.name.clone_into(&mut version.name);
        version.storage = false;
        if let Some(schema) = schema(&mut version) {
            undescribed(schema);
        }
        if other.deprecated {
            deprecate(&group, &mut version);
        }
        version
    }));
    crd
}

fn deprecate(group: &str, version: &mut CustomResourceDefinitionVersion) {
    version.deprecated = Some(true);
    version.deprecation_warning =
        Some(format!("{group}/{} is now deprecated and will be removed in a future release.", version.name));
}

/// The schema of a version's objects.
pub(crate) fn schema(version: &mut CustomResourceDefinitionVersion) -> Option<&mut JSONSchemaProps> {
    version.schema.as_mut()?.open_api_v3_schema.as_mut()
}

/// Every schema directly below one.
fn below(schema: &mut JSONSchemaProps) -> impl Iterator<Item = &mut JSONSchemaProps> {
    let items = match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => Some(&mut **items),
        _ => None,
    };
    let values = match &mut schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(values)) => Some(&mut **values),
        _ => None,
    };
    let properties = schema.properties.iter_mut().flat_map(|properties| properties.values_mut());
    properties.chain(items).chain(values)
}

/// The API machinery knows signed numbers only; the lower bound that unsigned ones come with stays.
fn signed_formats(schema: &mut JSONSchemaProps) {
    match schema.format.as_deref() {
        Some("uint8") => schema.format = Some("int32".to_owned()),
        Some(format) if format.starts_with("uint") => schema.format = Some("int64".to_owned()),
        _ => {}
    }
    below(schema).for_each(signed_formats);
}

/// Only the version that users should use has descriptions, to keep definitions small.
fn undescribed(schema: &mut JSONSchemaProps) {
    schema.description = None;
    below(schema).for_each(undescribed);
}

#[cfg(test)]
mod tests;
