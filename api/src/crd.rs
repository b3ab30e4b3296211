//! Custom resource definitions, made from the types.

use crate::v1::{KubeVirt, VERSION_V1ALPHA3, VirtualMachine, VirtualMachineInstance};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
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

/// Adds the older version, with the same schema, which clients are told to leave.
fn finished(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
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
