//! Translates the interfaces of a VMI into what this module sets up, and what it found into facts for the
//! launcher and the API. Pure.

use std::collections::BTreeSet;

use barevirt_api::masquerade::{self, RangeError};
use barevirt_api::mesh;
use barevirt_api::names::{LAUNCHER_UID, PHASE_RUNNING};
use barevirt_api::networks::{self, FIRST_LINK};
use barevirt_api::resolver::Resolver;
use barevirt_api::settings::{Attachment, Bindings};
use barevirt_api::v1::{self as api, VirtualMachineInstance};
use barevirt_api::valid::{ValidInterface, ValidVmi};
use barevirt_protocol::names::NetworkDescriptor;
use barevirt_protocol::v1;
use thiserror::Error;

use super::Prepared;
use super::addresses::AddressError;
use super::links;
use super::nft::rules::{Ports, Protocol};
use super::state::{Binding, Masquerade, Route, Wanted};

/// Why the network of an interface cannot be set up. Validation refuses all these cases, so only an object
/// that bypassed admission has one.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InterfaceError {
    /// The binding is not supported. Masquerade and passt on the pod network, bridges and plugins are.
    #[error("interface {0} has no binding that this version supports")]
    Binding(String),
    /// The installation does not have the plugin, or no longer has it, and the guest does not have the card.
    #[error("interface {0}: unable to find the network binding plugin '{1}' in Kubevirt configuration")]
    Plugin(String, String),
    /// The pod has only one network.
    #[error("more than one interface is on the pod network")]
    SecondPodInterface,
    /// The interface's MAC address is not valid.
    #[error("interface {0}")]
    Mac(String, #[source] AddressError),
    /// An address range of its network is not valid.
    #[error("the network of interface {0}")]
    Range(String, #[source] RangeError),
    /// A port of the interface is not valid.
    #[error("interface {0} has a port that is not from 1 to 65535 or not TCP or UDP")]
    Port(String),
}

/// What has to be done for a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Its network has to exist.
    There,
    /// Its network has to be removed: the guest no longer has the card.
    Gone,
    /// Nothing for now: the pod is not yet attached to its network.
    Later,
}

/// What has to be done for each interface, by name. If this changes, the network is prepared again. `held`
/// are the descriptors that the launcher holds. `here` is false for a guest that is yet to arrive on this
/// node.
pub fn due(vmi: &VirtualMachineInstance, held: &BTreeSet<String>, here: bool) -> Vec<(String, Due)> {
    let due = |interface: &api::Interface| match &interface.sriov {
        // Whether its pod has a device of the node was decided when the pod was made.
        Some(_) if networks::is_absent(interface) => Due::Gone,
        Some(_) => Due::There,
        None => due_of(vmi, interface, held, here),
    };
    let interfaces = vmi.spec.domain.devices.interfaces.iter();
    interfaces.map(|interface| (interface.name.clone(), due(interface))).collect()
}

fn due_of(
    vmi: &VirtualMachineInstance,
    interface: &api::Interface,
    held: &BTreeSet<String>,
    here: bool,
) -> Due {
    let is_held = is_held(interface, held);
    // A guest that arrives keeps the cards that it has at the source.
    let comes_with_it = !here && networks::is_in_guest(vmi, &interface.name);
    if networks::is_absent(interface) {
        return if is_held || comes_with_it { Due::There } else { Due::Gone };
    }
    let network = vmi.spec.networks.iter().find(|network| network.name == interface.name);
    // The network of cards with which a guest starts has to exist before the start.
    if is_held || !runs(vmi) || !network.is_some_and(networks::is_secondary) {
        return Due::There;
    }
    let is_attached = || {
        networks::in_status(vmi, &interface.name).is_some_and(|status| status.pod_interface_name.is_some())
    };
    if comes_with_it || here && is_attached() { Due::There } else { Due::Later }
}

/// Whether the launcher holds the card's tap: everything of its network was made.
fn is_held(interface: &api::Interface, held: &BTreeSet<String>) -> bool {
    held.contains(&NetworkDescriptor::Tap.of(&interface.name))
}

