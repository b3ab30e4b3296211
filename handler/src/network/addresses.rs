//! MAC addresses.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use thiserror::Error;

/// MAC address of the bridge. The bridge is the guest's gateway, so no guest may use this address.
pub const BRIDGE_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0]);

/// What is wrong with a user's address.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    /// Not six pairs of hexadecimal digits, or a multicast address.
    #[error("MAC address {0:?} is not a 48-bit unicast address")]
    Mac(String),
}

/// A MAC address, 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The MAC address of a link, if it has a valid unicast one.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 6] = bytes.try_into().ok()?;
        (bytes != [0; 6] && bytes[0] & 1 == 0).then_some(Self(bytes))
    }

    /// An address derived from this one, for a link whose own address the guest has. It is local and unicast.
    pub fn other(self) -> Self {
        let digest = Sha256::new_with_prefix(self.0).chain_update("port").finalize();
        let mut bytes = [0; 6];
        bytes.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        bytes[0] = bytes[0] & 0xfc | 0x02;
        Self(bytes)
    }

    /// The link-local IPv6 address for this MAC address (RFC 4291, modified EUI-64).
    pub fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 0x02, b, c, 0xff, 0xfe, d, e, f])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl FromStr for MacAddress {
    type Err = AddressError;

    /// Parses `02:00:00:00:00:01`. Dashes are accepted too, as in KubeVirt.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let bad = || AddressError::Mac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() || bytes[0] & 1 == 1 {
            return Err(bad());
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_read_strictly() {
        assert_eq!("DE-AD-00-00-BE-AF".parse(), Ok(MacAddress([0xde, 0xad, 0, 0, 0xbe, 0xaf])));
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:0",
            "01:00:00:00:00:01",
            "zz:00:00:00:00:00",
        ] {
            assert!(bad.parse::<MacAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn another_address_is_always_the_same_and_local() {
        let mac = MacAddress([0x0a, 0x58, 0x0a, 0xf4, 1, 7]);
        let other = mac.other();
        assert_eq!((other, other.0[0] & 3), (mac.other(), 2));
        assert!(other != mac && MacAddress([0x0a, 0x58, 0x0a, 0xf4, 1, 8]).other() != other);
        assert_eq!(MacAddress::read(&mac.0), Some(mac));
        for none in [&[0; 6][..], &[1; 6], &[2; 5], &[]] {
            assert_eq!(MacAddress::read(none), None);
        }
    }

    #[test]
    fn link_local_address_of_the_bridge() {
        assert_eq!(BRIDGE_MAC.link_local(), "fe80::ff:fe00:0".parse::<Ipv6Addr>().unwrap());
    }
}
