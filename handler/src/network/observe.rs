//! Reads the state of the network namespace of the calling thread. It changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use netlink_packet_core::Nla;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoTun, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder};
use thiserror::Error;

use super::nft::rules::Family;
use super::nft::{NftError, Nftables};
use super::plan::{self, sysctls};
use super::routers;
use super::state::{Binding, KEPT_TABLE, Kind, Link, Observed, Route, Wanted};

/// Attributes of links of the kind `tun`, and the type among them that carries Ethernet frames, from the
/// kernel's `if_link.h` and `if_tun.h`.
const TUN_TYPE: u16 = 3;
const TUN_MULTI_QUEUE: u16 = 7;
const TYPE_TAP: u8 = 2;

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
    /// rtnetlink answered with an error.
    #[error("read the neighbours of the pod")]
    Neighbours(#[source] rtnetlink::Error),
    /// nftables answered with an error.
    #[error(transparent)]
    Rules(#[from] NftError),
}

/// Observes everything on which the plans for these cards depend. `held` are the descriptors that the
/// launcher holds. The gateways of links that are about to become ports are asked for their link-local
/// addresses.
pub async fn observe(
    netlink: &Handle,
    nftables: Option<&Nftables>,
    cards: &[Wanted],
    held: &BTreeSet<String>,
) -> Result<Observed, ObserveError> {
    let links = links_of(netlink, cards).await?;
    let mut rules = BTreeMap::new();
    for family in Family::ALL {
        if let Some(fingerprint) =
            nftables.map(|nftables| nftables.fingerprint(family)).transpose()?.flatten()
        {
            rules.insert(family, fingerprint);
        }
    }
    let sysctls = cards
        .iter()
        .flat_map(|card| sysctls(card, &card.names(&links), &links))
        .filter_map(|setting| sysctl(&setting.path).ok().map(|value| (setting.path, value)))
        .collect();
    let translates = cards.iter().any(|card| matches!(card.binding, Binding::Masquerade(_)));
    let ipv6 = links.values().any(Link::has_ipv6);
    let loopback_routes = if translates && ipv6 { loopback_routes(netlink).await? } else { BTreeSet::new() };
    let observed =
        Observed { links, rules, sysctls, loopback_routes, held: held.clone(), ..Observed::default() };
    let routers = routers::find(netlink, &plan::gateways(cards, &observed)).await?;
    Ok(Observed { routers, ..observed })
}

/// The links with their addresses, and with their routes where the network of one of these cards depends on them.
pub async fn links_of(netlink: &Handle, cards: &[Wanted]) -> Result<BTreeMap<String, Link>, ObserveError> {
    let mut links = links(netlink).await?;
    addresses(netlink, &mut links).await?;
    let is_bridged =
        |card: &Wanted| matches!(card.binding, Binding::Bridge | Binding::ManagedTap | Binding::Gone);
    if cards.iter().any(is_bridged) {
        routes(netlink, RouteMessageBuilder::<Ipv4Addr>::new().build(), &mut links).await?;
        routes(netlink, RouteMessageBuilder::<Ipv6Addr>::new().build(), &mut links).await?;
    }
    Ok(links)
}

async fn links(netlink: &Handle) -> Result<BTreeMap<String, Link>, ObserveError> {
    let mut found = BTreeMap::new();
    let mut dump = netlink.link().get().execute();
    while let Some(message) = dump.try_next().await.map_err(ObserveError::Links)? {
        found.extend([link(message)]);
    }
    Ok(found)
}

/// A link with its name, from the kernel's message about it.
pub fn link(message: LinkMessage) -> (String, Link) {
    let mut name = String::new();
    let mut link = Link {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        all_multicast: message.header.flags.contains(LinkFlags::Allmulti),
        ..Link::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(value) => name = value,
            LinkAttribute::Mtu(value) => link.mtu = value,
            LinkAttribute::Address(value) => link.mac = value,
            LinkAttribute::Controller(value) => link.controller = Some(value),
            LinkAttribute::LinkInfo(infos) => infos.into_iter().for_each(|info| kind(info, &mut link)),
            _ => {}
        }
    }
    (name, link)
}

fn kind(info: LinkInfo, link: &mut Link) {
    match info {
        LinkInfo::Kind(InfoKind::Bridge) => link.kind = Kind::Bridge,
        LinkInfo::Kind(InfoKind::MacVlan) => link.kind = Kind::Macvlan,
        LinkInfo::Kind(InfoKind::MacVtap) => link.kind = Kind::Macvtap,
        LinkInfo::Data(InfoData::Tun(data)) => {
            let is = |kind: u16, wanted: u8| data.iter().any(|one| is_attribute(one, kind, wanted));
            // Links of the other type, `tun`, carry no frames.
            if is(TUN_TYPE, TYPE_TAP) {
                link.kind = Kind::Tap { multi_queue: is(TUN_MULTI_QUEUE, 1) };
            }
        }
        LinkInfo::PortData(InfoPortData::BridgePort(port)) => {
            link.learning = port.iter().any(|one| matches!(one, InfoBridgePort::Learning(true)));
        }
        _ => {}
    }
}

