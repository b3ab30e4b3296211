//! The generations of a pool, by name.

use barevirt_api::names::POOL_REVISION_LABEL;
use barevirt_api::pool::{VirtualMachinePool, VirtualMachinePoolSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Specifications of older generations of a pool, by name; `None` for an unknown one.
pub(super) type Older = BTreeMap<String, Option<VirtualMachinePoolSpec>>;

/// Name of the pool's present generation.
pub(super) fn name(pool: &VirtualMachinePool) -> String {
    format!("{}-{}", pool.name_any(), pool.metadata.generation.unwrap_or_default())
}

/// The generation that a machine or an instance was made from.
pub(super) fn of(metadata: &ObjectMeta) -> Option<&String> {
    metadata.labels.as_ref()?.get(POOL_REVISION_LABEL)
}
