//! Interfaces in a VMI's status. The sources are the handler for those that it set up, the launcher for their
//! cards, the controller for their networks, and the guest agent for these and others.

use barevirt_api::networks::{
    DOWN, SOURCE_AGENT, SOURCE_DOMAIN, SOURCE_MULTUS, UP, is_reported_by, with_source,
};
use barevirt_api::v1::NetworkInterfaceStatus;
use barevirt_protocol::v1::{Card, GuestInterface};

/// Most interfaces that only the guest knows, as in KubeVirt.
pub(super) const MOST_GUEST_ONLY: usize = 10;

/// What is reported about an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name in the spec.
    pub name: String,
    /// The guest's MAC address; empty if it is unknown.
    pub mac: String,
    /// The pod's interface.
    pub pod_interface: String,
    /// The pod's addresses, at which the guest can be reached, the primary one first.
    pub addresses: Vec<String>,
    /// Number of its queues.
    pub queues: u32,
    /// Whether it is on the pod network.
    pub is_primary: bool,
    /// Whether its card is a device of the node, whose queues and link are unknown.
    pub is_device: bool,
    /// Whether the guest has released its card, but the network could not be removed yet.
    pub lingers: bool,
}

/// The interfaces for the status, based on `before`: the interfaces `made`, whose `cards` the launcher knows,
/// and those of the guest `agent`. The controller's entries for networks without a card stay.
pub(super) fn report(
    before: &[NetworkInterfaceStatus],
    made: &[Interface],
    cards: &[Card],
    agent: &[GuestInterface],
) -> Vec<NetworkInterfaceStatus> {
    let card = |name: &str| cards.iter().find(|card| card.name == name);
    // A launcher that reports no cards still has those that it started with. One of an earlier version does not report devices
    // of the node.
    let has = |one: &&Interface| {
        let is_plugged = card(&one.name).map(|card| card.plugged);
        one.lingers || cards.is_empty() || is_plugged.unwrap_or(one.is_device)
    };
    let mut interfaces: Vec<_> =
        made.iter().filter(has).map(|made| (made.is_primary, interface(made, card(&made.name)))).collect();
    // As in KubeVirt: the column IP of the instance, and clients, take the first entry's address.
    interfaces.sort_by_key(|(is_primary, _)| !is_primary);
    let mut guest_only = Vec::new();
    for reported in agent {
        by_agent(&mut interfaces, &mut guest_only, reported);
    }
    let mut interfaces: Vec<_> = interfaces.into_iter().map(|(_, one)| one).collect();
    for seen in before.iter().filter(|seen| has_source(seen, SOURCE_MULTUS)) {
        match interfaces.iter_mut().find(|one| one.name == seen.name) {
            Some(one) => add_source(one, SOURCE_MULTUS),
            None => interfaces.push(attached(seen)),
        }
    }
    interfaces.extend(guest_only);
    interfaces
}

fn interface(seen: &Interface, card: Option<&Card>) -> NetworkInterfaceStatus {
    let is_down = card.is_some_and(|card| card.down);
    // Where nobody has given the guest an address, it has the address that it announced to its neighbours. On the pod network that counts for
    // nothing: others connect to that address.
    let heard = card.filter(|_| seen.addresses.is_empty() && !seen.is_primary).map(|card| &card.addresses);
    let address = seen.addresses.first().or_else(|| first(heard?));
    NetworkInterfaceStatus {
        ip_address: address.cloned(),
        ip_addresses: heard.unwrap_or(&seen.addresses).clone(),
        mac: Some(seen.mac.clone()).filter(|mac| !mac.is_empty()),
        name: Some(seen.name.clone()),
        pod_interface_name: Some(seen.pod_interface.clone()),
        info_source: Some(SOURCE_DOMAIN.to_owned()),
        link_state: (!seen.is_device).then(|| if is_down { DOWN } else { UP }.to_owned()),
        queue_count: i32::try_from(seen.queues).ok().filter(|_| !seen.is_device),
        ..NetworkInterfaceStatus::default()
    }
}

/// The address that is shown where there is room for one, as in KubeVirt: the first one of IPv4, or else the first one.
fn first(addresses: &[String]) -> Option<&String> {
    addresses.iter().find(|address| !address.contains(':')).or_else(|| addresses.first())
}

