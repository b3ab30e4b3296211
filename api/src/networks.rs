//! Networks of an instance: which of them Multus attaches, the names of their links in its pod, and the
//! sources of information about an interface.
//!
//! ```text
//!   networks[].pod                       eth0
//!   networks[].multus, default: true     eth0: in place of the cluster's own network
//!   networks[].multus                    pod<11 digits of the SHA-256 of the network's name>; net1, net2 in older pods
//! ```
//!
//! The names are KubeVirt's, so that Barevirt and KubeVirt understand each other's pods.

use crate::v1::{
    Interface, MultusNetwork, Network, NetworkInterfaceStatus, VirtualMachineInstance,
    VirtualMachineInstanceSpec,
};
use sha2::{Digest, Sha256};
use std::fmt::{Display, Formatter};

/// Whether a guest may have cards on networks that Multus attaches, in addition to the pod network or instead
/// of it.
pub const SEVERAL_CARDS_SERVED: bool = true;
/// Whether a card may be bridged to the pod network.
pub const BRIDGE_SERVED: bool = true;
/// Whether a card's link can be up or down, as `state` says.
pub const LINK_STATE_SERVED: bool = true;
/// Whether cards can be plugged and unplugged while the guest runs.
pub const PLUGGED_CARDS_SERVED: bool = true;

/// Annotation by which a pod asks Multus for networks.
pub const NETWORKS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";
/// Link of the pod's first network.
pub const FIRST_LINK: &str = "eth0";
/// Link of a handler's pod on the network for migrations.
pub const MIGRATION_LINK: &str = "migration0";
/// Prefix of links of other networks.
pub const PREFIX: &str = "pod";
/// Number of digits after the prefix. With the suffix `-nic`, which the binding adds, the name has the
/// longest length that the kernel allows.
pub const DIGITS: usize = 11;

/// `state` of a card that is to be unplugged or is gone.
pub const ABSENT: &str = "absent";
/// `state` of a card whose link is up, and the default.
pub const UP: &str = "up";
/// `state` of a card whose link is down.
pub const DOWN: &str = "down";

/// `infoSource`: the definition of the machine.
pub const SOURCE_DOMAIN: &str = "domain";
/// `infoSource`: the guest agent.
pub const SOURCE_AGENT: &str = "guest-agent";
/// `infoSource`: the annotation of Multus on the pod.
pub const SOURCE_MULTUS: &str = "multus-status";

/// Whether Multus attaches the network in addition to the pod's first network.
pub fn is_secondary(network: &Network) -> bool {
    network.multus.as_ref().is_some_and(|multus| !is_default(multus))
}

/// Whether the network replaces the cluster's own network.
pub fn is_default(multus: &MultusNetwork) -> bool {
    multus.default == Some(true)
}

/// Whether the network is the first network of the pod.
pub fn is_first(network: &Network) -> bool {
    network.pod.is_some() || network.multus.as_ref().is_some_and(is_default)
}

/// Name of the network's link in the pod.
pub fn link(network: &Network) -> String {
    if is_secondary(network) { secondary_link(&network.name) } else { FIRST_LINK.to_owned() }
}

/// Name of the link of a network that Multus attaches in addition to the first one.
pub fn secondary_link(network: &str) -> String {
    format!("{PREFIX}{}", digits(network))
}

/// Name that the link of such a network has in older pods: its number among them, counted from 1.
pub fn ordinal_link(spec: &VirtualMachineInstanceSpec, network: &str) -> String {
    let secondary = spec.networks.iter().filter(|network| is_secondary(network));
    format!("net{}", secondary.take_while(|one| one.name != network).count() + 1)
}

/// The first [`DIGITS`] digits of the SHA-256 of a name, in hexadecimal.
pub fn digits(name: &str) -> String {
    let bytes = Sha256::digest(name);
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(DIGITS);
    digits.map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0')).collect()
}

/// Whether a card is to be unplugged or is gone.
pub fn is_absent(interface: &Interface) -> bool {
    interface.state.as_deref() == Some(ABSENT)
}

/// The card's `state`; `up` if none is given.
pub fn state(interface: &Interface) -> &str {
    interface.state.as_deref().filter(|state| !state.is_empty()).unwrap_or(UP)
}

/// Networks, except the first one, that the running pod of an instance is to be attached to, each with its interface: those
/// whose cards stay or come, and those whose cards the guest has not released yet. A pod gets the node's functions (SR-IOV)
/// when it is made, and none later.
pub fn attached(vmi: &VirtualMachineInstance) -> impl Iterator<Item = (&Network, &Interface)> {
    secondary(&vmi.spec).filter(|(_, interface)| {
        if is_absent(interface) {
            is_in_guest(vmi, &interface.name)
        } else {
            interface.sriov.is_none() || is_in_status(vmi, &interface.name)
        }
    })
}

/// Networks, except the first one, that a pod which is to be made for an instance is attached to, each with its interface. A
/// guest that moves leaves the node's functions behind, so its next pod does not need one that is to be removed.
pub fn attached_next(vmi: &VirtualMachineInstance) -> impl Iterator<Item = (&Network, &Interface)> {
    secondary(&vmi.spec).filter(|(_, interface)| {
        let stays = interface.sriov.is_none() && is_in_guest(vmi, &interface.name);
        !is_absent(interface) || stays
    })
}

/// What the status says of the interface of this name.
pub fn in_status<'a>(vmi: &'a VirtualMachineInstance, name: &str) -> Option<&'a NetworkInterfaceStatus> {
    let mut told = vmi.status.iter().flat_map(|status| &status.interfaces);
    told.find(|told| told.name.as_deref() == Some(name))
}

