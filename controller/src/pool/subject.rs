//! Name of a pool in messages.

use barevirt_api::pool::VirtualMachinePool;
use kube::ResourceExt;

/// Namespace and name.
pub(super) fn subject(pool: &VirtualMachinePool) -> String {
    format!("pool {}/{}", pool.namespace().unwrap_or_default(), pool.name_any())
}
