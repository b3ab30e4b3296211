//! Reads what is in the network namespace of the calling thread. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use futures::TryStreamExt;
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder};
use thiserror::Error;

use super::nft::rules::Family;
use super::nft::{NftError, Nftables};
use super::plan::sysctls;
use super::state::{Link, Observed, Wanted};

/// Why the namespace could not be read.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// rtnetlink answered with an error.
    #[error("read the links of the pod")]
    Links(#[source] rtnetlink::Error),
    /// rtnetlink answered with an error.
    #[error("read the addresses of the pod")]
    Addresses(#[source] rtnetlink::Error),
    /// rtnetlink answered with an error.
    #[error("read the routes of the pod")]
    Routes(#[source] rtnetlink::Error),
    /// nftables answered with an error.
    #[error(transparent)]
    Rules(#[from] NftError),
}

/// Looks at everything that the plan for `wanted` depends on; `held` are the descriptors that the launcher has.
pub async fn observe(
    netlink: &Handle,
    nftables: &Nftables,
    wanted: &Wanted,
    held: &BTreeSet<String>,
) -> Result<Observed, ObserveError> {
    let names = [&wanted.pod_interface, &wanted.bridge, &wanted.tap];
    let mut links = links(netlink, &names).await?;
    addresses(netlink, &mut links).await?;
    let mut rules = BTreeMap::new();
    for family in [Family::V4, Family::V6] {
        if let Some(fingerprint) = nftables.fingerprint(family)? {
            rules.insert(family, fingerprint);
        }
    }
    let ipv6 = links.get(&wanted.pod_interface).is_some_and(Link::has_ipv6);
    let sysctls = sysctls(wanted, ipv6)
        .into_iter()
        .filter_map(|setting| sysctl(&setting.path).ok().map(|value| (setting.path, value)))
        .collect();
    let loopback_route = match links.get(&wanted.bridge) {
        Some(bridge) => loopback_route(netlink, bridge.index).await?,
        None => false,
    };
    Ok(Observed { links, rules, sysctls, loopback_route, held: held.clone() })
}

/// The interfaces of these names that are there.
async fn links(netlink: &Handle, names: &[&String]) -> Result<BTreeMap<String, Link>, ObserveError> {
    let mut found = BTreeMap::new();
    let mut dump = netlink.link().get().execute();
    while let Some(message) = dump.try_next().await.map_err(ObserveError::Links)? {
        let (name, link) = link(message);
        if names.contains(&&name) {
            found.insert(name, link);
        }
    }
    Ok(found)
}

fn link(message: LinkMessage) -> (String, Link) {
    let mut name = String::new();
    let mut link = Link {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        ..Link::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(value) => name = value,
            LinkAttribute::Mtu(value) => link.mtu = value,
            LinkAttribute::Address(value) => link.mac = value,
            LinkAttribute::Controller(value) => link.controller = Some(value),
            _ => {}
        }
    }
    (name, link)
}

async fn addresses(netlink: &Handle, links: &mut BTreeMap<String, Link>) -> Result<(), ObserveError> {
    let mut dump = netlink.address().get().execute();
    while let Some(message) = dump.try_next().await.map_err(ObserveError::Addresses)? {
        let Some(link) = links.values_mut().find(|link| link.index == message.header.index) else { continue };
        // On a point-to-point link IFA_ADDRESS is the peer: IFA_LOCAL is always ours, but IPv6 has it only there.
        let local = message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        });
        let address = local.or_else(|| {
            message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            })
        });
        if let Some(address) = address {
            link.addresses.insert((address, message.header.prefix_len));
        }
    }
    Ok(())
}

/// Whether there is a route of type local to `::1` on the interface of that index.
async fn loopback_route(netlink: &Handle, index: u32) -> Result<bool, ObserveError> {
    let mut dump = netlink.route().get(RouteMessageBuilder::<Ipv6Addr>::new().build()).execute();
    let mut found = false;
    while let Some(message) = dump.try_next().await.map_err(ObserveError::Routes)? {
        let has = |wanted: RouteAttribute| message.attributes.contains(&wanted);
        found |= message.header.kind == RouteType::Local
            && has(RouteAttribute::Oif(index))
            && has(RouteAttribute::Destination(RouteAddress::Inet6(Ipv6Addr::LOCALHOST)));
    }
    Ok(found)
}

/// The addresses of the pod's interface that are good beyond the link.
pub fn pod_addresses(link: &Link) -> Vec<IpAddr> {
    let global = |address: &IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    link.addresses.iter().map(|(address, _)| *address).filter(global).collect()
}

/// A setting beneath `/proc/sys` as the calling thread's namespace has it.
pub fn sysctl(path: &str) -> io::Result<String> {
    Ok(fs::read_to_string(format!("/proc/sys/{path}"))?.trim().to_owned())
}
