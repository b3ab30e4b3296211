use super::*;
use proptest::prelude::*;

fn network(ipv4: Option<&str>, ipv6: Option<&str>) -> PodNetwork {
    PodNetwork { vm_network_cidr: ipv4.map(str::to_owned), vm_ipv6_network_cidr: ipv6.map(str::to_owned) }
}

#[test]
fn without_a_range_it_is_the_usual_one() {
    for given in [None, Some("")] {
        assert_eq!(ipv4(&network(given, None)), Ok(IPV4));
        assert_eq!(ipv6(&network(None, given)), Ok(IPV6));
    }
    assert_eq!(ipv4(&network(Some("10.0.2.0/24"), None)), Ok(IPV4));
    assert_eq!(ipv6(&network(None, Some("fd10:0:2::/120"))), Ok(IPV6));
}

#[test]
fn first_and_second_address_of_the_range() {
    for (text, expected) in [
        ("10.10.10.0/24", "10.10.10.1 10.10.10.2 24"),
        ("192.168.7.77/16", "192.168.0.1 192.168.0.2 16"),
        ("172.16.0.4/30", "172.16.0.5 172.16.0.6 30"),
        ("010.010.000.0/8", "10.0.0.1 10.0.0.2 8"),
        ("10.0.089.0/24", "10.0.89.1 10.0.89.2 24"),
    ] {
        let Pair { gateway, guest, prefix } = ipv4(&network(Some(text), None)).unwrap();
        assert_eq!(format!("{gateway} {guest} {prefix}"), expected, "{text}");
    }
    let Pair { gateway, guest, prefix } = ipv6(&network(None, Some("fd10:10:10::ffff/112"))).unwrap();
    assert_eq!(format!("{gateway} {guest} {prefix}"), "fd10:10:10::1 fd10:10:10::2 112");
}

#[test]
fn bad_ranges_are_refused_in_words() {
    for (text, expected) in [
        ("10.0.2.0", "is not a range of IPv4 addresses, such as 10.0.2.0/24"),
        ("10.0.2/24", "is not a range"),
        ("10.0..0/24", "is not a range"),
        ("10.0.256.0/24", "is not a range"),
        ("10.0.2.0/33", "is not a range"),
        ("10.0.2.0/+4", "is not a range"),
        ("fd10::/120", "is not a range"),
        ("10.0.2.0/31", "/30 is the longest prefix"),
        ("127.1.0.0/16", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("224.0.0.0/24", "multicast"),
        ("0.0.0.0/0", "no network"),
        ("255.0.0.0/8", "reserved"),
    ] {
        let error = ipv4(&network(Some(text), None)).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(text), "{text}: {error}");
    }
    for (text, expected) in [
        ("10.0.2.0/24", "is not a range of IPv6 addresses, such as fd10:0:2::/120"),
        ("fd10::/127", "/126 is the longest prefix"),
        ("fe80::/64", "link-local"),
        ("ff02::/64", "multicast"),
        ("::/120", "loopback"),
        ("fd10::/129", "is not a range"),
    ] {
        let error = ipv6(&network(None, Some(text))).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let long = ipv4(&network(Some(&"9".repeat(10_000)), None)).unwrap_err();
    assert!(long.to_string().len() < 200, "{long}");
}

proptest! {
    #[test]
    fn whatever_is_given_is_a_range_or_refused(text in "[0-9a-f.:/]{0,40}") {
        if let Ok(pair) = ipv4(&network(Some(&text), None)) {
            prop_assert!(pair.prefix <= 30 && pair.guest.to_bits() == pair.gateway.to_bits() + 1);
        }
        if let Ok(pair) = ipv6(&network(None, Some(&text))) {
            prop_assert!(pair.prefix <= 126 && pair.guest.to_bits() == pair.gateway.to_bits() + 1);
        }
    }
}
