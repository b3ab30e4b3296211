//! Finds the link-local addresses of IPv6 gateways.
//!
//! A router advertisement can only name a router's link-local address, but most network plugins give a pod a
//! gateway with a global one. A gateway has both on the same MAC address. So the kernel is made to ask for the
//! gateway's MAC address, and then whether the link-local address that belongs to that MAC address (RFC 4291,
//! modified EUI-64) answers with the same one.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::time::Duration;

use futures::TryStreamExt;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::Handle;
use tokio::time::{Instant, sleep};

use super::addresses::MacAddress;
use super::observe::ObserveError;
use super::state::Routers;

/// Longest time for one address: the kernel asks three times, a second apart.
const WAIT: Duration = Duration::from_millis(2500);
/// Time between two looks at the kernel's neighbours.
const STEP: Duration = Duration::from_millis(10);
/// Port of the discard service. Whatever is sent to an address makes the kernel ask for its MAC address.
const DISCARD: u16 = 9;

/// A neighbour that the kernel knows on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Neighbour {
    address: Ipv6Addr,
    mac: MacAddress,
}

/// The link-local addresses of `gateways`, each given with its link's name and index. A gateway whose address
/// is not found is left out, and logged.
pub async fn find(
    netlink: &Handle,
    gateways: &BTreeSet<(String, u32, Ipv6Addr)>,
) -> Result<Routers, ObserveError> {
    let mut routers = Routers::new();
    for (link, index, gateway) in gateways {
        if let Some(router) = of(netlink, link, *index, *gateway).await? {
            routers.insert((*index, *gateway), router);
        } else {
            tracing::warn!(
                link,
                %gateway,
                "no link-local address of the pod's IPv6 gateway is found: the guest gets no route over it"
            );
        }
    }
    Ok(routers)
}

async fn of(
    netlink: &Handle,
    link: &str,
    index: u32,
    gateway: Ipv6Addr,
) -> Result<Option<Ipv6Addr>, ObserveError> {
    let Some(mac) = ask(netlink, link, index, gateway).await? else { return Ok(None) };
    if let Some(known) = link_local_of(mac, &neighbours(netlink, index).await?) {
        return Ok(Some(known));
    }
    let likely = mac.link_local();
    Ok((ask(netlink, link, index, likely).await? == Some(mac)).then_some(likely))
}

/// The link-local address among these neighbours that has this MAC address.
fn link_local_of(mac: MacAddress, neighbours: &[Neighbour]) -> Option<Ipv6Addr> {
    let mut of_mac = neighbours.iter().filter(|one| one.mac == mac).map(|one| one.address);
    of_mac.find(Ipv6Addr::is_unicast_link_local)
}

/// Makes the kernel ask for the MAC address of a neighbour, and waits for the answer.
async fn ask(
    netlink: &Handle,
    link: &str,
    index: u32,
    address: Ipv6Addr,
) -> Result<Option<MacAddress>, ObserveError> {
    send(link, index, address);
    let begun = Instant::now();
    loop {
        let found = neighbours(netlink, index).await?.into_iter().find(|one| one.address == address);
        if found.is_some() || begun.elapsed() > WAIT {
            return Ok(found.map(|one| one.mac));
        }
        sleep(STEP).await;
    }
}

/// Sends an empty datagram. An error means the same as no answer.
fn send(link: &str, index: u32, address: Ipv6Addr) {
    let sent = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).and_then(|socket| {
        setsockopt(&socket, sockopt::BindToDevice, &link.to_owned().into())?;
        let scope = if address.is_unicast_link_local() { index } else { 0 };
        socket.send_to(&[], SocketAddrV6::new(address, DISCARD, 0, scope))
    });
    if let Err(error) = sent {
        tracing::debug!(link, %address, %error, "nothing could be sent to the gateway");
    }
}

/// The neighbours on a link whose MAC addresses the kernel knows.
async fn neighbours(netlink: &Handle, index: u32) -> Result<Vec<Neighbour>, ObserveError> {
    let mut dump = netlink.neighbours().get().set_address_family(AddressFamily::Inet6).execute();
    let mut found = Vec::new();
    while let Some(message) = dump.try_next().await.map_err(ObserveError::Neighbours)? {
        if message.header.ifindex == index {
            found.extend(neighbour(&message));
        }
    }
    Ok(found)
}

fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    let unknown = matches!(
        message.header.state,
        NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None
    );
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(*address),
        _ => None,
    });
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => MacAddress::read(bytes),
        _ => None,
    });
    if unknown { None } else { Some(Neighbour { address: address?, mac: mac? }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_link_local_address_of_the_same_mac_address_is_taken() {
        let (mac, other) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]));
        let one = |address: &str, mac| Neighbour { address: address.parse().unwrap(), mac };
        let known = [one("fd00::1", mac), one("fe80::2", other), one("fe80::1", mac)];
        assert_eq!(link_local_of(mac, &known), Some("fe80::1".parse().unwrap()));
        assert_eq!(link_local_of(mac, &known[..2]), None);
    }
}
