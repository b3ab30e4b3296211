//! References from an object to the one that controls it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;

/// The reference by which an object controls others: it is deleted after them where somebody waits for that.
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
