//! The guest's network: connects each of its network cards to a link of its pod.
//!
//! [`prepare`] observes, plans and applies on a thread inside the pod's network namespace; [`plan`] describes
//! what it sets up. It may be called again at any time: it keeps what exists and adds what is missing.

pub mod addresses;
pub mod apply;
pub mod datagram;
pub mod guest;
pub mod links;
pub mod macvtap;
pub mod netns;
pub mod nft;
pub mod observe;
pub mod plan;
pub mod routers;
pub mod services;
pub mod sriov;
pub mod state;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use thiserror::Error;

use self::addresses::{BRIDGE_MAC, MacAddress};
use self::apply::{ApplyError, Descriptors};
use self::nft::{NftError, Nftables};
use self::observe::ObserveError;
use self::plan::{PlanError, Step};
use self::state::{Binding, Link, Masquerade, Route, Wanted};

/// Longest time for all of it; usually it takes some milliseconds.
const DEADLINE: Duration = Duration::from_secs(20);

/// Why the network is not ready.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// The namespace could not be used.
    #[error(transparent)]
    Netns(#[from] netns::NetnsError),
    /// A netlink socket could not be opened.
    #[error("open netlink in the pod's network namespace")]
    Netlink(#[source] io::Error),
    /// nftables could not be reached.
    #[error(transparent)]
    Nftables(#[from] NftError),
    /// The namespace could not be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The pod has no link to connect the guest to.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Something is missing although every step was carried out.
    #[error("interface {0} is missing after it was made")]
    Missing(String),
    /// The kernel did not answer in time.
    #[error("the pod's network was not ready within {} seconds", DEADLINE.as_secs())]
    Deadline,
}

/// What the launcher has to know about one card, as found in the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The pod's link, by the name under which it was found.
    pub pod_interface: String,
    /// The guest's MAC address.
    pub mac: MacAddress,
    /// MTU of the pod's interface, and of bridge and tap.
    pub mtu: u32,
    /// Index of the bridge; 0 if there is none.
    pub bridge_index: u32,
    /// The pod's own addresses on that network.
    pub pod_addresses: Vec<IpAddr>,
    /// The guest's IPv4 settings, if it gets an address.
    pub ipv4: Option<Ipv4>,
    /// The guest's IPv6 settings, if it gets an address.
    pub ipv6: Option<Ipv6>,
    /// Link-local address of the bridge, if it is the guest's router.
    pub link_local: Option<Ipv6Addr>,
}

/// The guest's settings from DHCPv4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipv4 {
    /// The guest's address.
    pub address: Ipv4Addr,
    /// Length of the prefix, bits.
    pub prefix: u8,
    /// The router, if there is one.
    pub gateway: Option<Ipv4Addr>,
    /// The address of the DHCP server: the bridge.
    pub server: Ipv4Addr,
    /// Further routes.
    pub routes: Vec<Route>,
}

/// The guest's settings from DHCPv6 and router advertisements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipv6 {
    /// The guest's address.
    pub address: Ipv6Addr,
    /// Length of the prefix, bits.
    pub prefix: u8,
    /// The router, if there is one.
    pub gateway: Option<Ipv6Addr>,
    /// Further routes, and prefixes that are on the link.
    pub routes: Vec<Route>,
}

/// The result for all cards.
#[derive(Debug)]
pub struct Outcome {
    /// The cards whose network is ready, in the requested order.
    pub cards: Vec<(Wanted, Prepared)>,
    /// Descriptors that the launcher does not hold yet.
    pub opened: Descriptors,
    /// Number of steps that were carried out. 0 means that everything was there.
    pub steps: usize,
    /// The failed cards on which no other card depends.
    pub failed: Vec<(Wanted, NetworkError)>,
}

