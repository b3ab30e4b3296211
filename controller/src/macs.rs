//! MAC addresses of guests on shared networks, to find duplicates.
//!
//! Two cards with the same address receive each other's packets. With the masquerade binding the guest is alone on its
//! network, and clones of a machine may have the same address there; so only bridged cards count, each on its own network.
//! Definitions whose configurations name the same [segment](Segment) are one network; they are looked up where an address is
//! also on another definition. A duplicate is reported as an event; nothing is refused: see
//! `docs/adr/0016-a-duplicate-mac-address-is-reported.md`.

mod segment;

pub use segment::{Segment, Segments};

use barevirt_api::names::is_final_phase;
use barevirt_api::networks::{self, Attachment};
use barevirt_api::v1::{Interface, VirtualMachineInstance};
use barevirt_api::validate::parse_mac;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A MAC address on a network: the pod network, or that of a definition.
type Place = ([u8; 6], Option<Attachment>);
/// Namespace and name of an instance.
type Instance = (String, String);

/// Most other instances with the same address that are named.
const SHOWN: usize = 3;

/// All known addresses.
#[derive(Debug, Default)]
pub struct Macs(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    of: BTreeMap<Instance, Vec<Place>>,
    by: BTreeMap<Place, BTreeSet<Instance>>,
}

impl Macs {
    /// Records the addresses of an instance.
    pub(crate) fn saw(&self, vmi: &VirtualMachineInstance) {
        let ended = is_final_phase(barevirt_plan::phase(vmi));
        let places =
            if ended { Vec::new() } else { places(vmi).into_iter().map(|(place, _)| place).collect() };
        self.lock().note(instance(vmi), places);
    }

    /// Forgets the addresses of an instance.
    pub(crate) fn gone(&self, namespace: &str, name: &str) {
        self.lock().note((namespace.to_owned(), name.to_owned()), Vec::new());
    }

    /// The definitions that have to be compared: those on which other instances have an address of this instance's cards, and
    /// those of these cards. Empty where no address is on two definitions.
    pub(crate) fn compared(&self, vmi: &VirtualMachineInstance) -> BTreeSet<Attachment> {
        let (own, known) = (instance(vmi), self.lock());
        let mut compared = BTreeSet::new();
        for ((mac, network), _) in places(vmi) {
            let Some(network) = network else { continue };
            let others = known.with(mac).filter(|(_, holders)| holders.iter().any(|other| *other != own));
            let others: Vec<_> =
                others.filter_map(|(other, _)| other).filter(|other| **other != network).collect();
            if !others.is_empty() {
                compared.extend(others.into_iter().cloned());
                compared.insert(network);
            }
        }
        compared
    }