pub(super) fn runs(vmi: &VirtualMachineInstance) -> bool {
    vmi.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(PHASE_RUNNING)
}

/// The cards of the VMI for which something has to be done.
pub fn wanted(
    vmi: &ValidVmi,
    held: &BTreeSet<String>,
    here: bool,
    bindings: &Bindings,
) -> Result<Vec<Wanted>, InterfaceError> {
    let is_first = |interface: &&ValidInterface| !networks::is_secondary(&interface.network);
    if vmi.interfaces().iter().filter(is_first).count() > 1 {
        return Err(InterfaceError::SecondPodInterface);
    }
    let mut cards = Vec::new();
    let interfaces = vmi.interfaces().iter().enumerate();
    for (index, interface) in interfaces.filter(|(_, valid)| valid.interface.sriov.is_none()) {
        let due = due_of(vmi.vmi(), &interface.interface, held, here);
        if due != Due::Later {
            let alone = here && runs(vmi.vmi()) && networks::is_secondary(&interface.network);
            let is_held = is_held(&interface.interface, held);
            cards.push(Wanted { alone, ..card(vmi, index, interface, due, is_held, bindings)? });
        }
    }
    Ok(cards)
}

fn card(
    vmi: &ValidVmi,
    index: usize,
    valid: &ValidInterface,
    due: Due,
    is_held: bool,
    bindings: &Bindings,
) -> Result<Wanted, InterfaceError> {
    let ValidInterface { interface, network, .. } = valid;
    let name = interface.name.clone();
    let binding = match (&interface.masquerade, &interface.bridge, &network.pod) {
        (None, Some(_), _) if due == Due::Gone => Binding::Gone,
        (None, Some(_), _) => Binding::Bridge,
        (Some(_), None, Some(pod)) => {
            let range = |source| InterfaceError::Range(name.clone(), source);
            Binding::Masquerade(Masquerade {
                ipv4: masquerade::ipv4(pod).map_err(range)?,
                ipv6: masquerade::ipv6(pod).map_err(range)?,
                ports: ports(valid).ok_or_else(|| InterfaceError::Port(name.clone()))?,
                has_sidecar: mesh::has_sidecar(vmi.vmi().metadata.annotations.as_ref()),
            })
        }
        (None, None, Some(_)) if interface.passt_binding.is_some() => Binding::Passt,
        (None, None, _) => match (bindings.of(interface), &interface.binding) {
            (Some(plugin), _) if plugin.attachment == Attachment::Tap => Binding::Tap,
            (Some(_), _) => Binding::ManagedTap,
            // What is decided about new cards does not take a card from a guest that has it.
            (None, Some(_)) if is_held => Binding::Kept,
            (None, Some(binding)) => return Err(InterfaceError::Plugin(name, binding.name.clone())),
            (None, None) => return Err(InterfaceError::Binding(name)),
        },
        _ => return Err(InterfaceError::Binding(name)),
    };
    let given = interface.mac_address.as_deref().filter(|mac| !mac.is_empty());
    // A guest keeps the address that it started with, on every node.
    let told = networks::in_status(vmi.vmi(), &name).and_then(|status| status.mac.as_deref());
    let mac = match binding {
        Binding::Masquerade(_) | Binding::Passt => Some(valid.mac.as_str()),
        Binding::Bridge | Binding::ManagedTap | Binding::Tap | Binding::Kept | Binding::Gone => {
            given.or(told)
        }
    };
    let mac = mac.map(str::parse).transpose().map_err(|source| InterfaceError::Mac(name.clone(), source))?;
    Ok(Wanted {
        network: network.name.clone(),
        index,
        candidates: candidates_of(vmi.vmi(), valid),
        tap_owner: u32::try_from(LAUNCHER_UID).unwrap_or(u32::MAX),
        queues: vmi.queues(interface),
        mac,
        binding,
        alone: false,
        interface: name,
    })
}

