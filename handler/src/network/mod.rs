//! The guest's network: masquerade on the pod's own interface.
//!
//! [`prepare`] looks, plans and carries out on a thread inside the pod's network namespace; see [`plan`] for what it
//! makes. Called again at any time it finds what is there and adds what is missing.

pub mod addresses;
pub mod apply;
pub mod guest;
pub mod netns;
pub mod nft;
pub mod observe;
pub mod plan;
pub mod resolv;
pub mod services;
pub mod state;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use thiserror::Error;

use self::addresses::BRIDGE_MAC;
use self::apply::{ApplyError, Descriptors};
use self::nft::{NftError, Nftables};
use self::observe::ObserveError;
use self::plan::PlanError;
use self::state::{Link, Wanted};

/// How long all of it may take; it takes some milliseconds.
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
    /// There is nothing to join the guest to.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A step failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Something is missing although every step was done.
    #[error("interface {0} is missing after it was made")]
    Missing(String),
    /// The kernel did not answer in time.
    #[error("the pod's network was not ready within {} seconds", DEADLINE.as_secs())]
    Deadline,
}

/// What the launcher has to know about one interface, found in the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// MTU of the pod's interface, and of bridge and tap.
    pub mtu: u32,
    /// Index of the bridge.
    pub bridge_index: u32,
    /// The pod's own addresses.
    pub pod_addresses: Vec<IpAddr>,
    /// The guest's address, its prefix and its gateway, where it is given one.
    pub ipv4: Option<(Ipv4Addr, u8, Ipv4Addr)>,
    /// The same in IPv6.
    pub ipv6: Option<(Ipv6Addr, u8, Ipv6Addr)>,
    /// Link-local address of the bridge.
    pub link_local: Option<Ipv6Addr>,
    /// How many steps there were to do. 0: everything was there.
    pub steps: usize,
}

/// Makes the network of `wanted` be there in the namespace `netns`, and opens what the launcher does not hold yet.
pub async fn prepare(
    netns: OwnedFd,
    wanted: Wanted,
    held: BTreeSet<String>,
) -> Result<(Prepared, Descriptors), NetworkError> {
    netns::run(netns, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(NetworkError::Netlink)?;
        runtime.block_on(async {
            let work = prepare_here(&wanted, &held);
            tokio::time::timeout(DEADLINE, work).await.map_err(|_| NetworkError::Deadline)?
        })
    })
    .await?
}

/// The same in the calling thread's namespace.
async fn prepare_here(
    wanted: &Wanted,
    held: &BTreeSet<String>,
) -> Result<(Prepared, Descriptors), NetworkError> {
    let (connection, netlink, _) = rtnetlink::new_connection().map_err(NetworkError::Netlink)?;
    let connection = tokio::spawn(connection);
    let nftables = Nftables::open()?;
    let before = observe::observe(&netlink, &nftables, wanted, held).await?;
    let steps = plan::plan(wanted, &before)?;
    let count = steps.len();
    let opened = apply::apply(&netlink, &nftables, steps).await?;
    let after = observe::observe(&netlink, &nftables, wanted, held).await?;
    connection.abort();

    let link = |name: &String| after.links.get(name).ok_or_else(|| NetworkError::Missing(name.clone()));
    let (pod, bridge) = (link(&wanted.pod_interface)?, link(&wanted.bridge)?);
    Ok((prepared(wanted, pod, bridge, count), opened))
}

fn prepared(wanted: &Wanted, pod: &Link, bridge: &Link, steps: usize) -> Prepared {
    let (four, six) = (wanted.ipv4, wanted.ipv6);
    Prepared {
        mtu: pod.mtu,
        bridge_index: bridge.index,
        pod_addresses: observe::pod_addresses(pod),
        ipv4: Some((four.guest, four.prefix, four.gateway)),
        ipv6: pod.has_ipv6().then_some((six.guest, six.prefix, six.gateway)),
        link_local: pod.has_ipv6().then(|| BRIDGE_MAC.link_local()),
        steps,
    }
}
