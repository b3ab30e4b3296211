//! Name of a machine in messages.

use barevirt_api::v1::VirtualMachine;
use kube::ResourceExt;

/// Namespace and name.
pub(crate) fn subject(vm: &VirtualMachine) -> String {
    format!("virtual machine {}/{}", vm.namespace().unwrap_or_default(), vm.name_any())
}