/// Sets up the network of all `cards` in the namespace `netns`, and opens the descriptors that the launcher
/// does not hold yet.
pub async fn prepare(
    netns: OwnedFd,
    cards: Vec<Wanted>,
    held: BTreeSet<String>,
) -> Result<Outcome, NetworkError> {
    netns::run(netns, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(NetworkError::Netlink)?;
        runtime.block_on(async {
            let work = prepare_here(cards, &held);
            tokio::time::timeout(DEADLINE, work).await.map_err(|_| NetworkError::Deadline)?
        })
    })
    .await?
}

/// Does the work of [`prepare`] in the calling thread's namespace.
async fn prepare_here(mut cards: Vec<Wanted>, held: &BTreeSet<String>) -> Result<Outcome, NetworkError> {
    let (connection, netlink, _) = rtnetlink::new_connection().map_err(NetworkError::Netlink)?;
    let connection = tokio::spawn(connection);
    // Becoming a router changes settings of all links, so that comes first.
    cards.sort_by_key(|card| (!matches!(card.binding, Binding::Masquerade(_)), card.index));
    let translates = cards.iter().any(|card| matches!(card.binding, Binding::Masquerade(_)));
    let nftables = translates.then(Nftables::open).transpose()?;
    let before = observe::observe(&netlink, nftables.as_ref(), &cards, held).await?;
    let mut outcome = Outcome { cards: Vec::new(), opened: Vec::new(), steps: 0, failed: Vec::new() };
    // All errors that can be found in advance are reported before anything is changed.
    let mut plans: Vec<(&Wanted, Vec<Step>)> = Vec::new();
    for card in &cards {
        match plan::plan(card, &before) {
            Ok(steps) => plans.push((card, steps)),
            Err(error) => outcome.fails(card, error.into())?,
        }
    }
    let mut made: Vec<(&Wanted, Descriptors)> = Vec::new();
    for (card, steps) in plans {
        let count = steps.len();
        match apply::apply(&netlink, nftables.as_ref(), steps).await {
            Ok(opened) => {
                outcome.steps += count;
                made.push((card, opened));
            }
            Err(error) => outcome.fails(card, error.into())?,
        }
    }
    let after = observe::links_of(&netlink, &cards).await?;
    connection.abort();
    for (card, opened) in made {
        match prepared(card, &after) {
            _ if card.binding == Binding::Gone => {}
            Ok(prepared) => {
                outcome.opened.extend(opened);
                outcome.cards.push((card.clone(), prepared));
            }
            Err(error) => outcome.fails(card, error)?,
        }
    }
    outcome.cards.sort_by_key(|(card, _)| card.index);
    Ok(outcome)
}

impl Outcome {
    /// Records the error of a card. The whole preparation fails, unless no other card depends on this one.
    fn fails(&mut self, card: &Wanted, error: NetworkError) -> Result<(), NetworkError> {
        if !card.alone {
            return Err(error);
        }
        self.failed.push((card.clone(), error));
        Ok(())
    }
}

fn prepared(wanted: &Wanted, after: &BTreeMap<String, Link>) -> Result<Prepared, NetworkError> {
    let names = wanted.names(after);
    let link = |name: &String| after.get(name).ok_or_else(|| NetworkError::Missing(name.clone()));
    // Of the taps of plugins, only those that the handler made have a bridge.
    let is_kept_tap = wanted.binding == Binding::Kept && !after.contains_key(&names.bridge);
    if wanted.binding == Binding::Tap || is_kept_tap {
        // If the pod has a link next to the tap, the guest has that link's MAC address.
        let tap = plan::tap::find(&names, after);
        let (name, tap) = tap.ok_or_else(|| NetworkError::Missing(names.tap.clone()))?;
        let pod = after.get(&names.pod).unwrap_or(tap);
        return without_addresses(wanted, &names, (name, pod), tap.mtu, tap.index);
    }
    let pod = link(&names.pod)?;
    if wanted.binding == Binding::Passt {
        // passt forwards by sockets: the card has no link of its own.
        return without_addresses(wanted, &names, (&names.pod, pod), pod.mtu, 0);
    }
    let bridge = link(&names.bridge)?;
    let prepared = without_addresses(wanted, &names, (&names.pod, pod), pod.mtu, bridge.index)?;
    Ok(match &wanted.binding {
        Binding::Masquerade(binding) => translated(binding, pod, prepared),
        Binding::Bridge | Binding::Gone => {
            let ipv6 = bridged_ipv6(pod, after.get(&names.note));
            Prepared { ipv4: bridged(wanted.index, pod, bridge), ipv6, ..prepared }
        }
        Binding::ManagedTap | Binding::Tap | Binding::Passt | Binding::Kept => prepared,
    })
}

