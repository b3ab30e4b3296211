//! The addresses behind a masquerade binding: a gateway, which is the pod's bridge, and the guest.
//!
//! KubeVirt's facts: the first address of the range is the gateway's and the second the guest's;
//! `10.0.2.0/24` and `fd10:0:2::/120` if the network names no range; host bits are cleared; parts of IPv4
//! addresses may have leading zeros and are decimal. Every pod may use the same addresses, because these
//! addresses never leave the pod.

use std::net::{Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use crate::addresses;
use crate::v1::PodNetwork;

/// Gateway and guest of one range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair<A> {
    /// Address of the bridge.
    pub gateway: A,
    /// Address of the guest.
    pub guest: A,
    /// Length of the prefix, in bits.
    pub prefix: u8,
}

/// The addresses in IPv4 where the network names no range.
pub const IPV4: Pair<Ipv4Addr> =
    Pair { gateway: Ipv4Addr::new(10, 0, 2, 1), guest: Ipv4Addr::new(10, 0, 2, 2), prefix: 24 };

/// The addresses in IPv6 where the network names no range.
pub const IPV6: Pair<Ipv6Addr> = Pair {
    gateway: Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 1),
    guest: Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 2),
    prefix: 120,
};

/// Host bits of the smallest range: for the network, the gateway, the guest and, in IPv4, the broadcast
/// address.
const HOST_BITS: u8 = 2;

/// What is wrong with a range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RangeError {
    /// Not an address, a slash and a length.
    #[error("{text:?} is not a range of {family} addresses, such as {example}")]
    Syntax {
        /// The given text, cut to a length that can be shown.
        text: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// A valid example.
        example: &'static str,
    },
    /// There is no room for two addresses.
    #[error(
        "{text:?} is too small for the addresses of a gateway and a guest: /{longest} is the longest prefix"
    )]
    Small {
        /// The given text.
        text: String,
        /// The longest prefix that is possible.
        longest: u8,
    },
    /// Guests cannot have such addresses.
    #[error("{text:?} is {kind}, which guests cannot be given")]
    Reserved {
        /// The given text.
        text: String,
        /// The kind of range.
        kind: &'static str,
    },
}

/// How many characters of a range a message repeats.
const SHOWN: usize = 64;

/// Gateway and guest in IPv4.
///
/// # Errors
///
/// The network's range is not a valid range, is too small, or has loopback, link-local, multicast or
/// unspecified addresses.
pub fn ipv4(network: &PodNetwork) -> Result<Pair<Ipv4Addr>, RangeError> {
    let Some(text) = given(network.vm_network_cidr.as_deref()) else { return Ok(IPV4) };
    let syntax = || RangeError::Syntax { text: shown(text), family: "IPv4", example: "10.0.2.0/24" };
    let (address, prefix) = split(text, 32).ok_or_else(syntax)?;
    let address = addresses::ipv4(address).ok_or_else(syntax)?.to_bits();
    let network = address & u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    roomy(text, prefix, 32)?;
    let first = Ipv4Addr::from_bits(network);
    let kinds = [
        (first.is_loopback(), "a range of loopback addresses"),
        (first.is_link_local(), "a range of link-local addresses"),
        (first.is_multicast(), "a range of multicast addresses"),
        (first.octets()[0] == 0, "a range of addresses of no network"),
        (first.octets()[0] >= 240, "a range of reserved addresses"),
    ];
    unreserved(text, &kinds)?;
    Ok(Pair { gateway: Ipv4Addr::from_bits(network + 1), guest: Ipv4Addr::from_bits(network + 2), prefix })
}

/// Gateway and guest in IPv6.
///
/// # Errors
///
/// As [`ipv4`].
pub fn ipv6(network: &PodNetwork) -> Result<Pair<Ipv6Addr>, RangeError> {
    let Some(text) = given(network.vm_ipv6_network_cidr.as_deref()) else { return Ok(IPV6) };
    let syntax = || RangeError::Syntax { text: shown(text), family: "IPv6", example: "fd10:0:2::/120" };
    let (address, prefix) = split(text, 128).ok_or_else(syntax)?;
    let address: Ipv6Addr = address.parse().map_err(|_| syntax())?;
    let network = address.to_bits() & u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
    roomy(text, prefix, 128)?;
    let first = Ipv6Addr::from_bits(network);
    let kinds = [
        (first.is_unicast_link_local(), "a range of link-local addresses"),
        (first.is_multicast(), "a range of multicast addresses"),
        (first.to_ipv4().is_some(), "a range of addresses that stand for IPv4 or for loopback"),
    ];
    unreserved(text, &kinds)?;
    Ok(Pair { gateway: Ipv6Addr::from_bits(network + 1), guest: Ipv6Addr::from_bits(network + 2), prefix })
}

fn given(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

fn split(text: &str, bits: u8) -> Option<(&str, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let prefix = number(prefix, 3)?;
    u8::try_from(prefix).ok().filter(|prefix| *prefix <= bits).map(|prefix| (address, prefix))
}

/// A decimal number of at most `digits` digits, without a sign.
fn number(text: &str, digits: usize) -> Option<u32> {
    let plain = (1..=digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

fn roomy(text: &str, prefix: u8, bits: u8) -> Result<(), RangeError> {
    let longest = bits - HOST_BITS;
    if prefix > longest { Err(RangeError::Small { text: shown(text), longest }) } else { Ok(()) }
}

fn unreserved(text: &str, kinds: &[(bool, &'static str)]) -> Result<(), RangeError> {
    match kinds.iter().find(|(is, _)| *is) {
        Some((_, kind)) => Err(RangeError::Reserved { text: shown(text), kind }),
        None => Ok(()),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

impl Pair<Ipv4Addr> {
    /// The range as it is written: `10.0.2.0/24`.
    #[must_use]
    pub fn range(&self) -> String {
        format!("{}/{}", Ipv4Addr::from_bits(self.gateway.to_bits().wrapping_sub(1)), self.prefix)
    }
}

#[cfg(test)]
mod tests;
