//! What the one guest of a bridge is told.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use barevirt_api::v1::{DhcpOptions, DhcpPrivateOption};
use barevirt_protocol::v1::Interface;

use super::domain::Name;

/// Smallest MTU that both families work with.
const SMALLEST_MTU: u16 = 1280;

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

/// Its IPv4 side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4 {
    /// Its address.
    pub address: Ipv4Addr,
    /// Length of the network's prefix.
    pub prefix: u8,
    /// The gateway; also what the DHCP server calls itself.
    pub gateway: Ipv4Addr,
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

    /// The gateway is a neighbour by the mask alone.
    pub fn gateway_is_near(&self) -> bool {
        self.address & self.mask() == self.gateway & self.mask()
    }
}

/// Its IPv6 side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6 {
    /// Its address.
    pub address: Ipv6Addr,
    /// Length of the network's prefix.
    pub prefix: u8,
    /// The bridge's link-local address, which advertisements come from; the kernel's choice when not known.
    pub router: Option<Ipv6Addr>,
}

/// Everything the guest is told on one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Its MAC address; DHCPv4 requests of others are ignored.
    pub mac: Mac,
    /// MTU of the link, bytes.
    pub mtu: u16,
    /// Its host name, if it is to be told one.
    pub hostname: Option<String>,
    /// IPv4, if it has it.
    pub ipv4: Option<Ipv4>,
    /// IPv6, if it has it.
    pub ipv6: Option<Ipv6>,
    /// Resolvers of both families.
    pub dns: Vec<IpAddr>,
    /// Domains that names are searched in.
    pub search: Vec<Name>,
    /// What the manifest adds: code and value of each DHCPv4 option.
    pub extra: Vec<(u8, Vec<u8>)>,
}

