//! Common parts of the rows of machines and instances.

use barevirt_api::v1::{Interface, Network};
use std::collections::BTreeMap;

pub(super) type Labels<'a> = Vec<(&'static str, &'a str)>;
/// Namespace and name.
pub(super) type Key = (Box<str>, Box<str>);

/// Label value for an instance type or a preference of no known vendor.
pub(super) const OTHER: &str = "<other>";

pub(super) fn key(namespace: &str, name: &str) -> Key {
    (namespace.into(), name.into())
}

/// A string that is kept for long.
pub(super) fn kept(text: Option<&str>) -> Box<str> {
    text.unwrap_or_default().into()
}

/// Annotations by which users describe a system.
#[derive(Debug, Default)]
pub(super) struct Described([Box<str>; 3]);

impl Described {
    pub(super) fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        Described(
            ["vm.kubevirt.io/os", "vm.kubevirt.io/workload", "vm.kubevirt.io/flavor"]
                .map(|name| kept(annotations.and_then(|all| all.get(name)).map(String::as_str))),
        )
    }

    pub(super) fn labels(&self) -> [(&'static str, &str); 3] {
        let [os, workload, flavor] = &self.0;
        [("os", os), ("workload", workload), ("flavor", flavor)]
    }
}

/// A network interface of a specification.
#[derive(Debug)]
pub(super) struct Vnic {
    pub(super) name: Box<str>,
    pub(super) binding_type: &'static str,
    pub(super) binding: Box<str>,
    pub(super) network: Box<str>,
    pub(super) model: Box<str>,
}

impl Vnic {
    /// The interfaces whose network is named.
    pub(super) fn all(interfaces: &[Interface], networks: &[Network]) -> Box<[Vnic]> {
        let one = |interface: &Interface| {
            let network = networks.iter().find(|network| network.name == interface.name)?;
            let network = match (&network.pod, &network.multus) {
                (Some(_), _) => "pod networking",
                (None, Some(multus)) => multus.network_name.as_str(),
                (None, None) => return None,
            };
            let (binding_type, binding) = if interface.masquerade.is_some() {
                ("core", "masquerade")
            } else if interface.bridge.is_some() {
                ("core", "bridge")
            } else if interface.passt_binding.is_some() {
                ("core", "passt")
            } else if interface.sriov.is_some() {
                ("core", "sriov")
            } else {
                let name = interface.binding.as_ref().map(|binding| binding.name.as_str());
                (name.map_or("", |_| "plugin"), name.unwrap_or_default())
            };
            Some(Vnic {
                name: interface.name.as_str().into(),
                binding_type,
                binding: binding.into(),
                network: network.into(),
                model: interface
                    .model
                    .as_deref()
                    .filter(|model| !model.is_empty())
                    .unwrap_or("<none>")
                    .into(),
            })
        };
        interfaces.iter().filter_map(one).collect()
    }
}
