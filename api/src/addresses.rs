//! Addresses as Kubernetes has always read them: `010.0.0.1` is 10.0.0.1. The standard library refuses
//! leading zeros, because some programs read them as octal. Older manifests contain them.

use std::net::{IpAddr, Ipv4Addr};

/// An IPv4 address: four decimal parts, leading zeros or not. `None` if the text is not an address.
///
/// ```
/// # use barevirt_api::addresses::ipv4;
/// assert_eq!(ipv4("0127.0.0.3"), Some([127, 0, 0, 3].into()));
/// assert_eq!(ipv4("256.0.0.1"), None);
/// ```
#[must_use]
pub fn ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut parts = text.split('.').map(part);
    let octets = [parts.next()??, parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then(|| octets.into())
}

fn part(text: &str) -> Option<u8> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = text.trim_start_matches('0');
    if digits.is_empty() { Some(0) } else { digits.parse().ok() }
}

/// An address of either family, an IPv4 one as [`ipv4`] reads it.
#[must_use]
pub fn ip(text: &str) -> Option<IpAddr> {
    ipv4(text).map(IpAddr::V4).or_else(|| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_say_nothing() {
        for (text, octets) in [
            ("10.0.2.1", Some([10, 0, 2, 1])),
            ("01.1.1.1", Some([1, 1, 1, 1])),
            ("0127.000.0.010", Some([127, 0, 0, 10])),
            ("000000000000000000001.0.0.0", Some([1, 0, 0, 0])),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("1.2.3.", None),
            ("1.2.3.0256", None),
            ("1.2.3.+4", None),
            ("1.2.3.0x4", None),
            ("", None),
        ] {
            assert_eq!(ipv4(text), octets.map(Ipv4Addr::from), "{text}");
        }
        assert_eq!(ip("fd00::1"), "fd00::1".parse().ok());
        assert_eq!(ip("01.1.1.1"), "1.1.1.1".parse().ok());
        assert_eq!(ip("localhost"), None);
    }
}
