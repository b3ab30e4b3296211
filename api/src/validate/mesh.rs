//! Rules for guests whose pod has a mesh's sidecar. KubeVirt accepts the ports that are refused here, and they do not reach
//! the guest.

use std::collections::BTreeMap;

use super::{Cause, Path};
use crate::mesh;
use crate::v1::{Interface, VirtualMachineInstanceSpec};

/// Refuses the sidecar's ports in the list of an interface with masquerade or passt; `path` is that of the specification.
pub(super) fn validate(
    path: &Path,
    annotations: Option<&BTreeMap<String, String>>,
    spec: &VirtualMachineInstanceSpec,
    causes: &mut Vec<Cause>,
) {
    if !mesh::has_sidecar(annotations) {
        return;
    }
    let list = path.child("domain.devices.interfaces");
    let interfaces = spec.domain.devices.interfaces.iter().enumerate();
    let listens = |interface: &Interface| interface.masquerade.is_some() || interface.passt_binding.is_some();
    for (index, interface) in interfaces.filter(|(_, interface)| listens(interface)) {
        for (at, port) in interface.ports.iter().enumerate() {
            let is_tcp = port.protocol.as_deref().is_none_or(|protocol| matches!(protocol, "" | "TCP"));
            if is_tcp && u16::try_from(port.port).is_ok_and(|number| mesh::PORTS.contains(&number)) {
                let field = list.index(index).child("ports").index(at).child("port");
                let message = format!("{field} {} belongs to the sidecar of the mesh in the pod", port.port);
                causes.push(Cause::not_supported(&field, message));
            }
        }
    }
}
