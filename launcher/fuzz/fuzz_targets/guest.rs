//! The guest whose requests are answered.

use barevirt_protocol::v1::Interface;
use virt_launcher::dhcp::Guest;

/// A guest of the masquerade binding.
pub(super) fn guest() -> Guest {
    let interface = Interface {
        // All zeroes, so that the fuzzer finds the way past the check by itself.
        mac: "00:00:00:00:00:00".into(),
        mtu: 1450,
        ipv4: "10.0.2.2".into(),
        ipv4_prefix: 24,
        ipv4_gateway: "10.0.2.1".into(),
        ipv6: "fd10:0:2::2".into(),
        ipv6_prefix: 120,
        dns_servers: vec!["10.96.0.10".into(), "fd10:96::a".into()],
        dns_search: vec!["shop.svc.cluster.local".into(), "svc.cluster.local".into()],
        ..Interface::default()
    };
    Guest::new(&interface, Some("vm1"), None).expect("a sound guest")
}
