//! Rules for interfaces whose card is a PCI function of the node. Fields that only an emulated card has are
//! accepted with a warning: [`super::warnings`].

use super::{Cause, Path};
use crate::networks;
use crate::v1::{Interface, Network, VirtualMachineInstanceSpec};

/// The rules of one interface with this binding; `field` is its path, and `path` that of the specification.
pub(super) fn validate(
    path: &Path,
    field: &Path,
    interface: &Interface,
    spec: &VirtualMachineInstanceSpec,
    causes: &mut Vec<Cause>,
) {
    let found = spec.networks.iter().enumerate().find(|(_, network)| network.name == interface.name);
    match found {
        Some((_, Network { pod: Some(_), .. })) => causes.push(Cause::invalid(
            &field.child("name"),
            "SR-IOV interface only implemented with Multus network",
        )),
        // Only networks beside the pod's first have a device.
        Some((index, network)) if network.multus.as_ref().is_some_and(networks::is_default) => {
            let field = path.child("networks").index(index).child("multus.default");
            causes.push(Cause::not_supported_yet(&field, "with sriov"));
        }
        // A network by a claim, or none, has its own cause.
        Some(_) | None => {}
    }
}
