//! The address of this handler to which other handlers send guests.
//!
//! A pod with a link `migration0` is on a network for migrations, which keeps their load off the pods' network. If
//! that link has no address, this handler announces none, and the migration fails instead of going over the pods'
//! network.

use std::io;
use std::net::IpAddr;

use barevirt_api::networks::MIGRATION_LINK;
use nix::ifaddrs::getifaddrs;
use tracing::warn;

/// The way in which handlers of other nodes reach this one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reached {
    /// Address of this pod, if it is known.
    pub pod: Option<IpAddr>,
}

impl Reached {
    /// The address to announce now. If there is `None`, no guest can migrate to this node.
    #[must_use]
    pub fn now(self) -> Option<IpAddr> {
        match links() {
            Ok(links) => choose(self.pod, &links),
            Err(error) => {
                warn!(%error, "cannot read the links of this pod, so no address for migrations is announced");
                None
            }
        }
    }
}

/// The address that a pod announces. `links` are its links with their addresses, in the kernel's order; each link is
/// also listed once without an address.
#[must_use]
pub fn choose(pod: Option<IpAddr>, links: &[(String, Option<IpAddr>)]) -> Option<IpAddr> {
    let mut own =
        links.iter().filter(|(name, _)| name == MIGRATION_LINK).map(|(_, address)| *address).peekable();
    if own.peek().is_none() {
        return pod;
    }
    let usable: Vec<IpAddr> = own.flatten().filter(is_usable).collect();
    // If nodes have addresses of both families, all of them choose the same one.
    usable.iter().find(|address| address.is_ipv4()).or(usable.first()).copied()
}

/// Whether other nodes can reach the address without knowing the link.
fn is_usable(address: &IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_local && !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}

/// Links in the network namespace of the calling thread: one entry for each link, and one for each of its addresses.
fn links() -> io::Result<Vec<(String, Option<IpAddr>)>> {
    let all = getifaddrs().map_err(io::Error::from)?;
    Ok(all
        .map(|one| {
            let address = one.address.and_then(|address| {
                let v4 = address.as_sockaddr_in().map(|of| IpAddr::V4(of.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|of| IpAddr::V6(of.ip())))
            });
            (one.interface_name, address)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(links: &[(&str, &str)]) -> Option<String> {
        let links: Vec<_> =
            links.iter().map(|(name, address)| ((*name).to_owned(), address.parse().ok())).collect();
        choose("10.244.1.5".parse().ok(), &links).map(|address| address.to_string())
    }

    #[test]
    fn without_the_link_it_is_that_of_the_pod() {
        assert_eq!(chosen(&[]).as_deref(), Some("10.244.1.5"));
        let others = [("lo", ""), ("eth0", ""), ("eth0", "10.244.1.5"), ("migration01", "10.90.0.2")];
        assert_eq!(chosen(&others).as_deref(), Some("10.244.1.5"));
        assert_eq!(choose(None, &[]), None);
    }

    #[test]
    fn the_migration_address_is_one_of_the_migration_link() {
        for (addresses, wanted) in [
            (&["10.90.0.2"][..], "10.90.0.2"),
            (&["fe80::1", "fd00:90::2"], "fd00:90::2"),
            (&["fd00:90::2", "10.90.0.2"], "10.90.0.2"),
            (&["169.254.3.4", "2001:db8::7"], "2001:db8::7"),
            (&["10.90.0.3", "10.90.0.2"], "10.90.0.3"),
        ] {
            let links: Vec<(&str, &str)> = [("eth0", "10.244.1.5"), ("migration0", "")]
                .into_iter()
                .chain(addresses.iter().map(|address| ("migration0", *address)))
                .collect();
            assert_eq!(chosen(&links).as_deref(), Some(wanted), "{addresses:?}");
        }
    }

    /// The pod's own address would put the migration on the pods' network.
    #[test]
    fn a_link_without_a_routable_address_gives_no_migration_address() {
        for address in ["", "fe80::1", "169.254.3.4", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "0.0.0.0"] {
            let links = [("eth0", "10.244.1.5"), ("migration0", ""), ("migration0", address)];
            assert_eq!(chosen(&links), None, "{address}");
        }
    }

    #[test]
    fn links_are_read_with_all_their_addresses() {
        let links = links().unwrap();
        assert!(links.contains(&("lo".to_owned(), None)), "{links:?}");
        let is_loopback = |(name, address): &(String, Option<IpAddr>)| {
            name == "lo" && address.is_some_and(|address| address.is_loopback())
        };
        assert!(links.iter().any(is_loopback), "{links:?}");
    }
}
