//! Networks.

use super::supported::given;
use super::text::quoted;
use super::{Cause, Path};
use crate::v1::VirtualMachineInstanceSpec;
use std::collections::HashSet;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let field = path.child("networks");
    let interfaces: HashSet<&str> =
        spec.domain.devices.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    let mut seen = HashSet::new();
    for (index, network) in spec.networks.iter().enumerate() {
        let field = field.index(index);
        let field_name = field.child("name");
        let name = quoted(&network.name);
        if !seen.insert(network.name.as_str()) {
            causes.push(Cause::duplicate(
                &field_name,
                format!("Network with name \"{name}\" already exists, every network must have a unique name"),
            ));
        }
        if !interfaces.contains(network.name.as_str()) {
            causes.push(Cause::required(&field_name, format!("{field_name} '{name}' not found.")));
        }
        if !given(network).iter().any(|name| name != "name") {
            causes.push(Cause::required(&field, "should have a network type"));
        }
    }
    if spec.networks.iter().filter(|network| network.pod.is_some()).count() > 1 {
        let field = path.child("interfaces");
        causes.push(Cause::duplicate(
            &field,
            format!("more than one interface is connected to a pod network in {field}"),
        ));
    }
}
