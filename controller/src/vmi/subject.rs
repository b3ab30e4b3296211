//! Name of an instance in messages.

use barevirt_api::v1::VirtualMachineInstance;
use kube::ResourceExt;

/// Namespace and name.
pub(crate) fn subject(vmi: &VirtualMachineInstance) -> String {
    format!("virtual machine instance {}/{}", vmi.namespace().unwrap_or_default(), vmi.name_any())
}