/// Whether the status lists the interface of this name.
pub fn is_in_status(vmi: &VirtualMachineInstance, name: &str) -> bool {
    in_status(vmi, name).is_some()
}

/// Whether the guest has the card of this name, according to the status.
pub fn is_in_guest(vmi: &VirtualMachineInstance, name: &str) -> bool {
    in_guest(vmi, name).is_some()
}

/// Number of queues of the card of this name, if the guest has it, according to the status. It stays the same on every node, also
/// while the guest gets or loses virtual CPUs.
pub fn queues_in_guest(vmi: &VirtualMachineInstance, name: &str) -> Option<u32> {
    u32::try_from(in_guest(vmi, name)?.queue_count?).ok()
}

/// The same of a card that the guest has, according to the status.
pub fn in_guest<'a>(vmi: &'a VirtualMachineInstance, name: &str) -> Option<&'a NetworkInterfaceStatus> {
    in_status(vmi, name).filter(|told| is_reported_by(told.info_source.as_deref(), SOURCE_DOMAIN))
}

/// Whether a card is attached to the pod but not in the guest yet, or is to be removed and is still there.
pub fn are_on_their_way(vmi: &VirtualMachineInstance) -> bool {
    let is_attached = |name: &str| {
        let mut told = vmi.status.iter().flat_map(|status| &status.interfaces);
        told.any(|told| {
            told.name.as_deref() == Some(name) && is_reported_by(told.info_source.as_deref(), SOURCE_MULTUS)
        })
    };
    secondary(&vmi.spec).any(|(network, card)| {
        let in_guest = is_in_guest(vmi, &network.name);
        if is_absent(card) { in_guest } else { !in_guest && is_attached(&network.name) }
    })
}

/// Networks except the first one, each with its interface.
pub fn secondary(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = (&Network, &Interface)> {
    spec.networks.iter().filter(|network| is_secondary(network)).filter_map(|network| {
        let mut interfaces = spec.domain.devices.interfaces.iter();
        Some((network, interfaces.find(|interface| interface.name == network.name)?))
    })
}

/// A NetworkAttachmentDefinition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Attachment {
    /// The attachment definition that `networkName` names in a namespace: `name`, or `namespace/name`.
    pub fn of(namespace: &str, network_name: &str) -> Self {
        let (namespace, name) = network_name.split_once('/').unwrap_or((namespace, network_name));
        Attachment { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl Display for Attachment {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Separator of names in `infoSource`.
const SEPARATOR: &str = ", ";

fn sources(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.unwrap_or_default().split(SEPARATOR).filter(|source| !source.is_empty())
}

/// Whether `infoSource` names a source.
pub fn is_reported_by(text: Option<&str>, source: &str) -> bool {
    sources(text).any(|known| known == source)
}

/// `infoSource` with a source added or removed; `None` if no source is left.
pub fn with_source(text: Option<&str>, source: &str, told: bool) -> Option<String> {
    let mut all: Vec<&str> = sources(text).filter(|known| told || *known != source).collect();
    if told && !all.contains(&source) {
        all.push(source);
    }
    (!all.is_empty()).then(|| all.join(SEPARATOR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn network(value: Value) -> Network {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn links_have_kubevirts_names() {
        // `printf red | sha256sum`, `printf default | sha256sum`.
        assert_eq!(secondary_link("red"), "podb1f51a511f1");
        assert_eq!(secondary_link("default"), "pod37a8eec1ce1");
        assert_eq!(link(&network(json!({"name": "red", "multus": {"networkName": "a"}}))), "podb1f51a511f1");
        for first in [
            json!({"name": "a", "pod": {}}),
            json!({"name": "a", "multus": {"networkName": "a", "default": true}}),
        ] {
            let first = network(first);
            assert_eq!(
                (link(&first).as_str(), is_first(&first), is_secondary(&first)),
                ("eth0", true, false)
            );
        }
        assert!(secondary_link("x").len() + "-nic".len() < 19);
    }

    #[test]
    fn links_of_older_pods_are_numbered_without_the_first() {
        let named = |name: &str| network(json!({"name": name, "multus": {"networkName": "a"}}));
        let networks = vec![named("red"), network(json!({"name": "default", "pod": {}})), named("blue")];
        let spec = VirtualMachineInstanceSpec { networks, ..VirtualMachineInstanceSpec::default() };
        assert_eq!(["red", "blue"].map(|name| ordinal_link(&spec, name)), ["net1", "net2"]);
    }

    #[test]
    fn a_network_definition_is_in_the_namespace_of_its_instance() {
        assert_eq!(Attachment::of("shop", "blue").to_string(), "shop/blue");
        assert_eq!(Attachment::of("shop", "net/blue").to_string(), "net/blue");
    }

    #[test]
    fn sources_are_added_and_removed() {
        assert_eq!(with_source(None, SOURCE_MULTUS, true).as_deref(), Some("multus-status"));
        let both = with_source(Some("domain, guest-agent"), SOURCE_MULTUS, true);
        assert_eq!(both.as_deref(), Some("domain, guest-agent, multus-status"));
        assert_eq!(with_source(both.as_deref(), SOURCE_MULTUS, true), both);
        assert!(is_reported_by(both.as_deref(), "guest-agent") && !is_reported_by(both.as_deref(), "agent"));
        assert_eq!(
            with_source(both.as_deref(), SOURCE_DOMAIN, false).as_deref(),
            Some("guest-agent, multus-status")
        );
        assert_eq!(with_source(Some("multus-status"), SOURCE_MULTUS, false), None);
    }
}