/// The result for a card whose guest gets no address from its binding. `pod` is the link, with its name, whose
/// addresses the pod has; the guest gets the link's MAC address if the manifest sets none.
fn without_addresses(
    wanted: &Wanted,
    names: &links::Names,
    (name, pod): (&str, &Link),
    mtu: u32,
    bridge_index: u32,
) -> Result<Prepared, NetworkError> {
    let own = MacAddress::read(&pod.mac);
    Ok(Prepared {
        mac: wanted.mac.or(own).ok_or_else(|| PlanError::NotEthernet(name.to_owned()))?,
        mtu,
        bridge_index,
        pod_addresses: pod.global().map(|(address, _)| address).collect(),
        ipv4: None,
        ipv6: None,
        link_local: None,
        pod_interface: names.pod.clone(),
    })
}

fn translated(binding: &Masquerade, pod: &Link, prepared: Prepared) -> Prepared {
    let (four, six) = (binding.ipv4, binding.ipv6);
    let ipv4 = Ipv4 {
        address: four.guest,
        prefix: four.prefix,
        gateway: Some(four.gateway),
        server: four.gateway,
        routes: Vec::new(),
    };
    let ipv6 =
        Ipv6 { address: six.guest, prefix: six.prefix, gateway: Some(six.gateway), routes: Vec::new() };
    let ipv4 = pod.has_ipv4().then_some(ipv4);
    let ipv6 = pod.has_ipv6().then_some(ipv6);
    let link_local = pod.has_ipv6().then(|| BRIDGE_MAC.link_local());
    Prepared { ipv4, ipv6, link_local, ..prepared }
}

/// The pod's own address and routes, as they were saved.
fn bridged(index: usize, pod: &Link, bridge: &Link) -> Option<Ipv4> {
    let (address, prefix) = pod.addresses.iter().find_map(|(address, prefix)| match address {
        IpAddr::V4(address) if !address.is_link_local() => Some((*address, *prefix)),
        _ => None,
    })?;
    let gateway = match default_gateway(bridge) {
        Some(IpAddr::V4(gateway)) => Some(gateway),
        Some(IpAddr::V6(_)) | None => None,
    };
    let routes = bridge.kept_routes.iter().filter(|route| !route.is_default()).copied().collect();
    Some(Ipv4 { address, prefix, gateway, server: plan::bridge::server(index), routes })
}

/// The same for IPv6, whose routes are saved at the link `note`.
fn bridged_ipv6(pod: &Link, note: Option<&Link>) -> Option<Ipv6> {
    let (address, prefix) = pod.lasting_ipv6()?;
    let gateway = match note.and_then(default_gateway) {
        Some(IpAddr::V6(gateway)) => Some(gateway),
        Some(IpAddr::V4(_)) | None => None,
    };
    // The kernel has a route to a single address of the link itself.
    let is_own = |route: &Route| route.follows_from(address.into(), 128);
    let routes = note.into_iter().flat_map(|note| &note.kept_routes);
    let routes = routes.filter(|route| !route.is_default() && !is_own(route)).copied().collect();
    Some(Ipv6 { address, prefix, gateway, routes })
}

fn default_gateway(link: &Link) -> Option<IpAddr> {
    link.kept_routes.iter().find(|route| route.is_default()).and_then(|route| route.gateway)
}
