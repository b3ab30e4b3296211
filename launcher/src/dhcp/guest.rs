//! The network settings for the one guest of a bridge.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use barevirt_api::addresses;
use barevirt_api::v1::{DhcpOptions, DhcpPrivateOption};
use barevirt_protocol::v1::{self, Interface};

use super::domain::Name;
use super::ipv6::{self, Ipv6};

/// Smallest MTU for IPv6.
const SMALLEST_MTU: u16 = 1280;
/// Smallest MTU of a link with IPv4 only.
const SMALLEST_MTU_V4: u16 = 68;

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = GuestError;

    fn from_str(text: &str) -> Result<Self, GuestError> {
        let bad = || GuestError::Mac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() {
            return Err(bad());
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// Its IPv4 settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipv4 {
    /// Its address.
    pub address: Ipv4Addr,
    /// Length of the network's prefix.
    pub prefix: u8,
    /// The gateway, if the network has one.
    pub gateway: Option<Ipv4Addr>,
    /// Address of the DHCP server.
    pub server: Ipv4Addr,
    /// Routes in addition to that to the gateway.
    pub routes: Vec<Route>,
}

/// A route of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Its destination.
    pub destination: Ipv4Addr,
    /// Length of the prefix, bits.
    pub prefix: u8,
    /// The next hop; `None` if the destination is on the link.
    pub gateway: Option<Ipv4Addr>,
}

impl Ipv4 {
    /// The network's mask.
    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0))
    }

    /// The network's broadcast address.
    pub fn broadcast(&self) -> Ipv4Addr {
        self.address | !self.mask()
    }

    /// Whether the netmask alone makes an address a neighbour.
    fn is_near(&self, address: Ipv4Addr) -> bool {
        self.address & self.mask() == address & self.mask()
    }

    /// All routes, if netmask and gateway do not cover all of them: routes to neighbours first, the default
    /// route last. A client that gets this option ignores the gateway option.
    pub fn all_routes(&self) -> Vec<Route> {
        let far = self.gateway.filter(|gateway| !self.is_near(*gateway));
        if self.routes.is_empty() && far.is_none() {
            return Vec::new();
        }
        let (mut all, behind): (Vec<_>, Vec<_>) =
            self.routes.iter().partition(|route| route.gateway.is_none());
        let to_gateway = far.map(|gateway| Route { destination: gateway, prefix: 32, gateway: None });
        all.extend(to_gateway.filter(|route| !all.contains(route)));
        all.extend(behind);
        let default =
            |gateway| Route { destination: Ipv4Addr::UNSPECIFIED, prefix: 0, gateway: Some(gateway) };
        all.extend(self.gateway.map(default));
        all
    }
}

/// All settings of the guest on one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Its MAC address; DHCPv4 requests from other addresses are ignored.
    pub mac: Mac,
    /// MTU of the link, bytes.
    pub mtu: u16,
    /// Its host name, if it gets one.
    pub hostname: Option<String>,
    /// IPv4 settings, if any.
    pub ipv4: Option<Ipv4>,
    /// IPv6 settings, if any.
    pub ipv6: Option<Ipv6>,
    /// Resolvers of both families.
    pub dns: Vec<IpAddr>,
    /// Domains that names are searched in.
    pub search: Vec<Name>,
    /// Additional options from the manifest: code and value of each DHCPv4 option.
    pub extra: Vec<(u8, Vec<u8>)>,
}

/// Why an interface cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestError {
    /// Not a MAC address.
    #[error("bad mac address {0:?}")]
    Mac(String),
    /// The value is not an address of its family, or not valid with its prefix.
    #[error("bad {what} {value:?}")]
    Address {
        /// The kind of address.
        what: &'static str,
        /// The given value.
        value: String,
    },
    /// The MTU is too small or too large.
    #[error("bad mtu {0}")]
    Mtu(u32),
    /// An option of the manifest that cannot be sent.
    #[error("bad dhcp option {code}: {value:?}")]
    Option {
        /// The option's number.
        code: i32,
        /// Its value.
        value: String,
    },
}

impl Guest {
    /// Combines the handler's description and the manifest's options. Resolvers and search domains come from
    /// the pod's resolv.conf; invalid ones are left out.
    ///
    /// # Errors
    /// If an address, the MTU or an option of the manifest is invalid.
    pub fn new(
        interface: &Interface,
        hostname: Option<&str>,
        options: Option<&DhcpOptions>,
    ) -> Result<Self, GuestError> {
        Ok(Self {
            mac: interface.mac.parse()?,
            mtu: mtu(interface)?,
            hostname: hostname.map(str::to_owned).filter(|name| !name.is_empty() && name.len() <= 63),
            ipv4: ipv4(interface)?,
            ipv6: ipv6::read(interface)?,
            dns: interface.dns_servers.iter().filter_map(|server| server.parse().ok()).collect(),
            search: interface.dns_search.iter().filter_map(|domain| Name::parse(domain)).collect(),
            extra: options.map_or(Ok(Vec::new()), extra)?,
        })
    }

