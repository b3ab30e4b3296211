//! Addresses that the importer may connect to.
//!
//! The address of an image is chosen by users who may make DataVolumes, and the importer is in the network of their pods.
//! The target of a redirect is chosen by the server, and so is the server of a registry's tokens. So:
//!
//! - never to this pod, nor to link-local and other addresses where nodes have metadata services;
//! - never from a public server to a private address: a foreign server must not choose requests within the cluster;
//! - never to a private address at all, if the settings say so.
//!
//! The importer connects to exactly the address that was checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The network of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Forbidden: no image can be there.
    Forbidden,
    /// The network of an organisation: cluster, private networks.
    Private,
    /// The internet.
    Public,
}

/// The rule and its exceptions.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Whether the settings permit public addresses only.
    pub public_only: bool,
    /// Addresses that count as private although they would be forbidden. For tests.
    pub excepted: Vec<IpAddr>,
}

impl Addresses {
    /// Why an address in the network `to` must not be connected to, if so; `from`: the network of the server that led to it.
    pub(crate) fn forbids(&self, from: Option<Reach>, to: Reach) -> Option<&'static str> {
        let how = if from.is_some() { "another server leads to it" } else { "it is asked for" };
        if to == Reach::Forbidden {
            return Some(how);
        }
        if from == Some(Reach::Public) && to == Reach::Private {
            return Some(how);
        }
        let is_closed = self.public_only && to == Reach::Private;
        is_closed.then_some("the settings permit public addresses only")
    }

    /// Whether the address is that of the importer's own pod. No server is there; names that are not served lead there for a
    /// while, too.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        (address.is_loopback() || address.is_unspecified()) && !self.excepted.contains(&address)
    }

    /// The network of the address.
    #[must_use]
    pub fn reach(&self, address: IpAddr) -> Reach {
        let address = address.to_canonical();
        if self.excepted.contains(&address) {
            return Reach::Private;
        }
        match address {
            IpAddr::V4(address) => reach_v4(address),
            IpAddr::V6(address) => reach_v6(address),
        }
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    // Metadata services that are not link-local: of Azure, of Alibaba.
    const METADATA: [Ipv4Addr; 2] = [Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200)];
    let [a, b, ..] = address.octets();
    if address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || METADATA.contains(&address)
        || a == 0
        || a >= 240
    {
        return Reach::Forbidden;
    }
    // 100.64.0.0/10 is shared by providers and used by clusters; 198.18.0.0/15 is for benchmarks.
    let shared = a == 100 && (64..128).contains(&b) || a == 198 && (18..20).contains(&b);
    if address.is_private() || shared { Reach::Private } else { Reach::Public }
}

fn reach_v6(address: Ipv6Addr) -> Reach {
    // Metadata services that are not link-local: of Amazon, of Google.
    const METADATA: [Ipv6Addr; 2] = [
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
        Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    ];
    let segments = address.segments();
    if address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || address.is_unicast_link_local()
        || METADATA.contains(&address)
    {
        return Reach::Forbidden;
    }
    // Translated (64:ff9b::/96) and tunnelled (2002::/16) addresses count as the address that they contain.
    let [a, b] = match segments {
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] | [0x2002, a, b, ..] => [a, b],
        [first, ..] => {
            return if first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0 {
                Reach::Private
            } else {
                Reach::Public
            };
        }
    };
    reach_v4(Ipv4Addr::from((u32::from(a) << 16) | u32::from(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_where_it_leads_however_it_is_written() {
        let rule = Addresses::default();
        for (address, reach) in [
            ("169.254.169.254", Reach::Forbidden),
            ("168.63.129.16", Reach::Forbidden),
            ("100.100.100.200", Reach::Forbidden),
            ("127.0.0.1", Reach::Forbidden),
            ("0.0.0.0", Reach::Forbidden),
            ("224.0.0.1", Reach::Forbidden),
            ("255.255.255.255", Reach::Forbidden),
            ("::1", Reach::Forbidden),
            ("::", Reach::Forbidden),
            ("fe80::1", Reach::Forbidden),
            ("fd00:ec2::254", Reach::Forbidden),
            ("fd20:ce::254", Reach::Forbidden),
            ("::ffff:169.254.169.254", Reach::Forbidden),
            ("64:ff9b::a9fe:a9fe", Reach::Forbidden),
            ("64:ff9b::a83f:8110", Reach::Forbidden),
            ("2002:7f00:1::1", Reach::Forbidden),
            ("10.0.0.1", Reach::Private),
            ("192.168.7.7", Reach::Private),
            ("172.16.0.9", Reach::Private),
            ("100.64.1.1", Reach::Private),
            ("100.100.100.201", Reach::Private),
            ("fd12::1", Reach::Private),
            ("fd20:ce::253", Reach::Private),
            ("9.9.9.9", Reach::Public),
            ("168.63.129.17", Reach::Public),
            ("100.63.1.1", Reach::Public),
            ("2620:fe::fe", Reach::Public),
        ] {
            assert_eq!(rule.reach(address.parse().unwrap()), reach, "{address}");
        }
        let excepted = Addresses { excepted: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)], ..Addresses::default() };
        assert_eq!(excepted.reach("127.0.0.1".parse().unwrap()), Reach::Private);
        assert_eq!(excepted.reach("127.0.0.2".parse().unwrap()), Reach::Forbidden);
    }

    #[test]
    fn addresses_of_the_importers_own_pod_are_distinguished_from_other_forbidden_ones() {
        let rule = Addresses::default();
        for (address, own) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.2", true),
            ("0.0.0.0", true),
            ("::", true),
            ("169.254.169.254", false),
            ("224.0.0.1", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(rule.is_own(address.parse().unwrap()), own, "{address}");
        }
    }

    #[test]
    fn a_public_server_leads_to_public_ones_alone() {
        let (forbidden, private, public) = (Reach::Forbidden, Reach::Private, Reach::Public);
        for (from, to, may, if_public_only) in [
            (None, private, true, false),
            (None, public, true, true),
            (None, forbidden, false, false),
            (Some(private), private, true, false),
            (Some(private), public, true, true),
            (Some(private), forbidden, false, false),
            (Some(public), public, true, true),
            (Some(public), private, false, false),
            (Some(public), forbidden, false, false),
        ] {
            for (public_only, may) in [(false, may), (true, if_public_only)] {
                let rule = Addresses { public_only, ..Addresses::default() };
                assert_eq!(rule.forbids(from, to).is_none(), may, "{from:?} to {to:?} {public_only}");
            }
        }
    }
}
