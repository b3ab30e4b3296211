//! The IPv6 settings of the guest: its address, the prefixes on its link, and its routers.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use barevirt_protocol::v1::{self, Interface};

use super::guest::{GuestError, Mac, parse, prefix};

/// Hardware address of the server, on the wire and in its DHCPv6 identity: every masquerade bridge has this
/// address.
pub const SERVER_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0]);

/// The server's link-local address, which belongs to its hardware address.
pub const SERVER_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0);

/// A prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Its first address.
    pub address: Ipv6Addr,
    /// Its length, bits.
    pub length: u8,
}

/// A router that advertisements name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Router {
    /// Its link-local address, from which its advertisements are sent; the kernel chooses one if it is unknown.
    pub address: Option<Ipv6Addr>,
    /// Its MAC address, where it is known and does not change. The guest asks for others.
    pub mac: Option<Mac>,
    /// Whether it is a default router.
    pub is_default: bool,
    /// Prefixes that are reached over it.
    pub routes: Vec<Prefix>,
}

/// Who else is on the guest's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbours {
    /// Only the bridge, which is the guest's router.
    Bridge,
    /// Other hosts of the pod's network, which must see none of our messages.
    Network,
}

/// The guest's IPv6 settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipv6 {
    /// Its address.
    pub address: Ipv6Addr,
    /// The prefixes whose addresses are on the link.
    pub on_link: Vec<Prefix>,
    /// Its routers: at least one, in whose name it gets an advertisement.
    pub routers: Vec<Router>,
    /// Who else is on the link.
    pub neighbours: Neighbours,
}

/// The settings from the handler's facts; `None` if the guest has no IPv6.
pub(super) fn read(interface: &Interface) -> Result<Option<Ipv6>, GuestError> {
    if interface.ipv6.is_empty() {
        return Ok(None);
    }
    let address = parse("ipv6 address", &interface.ipv6)?;
    let length = prefix("ipv6 prefix", interface.ipv6_prefix, 128)?;
    if interface.ipv6_link_local.is_empty() {
        let (on_link, routers) = of_network(interface)?;
        return Ok(Some(Ipv6 { address, on_link, routers, neighbours: Neighbours::Network }));
    }
    let router = link_local("ipv6 link-local address", &interface.ipv6_link_local)?;
    let router =
        Router { address: Some(router), mac: Some(SERVER_MAC), is_default: true, ..Router::default() };
    let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
    let on_link = Prefix { address: Ipv6Addr::from_bits(address.to_bits() & mask), length };
    let neighbours = Neighbours::Bridge;
    Ok(Some(Ipv6 { address, on_link: vec![on_link], routers: vec![router], neighbours }))
}

/// The prefixes on the link of a guest on the pod's own network, and its routers. Without a router, the server
/// advertises in its own name that it is not a router.
fn of_network(interface: &Interface) -> Result<(Vec<Prefix>, Vec<Router>), GuestError> {
    let default = match interface.ipv6_gateway.as_str() {
        "" => None,
        gateway => Some(link_local("ipv6 gateway", gateway)?),
    };
    let mut routers = BTreeMap::from_iter(default.map(|default| (default, Vec::new())));
    let mut on_link = Vec::new();
    for v1::Route { destination, prefix: length, gateway } in &interface.ipv6_routes {
        let address = parse("ipv6 destination", destination)?;
        let reached = Prefix { address, length: prefix("ipv6 prefix of a route", *length, 128)? };
        if gateway.is_empty() {
            on_link.push(reached);
            continue;
        }
        let gateway = link_local("ipv6 gateway of a route", gateway)?;
        let routes = routers.entry(gateway).or_default();
        // The default router reaches everything.
        if default != Some(gateway) {
            routes.push(reached);
        }
    }
    let router = |(address, routes)| Router {
        address: Some(address),
        mac: None,
        is_default: default == Some(address),
        routes,
    };
    let mut routers: Vec<Router> = routers.into_iter().map(router).collect();
    if routers.is_empty() {
        routers.push(Router { address: Some(SERVER_LINK_LOCAL), ..Router::default() });
    }
    Ok((on_link, routers))
}