/// Possible names of taps, each with the name of its interface. One tap exists for each interface.
pub fn taps(vmi: &ValidVmi) -> Vec<(String, String)> {
    let of = |valid: &ValidInterface| {
        let name = valid.interface.name.clone();
        let candidates = candidates_of(vmi.vmi(), valid);
        let taps: BTreeSet<_> = candidates.iter().map(|candidate| links::Names::of(candidate).tap).collect();
        taps.into_iter().map(move |tap| (name.clone(), tap))
    };
    vmi.interfaces().iter().filter(|valid| valid.interface.sriov.is_none()).flat_map(of).collect()
}

/// Possible names of the pod's link of an interface, the most likely first.
pub(super) fn candidates_of(vmi: &VirtualMachineInstance, valid: &ValidInterface) -> Vec<String> {
    if !networks::is_secondary(&valid.network) {
        return vec![FIRST_LINK.to_owned()];
    }
    let told =
        networks::in_status(vmi, &valid.interface.name).and_then(|status| status.pod_interface_name.clone());
    let told = told.filter(|name| links::is_sound(name) && name != FIRST_LINK && name != "lo");
    let name = &valid.network.name;
    told.into_iter()
        .chain([networks::secondary_link(name), networks::ordinal_link(&vmi.spec, name)])
        .collect()
}

/// The ports that are forwarded. There are either single ones or ranges.
fn ports(interface: &ValidInterface) -> Option<Vec<Ports>> {
    let of = |protocol: &str, first: i32, last: i32| {
        let protocol = match protocol {
            "" | "TCP" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            _ => return None,
        };
        let (first, last) = (u16::try_from(first).ok()?, u16::try_from(last).ok()?);
        (0 < first && first <= last).then_some(Ports { protocol, first, last })
    };
    let api::Interface { ports, port_ranges, .. } = &interface.interface;
    let ports = ports.iter().map(|one| of(one.protocol.as_deref().unwrap_or_default(), one.port, one.port));
    let ranges = port_ranges.iter().map(|range| of(&range.protocol, range.start, range.end));
    ports.chain(ranges).collect()
}

/// Number of queues of the interface, by the descriptors that the launcher holds or is about to get.
pub fn queues<'a>(wanted: &Wanted, descriptors: impl Iterator<Item = &'a String>) -> u32 {
    let taps = descriptors.filter(|name| {
        NetworkDescriptor::parse(name) == Some((wanted.network.as_str(), NetworkDescriptor::Tap))
    });
    // A card of passt has one queue, and no tap.
    u32::try_from(taps.collect::<BTreeSet<_>>().len()).unwrap_or(1).max(1)
}

/// What the launcher gets to know about the interface.
pub fn facts(wanted: &Wanted, prepared: &Prepared, resolver: &Resolver) -> v1::Interface {
    let mut facts = v1::Interface {
        name: wanted.interface.clone(),
        network: wanted.network.clone(),
        mac: prepared.mac.to_string(),
        mtu: prepared.mtu,
        ipv6_link_local: prepared.link_local.map(|address| address.to_string()).unwrap_or_default(),
        dns_servers: resolver.servers.iter().map(ToString::to_string).collect(),
        dns_search: resolver.search.clone(),
        bridge_index: prepared.bridge_index,
        ..v1::Interface::default()
    };
    if let Some(ipv4) = &prepared.ipv4 {
        facts.ipv4 = ipv4.address.to_string();
        facts.ipv4_prefix = ipv4.prefix.into();
        facts.ipv4_gateway = ipv4.gateway.map(|gateway| gateway.to_string()).unwrap_or_default();
        facts.ipv4_server = ipv4.server.to_string();
        facts.ipv4_routes = ipv4.routes.iter().map(route).collect();
    }
    if let Some(ipv6) = &prepared.ipv6 {
        facts.ipv6 = ipv6.address.to_string();
        facts.ipv6_prefix = ipv6.prefix.into();
        facts.ipv6_gateway = ipv6.gateway.map(|gateway| gateway.to_string()).unwrap_or_default();
        facts.ipv6_routes = ipv6.routes.iter().map(route).collect();
    }
    facts
}

fn route(route: &Route) -> v1::Route {
    v1::Route {
        destination: route.destination.to_string(),
        prefix: route.prefix.into(),
        gateway: route.gateway.map(|gateway| gateway.to_string()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
