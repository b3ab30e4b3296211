//! Owner references from an object to its controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;

/// The reference that makes `object` the controller: with foreground deletion it is deleted after its dependents.
pub fn owner<K: Resource<DynamicType = ()>>(object: &K) -> OwnerReference {
    let metadata = object.meta();
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