fn link_local(what: &'static str, value: &str) -> Result<Ipv6Addr, GuestError> {
    let address: Ipv6Addr = parse(what, value)?;
    if address.is_unicast_link_local() {
        Ok(address)
    } else {
        Err(GuestError::Address { what, value: value.to_owned() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::guest::tests::interface;
    use super::*;

    fn route(destination: &str, prefix: u32, gateway: &str) -> v1::Route {
        v1::Route { destination: destination.to_owned(), prefix, gateway: gateway.to_owned() }
    }

    /// A guest on its pod's own network, as the handler describes it.
    pub(crate) fn on_network() -> Interface {
        Interface {
            ipv6: "fd00:10:244:1::7".into(),
            ipv6_prefix: 64,
            ipv6_gateway: "fe80::1".into(),
            ipv6_link_local: String::new(),
            ipv6_routes: vec![
                route("fd00:10:244:1::", 64, ""),
                route("fd00:96::", 64, "fe80::1"),
                route("fd00:97::", 64, "fe80::2"),
            ],
            ..interface()
        }
    }

    #[test]
    fn a_guest_behind_a_bridge_has_it_as_its_router() {
        let Ipv6 { address, on_link, routers, neighbours } = read(&interface()).unwrap().unwrap();
        assert_eq!((address.to_string().as_str(), neighbours), ("fd10:0:2::2", Neighbours::Bridge));
        assert_eq!(on_link, [Prefix { address: "fd10:0:2::".parse().unwrap(), length: 120 }]);
        let [Router { address, mac, is_default: true, routes }] = &routers[..] else { panic!("{routers:?}") };
        assert_eq!((*address, *mac, routes.len()), (Some(SERVER_LINK_LOCAL), Some(SERVER_MAC), 0));
    }

    #[test]
    fn a_guest_on_its_pods_network_has_the_networks_routers() {
        let read = |interface: &Interface| read(interface).unwrap().unwrap();
        let Ipv6 { on_link, routers, neighbours, .. } = read(&on_network());
        assert_eq!(neighbours, Neighbours::Network);
        assert_eq!(on_link, [Prefix { address: "fd00:10:244:1::".parse().unwrap(), length: 64 }]);
        let router = |address: &str, is_default, routes| Router {
            address: Some(address.parse().unwrap()),
            mac: None,
            is_default,
            routes,
        };
        let far = Prefix { address: "fd00:97::".parse().unwrap(), length: 64 };
        let default = router("fe80::1", true, Vec::new());
        assert_eq!(routers, [default, router("fe80::2", false, vec![far])]);
        let alone = Interface { ipv6_gateway: String::new(), ipv6_routes: Vec::new(), ..on_network() };
        assert_eq!(read(&alone).routers, [router("fe80::ff:fe00:0", false, Vec::new())]);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let bad = [
            Interface { ipv6_gateway: "fd00::1".into(), ..on_network() },
            Interface { ipv6_routes: vec![route("fd00::", 64, "fd00::1")], ..on_network() },
            Interface { ipv6_routes: vec![route("fd00::", 0, "")], ..on_network() },
            Interface { ipv6_routes: vec![route("x", 64, "")], ..on_network() },
            Interface { ipv6_link_local: "fd00::1".into(), ..on_network() },
        ];
        let expected = [
            "bad ipv6 gateway",
            "bad ipv6 gateway of a route",
            "bad ipv6 prefix of a route",
            "bad ipv6 destination",
            "bad ipv6 link-local address",
        ];
        for (interface, expected) in bad.iter().zip(expected) {
            let text = read(interface).unwrap_err().to_string();
            assert!(text.starts_with(expected), "{text}");
        }
    }
}
