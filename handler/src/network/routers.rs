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

/// Longest time for an answer: the kernel asks three times, a second apart.
const WAIT: Duration = Duration::from_millis(2500);
/// Time between two looks at the kernel's neighbours.
const STEP: Duration = Duration::from_millis(10);
/// Port of the discard service. Whatever is sent to an address makes the kernel ask for its MAC address.
const DISCARD: u16 = 9;

/// A neighbour that the kernel knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the link.
    pub link: u32,
    /// Its address.
    pub address: Ipv6Addr,
    /// Its MAC address.
    pub mac: MacAddress,
}

/// The link-local addresses of `gateways`, each given with its link's name and index. A gateway whose address
/// is not found is left out, and logged. All are asked at once, so that the time does not depend on how many of them
/// do not answer: it is at most five seconds.
pub async fn find(
    netlink: &Handle,
    gateways: &BTreeSet<(String, u32, Ipv6Addr)>,
) -> Result<Routers, ObserveError> {
    if gateways.is_empty() {
        return Ok(Routers::new());
    }
    let known = ask(netlink, gateways).await?;
    let answered = gateways.iter().filter_map(|(link, index, gateway)| {
        let mac = mac_of(*index, *gateway, &known)?;
        Some((link, *index, *gateway, mac))
    });
    let answered: Vec<_> = answered.collect();
    let without = answered.iter().filter(|(_, index, _, mac)| link_local_of(*index, *mac, &known).is_none());
    let likely = without.map(|(link, index, _, mac)| ((*link).clone(), *index, mac.link_local())).collect();
    let known = ask(netlink, &likely).await?;
    let found = answered.into_iter().filter_map(|(_, index, gateway, mac)| {
        let router = link_local_of(index, mac, &known)?;
        Some(((index, gateway), router))
    });
    let routers: Routers = found.collect();
    for (link, _, gateway) in
        gateways.iter().filter(|(_, index, gateway)| !routers.contains_key(&(*index, *gateway)))
    {
        tracing::warn!(
            link,
            %gateway,
            "no link-local address of the pod's IPv6 gateway is found: the guest gets no route over it"
        );
    }
    Ok(routers)
}

/// The link-local address among these neighbours that has this MAC address on that link.
fn link_local_of(link: u32, mac: MacAddress, neighbours: &[Neighbour]) -> Option<Ipv6Addr> {
    let of_mac = neighbours.iter().filter(|one| (one.link, one.mac) == (link, mac));
    of_mac.map(|one| one.address).find(Ipv6Addr::is_unicast_link_local)
}

/// The MAC address of the neighbour with this address on that link.
fn mac_of(link: u32, address: Ipv6Addr, neighbours: &[Neighbour]) -> Option<MacAddress> {
    neighbours.iter().find(|one| (one.link, one.address) == (link, address)).map(|one| one.mac)
}

/// Makes the kernel ask for the MAC addresses of neighbours, each given with its link's name and index. Returns the
/// neighbours that the kernel knows once all have answered, or when the time is over.
async fn ask(
    netlink: &Handle,
    asked: &BTreeSet<(String, u32, Ipv6Addr)>,
) -> Result<Vec<Neighbour>, ObserveError> {
    asked.iter().for_each(|(link, index, address)| send(link, *index, *address));
    let begun = Instant::now();
    loop {
        let known = neighbours(netlink).await?;
        let mut answers = asked.iter().map(|(_, index, address)| mac_of(*index, *address, &known));
        if answers.all(|mac| mac.is_some()) || begun.elapsed() > WAIT {
            return Ok(known);
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

/// The neighbours whose MAC addresses the kernel knows.
async fn neighbours(netlink: &Handle) -> Result<Vec<Neighbour>, ObserveError> {
    let mut dump = netlink.neighbours().get().set_address_family(AddressFamily::Inet6).execute();
    let mut found = Vec::new();
    while let Some(message) = dump.try_next().await.map_err(ObserveError::Neighbours)? {
        found.extend(neighbour(&message));
    }
    Ok(found)
}

/// A neighbour with a known MAC address, from the kernel's message about it.
pub fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
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
    if unknown {
        None
    } else {
        Some(Neighbour { link: message.header.ifindex, address: address?, mac: mac? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_link_local_address_of_the_same_mac_address_is_taken() {
        let (mac, other) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]));
        let one = |link, address: &str, mac| Neighbour { link, address: address.parse().unwrap(), mac };
        let known = [
            one(2, "fd00::1", mac),
            one(2, "fe80::2", other),
            one(3, "fe80::3", mac),
            one(2, "fe80::1", mac),
        ];
        assert_eq!(link_local_of(2, mac, &known), Some("fe80::1".parse().unwrap()));
        assert_eq!(link_local_of(2, mac, &known[..3]), None);
        assert_eq!(mac_of(2, "fd00::1".parse().unwrap(), &known), Some(mac));
        assert_eq!(mac_of(3, "fd00::1".parse().unwrap(), &known), None);
    }
}
