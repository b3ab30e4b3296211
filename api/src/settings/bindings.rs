//! Network binding plugins: how cards are joined to their networks beside the built-in ways.

use crate::quantity;
use crate::v1::{Interface, InterfaceBindingPlugin, KubeVirtConfiguration, VirtualMachineInstanceSpec};
use std::collections::{BTreeMap, BTreeSet};

/// How QEMU comes to a card's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// By a tap or macvtap that is in the pod: whatever attaches the network has made it.
    Tap,
    /// By a tap that the handler makes, bridged to the pod's link.
    ManagedTap,
}

impl Attachment {
    /// The one of that name in `domainAttachmentType`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "tap" => Some(Attachment::Tap),
            "managedTap" => Some(Attachment::ManagedTap),
            _ => None,
        }
    }
}

/// The one way through a migration that has a name.
pub const LINK_REFRESH: &str = "link-refresh";

/// What is known of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// How QEMU comes to the network.
    pub attachment: Attachment,
    /// NetworkAttachmentDefinition that the pod is attached to beside the card's network, `name` or `namespace/name`.
    pub definition: Option<String>,
    /// A guest with such a card on the pod network can move.
    pub moves: bool,
    /// Where a guest has moved, the card's link goes down and up again.
    pub refreshes_link: bool,
    /// Memory that the launcher's container has more, in bytes, however many cards are of it.
    pub memory: u64,
}

/// The plugins by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings(BTreeMap<String, Plugin>);

/// No plugins at all.
pub static NO_BINDINGS: Bindings = Bindings(BTreeMap::new());

impl Bindings {
    /// Those that this version serves: admission refuses the others.
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Self {
        let named = configuration.network.iter().flat_map(|network| &network.binding);
        Bindings(named.filter_map(|(name, given)| Some((name.clone(), plugin(given)?))).collect())
    }

    /// The plugin of a card; none where it has a built-in binding, or where there is no such plugin.
    pub fn of(&self, interface: &Interface) -> Option<&Plugin> {
        self.0.get(&interface.binding.as_ref()?.name)
    }

    /// Plugins that a specification names and that are not there.
    pub fn missing<'a>(&self, spec: &'a VirtualMachineInstanceSpec) -> BTreeSet<&'a str> {
        names(spec).filter(|name| !self.0.contains_key(*name)).collect()
    }

    /// Bytes that the launcher's container has more for the plugins of a specification.
    pub fn memory(&self, spec: &VirtualMachineInstanceSpec) -> u64 {
        let used: BTreeSet<&str> = names(spec).collect();
        used.iter().filter_map(|name| self.0.get(*name)).map(|plugin| plugin.memory).sum()
    }
}

fn names(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = &str> {
    let cards = spec.domain.devices.interfaces.iter();
    cards.filter_map(|card| card.binding.as_ref()).map(|binding| binding.name.as_str())
}

fn plugin(given: &InterfaceBindingPlugin) -> Option<Plugin> {
    let overhead = given.compute_resource_overhead.as_ref();
    let memory = overhead.and_then(|overhead| overhead.requests.get("memory"));
    let method = given.migration.as_ref().and_then(|migration| migration.method.as_deref());
    Some(Plugin {
        attachment: Attachment::named(given.domain_attachment_type.as_deref()?)?,
        definition: given.network_attachment_definition.clone().filter(|name| !name.is_empty()),
        moves: given.migration.is_some(),
        refreshes_link: method == Some(LINK_REFRESH),
        memory: memory.and_then(|memory| quantity::bytes(memory).ok()).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn bindings(plugins: Value) -> Bindings {
        let configuration = json!({"network": {"binding": plugins}});
        Bindings::of_configuration(&serde_json::from_value(configuration).unwrap())
    }

    fn spec(names: &[&str]) -> VirtualMachineInstanceSpec {
        let card = |name: &&str| json!({"name": name, "binding": {"name": name}});
        let cards: Vec<Value> = names.iter().map(card).collect();
        serde_json::from_value(json!({"domain": {"devices": {"interfaces": cards}}})).unwrap()
    }

    #[test]
    fn a_plugin_is_known_by_its_name() {
        let bindings = bindings(json!({
            "macvtap": {"domainAttachmentType": "tap", "migration": {"method": "link-refresh"}},
            "bare": {"domainAttachmentType": "managedTap", "networkAttachmentDefinition": "net/one",
                "computeResourceOverhead": {"requests": {"memory": "3Mi"}}},
            "sidecar": {"sidecarImage": "x"},
        }));
        let spec = spec(&["macvtap", "bare", "sidecar", "bare", "other"]);
        let cards = &spec.domain.devices.interfaces;
        let macvtap = bindings.of(&cards[0]).unwrap();
        assert_eq!(
            (macvtap.attachment, macvtap.moves, macvtap.refreshes_link),
            (Attachment::Tap, true, true)
        );
        let bare = bindings.of(&cards[1]).unwrap();
        assert_eq!((bare.attachment, bare.moves), (Attachment::ManagedTap, false));
        assert_eq!(bare.definition.as_deref(), Some("net/one"));
        assert_eq!(bindings.of(&cards[2]), None);
        assert_eq!(bindings.missing(&spec), BTreeSet::from(["other", "sidecar"]));
        // Once, however many cards there are.
        assert_eq!(bindings.memory(&spec), 3 << 20);
    }
}