    /// Resolvers with IPv4 addresses.
    pub fn dns4(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.dns.iter().filter_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        })
    }

    /// Resolvers with IPv6 addresses.
    pub fn dns6(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.dns.iter().filter_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        })
    }
}

pub(super) fn parse<T: FromStr>(what: &'static str, value: &str) -> Result<T, GuestError> {
    value.parse().map_err(|_| GuestError::Address { what, value: value.to_owned() })
}

pub(super) fn prefix(what: &'static str, value: u32, longest: u8) -> Result<u8, GuestError> {
    u8::try_from(value)
        .ok()
        .filter(|prefix| (1..=longest).contains(prefix))
        .ok_or(GuestError::Address { what, value: value.to_string() })
}

fn mtu(interface: &Interface) -> Result<u16, GuestError> {
    let smallest = if interface.ipv6.is_empty() { SMALLEST_MTU_V4 } else { SMALLEST_MTU };
    let mtu = u16::try_from(interface.mtu).ok().filter(|mtu| *mtu >= smallest);
    mtu.ok_or(GuestError::Mtu(interface.mtu))
}

fn ipv4(interface: &Interface) -> Result<Option<Ipv4>, GuestError> {
    if interface.ipv4.is_empty() {
        return Ok(None);
    }
    let given = |text: &'_ str| (!text.is_empty()).then(|| text.to_owned());
    let gateway: Option<Ipv4Addr> =
        given(&interface.ipv4_gateway).map(|text| parse("ipv4 gateway", &text)).transpose()?;
    let server = given(&interface.ipv4_server).map(|text| parse("ipv4 server", &text)).transpose()?;
    Ok(Some(Ipv4 {
        address: parse("ipv4 address", &interface.ipv4)?,
        prefix: prefix("ipv4 prefix", interface.ipv4_prefix, 32)?,
        gateway,
        server: server.or(gateway).map_or_else(|| parse("ipv4 gateway", ""), Ok)?,
        routes: interface.ipv4_routes.iter().map(route).collect::<Result<_, _>>()?,
    }))
}

fn route(route: &v1::Route) -> Result<Route, GuestError> {
    let v1::Route { destination, prefix: length, gateway } = route;
    let gateway = match gateway.as_str() {
        "" => None,
        gateway => Some(parse("ipv4 gateway of a route", gateway)?),
    };
    Ok(Route {
        destination: parse("ipv4 destination", destination)?,
        prefix: prefix("ipv4 prefix of a route", *length, 32)?,
        gateway,
    })
}

