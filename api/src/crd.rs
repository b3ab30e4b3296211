//! Custom resource definitions, made from the types.

use crate::v1::{KubeVirt, VERSION_V1ALPHA3, VirtualMachine, VirtualMachineInstance};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

/// All of them, in the order in which they are installed.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![virtual_machine(), virtual_machine_instance(), kubevirt()]
}

/// `VirtualMachine`.
pub fn virtual_machine() -> CustomResourceDefinition {
    finished(VirtualMachine::crd())
}

/// `VirtualMachineInstance`. It has no status subresource: KubeVirt's clients write status with plain updates.
pub fn virtual_machine_instance() -> CustomResourceDefinition {
    let mut crd = finished(VirtualMachineInstance::crd());
    for version in &mut crd.spec.versions {
        version.subresources = None;
    }
    crd
}

/// `KubeVirt`.
pub fn kubevirt() -> CustomResourceDefinition {
    finished(KubeVirt::crd())
}

/// The API machinery knows signed numbers only; the lower bound that unsigned ones come with stays.
fn signed_formats(schema: &mut JSONSchemaProps) {
    if schema.format.as_deref().is_some_and(|format| format.starts_with("uint")) {
        schema.format = Some("int64".to_owned());
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        signed_formats(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        signed_formats(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        signed_formats(values);
    }
}

/// Adds the older version, with the same schema, which clients are told to leave.
fn finished(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            signed_formats(schema);
        }
    }
    if let Some(newest) = crd.spec.versions.first().cloned() {
        let mut older = newest;
        older.name = VERSION_V1ALPHA3.to_owned();
        older.storage = false;
        older.deprecated = Some(true);
        older.deprecation_warning = Some(format!(
            "kubevirt.io/{VERSION_V1ALPHA3} is now deprecated and will be removed in a future release."
        ));
        crd.spec.versions.push(older);
    }
    crd
}

#[cfg(test)]
mod tests;