fn is_attribute(one: &InfoTun, kind: u16, wanted: u8) -> bool {
    let mut value = vec![0; one.value_len()];
    one.emit_value(&mut value);
    one.kind() == kind && value == [wanted]
}

/// Reads the routes of one family of links, and the routes that are saved for them. `of` names the family.
async fn routes(
    netlink: &Handle,
    of: RouteMessage,
    links: &mut BTreeMap<String, Link>,
) -> Result<(), ObserveError> {
    let mut dump = netlink.route().get(of).execute();
    while let Some(message) = dump.try_next().await.map_err(ObserveError::Routes)? {
        let Some((table, index, route)) = route(message) else { continue };
        let Some(link) = links.values_mut().find(|link| link.index == index) else { continue };
        if table == u32::from(libc::RT_TABLE_MAIN) {
            link.routes.insert(route);
        } else if table == KEPT_TABLE.saturating_add(link.index) {
            link.kept_routes.insert(route);
        }
    }
    Ok(())
}

/// A route that matters, with its table and the index of its link, from the kernel's message about it.
pub fn route(message: RouteMessage) -> Option<(u32, u32, Route)> {
    let header = message.header;
    let is_ipv6 = header.address_family == AddressFamily::Inet6;
    let (mut table, mut link, mut gateway) = (u32::from(header.table), None, None);
    let mut destination =
        if is_ipv6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    let mut expires = header.protocol == RouteProtocol::Ra;
    for attribute in message.attributes {
        match attribute {
            RouteAttribute::Table(value) => table = value,
            RouteAttribute::Oif(value) => link = Some(value),
            RouteAttribute::Gateway(value) => gateway = address(&value),
            RouteAttribute::Destination(value) => destination = address(&value)?,
            RouteAttribute::CacheInfo(info) => expires |= is_ipv6 && info.expires != 0,
            _ => {}
        }
    }
    // The kernel's IPv4 routes follow from addresses. In IPv6, a network plugin may have removed them, so that
    // hosts of the same network are reached by the gateway.
    let follows = header.protocol == RouteProtocol::Kernel && !is_ipv6;
    let of_link = matches!(destination, IpAddr::V6(address) if address.is_unicast_link_local());
    if header.kind != RouteType::Unicast || follows || of_link || expires {
        return None;
    }
    Some((table, link?, Route { destination, prefix: header.destination_prefix_length, gateway }))
}

fn address(value: &RouteAddress) -> Option<IpAddr> {
    match value {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

async fn addresses(netlink: &Handle, links: &mut BTreeMap<String, Link>) -> Result<(), ObserveError> {
    let mut dump = netlink.address().get().execute();
    while let Some(message) = dump.try_next().await.map_err(ObserveError::Addresses)? {
        let Some(link) = links.values_mut().find(|link| link.index == message.header.index) else { continue };
        if let Some(address) = own_address(&message) {
            let lasts = message.header.flags.contains(AddressHeaderFlags::Permanent);
            if address.is_ipv6() && !lasts {
                link.expiring.insert(address);
            }
            link.addresses.insert((address, message.header.prefix_len));
        }
    }
    Ok(())
}

/// An address of a link, from the kernel's message about it.
pub fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    // On a point-to-point link IFA_ADDRESS is the peer, while IFA_LOCAL is always the link's own address.
    // IPv6 addresses have IFA_LOCAL only on such links.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

/// Indexes of the links that have a route of type local to `::1`.
async fn loopback_routes(netlink: &Handle) -> Result<BTreeSet<u32>, ObserveError> {
    let mut dump = netlink.route().get(RouteMessageBuilder::<Ipv6Addr>::new().build()).execute();
    let mut found = BTreeSet::new();
    while let Some(message) = dump.try_next().await.map_err(ObserveError::Routes)? {
        let destination = RouteAttribute::Destination(RouteAddress::Inet6(Ipv6Addr::LOCALHOST));
        if message.header.kind != RouteType::Local || !message.attributes.contains(&destination) {
            continue;
        }
        found.extend(message.attributes.iter().filter_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        }));
    }
    Ok(found)
}

/// A setting beneath `/proc/sys` as the calling thread's namespace has it.
pub fn sysctl(path: &str) -> io::Result<String> {
    Ok(fs::read_to_string(format!("/proc/sys/{path}"))?.trim().to_owned())
}
