//! From the interfaces of a VMI to what this module makes, and from what it found to what launcher and API are
//! told. Pure.

use std::collections::BTreeSet;

use barevirt_api::masquerade::{self, RangeError};
use barevirt_api::names::LAUNCHER_UID;
use barevirt_api::valid::{ValidInterface, ValidVmi};
use barevirt_protocol::names::NetworkDescriptor;
use barevirt_protocol::v1;
use thiserror::Error;

use super::Prepared;
use super::addresses::AddressError;
use super::nft::rules::{Port, Protocol};
use super::resolv::Resolver;
use super::state::Wanted;

/// The pod's interface that the pod network is.
const POD_INTERFACE: &str = "eth0";

/// Why interfaces cannot be made. Validation refuses all of it, so only an object that went around admission has it.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InterfaceError {
    /// Only masquerade on the pod network is there yet.
    #[error("interface {0} has no binding that this version supports")]
    Binding(String),
    /// The pod has only one network.
    #[error("more than one interface is on the pod network")]
    SecondPodInterface,
    /// Its MAC address.
    #[error("interface {0}")]
    Mac(String, #[source] AddressError),
    /// A range that its network names.
    #[error("the network of interface {0}")]
    Range(String, #[source] RangeError),
    /// A port of it.
    #[error("interface {0} has a port that is not from 1 to 65535 or not TCP or UDP")]
    Port(String),
}

/// The binding that the VMI asks for; none for a guest without a network.
pub fn wanted(vmi: &ValidVmi) -> Result<Option<Wanted>, InterfaceError> {
    let mut interfaces = vmi.interfaces().iter();
    let Some(first) = interfaces.next() else { return Ok(None) };
    if interfaces.next().is_some() {
        return Err(InterfaceError::SecondPodInterface);
    }
    let name = first.interface.name.clone();
    let (Some(_), Some(pod)) = (&first.interface.masquerade, &first.network.pod) else {
        return Err(InterfaceError::Binding(name));
    };
    let range = |source| InterfaceError::Range(name.clone(), source);
    let mac = first.mac.parse().map_err(|source| InterfaceError::Mac(name.clone(), source))?;
    Ok(Some(Wanted {
        network: first.network.name.clone(),
        pod_interface: POD_INTERFACE.to_owned(),
        bridge: format!("k6t-{POD_INTERFACE}"),
        tap: "tap0".to_owned(),
        tap_owner: u32::try_from(LAUNCHER_UID).unwrap_or(u32::MAX),
        queues: vmi.queues(&first.interface),
        mac,
        ipv4: masquerade::ipv4(pod).map_err(range)?,
        ipv6: masquerade::ipv6(pod).map_err(range)?,
        ports: ports(first).ok_or_else(|| InterfaceError::Port(name.clone()))?,
        interface: name,
    }))
}

fn ports(interface: &ValidInterface) -> Option<Vec<Port>> {
    let port = |port: &barevirt_api::v1::Port| {
        let protocol = match port.protocol.as_deref().unwrap_or("TCP") {
            "TCP" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            _ => return None,
        };
        let number = u16::try_from(port.port).ok().filter(|number| *number > 0)?;
        Some(Port { protocol, number })
    };
    interface.interface.ports.iter().map(port).collect()
}

/// Queues that the interface has, by the descriptors that the launcher holds or is about to.
pub fn queues<'a>(wanted: &Wanted, descriptors: impl Iterator<Item = &'a String>) -> u32 {
    let taps = descriptors.filter(|name| {
        NetworkDescriptor::parse(name) == Some((wanted.network.as_str(), NetworkDescriptor::Tap))
    });
    u32::try_from(taps.collect::<BTreeSet<_>>().len()).unwrap_or(1)
}

/// What the launcher is told about the interface.
pub fn facts(wanted: &Wanted, prepared: &Prepared, resolver: &Resolver) -> v1::Interface {
    let (ipv4, ipv4_prefix, ipv4_gateway) =
        prepared.ipv4.map_or_else(Default::default, |(guest, prefix, gateway)| {
            (guest.to_string(), u32::from(prefix), gateway.to_string())
        });
    let (ipv6, ipv6_prefix, ipv6_gateway) =
        prepared.ipv6.map_or_else(Default::default, |(guest, prefix, gateway)| {
            (guest.to_string(), u32::from(prefix), gateway.to_string())
        });
    v1::Interface {
        name: wanted.interface.clone(),
        network: wanted.network.clone(),
        mac: wanted.mac.to_string(),
        mtu: prepared.mtu,
        ipv4,
        ipv4_prefix,
        ipv4_gateway,
        ipv6,
        ipv6_prefix,
        ipv6_gateway,
        ipv6_link_local: prepared.link_local.map(|address| address.to_string()).unwrap_or_default(),
        dns_servers: resolver.servers.iter().map(ToString::to_string).collect(),
        dns_search: resolver.search.clone(),
        bridge_index: prepared.bridge_index,
    }
}
