//! MAC addresses.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use thiserror::Error;

/// MAC address of the bridge: it is the guest's gateway, and no guest may have it.
pub const BRIDGE_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0]);

/// What is wrong with an address that the user gave.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    /// Not six hexadecimal pairs, or a multicast address.
    #[error("MAC address {0:?} is not a 48-bit unicast address")]
    Mac(String),
}

/// A MAC address, 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The link-local IPv6 address that follows from this MAC address (RFC 4291, modified EUI-64).
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

    /// Reads `02:00:00:00:00:01`; dashes are taken too, as KubeVirt does.
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
    fn link_local_address_of_the_bridge() {
        assert_eq!(BRIDGE_MAC.link_local(), "fe80::ff:fe00:0".parse::<Ipv6Addr>().unwrap());
    }
}
