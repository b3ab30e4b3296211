//! Tests of the rules.

use super::*;

const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1));
const GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));

#[test]
fn without_ports_everything_is_forwarded() {
    let rules = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &[], None).rules;
    assert_eq!(rules.len(), 7);
    assert_eq!(rules[0].matches, [Match::Input("eth0".to_owned())]);
    assert_eq!(rules[0].action, Action::Dnat(GUEST));
    assert_eq!(rules[3].action, Action::Masquerade);
}

#[test]
fn with_ports_only_these_are() {
    let ports = [Port { protocol: Protocol::Tcp, number: 22 }, Port { protocol: Protocol::Udp, number: 53 }]
        .map(Ports::from);
    let rules = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &ports, None).rules;
    assert_eq!(rules.len(), 9);
    for rule in rules.iter().filter(|rule| matches!(rule.action, Action::Dnat(_))) {
        assert!(rule.matches.iter().any(|one| matches!(one, Match::Port(_))), "{rule:?}");
    }
}

#[test]
fn a_range_is_one_condition_and_a_range_of_one_port_is_that_port() {
    let range = |first, last| Ports { protocol: Protocol::Udp, first, last };
    let forwarded = |ports: Ports| {
        let rules = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &[ports], None).rules;
        let rules = rules.into_iter().filter(|rule| rule.action == Action::Dnat(GUEST));
        rules.map(|rule| rule.matches[1].clone()).collect::<Vec<_>>()
    };
    let many = range(5000, 5100);
    assert_eq!(forwarded(many), [Match::Ports(many), Match::Ports(many)]);
    let one = Match::Port(Port { protocol: Protocol::Udp, number: 53 });
    assert_eq!(forwarded(range(53, 53)), [one.clone(), one]);
}

#[test]
fn packets_with_foreign_source_addresses_are_dropped() {
    let six = |last| IpAddr::V6(Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, last));
    for (gateway, guest, count) in [(GATEWAY, GUEST, 3), (six(1), six(2), 5)] {
        let rules = masquerade("eth0", "k6t-eth0", gateway, guest, &[], None).rules;
        let filter: Vec<&Rule> = rules.iter().filter(|rule| rule.chain == Chain::Guest).collect();
        assert!(filter.iter().all(|rule| rule.matches[0] == Match::Input("k6t-eth0".to_owned())));
        assert_eq!((filter.len(), filter[0].action), (count, Action::Drop));
        assert_eq!(filter[count - 1].matches[1..], [Match::SourceIsNot(guest)]);
        assert_eq!(filter[count - 1].action, Action::Drop);
    }
}

#[test]
fn a_sidecar_keeps_its_ports_and_reaches_the_guest() {
    let port = Port { protocol: Protocol::Tcp, number: 80 };
    let pod = IpAddr::V4(Ipv4Addr::new(10, 244, 1, 7));
    let alone = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &[port.into()], None).rules;
    let rules = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &[port.into()], Some(pod)).rules;
    let more = rules.len() - alone.len();
    let entrance = Rule { chain: Chain::BehindMesh, ..alone[0].clone() };
    assert_eq!((more, &rules[more], &rules[more + 1..]), (22, &entrance, &alone[1..]));
    for (chain, condition) in [
        (Chain::BehindMesh, Match::Input("eth0".to_owned())),
        (Chain::Output, Match::Destination(Ipv4Addr::LOCALHOST.into())),
    ] {
        let own = Port { protocol: Protocol::Tcp, number: 15021 };
        let matches = vec![condition, Match::Port(own)];
        assert!(rules[..more].contains(&Rule { chain, matches, action: Action::Accept }), "{rules:?}");
    }
    let sidecar = Match::Source(Ipv4Addr::new(127, 0, 0, 6).into());
    let matches = vec![sidecar.clone(), Match::Destination(pod), Match::Port(port)];
    let there = Rule { chain: Chain::Output, matches, action: Action::Dnat(GUEST) };
    let matches = vec![sidecar, Match::Output("k6t-eth0".to_owned())];
    let back = Rule { chain: Chain::Postrouting, matches, action: Action::Snat(GATEWAY) };
    assert_eq!(rules[20..22], [there, back]);
}

#[test]
fn only_ssh_passes_by_a_mesh() {
    let pod = IpAddr::V4(Ipv4Addr::new(10, 244, 1, 7));
    let first = |ports: &[Ports]| {
        let rules = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, ports, Some(pod)).rules;
        rules.into_iter().filter(|rule| rule.chain == Chain::Prerouting).collect::<Vec<_>>()
    };
    let web = Ports { protocol: Protocol::Tcp, first: 80, last: 80 };
    let matches = vec![Match::Input("eth0".to_owned()), Match::Port(SSH)];
    let ssh = [Rule { chain: Chain::Prerouting, matches, action: Action::Dnat(GUEST) }];
    assert_eq!((first(&[]), first(&[web, SSH.into()])), (ssh.to_vec(), ssh.to_vec()));
    assert!(first(&[web]).is_empty());
    // A range may hold its port.
    let range = |protocol| Ports { protocol, first: 20, last: 30 };
    assert_eq!(first(&[range(Protocol::Tcp)]), ssh);
    assert!(first(&[range(Protocol::Udp)]).is_empty());
}

#[test]
fn a_table_has_the_chains_that_it_needs() {
    let chains = |ports: &[Ports], behind_sidecar: Option<IpAddr>| {
        masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, ports, behind_sidecar).chains().collect::<Vec<_>>()
    };
    // The last one has rules of another module.
    let [before, behind, rest @ .., _] = Chain::ALL;
    assert_eq!(chains(&[], None), [&[before][..], &rest].concat());
    assert_eq!(chains(&[], Some(GATEWAY)), [&[before, behind][..], &rest].concat());
    let web = Ports { protocol: Protocol::Tcp, first: 80, last: 80 };
    assert_eq!(chains(&[web], Some(GATEWAY)), [&[behind][..], &rest].concat());
}

#[test]
fn fingerprint_changes_with_any_rule() {
    let all = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &[], None);
    let port = Port { protocol: Protocol::Tcp, number: 22 };
    let one = masquerade("eth0", "k6t-eth0", GATEWAY, GUEST, &[port.into()], None);
    assert_eq!(all.fingerprint(), all.clone().fingerprint());
    assert_ne!(all.fingerprint(), one.fingerprint());
}
