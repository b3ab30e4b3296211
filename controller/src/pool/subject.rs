//! How messages name a pool.

use barevirt_api::pool::VirtualMachinePool;
use kube::ResourceExt;

/// Namespace and name, for messages.
pub(super) fn subject(pool: &VirtualMachinePool) -> String {
    format!("pool {}/{}", pool.namespace().unwrap_or_default(), pool.name_any())
}