/// The options of the manifest: 66, 67, 42 and 224 to 254. An empty text is none: programs that fill in manifests write one
/// where nothing was chosen.
fn extra(options: &DhcpOptions) -> Result<Vec<(u8, Vec<u8>)>, GuestError> {
    let DhcpOptions { boot_file_name, tftp_server_name, ntp_servers, private_options } = options;
    let mut extra = Vec::new();
    let mut text = |code: u8, value: &str| {
        if value.len() > 255 {
            return Err(GuestError::Option { code: code.into(), value: value.to_owned() });
        }
        if !value.is_empty() {
            extra.push((code, value.as_bytes().to_vec()));
        }
        Ok(())
    };
    if let Some(server) = tftp_server_name {
        text(66, server)?;
    }
    if let Some(file) = boot_file_name {
        text(67, file)?;
    }
    for DhcpPrivateOption { option, value } in private_options {
        let code = u8::try_from(*option)
            .ok()
            .filter(|code| (224..=254).contains(code))
            .ok_or_else(|| GuestError::Option { code: *option, value: value.clone() })?;
        text(code, value)?;
    }
    if !ntp_servers.is_empty() {
        let mut value = Vec::new();
        for server in ntp_servers {
            let address = addresses::ipv4(server)
                .ok_or_else(|| GuestError::Option { code: 42, value: server.clone() })?;
            value.extend(address.octets());
        }
        if value.len() > 252 {
            return Err(GuestError::Option { code: 42, value: ntp_servers.join(",") });
        }
        extra.push((42, value));
    }
    Ok(extra)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A guest of the masquerade binding, as the handler describes it.
    pub(crate) fn interface() -> Interface {
        Interface {
            name: "default".into(),
            network: "default".into(),
            mac: "02:12:34:56:78:9a".into(),
            mtu: 1450,
            ipv4: "10.0.2.2".into(),
            ipv4_prefix: 24,
            ipv4_gateway: "10.0.2.1".into(),
            ipv6: "fd10:0:2::2".into(),
            ipv6_prefix: 120,
            ipv6_gateway: "fd10:0:2::1".into(),
            ipv6_link_local: "fe80::ff:fe00:0".into(),
            dns_servers: vec!["10.96.0.10".into(), "fd10:96::a".into(), "nonsense".into()],
            dns_search: vec!["shop.svc.cluster.local".into(), "svc.cluster.local".into(), "bad..name".into()],
            bridge_index: 1,
            ..Interface::default()
        }
    }

    pub(crate) fn guest() -> Guest {
        Guest::new(&interface(), Some("vm1"), None).unwrap()
    }

    #[test]
    fn the_handlers_facts_are_read() {
        let guest = guest();
        assert_eq!(guest.mac.to_string(), "02:12:34:56:78:9a");
        let ipv4 = guest.ipv4.clone().unwrap();
        assert_eq!(ipv4.mask(), Ipv4Addr::new(255, 255, 255, 0));
        assert_eq!(ipv4.broadcast(), Ipv4Addr::new(10, 0, 2, 255));
        assert_eq!((ipv4.gateway, ipv4.all_routes()), (Some(ipv4.server), Vec::new()));
        assert_eq!(guest.dns4().collect::<Vec<_>>(), [Ipv4Addr::new(10, 96, 0, 10)]);
        assert_eq!(guest.dns6().count(), 1);
        assert_eq!(guest.search.len(), 2, "the bad domain is left out");
        let host = Ipv4 { prefix: 32, ..ipv4 };
        assert_eq!((host.mask(), host.all_routes().len()), (Ipv4Addr::BROADCAST, 2));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        type Change = fn(&mut Interface);
        let cases: [(Change, &str); 8] = [
            (|interface| interface.mac = "02:12".into(), "bad mac address"),
            (|interface| interface.mac = "02:12:34:56:78:9a:bc".into(), "bad mac address"),
            (|interface| interface.mtu = 100, "bad mtu 100"),
            (|interface| interface.ipv4 = "10.0.2".into(), "bad ipv4 address"),
            (|interface| interface.ipv4_prefix = 33, "bad ipv4 prefix"),
            (|interface| interface.ipv4_gateway = String::new(), "bad ipv4 gateway"),
            (|interface| interface.ipv4_server = "x".into(), "bad ipv4 server"),
            (|interface| interface.ipv4_routes = vec![v1::Route::default()], "bad ipv4 destination"),
        ];
        for (change, expected) in cases {
            let mut interface = interface();
            change(&mut interface);
            let text = Guest::new(&interface, None, None).unwrap_err().to_string();
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn a_station_on_the_pods_network_has_the_pods_routes() {
        let mut given = interface();
        given.ipv6.clear();
        (given.mtu, given.ipv4_gateway, given.ipv4_server) = (576, String::new(), "169.254.75.10".into());
        let route = |destination: &str, prefix, gateway: &str| v1::Route {
            destination: destination.to_owned(),
            prefix,
            gateway: gateway.to_owned(),
        };
        given.ipv4_routes = vec![route("10.9.0.0", 16, "10.0.2.7"), route("10.8.0.0", 16, "")];
        let without = Guest::new(&given, None, None).unwrap().ipv4.unwrap();
        assert_eq!((without.gateway, without.server), (None, Ipv4Addr::new(169, 254, 75, 10)));
        let text = |ipv4: &Ipv4| {
            let one = |route: &Route| format!("{}/{} {:?}", route.destination, route.prefix, route.gateway);
            ipv4.all_routes().iter().map(one).collect::<Vec<_>>()
        };
        assert_eq!(text(&without), ["10.8.0.0/16 None", "10.9.0.0/16 Some(10.0.2.7)"]);

        // As in Calico: the route to the gateway is a route of its own and is sent once.
        given.ipv4_prefix = 32;
        given.ipv4_gateway = "169.254.1.1".into();
        given.ipv4_routes = vec![route("169.254.1.1", 32, "")];
        let calico = Guest::new(&given, None, None).unwrap().ipv4.unwrap();
        assert_eq!(text(&calico), ["169.254.1.1/32 None", "0.0.0.0/0 Some(169.254.1.1)"]);
    }

    #[test]
    fn options_of_the_manifest_become_codes() {
        let options = DhcpOptions {
            boot_file_name: Some("pxelinux.0".into()),
            tftp_server_name: Some("tftp.example".into()),
            ntp_servers: vec!["10.0.0.1".into(), "010.0.0.02".into()],
            private_options: vec![DhcpPrivateOption { option: 240, value: "private".into() }],
        };
        let guest = Guest::new(&interface(), None, Some(&options)).unwrap();
        let expected: Vec<(u8, Vec<u8>)> = vec![
            (66, b"tftp.example".to_vec()),
            (67, b"pxelinux.0".to_vec()),
            (240, b"private".to_vec()),
            (42, vec![10, 0, 0, 1, 10, 0, 0, 2]),
        ];
        assert_eq!(guest.extra, expected);
        let empty = DhcpOptions {
            boot_file_name: Some(String::new()),
            tftp_server_name: Some(String::new()),
            ntp_servers: Vec::new(),
            private_options: vec![DhcpPrivateOption { option: 240, value: String::new() }],
        };
        assert!(
            Guest::new(&interface(), None, Some(&empty)).unwrap().extra.is_empty(),
            "an empty text is none"
        );
        for option in [223, 255, -1, 496] {
            let options = DhcpOptions {
                private_options: vec![DhcpPrivateOption { option, value: "x".into() }],
                ..Default::default()
            };
            assert!(Guest::new(&interface(), None, Some(&options)).is_err(), "{option}");
        }
    }
}
