//! Carries out a plan in the network namespace of the calling thread. It makes no decisions.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use futures::TryStreamExt;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use netlink_packet_route::route::{RouteScope, RouteType};
use rtnetlink::{
    AddressMessageBuilder, Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec,
    RouteMessageBuilder,
};
use thiserror::Error;

use super::addresses::MacAddress;
use super::macvtap;
use super::nft::{NftError, Nftables};
use super::plan::Step;
use super::services;
use super::state::{KEPT_TABLE, Route};
use crate::kernel;

/// The device that makes taps.
const TUN_DEVICE: &str = "/dev/net/tun";

/// Metric of the route to `::1` on the bridge. It must be above that of the loopback interface, which is 0.
const LOOPBACK_ROUTE_PRIORITY: u32 = 2048;

/// Why a step failed. Earlier steps stay done: the next plan starts from there.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// rtnetlink refused.
    #[error("{action} {link}")]
    Link {
        /// The attempted action.
        action: &'static str,
        /// The interface.
        link: String,
        /// The kernel's error.
        source: rtnetlink::Error,
    },
    /// The interface of a step does not exist.
    #[error("{action} {link}: there is no interface of that name")]
    NoLink {
        /// The attempted action.
        action: &'static str,
        /// The interface.
        link: String,
    },
    /// A setting could not be written.
    #[error("write /proc/sys/{path}")]
    Sysctl {
        /// Its path beneath `/proc/sys`.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The tap could not be opened: the node has no `/dev/net/tun`, or another process has it open.
    #[error("open tap {name}")]
    Tap {
        /// Its name.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// nftables refused.
    #[error(transparent)]
    Rules(#[from] NftError),
    /// A socket could not be opened.
    #[error("open socket {descriptor}")]
    Socket {
        /// The name by which the launcher knows it.
        descriptor: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Descriptors for the launcher, each with the name by which the launcher knows it.
pub type Descriptors = Vec<(String, OwnedFd)>;

/// Carries out all `steps` in order and returns the descriptors that it opened.
pub async fn apply(
    netlink: &Handle,
    nftables: Option<&Nftables>,
    steps: Vec<Step>,
) -> Result<Descriptors, ApplyError> {
    let mut opened = Vec::new();
    for step in steps {
        opened.extend(apply_one(netlink, nftables, step).await?);
    }
    Ok(opened)
}

async fn apply_one(
    netlink: &Handle,
    nftables: Option<&Nftables>,
    step: Step,
) -> Result<Option<(String, OwnedFd)>, ApplyError> {
    match step {
        Step::CreateBridge { name, mac, mtu } => {
            let message = LinkMessageBuilder::<LinkBridge>::new(&name)
                .address(mac.0.to_vec())
                .mtu(mtu)
                // There is one guest: there is nothing to learn from multicast queries, and no other host to
                // query.
                .mcast_snooping(false)
                .build();
            let result = netlink.link().add(message).execute().await;
            result.map_err(|source| ApplyError::Link { action: "create bridge", link: name, source })?;
        }
        Step::Sysctl { path, value, optional } => match fs::write(format!("/proc/sys/{path}"), value) {
            Err(error) if optional && error.kind() == io::ErrorKind::NotFound => {}
            result => result.map_err(|source| ApplyError::Sysctl { path, source })?,
        },
        Step::Address { link, address, prefix, routed } => {
            add_address(netlink, link, (address, prefix), routed).await?;
        }
        Step::RemoveAddress { link, address, prefix } => {
            remove_address(netlink, link, address, prefix).await?;
        }
        Step::Mac { link, mac } => {
            change(netlink, "set the MAC address of", &link, |builder| builder.address(mac.0.to_vec()))
                .await?;
        }
        Step::Rename { link, to } => change(netlink, "rename", &link, |builder| builder.name(to)).await?,
        Step::NoLearning { link } => {
            let action = "stop learning at";
            let port = LinkBridgePort::new(index(netlink, action, &link).await?).learning(false).build();
            let result = netlink.link().set_port(port).execute().await;
            result.map_err(|source| ApplyError::Link { action, link, source })?;
        }
        Step::Forget { link, mac } => forget(netlink, link, mac).await?,
        Step::Detach { link } => change(netlink, "detach", &link, LinkMessageBuilder::nocontroller).await?,
        Step::Down { link } => change(netlink, "set down", &link, LinkMessageBuilder::down).await?,
        Step::Delete { link } => delete(netlink, link).await?,
        Step::KeepRoute { bridge, route } => {
            let index = index(netlink, "keep a route at", &bridge).await?;
            add_route(netlink, bridge, index, KEPT_TABLE.saturating_add(index), route).await?;
        }
        Step::Route { link, route } => {
            let index = index(netlink, "route over", &link).await?;
            add_route(netlink, link, index, libc::RT_TABLE_MAIN.into(), route).await?;
        }
        Step::Mtu { link, mtu } => {
            change(netlink, "set the MTU of", &link, |builder| builder.mtu(mtu)).await?;
        }
        Step::OpenTap { name, owner, multi_queue, descriptor } => {
            let tap = File::options().read(true).write(true).open(TUN_DEVICE);
            let tap = tap.and_then(|tun| kernel::attach_tap(tun, &name, owner, multi_queue));
            return tap.map(|tap| Some((descriptor, tap))).map_err(|source| ApplyError::Tap { name, source });
        }
        Step::OpenMacvtap { name, index, multi_queue, descriptor } => {
            let tap = macvtap::open(index, multi_queue);
            return tap.map(|tap| Some((descriptor, tap))).map_err(|source| ApplyError::Tap { name, source });
        }
        Step::Attach { link, bridge } => {
            let bridge = index(netlink, "attach a port to", &bridge).await?;
            change(netlink, "attach", &link, |builder| builder.controller(bridge)).await?;
        }
        Step::AllMulticast { link } => {
            change(netlink, "receive all multicast at", &link, |builder| builder.allmulticast(true)).await?;
        }
        Step::Up { link } => change(netlink, "set up", &link, LinkMessageBuilder::up).await?,
        Step::LoopbackRoute { link } => add_loopback_route(netlink, link).await?,
        // Only an interface that translates has rules, and for that one the connection is open.
        Step::CreateRules(rules) => match nftables {
            Some(nftables) => nftables.create(&rules)?,
            None => Nftables::open()?.create(&rules)?,
        },
        Step::ReplaceRules(rules) => match nftables {
            Some(nftables) => nftables.replace(&rules)?,
            None => Nftables::open()?.replace(&rules)?,
        },
        Step::Open { service, link, descriptor } => {
            let index = index(netlink, "open a socket on", &link).await?;
            let socket = services::open(service, &link, index);
            return match socket {
                Ok(socket) => Ok(Some((descriptor, socket))),
                Err(source) => Err(ApplyError::Socket { descriptor, source }),
            };
        }
    }
    Ok(None)
}

async fn index(netlink: &Handle, action: &'static str, name: &str) -> Result<u32, ApplyError> {
    let no_link = || ApplyError::NoLink { action, link: name.to_owned() };
    let mut found = netlink.link().get().match_name(name.to_owned()).execute();
    let found: Option<LinkMessage> = found.try_next().await.map_err(|source| ApplyError::Link {
        action,
        link: name.to_owned(),
        source,
    })?;
    let found = found.ok_or_else(no_link)?;
    // The kernel also matches alternative names, but only the name itself counts.
    let same = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfName(found) if found == name);
    if found.attributes.iter().any(same) { Ok(found.header.index) } else { Err(no_link()) }
}

async fn change(
    netlink: &Handle,
    action: &'static str,
    name: &str,
    what: impl FnOnce(LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec>,
) -> Result<(), ApplyError> {
    let index = index(netlink, action, name).await?;
    let message = what(LinkUnspec::new_with_index(index)).build();
    let result = netlink.link().change(message).execute().await;
    result.map_err(|source| ApplyError::Link { action, link: name.to_owned(), source })
}

async fn add_address(
    netlink: &Handle,
    link: String,
    (address, prefix): (IpAddr, u8),
    routed: bool,
) -> Result<(), ApplyError> {
    let action = "give an address to";
    let index = index(netlink, action, &link).await?;
    let mut request = netlink.address().add(index, address, prefix);
    let message = request.message_mut();
    let mut flags = AddressFlags::empty();
    if address.is_ipv6() {
        message.header.flags |= AddressHeaderFlags::Nodad;
        flags |= AddressFlags::Nodad;
    }
    if !routed {
        flags |= AddressFlags::Noprefixroute;
    }
    message.attributes.push(AddressAttribute::Flags(flags));
    request.execute().await.map_err(|source| ApplyError::Link { action, link, source })
}

async fn remove_address(
    netlink: &Handle,
    link: String,
    address: IpAddr,
    prefix: u8,
) -> Result<(), ApplyError> {
    let action = "take an address from";
    let index = index(netlink, action, &link).await?;
    let message = match address {
        IpAddr::V4(address) => {
            AddressMessageBuilder::<Ipv4Addr>::new().index(index).address(address, prefix).build()
        }
        IpAddr::V6(address) => {
            AddressMessageBuilder::<Ipv6Addr>::new().index(index).address(address, prefix).build()
        }
    };
    let result = netlink.address().del(message).execute().await;
    unless(result, libc::EADDRNOTAVAIL).map_err(|source| ApplyError::Link { action, link, source })
}

async fn forget(netlink: &Handle, link: String, mac: MacAddress) -> Result<(), ApplyError> {
    let action = "forget the MAC address of";
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = index(netlink, action, &link).await?;
    message.header.flags = NeighbourFlags::Controller;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    let result = netlink.neighbours().del(message).execute().await;
    unless(result, libc::ENOENT).map_err(|source| ApplyError::Link { action, link, source })
}

async fn delete(netlink: &Handle, link: String) -> Result<(), ApplyError> {
    let action = "delete";
    // A tap can go away at any time, with its last descriptor.
    let index = match index(netlink, action, &link).await {
        Err(ApplyError::NoLink { .. }) => return Ok(()),
        found => found?,
    };
    let result = netlink.link().del(index).execute().await;
    unless(result, libc::ENODEV).map_err(|source| ApplyError::Link { action, link, source })
}

async fn add_route(
    netlink: &Handle,
    link: String,
    index: u32,
    table: u32,
    route: Route,
) -> Result<(), ApplyError> {
    let Route { destination, prefix, gateway } = route;
    let message = match destination {
        IpAddr::V4(destination) => {
            let builder = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(destination, prefix)
                .output_interface(index)
                .table_id(table);
            match gateway {
                // `onlink`: the table need not contain a route to the gateway.
                Some(IpAddr::V4(gateway)) => builder.gateway(gateway).onlink().build(),
                Some(IpAddr::V6(_)) | None => builder.scope(RouteScope::Link).build(),
            }
        }
        IpAddr::V6(destination) => {
            let builder = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(destination, prefix)
                .output_interface(index)
                .table_id(table);
            match gateway {
                // The gateway is a link-local address, which is always on the link.
                Some(IpAddr::V6(gateway)) => builder.gateway(gateway).build(),
                Some(IpAddr::V4(_)) | None => builder.build(),
            }
        }
    };
    let result = netlink.route().add(message).execute().await;
    unless(result, libc::EEXIST).map_err(|source| ApplyError::Link {
        action: "add a route over",
        link,
        source,
    })
}

/// Ignores the error `errno`, which says that the change is already made.
fn unless(result: Result<(), rtnetlink::Error>, errno: i32) -> Result<(), rtnetlink::Error> {
    match result {
        Err(rtnetlink::Error::NetlinkError(error)) if error.to_io().raw_os_error() == Some(errno) => Ok(()),
        result => result,
    }
}

async fn add_loopback_route(netlink: &Handle, link: String) -> Result<(), ApplyError> {
    let action = "route ::1 to";
    let index = index(netlink, action, &link).await?;
    let route = RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(Ipv6Addr::LOCALHOST, 128)
        .output_interface(index)
        .table_id(u32::from(libc::RT_TABLE_LOCAL))
        .kind(RouteType::Local)
        // It comes after the route of the loopback interface, which is used for what the pod itself sends.
        .priority(LOOPBACK_ROUTE_PRIORITY)
        .build();
    netlink.route().add(route).execute().await.map_err(|source| ApplyError::Link { action, link, source })
}