/// A network to which the pod is attached, but not the guest.
fn attached(seen: &NetworkInterfaceStatus) -> NetworkInterfaceStatus {
    NetworkInterfaceStatus {
        name: seen.name.clone(),
        pod_interface_name: seen.pod_interface_name.clone(),
        info_source: Some(SOURCE_MULTUS.to_owned()),
        ..NetworkInterfaceStatus::default()
    }
}

fn has_source(one: &NetworkInterfaceStatus, source: &str) -> bool {
    is_reported_by(one.info_source.as_deref(), source)
}

fn add_source(one: &mut NetworkInterfaceStatus, source: &str) {
    one.info_source = with_source(one.info_source.as_deref(), source, true);
}

/// Adds the guest agent's report about an interface. On the pod network it only provides the interface's name
/// in the guest: the pod determines the addresses, and the guest can neither add nor remove one. On other
/// networks the addresses that it reports take the place of those that the guest was given or has announced.
/// Interfaces that only the guest knows are listed separately.
fn by_agent(
    interfaces: &mut [(bool, NetworkInterfaceStatus)],
    guest_only: &mut Vec<NetworkInterfaceStatus>,
    reported: &GuestInterface,
) {
    let GuestInterface { name, mac, addresses } = reported;
    let first = first(addresses);
    let ours = |(_, one): &&mut (bool, NetworkInterfaceStatus)| {
        let known = one.mac.as_deref().is_some_and(|known| known.eq_ignore_ascii_case(mac));
        known && !has_source(one, SOURCE_AGENT)
    };
    if let Some((is_primary, one)) = interfaces.iter_mut().find(ours) {
        one.interface_name = Some(name.clone());
        add_source(one, SOURCE_AGENT);
        if !*is_primary && !addresses.is_empty() {
            (one.ip_address, one.ip_addresses) = (first.cloned(), addresses.clone());
        }
        return;
    }
    if guest_only.len() >= MOST_GUEST_ONLY {
        return;
    }
    guest_only.push(NetworkInterfaceStatus {
        ip_address: first.cloned(),
        ip_addresses: addresses.clone(),
        mac: (!mac.is_empty()).then(|| mac.clone()),
        interface_name: Some(name.clone()),
        info_source: Some(SOURCE_AGENT.to_owned()),
        ..NetworkInterfaceStatus::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(name: &str, mac: &str, is_primary: bool) -> Interface {
        Interface {
            name: name.to_owned(),
            mac: mac.to_owned(),
            pod_interface: format!("pod-{name}"),
            addresses: if is_primary { vec!["10.244.0.5".to_owned()] } else { Vec::new() },
            queues: 2,
            is_primary,
            is_device: false,
            lingers: false,
        }
    }

    fn seen(name: &str, source: &str) -> NetworkInterfaceStatus {
        NetworkInterfaceStatus {
            name: Some(name.to_owned()),
            pod_interface_name: Some(format!("pod-{name}")),
            info_source: Some(source.to_owned()),
            ..NetworkInterfaceStatus::default()
        }
    }

    fn sources(all: &[NetworkInterfaceStatus]) -> Vec<(&str, &str)> {
        let source =
            |one: &NetworkInterfaceStatus| one.info_source.clone().unwrap_or_default().leak() as &str;
        all.iter().map(|one| (one.name.as_deref().unwrap_or_default(), source(one))).collect()
    }

    #[test]
    fn interface_entries_of_the_controller_are_kept_and_merged() {
        let made = [made("default", "02:01", true), made("red", "02:02", false)];
        let told = [GuestInterface {
            name: "enp2s0".to_owned(),
            mac: "02:02".to_owned(),
            addresses: vec!["fe80::2".to_owned(), "10.9.0.2".to_owned()],
        }];
        let before = [seen("red", "multus-status"), seen("blue", "multus-status"), seen("gone", "domain")];
        let after = report(&before, &made, &[], &told);
        let expected =
            [("default", "domain"), ("red", "domain, guest-agent, multus-status"), ("blue", "multus-status")];
        assert_eq!(sources(&after), expected);
        assert_eq!((after[1].ip_address.as_deref(), after[1].ip_addresses.len()), (Some("10.9.0.2"), 2));
        assert_eq!(after[2].pod_interface_name.as_deref(), Some("pod-blue"));
        // Once written, the entry stays.
        assert_eq!(report(&after, &made, &[], &told), after);
    }

    #[test]
    fn the_card_on_the_pod_network_comes_first_wherever_the_manifest_lists_it() {
        let made =
            [made("red", "02:02", false), made("blue", "02:03", false), made("default", "02:01", true)];
        let after = report(&[seen("red", "multus-status")], &made, &[], &[]);
        let expected = [("default", "domain"), ("red", "domain, multus-status"), ("blue", "domain")];
        assert_eq!(sources(&after), expected);
        assert_eq!(after[0].ip_address.as_deref(), Some("10.244.0.5"));
        assert_eq!(report(&after, &made, &[], &[]), after);
    }

    #[test]
    fn addresses_that_a_guest_announces_are_shown_until_its_agent_reports_and_never_on_the_pod_network() {
        let addresses = vec!["fd00::7".to_owned(), "10.9.0.7".to_owned()];
        let card = |name: &str| Card {
            name: name.to_owned(),
            plugged: true,
            addresses: addresses.clone(),
            ..Card::default()
        };
        let cards = [card("default"), card("red"), card("leased")];
        let mut primary = made("default", "02:01", true);
        primary.addresses.clear();
        let mut leased = made("leased", "02:03", false);
        leased.addresses.push("10.8.0.1".to_owned());
        let made = [primary, made("red", "02:02", false), leased];
        let after = report(&[], &made, &cards, &[]);
        let shown = |one: &NetworkInterfaceStatus| (one.ip_address.clone(), one.ip_addresses.clone());
        assert_eq!(shown(&after[0]), (None, Vec::new()));
        assert_eq!(shown(&after[1]), (Some("10.9.0.7".to_owned()), addresses.clone()));
        assert_eq!(shown(&after[2]), (Some("10.8.0.1".to_owned()), vec!["10.8.0.1".to_owned()]));
        assert_eq!(sources(&after)[1], ("red", "domain"));
        let told = GuestInterface {
            name: "eth1".to_owned(),
            mac: "02:02".to_owned(),
            addresses: vec!["10.9.0.8".to_owned()],
        };
        let after = report(&after, &made, &cards, &[told]);
        assert_eq!(shown(&after[1]), (Some("10.9.0.8".to_owned()), vec!["10.9.0.8".to_owned()]));
    }

    #[test]
    fn a_device_of_the_node_has_neither_queues_nor_a_link_state() {
        let device = Interface { is_device: true, ..made("fast", "", false) };
        let made = [made("default", "02:01", true), device];
        let card = Card { name: "default".to_owned(), plugged: true, ..Card::default() };
        let after = report(&[seen("fast", "multus-status")], &made, &[card], &[]);
        assert_eq!(sources(&after), [("default", "domain"), ("fast", "domain, multus-status")]);
        let NetworkInterfaceStatus { mac, link_state, queue_count, pod_interface_name, .. } = &after[1];
        assert_eq!((mac, link_state, queue_count), (&None, &None, &None));
        assert_eq!(pod_interface_name.as_deref(), Some("pod-fast"));
    }

    #[test]
    fn a_device_of_the_node_is_gone_once_the_launcher_says_so() {
        let device = Interface { is_device: true, ..made("fast", "", false) };
        let made = [made("default", "02:01", true), device];
        let card = |name: &str, plugged| Card { name: name.to_owned(), plugged, ..Card::default() };
        let before = [seen("fast", "domain, multus-status")];
        for (plugged, told) in [(true, "domain, multus-status"), (false, "multus-status")] {
            let cards = [card("default", true), card("fast", plugged)];
            assert_eq!(sources(&report(&before, &made, &cards, &[]))[1], ("fast", told));
        }
    }

    #[test]
    fn an_unplugged_card_has_no_interface_status() {
        let made = [made("default", "02:01", true), made("red", "02:02", false)];
        let card =
            |name: &str, plugged, down| Card { name: name.to_owned(), plugged, down, ..Card::default() };
        let before = [seen("red", "domain, multus-status")];
        let cards = [card("default", true, true), card("red", false, false)];
        let after = report(&before, &made, &cards, &[]);
        assert_eq!(sources(&after), [("default", "domain"), ("red", "multus-status")]);
        assert_eq!(after[0].link_state.as_deref(), Some("down"));
        assert_eq!((after[1].link_state.as_deref(), after[1].mac.as_deref()), (None, None));
        // As long as its network exists, its entry does not change, so nothing else removes the link from the
        // pod.
        let lingers = [made[0].clone(), Interface { lingers: true, ..made[1].clone() }];
        let after = report(&before, &lingers, &cards[..1], &[]);
        assert_eq!(sources(&after)[1], ("red", "domain, multus-status"));
    }
}
