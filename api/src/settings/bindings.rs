//! Network binding plugins: ways to connect cards to their networks in addition to the built-in ones.

use crate::quantity;
use crate::v1::{Interface, InterfaceBindingPlugin, KubeVirtConfiguration, VirtualMachineInstanceSpec};
use std::collections::{BTreeMap, BTreeSet};

/// How QEMU reaches a card's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// Through a tap or macvtap in the pod, made by the program that attaches the network.
    Tap,
    /// Through a tap that the handler makes and bridges to the pod's link.
    ManagedTap,
}

impl Attachment {
    /// The attachment of this name in `domainAttachmentType`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "tap" => Some(Attachment::Tap),
            "managedTap" => Some(Attachment::ManagedTap),
            _ => None,
        }
    }
}

/// The only named way to move a card in a migration.
pub const LINK_REFRESH: &str = "link-refresh";

/// Settings of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// How QEMU reaches the network.
    pub attachment: Attachment,
    /// NetworkAttachmentDefinition that the pod is attached to in addition to the card's network, `name` or
    /// `namespace/name`.
    pub definition: Option<String>,
    /// Whether a guest with such a card on the pod network can move.
    pub moves: bool,
    /// Whether the card's link goes down and up again after a guest has moved.
    pub refreshes_link: bool,
    /// Additional memory of the launcher's container, in bytes, regardless of the number of cards.
    pub memory: u64,
}

/// The plugins by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings(BTreeMap<String, Plugin>);

/// No plugins at all.
pub static NO_BINDINGS: Bindings = Bindings(BTreeMap::new());

impl Bindings {
    /// The plugins that this version serves: admission refuses the others.
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Self {
        let named = configuration.network.iter().flat_map(|network| &network.binding);
        Bindings(named.filter_map(|(name, given)| Some((name.clone(), plugin(given)?))).collect())
    }

    /// The plugin of a card; `None` if it has a built-in binding or the plugin does not exist.
    pub fn of(&self, interface: &Interface) -> Option<&Plugin> {
        self.0.get(&interface.binding.as_ref()?.name)
    }

    /// Plugins that a specification names and that do not exist.
    pub fn missing<'a>(&self, spec: &'a VirtualMachineInstanceSpec) -> BTreeSet<&'a str> {
        names(spec).filter(|name| !self.0.contains_key(*name)).collect()
    }

    /// Additional memory of the launcher's container for the plugins of a specification, in bytes.
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