/// Why an interface cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestError {
    /// Not a MAC address.
    #[error("bad mac address {0:?}")]
    Mac(String),
    /// Not an address of its family, or not one with that prefix.
    #[error("bad {what} {value:?}")]
    Address {
        /// Which.
        what: &'static str,
        /// What was given.
        value: String,
    },
    /// Too small or too large.
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
    /// Reads what the handler found and what the manifest asks for. Resolvers and search domains come from the pod's
    /// resolv.conf: those that are not sound are left out.
    ///
    /// # Errors
    /// When an address, the MTU or an option of the manifest makes no sense.
    pub fn new(
        interface: &Interface,
        hostname: Option<&str>,
        options: Option<&DhcpOptions>,
    ) -> Result<Self, GuestError> {
        Ok(Self {
            mac: interface.mac.parse()?,
            mtu: u16::try_from(interface.mtu)
                .ok()
                .filter(|mtu| *mtu >= SMALLEST_MTU)
                .ok_or(GuestError::Mtu(interface.mtu))?,
            hostname: hostname.map(str::to_owned).filter(|name| !name.is_empty() && name.len() <= 63),
            ipv4: ipv4(interface)?,
            ipv6: ipv6(interface)?,
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

fn parse<T: FromStr>(what: &'static str, value: &str) -> Result<T, GuestError> {
    value.parse().map_err(|_| GuestError::Address { what, value: value.to_owned() })
}

fn prefix(what: &'static str, value: u32, longest: u8) -> Result<u8, GuestError> {
    u8::try_from(value)
        .ok()
        .filter(|prefix| (1..=longest).contains(prefix))
        .ok_or(GuestError::Address { what, value: value.to_string() })
}

fn ipv4(interface: &Interface) -> Result<Option<Ipv4>, GuestError> {
    if interface.ipv4.is_empty() {
        return Ok(None);
    }
    Ok(Some(Ipv4 {
        address: parse("ipv4 address", &interface.ipv4)?,
        prefix: prefix("ipv4 prefix", interface.ipv4_prefix, 32)?,
        gateway: parse("ipv4 gateway", &interface.ipv4_gateway)?,
    }))
}

fn ipv6(interface: &Interface) -> Result<Option<Ipv6>, GuestError> {
    if interface.ipv6.is_empty() {
        return Ok(None);
    }
    let router = match interface.ipv6_link_local.as_str() {
        "" => None,
        address => Some(parse::<Ipv6Addr>("ipv6 link-local address", address)?),
    };
    if let Some(router) = router.filter(|router| !router.is_unicast_link_local()) {
        return Err(GuestError::Address { what: "ipv6 link-local address", value: router.to_string() });
    }
    Ok(Some(Ipv6 {
        address: parse("ipv6 address", &interface.ipv6)?,
        prefix: prefix("ipv6 prefix", interface.ipv6_prefix, 128)?,
        router,
    }))
}

/// The options of the manifest: 66, 67, 42 and 224 to 254.
fn extra(options: &DhcpOptions) -> Result<Vec<(u8, Vec<u8>)>, GuestError> {
    let DhcpOptions { boot_file_name, tftp_server_name, ntp_servers, private_options } = options;
    let mut extra = Vec::new();
    let mut text = |code: u8, value: &str| {
        if value.is_empty() || value.len() > 255 {
            return Err(GuestError::Option { code: code.into(), value: value.to_owned() });
        }
        extra.push((code, value.as_bytes().to_vec()));
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
            let address: Ipv4Addr =
                server.parse().map_err(|_| GuestError::Option { code: 42, value: server.clone() })?;
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
        }
    }

    pub(crate) fn guest() -> Guest {
        Guest::new(&interface(), Some("vm1"), None).unwrap()
    }

    #[test]
    fn the_handlers_facts_are_read() {
        let guest = guest();
        assert_eq!(guest.mac.to_string(), "02:12:34:56:78:9a");
        let ipv4 = guest.ipv4.unwrap();
        assert_eq!(ipv4.mask(), Ipv4Addr::new(255, 255, 255, 0));
        assert_eq!(ipv4.broadcast(), Ipv4Addr::new(10, 0, 2, 255));
        assert!(ipv4.gateway_is_near());
        assert_eq!(guest.dns4().collect::<Vec<_>>(), [Ipv4Addr::new(10, 96, 0, 10)]);
        assert_eq!(guest.dns6().count(), 1);
        assert_eq!(guest.search.len(), 2, "the bad domain is left out");
        let host = Ipv4 { prefix: 32, ..ipv4 };
        assert_eq!((host.mask(), host.gateway_is_near()), (Ipv4Addr::BROADCAST, false));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        type Change = fn(&mut Interface);
        let cases: [(Change, &str); 6] = [
            (|interface| interface.mac = "02:12".into(), "bad mac address"),
            (|interface| interface.mac = "02:12:34:56:78:9a:bc".into(), "bad mac address"),
            (|interface| interface.mtu = 100, "bad mtu 100"),
            (|interface| interface.ipv4 = "10.0.2".into(), "bad ipv4 address"),
            (|interface| interface.ipv4_prefix = 33, "bad ipv4 prefix"),
            (|interface| interface.ipv6_link_local = "fd00::1".into(), "bad ipv6 link-local address"),
        ];
        for (change, expected) in cases {
            let mut interface = interface();
            change(&mut interface);
            let text = Guest::new(&interface, None, None).unwrap_err().to_string();
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn options_of_the_manifest_become_codes() {
        let options = DhcpOptions {
            boot_file_name: Some("pxelinux.0".into()),
            tftp_server_name: Some("tftp.example".into()),
            ntp_servers: vec!["10.0.0.1".into(), "10.0.0.2".into()],
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
        for option in [223, 255, -1, 496] {
            let options = DhcpOptions {
                private_options: vec![DhcpPrivateOption { option, value: "x".into() }],
                ..Default::default()
            };
            assert!(Guest::new(&interface(), None, Some(&options)).is_err(), "{option}");
        }
    }
}