    /// A message for each card whose address another instance's card has, too, on each network that is the same one.
    pub(crate) fn same(&self, vmi: &VirtualMachineInstance, segments: &Segments) -> Vec<String> {
        let (own, known) = (instance(vmi), self.lock());
        let mut told = Vec::new();
        for ((mac, network), card) in places(vmi) {
            for (other, holders) in known.with(mac) {
                if !segment::is_one(network.as_ref(), other, segments) {
                    continue;
                }
                let Some(holders) = named(holders, &own) else { continue };
                let place = shown(network.as_ref(), other);
                let mac = mac_text(mac);
                told.push(format!(
                    "interface {card} has the MAC address {mac} of a card of {holders} on {place}"
                ));
            }
        }
        told
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The networks on which cards have that address, each with their instances.
    fn with(&self, mac: [u8; 6]) -> impl Iterator<Item = (Option<&Attachment>, &BTreeSet<Instance>)> {
        let first: Place = (mac, None);
        let found = self.by.range(first..).take_while(move |((one, _), _)| *one == mac);
        found.map(|((_, network), holders)| (network.as_ref(), holders))
    }

    fn note(&mut self, instance: Instance, places: Vec<Place>) {
        let former = if places.is_empty() {
            self.of.remove(&instance)
        } else {
            self.of.insert(instance.clone(), places.clone())
        };
        for place in former.into_iter().flatten() {
            if let Some(there) = self.by.get_mut(&place) {
                there.remove(&instance);
                if there.is_empty() {
                    self.by.remove(&place);
                }
            }
        }
        for place in places {
            self.by.entry(place).or_default().insert(instance.clone());
        }
    }
}

/// The first of these instances beside this one, and how many more there are; `None` if there is no other.
fn named(holders: &BTreeSet<Instance>, own: &Instance) -> Option<String> {
    let others = holders.iter().filter(|other| *other != own);
    let mut names: Vec<String> = others.map(|(namespace, name)| format!("{namespace}/{name}")).collect();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{}{rest}", names.join(", ")))
}

/// The network of the other cards, and that it is also the one of the card itself, where that has another name.
fn shown(own: Option<&Attachment>, other: Option<&Attachment>) -> String {
    match (own, other) {
        (_, None) => "the pod network".to_owned(),
        (Some(own), Some(other)) if own != other => {
            format!("network {other}, which has the same bridge or link as {own}")
        }
        (_, Some(other)) => format!("network {other}"),
    }
}

/// The address in its usual notation.
fn mac_text(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

fn instance(vmi: &VirtualMachineInstance) -> Instance {
    (vmi.namespace().unwrap_or_default(), vmi.name_any())
}

/// The cards of an instance that are stations of their own, and whose addresses are known.
fn places(vmi: &VirtualMachineInstance) -> Vec<(Place, &str)> {
    let namespace = vmi.namespace().unwrap_or_default();
    let cards = vmi.spec.domain.devices.interfaces.iter();
    // With a binding plugin and with SR-IOV, too, the card is a station of its own on the network.
    let is_station =
        |card: &Interface| card.bridge.is_some() || card.binding.is_some() || card.sriov.is_some();
    let stations = cards.filter(|card| is_station(card) && !networks::is_absent(card));
    let place = |card: &Interface| {
        let network = vmi.spec.networks.iter().find(|network| network.name == card.name)?;
        let named = network.multus.as_ref().map(|multus| Attachment::of(&namespace, &multus.network_name));
        Some((parse_mac(address(vmi, card)?)?, named))
    };
    stations.filter_map(|card| Some((place(card)?, card.name.as_str()))).collect()
}

/// The MAC address of a card: the one that the instance names, or else the one that the guest has. The latter comes from the
/// pod's link, so it is known once the guest has the card.
fn address<'a>(vmi: &'a VirtualMachineInstance, card: &'a Interface) -> Option<&'a str> {
    let given = card.mac_address.as_deref().filter(|given| !given.is_empty());
    let reported = || {
        let mut cards = vmi.status.as_ref()?.interfaces.iter();
        cards.find(|entry| entry.name.as_deref() == Some(card.name.as_str()))?.mac.as_deref()
    };
    given.or_else(reported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(name: &str, interface: Value, network: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"domain": {"devices": {"interfaces": [interface]}}, "networks": [network]},
        }))
        .unwrap()
    }

    fn on(name: &str, mac: &str, network: &str) -> VirtualMachineInstance {
        let interface = json!({"name": "red", "bridge": {}, "macAddress": mac});
        vmi(name, interface, json!({"name": "red", "multus": {"networkName": network}}))
    }

    /// Where no definition was looked up.
    fn same(macs: &Macs, vmi: &VirtualMachineInstance) -> Vec<String> {
        macs.same(vmi, &Segments::new())
    }

    #[test]
    fn a_duplicate_address_on_two_definitions_of_one_bridge_is_reported() {
        let macs = Macs::default();
        macs.saw(&on("a", "02:00:00:00:00:01", "blue"));
        macs.saw(&on("c", "02:00:00:00:00:02", "red"));
        let twin = on("b", "02:00:00:00:00:01", "net/green");
        let [blue, green] = [("shop", "blue"), ("net", "green")].map(|(of, name)| Attachment::of(of, name));
        // Only where an address is on two definitions is there anything to look up.
        assert_eq!(macs.compared(&twin), BTreeSet::from([green.clone(), blue.clone()]));
        assert!(macs.compared(&on("b", "02:00:00:00:00:01", "blue")).is_empty());
        assert!(macs.compared(&on("b", "02:00:00:00:00:03", "net/green")).is_empty());
        assert!(macs.compared(&on("a", "02:00:00:00:00:01", "net/green")).is_empty(), "its own card");

        assert_eq!(same(&macs, &twin), [""; 0]);
        let config = |bridge: &str| Segment::of(&json!({"type": "bridge", "bridge": bridge}).to_string());
        let segments = |other: &str| {
            let pairs = [(blue.clone(), config("br0")), (green.clone(), config(other))];
            pairs.into_iter().filter_map(|(of, segment)| Some((of, segment?))).collect::<Segments>()
        };
        let told = "interface red has the MAC address 02:00:00:00:00:01 of a card of shop/a on network shop/blue, \
                    which has the same bridge or link as net/green";
        assert_eq!(macs.same(&twin, &segments("br0")), [told]);
        assert_eq!(macs.same(&twin, &segments("br1")), [""; 0]);
        // A station of the pod network is on none of these.
        let card = json!({"name": "d", "bridge": {}, "macAddress": "02:00:00:00:00:01"});
        macs.saw(&vmi("d", card, json!({"name": "d", "pod": {}})));
        assert_eq!(macs.same(&twin, &segments("br0")), [told]);
        assert_eq!(macs.compared(&twin), BTreeSet::from([green, blue]));
    }

    #[test]
    fn a_duplicate_address_on_the_same_network_is_reported() {
        let macs = Macs::default();
        macs.saw(&on("a", "02:00:00:00:00:01", "blue"));
        let twin = on("b", "02-00-00-00-00-01", "shop/blue");
        let told =
            ["interface red has the MAC address 02:00:00:00:00:01 of a card of shop/a on network shop/blue"];
        assert_eq!(same(&macs, &twin), told);
        macs.saw(&twin);
        assert_eq!(same(&macs, &twin), told);
        for other in [on("b", "02:00:00:00:00:01", "net/blue"), on("b", "02:00:00:00:00:02", "blue")] {
            assert_eq!(same(&macs, &other), [""; 0]);
        }
        for name in ["c", "d", "e"] {
            macs.saw(&on(name, "02:00:00:00:00:01", "blue"));
        }
        assert!(
            same(&macs, &on("f", "02:00:00:00:00:01", "blue"))[0]
                .contains("shop/a, shop/b, shop/c and 2 more")
        );
    }

    #[test]
    fn mac_addresses_of_deleted_and_final_instances_do_not_conflict() {
        let macs = Macs::default();
        let (first, twin) = (on("a", "02:00:00:00:00:01", "blue"), on("b", "02:00:00:00:00:01", "blue"));
        macs.saw(&first);
        macs.gone("shop", "a");
        assert_eq!(same(&macs, &twin), [""; 0]);
        macs.saw(&first);
        let mut ended = first.clone();
        ended.status.get_or_insert_default().phase = Some("Failed".to_owned());
        macs.saw(&ended);
        assert_eq!(same(&macs, &twin), [""; 0]);
        let masked = |name: &str| {
            let interface = json!({"name": "a", "masquerade": {}, "macAddress": "02:00:00:00:00:01"});
            vmi(name, interface, json!({"name": "a", "pod": {}}))
        };
        macs.saw(&masked("a"));
        assert_eq!(same(&macs, &masked("b")), [""; 0]);
        assert!(macs.lock().of.is_empty() && macs.lock().by.is_empty());
    }

    /// With this MAC address of its only card in its status.
    fn reporting(mut vmi: VirtualMachineInstance, mac: &str) -> VirtualMachineInstance {
        let card = &vmi.spec.domain.devices.interfaces[0].name;
        let entry = serde_json::from_value(json!({"name": card, "mac": mac})).unwrap();
        vmi.status.get_or_insert_default().interfaces = vec![entry];
        vmi
    }

    #[test]
    fn a_card_of_the_node_counts_where_its_address_is_named_or_reported() {
        let macs = Macs::default();
        macs.saw(&on("a", "02:00:00:00:00:01", "blue"));
        let function = |mac: Value| {
            let card = json!({"name": "red", "sriov": {}, "macAddress": mac});
            vmi("b", card, json!({"name": "red", "multus": {"networkName": "blue"}}))
        };
        assert_eq!(same(&macs, &function(json!("02:00:00:00:00:01"))).len(), 1);
        assert_eq!(same(&macs, &function(Value::Null)), [""; 0]);
        assert_eq!(same(&macs, &reporting(function(Value::Null), "02:00:00:00:00:01")).len(), 1);
    }

    #[test]
    fn a_card_without_a_named_address_counts_with_the_one_that_its_guest_has() {
        let card = |binding: &str| json!({"name": "red", binding: {"name": "plugin"}});
        for binding in ["bridge", "binding"] {
            let network = json!({"name": "red", "multus": {"networkName": "blue"}});
            let nameless = vmi("a", card(binding), network);
            let macs = Macs::default();
            macs.saw(&nameless);
            // It gets the address of its pod's link, which follows from nothing that is known before.
            assert!(macs.lock().of.is_empty(), "{binding}");
            macs.saw(&reporting(nameless, "02:00:00:00:00:0a"));
            let twin = on("b", "02:00:00:00:00:0a", "blue");
            let told = "interface red has the MAC address 02:00:00:00:00:0a of a card of shop/a on network shop/blue";
            assert_eq!(same(&macs, &twin), [told], "{binding}");
        }
        // A named address comes before a reported one.
        let macs = Macs::default();
        macs.saw(&reporting(on("a", "02:00:00:00:00:01", "blue"), "02:00:00:00:00:02"));
        assert_eq!(same(&macs, &on("b", "02:00:00:00:00:02", "blue")), [""; 0]);
        assert_eq!(same(&macs, &on("b", "02:00:00:00:00:01", "blue")).len(), 1);
    }

    #[test]
    fn a_bridge_on_the_pod_network_counts() {
        let macs = Macs::default();
        let card = |name: &str| json!({"name": name, "bridge": {}, "macAddress": "02:00:00:00:00:01"});
        macs.saw(&vmi("a", card("d"), json!({"name": "d", "pod": {}})));
        assert_eq!(
            same(&macs, &vmi("b", card("x"), json!({"name": "x", "pod": {}}))),
            ["interface x has the MAC address 02:00:00:00:00:01 of a card of shop/a on the pod network"]
        );
    }
}
