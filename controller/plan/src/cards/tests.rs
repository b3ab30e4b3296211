//! Hotplugged cards: single steps, and random machines until their instances have what they want.

use super::*;
use barevirt_api::pci::ON_ROOT_ANNOTATION;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A template with the pod network, and cards `name:definition:state`; those whose names begin with `fast` are of the node.
fn spec(cards: &[&str]) -> VirtualMachineInstanceSpec {
    let mut interfaces = vec![json!({"name": "default", "masquerade": {}})];
    let mut networks = vec![json!({"name": "default", "pod": {}})];
    for card in cards {
        let mut parts = card.split(':');
        let name = parts.next().unwrap();
        let definition = parts.next().filter(|part| !part.is_empty()).unwrap_or("net");
        let mut interface = json!({"name": name});
        interface[if name.starts_with("fast") { "sriov" } else { "bridge" }] = json!({});
        if let Some(state) = parts.next() {
            interface["state"] = json!(state);
        }
        interfaces.push(interface);
        networks.push(json!({"name": name, "multus": {"networkName": definition}}));
    }
    serde_json::from_value(json!({
        "architecture": "amd64",
        "domain": {"devices": {"interfaces": interfaces}, "memory": {"guest": "1Gi"}}, "networks": networks,
    }))
    .unwrap()
}

/// A running instance with such cards; its status lists the networks `told`.
fn vmi(cards: &[&str], told: &[&str], moves: bool) -> VirtualMachineInstance {
    let told: Vec<Value> = told.iter().map(|name| json!({"name": name, "infoSource": "domain"})).collect();
    let moves = json!([{"type": "LiveMigratable", "status": if moves { "True" } else { "False" }}]);
    let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({
        "metadata": {"name": "vm"}, "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "interfaces": told, "conditions": moves},
    }))
    .unwrap();
    vmi.spec = spec(cards);
    vmi
}

/// Cards as [`spec`] takes them, without the pod network's.
fn shown(interfaces: &[Interface], networks: &[Network]) -> Vec<String> {
    assert_eq!(interfaces.len(), networks.len());
    let beside = interfaces.iter().filter(|interface| interface.name != "default");
    let text = |interface: &Interface| {
        let network = networks.iter().find(|network| network.name == interface.name).unwrap();
        let definition = &network.multus.as_ref().unwrap().network_name;
        let definition = if definition == "net" { "" } else { definition.as_str() };
        match (definition, interface.state.as_deref()) {
            ("", None) => interface.name.clone(),
            (definition, None) => format!("{}:{definition}", interface.name),
            (definition, Some(state)) => format!("{}:{definition}:{state}", interface.name),
        }
    };
    beside.map(text).collect()
}

fn planned(wanted: &[&str], vmi: &VirtualMachineInstance) -> (Vec<String>, bool) {
    let cards = plan(&spec(wanted), vmi, &Gates::default());
    if networks::PLUGGED_CARDS_SERVED {
        assert_eq!(cards.refused, None);
    }
    (shown(&cards.interfaces, &cards.networks), cards.waits)
}

/// Whether this version serves what these tests check.
const SERVED: bool =
    networks::PLUGGED_CARDS_SERVED && networks::LINK_STATE_SERVED && networks::SEVERAL_CARDS_SERVED;

#[test]
fn cards_come_go_and_change_their_state() {
    if !SERVED {
        return;
    }
    for (wanted, has, told, next, waits) in [
        (&["a", "b::down"][..], &[][..], &[][..], &["a", "b::down"][..], false),
        (&["a::down"], &["a"], &["a"], &["a::down"], false),
        (&["a::absent"], &["a"], &["a"], &["a::absent"], false),
        // Whether the status lists it or not: it counts as in the guest until the handler has looked.
        (&["a::absent"], &["a"], &[], &["a::absent"], false),
        (&["a::absent"], &["a::absent"], &["a"], &["a::absent"], false),
        (&["a::absent"], &["a::absent"], &[], &[], false),
        (&[], &["a::absent"], &[], &[], false),
        // The card returns once the former one has left.
        (&["a"], &["a::absent"], &["a"], &["a::absent"], true),
        (&["a"], &[], &["a"], &[], true),
        (&["a"], &["a"], &["a"], &["a"], false),
        // A card that was removed without being unplugged stays.
        (&[], &["a"], &["a"], &["a"], false),
        (&["a::absent"], &[], &[], &[], false),
    ] {
        let expected = (next.iter().map(|name| (*name).to_owned()).collect(), waits);
        assert_eq!(planned(wanted, &vmi(has, told, true)), expected, "{wanted:?} {has:?} {told:?}");
    }
}

#[test]
fn a_link_state_changes_in_place_beside_any_other_change() {
    if !networks::LINK_STATE_SERVED || !networks::SEVERAL_CARDS_SERVED {
        return;
    }
    for (wanted, has, next) in [
        (&["a::down"], &["a"], ["a::down"]),
        (&["a::up"], &["a::down"], ["a::up"]),
        (&["a"], &["a::up"], ["a::up"]),
    ] {
        assert_eq!(planned(wanted, &vmi(has, &["a"], false)).0, next, "{wanted:?} {has:?}");
    }
    if !networks::PLUGGED_CARDS_SERVED {
        for wanted in [&["a::absent"][..], &["a", "b"]] {
            let cards = plan(&spec(wanted), &vmi(&["a"], &["a"], true), &Gates::default());
            assert_eq!(shown(&cards.interfaces, &cards.networks), ["a"]);
            assert!(cards.refused.is_some_and(|why| why.contains("is not supported yet")), "{wanted:?}");
        }
    }
}

#[test]
fn another_definition_takes_a_migration() {
    if !SERVED {
        return;
    }
    assert_eq!(planned(&["a:blue"], &vmi(&["a"], &["a"], true)).0, ["a:blue"]);
    assert_eq!(planned(&["a:blue"], &vmi(&["a"], &["a"], false)).0, ["a"]);
    let restart = |moves| take_a_restart(&spec(&["a"]), &spec(&["a:blue"]), &vmi(&["a"], &["a"], moves));
    assert_eq!((restart(true), restart(false)), (false, true));
}

#[test]
fn a_card_that_admission_would_refuse_needs_a_restart() {
    let mut wanted = spec(&["a", "b"]);
    wanted.domain.devices.interfaces[1].model = Some("tulip".to_owned());
    let cards = plan(&wanted, &vmi(&[], &[], true), &Gates::default());
    assert!(cards.refused.is_some_and(|why| why.starts_with("interface a updated in template spec. ")));
    if SERVED {
        assert_eq!(cards.interfaces.len(), 2);
    }
}

#[test]
fn some_changes_take_a_restart() {
    let changed = |change: &dyn Fn(&mut VirtualMachineInstanceSpec)| {
        let mut now = spec(&["a"]);
        change(&mut now);
        take_a_restart(&spec(&["a"]), &now, &vmi(&["a"], &["a"], true))
    };
    let interface = |now: &mut VirtualMachineInstanceSpec| now.domain.devices.interfaces.remove(1);
    assert!(!changed(&|_| {}));
    assert!(!changed(&|now| now.domain.devices.interfaces[1].state = Some("absent".to_owned())));
    assert!(!changed(&|now| now.domain.devices.interfaces[0].state = Some("down".to_owned())));
    assert!(!changed(&|now| *now = spec(&["a", "b"])));
    assert!(changed(&|now| drop(interface(now))));
    assert!(changed(&|now| drop(now.networks.remove(1))));
    assert!(changed(&|now| now.domain.devices.interfaces[1].model = Some("e1000e".to_owned())));
    assert!(changed(&|now| now.networks[1].multus.as_mut().unwrap().default = Some(true)));
    assert!(changed(&|now| {
        let card = &mut now.domain.devices.interfaces[1];
        (card.bridge, card.sriov) = (None, Some(Default::default()));
    }));
    assert!(!changed(&|now| *now = spec(&["a", "fast"])));
    assert!(changed(&|now| {
        *now = spec(&["a", "b"]);
        now.networks[2].multus = None;
        now.networks[2].pod = Some(Default::default());
    }));
}

#[test]
fn a_card_of_the_node_comes_with_a_migration_and_goes_in_place() {
    if !SERVED {
        return;
    }
    for (wanted, has, told, next, waits) in [
        (&["fast", "b"][..], &[][..], &[][..], &["fast", "b"][..], false),
        (&["fast::absent"], &["fast"], &["fast"], &["fast::absent"], false),
        // It never came.
        (&["fast::absent"], &["fast::absent"], &[], &[], false),
        (&["fast"], &["fast::absent"], &["fast"], &["fast::absent"], true),
        (&["fast:blue"], &["fast"], &["fast"], &["fast:blue"], false),
    ] {
        let expected = (next.iter().map(|name| (*name).to_owned()).collect(), waits);
        assert_eq!(planned(wanted, &vmi(has, told, true)), expected, "{wanted:?} {has:?} {told:?}");
    }
    // Where the guest can move is decided after its start.
    let mut starts = vmi(&[], &[], true);
    starts.status.as_mut().unwrap().conditions.clear();
    assert_eq!(planned(&["fast"], &starts), (Vec::new(), true));
    assert!(!take_a_restart(&spec(&[]), &spec(&["fast"]), &starts));
}

#[test]
fn an_sriov_card_that_cannot_be_plugged_or_unplugged_requires_a_restart_with_the_reason() {
    if !SERVED {
        return;
    }
    let stays = |wanted: VirtualMachineInstanceSpec, vmi: &VirtualMachineInstance| {
        let cards = plan(&wanted, vmi, &Gates::default());
        assert_eq!(cards.interfaces, vmi.spec.domain.devices.interfaces);
        // The change is not one that could be anything: the reason above is the machine's condition.
        assert!(!take_a_restart(&vmi.spec, &wanted, vmi));
        let why = cards.refused.unwrap();
        why.strip_prefix("interface fast updated in template spec. ").unwrap().to_owned()
    };
    let mut fixed = vmi(&[], &[], false);
    fixed.status.as_mut().unwrap().conditions[0].message = Some("VMI uses SEV".to_owned());
    let come = "An SR-IOV card comes with a migration, and";
    let expected = format!("{come} the guest cannot migrate: VMI uses SEV");
    assert_eq!(stays(spec(&["fast"]), &fixed), expected);
    let mut placed = spec(&["fast"]);
    placed.domain.devices.interfaces[1].pci_address = Some("0000:05:00.0".to_owned());
    let expected = format!("{come} takes the first free port: pciAddress is not possible");
    assert_eq!(stays(placed, &vmi(&[], &[], true)), expected);
    let mut closed = vmi(&[], &[], true);
    closed.spec.domain.devices.disable_hotplug = Some(true);
    let expected = format!("{come} disableHotplug keeps cards from being plugged");
    assert_eq!(stays(spec(&["fast"]), &closed), expected);
    let mut on_root = vmi(&[], &[], true);
    on_root.metadata.annotations = Some([(ON_ROOT_ANNOTATION.to_owned(), "true".to_owned())].into());
    let expected = format!("{come} {ON_ROOT_ANNOTATION} keeps cards from being plugged");
    assert_eq!(stays(spec(&["fast"]), &on_root), expected);
    let mut there = vmi(&["fast"], &["fast"], true);
    there.spec.domain.devices.disable_hotplug = Some(true);
    let expected = "disableHotplug keeps an SR-IOV card from being unplugged";
    assert_eq!(stays(spec(&["fast::absent"]), &there), expected);
}

#[test]
fn fields_that_others_added_to_an_instance_are_no_change() {
    let nothing: VirtualMachineInstanceSpec =
        serde_json::from_value(json!({"domain": {"devices": {}}})).unwrap();
    // Added by default; by a preference; plugged since, and unplugged since.
    assert!(!take_a_restart(&nothing, &nothing, &vmi(&[], &[], true)));
    let mut preferred = vmi(&["a"], &["a"], true);
    preferred.spec.domain.devices.interfaces[1].model = Some("e1000e".to_owned());
    assert!(!take_a_restart(&spec(&["a"]), &spec(&["a"]), &preferred));
    assert!(!take_a_restart(&spec(&[]), &spec(&["a"]), &preferred));
    assert!(!take_a_restart(&spec(&["a"]), &spec(&[]), &vmi(&[], &[], true)));
    // Plugged since, and then removed from the machine alone.
    assert!(take_a_restart(&spec(&[]), &spec(&[]), &vmi(&["a"], &["a"], true)));
}

#[test]
fn a_list_without_the_card_that_was_added_by_default_takes_a_restart() {
    let nothing: VirtualMachineInstanceSpec =
        serde_json::from_value(json!({"domain": {"devices": {}}})).unwrap();
    let mut alone = spec(&["red"]);
    alone.domain.devices.interfaces.remove(0);
    alone.networks.remove(0);
    for has in [&["red"][..], &[]] {
        assert!(take_a_restart(&nothing, &alone, &vmi(has, has, true)), "{has:?}");
        assert!(!take_a_restart(&nothing, &spec(&["red"]), &vmi(has, has, true)), "{has:?}");
    }
}

#[test]
fn absent_cards_are_removed_from_a_machine_once_its_instance_does_not_have_them() {
    let trimmed = |cards: &[&str], vmi: Option<&VirtualMachineInstance>| {
        trimmed(&spec(cards), vmi).map(|(interfaces, networks)| shown(&interfaces, &networks))
    };
    assert_eq!(trimmed(&["a::absent", "b"], None), Some(vec!["b".to_owned()]));
    assert_eq!(trimmed(&["a", "b"], None), None);
    for (has, told, gone) in [
        (&["a::absent"][..], &["a"][..], false),
        (&["a::absent"], &[], false),
        (&[], &["a"], false),
        (&[], &[], true),
    ] {
        assert_eq!(trimmed(&["a::absent"], Some(&vmi(has, told, true))).is_some(), gone, "{has:?} {told:?}");
    }
}

#[test]
fn the_address_of_a_card_that_comes_is_written_into_the_machine() {
    let own = |name: &str| Some(identity::mac("", "vm", name));
    let (wanted, has) = (spec(&["a", "b"]), vmi(&["a"], &["a"], true));
    let patch = |cards: &[&str]| json!({"domain": {"devices": {"interfaces": spec(cards).domain.devices.interfaces}}});
    let written = addressed(&wanted, &has, &patch(&["a", "b"])).unwrap();
    let addresses: Vec<Option<String>> = written.iter().map(|card| card.mac_address.clone()).collect();
    assert_eq!(addresses, [None, None, own("b")]);
    // No address is written once it is there, where it is given, or for a card that is not added.
    let mut known = wanted.clone();
    known.domain.devices.interfaces = written;
    assert_eq!(addressed(&known, &has, &patch(&["a", "b"])), None);
    known.domain.devices.interfaces[2].mac_address = Some("02:00:00:00:00:07".to_owned());
    assert_eq!(addressed(&known, &has, &patch(&["a", "b"])), None);
    assert_eq!(addressed(&wanted, &has, &patch(&["a"])), None);
    assert_eq!(addressed(&wanted, &has, &json!({"domain": {"cpu": {"sockets": 2}}})), None);
    // A card that is removed from the machine again has the same address; another card has another one.
    let mut has = vmi(&["a", "b"], &["a", "b"], true);
    has.spec.domain.devices.interfaces[2].mac_address = own("b");
    assert!(!take_a_restart(&spec(&["a"]), &wanted, &has));
    assert!(take_a_restart(&spec(&["a"]), &known, &has));
}

fn list() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(vec!["a", "b::down", "c:blue", "d::absent", "fast"], 0..=5)
}

proptest! {
    /// From any state, the instance reaches what the machine wants, in steps that admission accepts.
    #[test]
    fn the_instance_reaches_the_wanted_state(has in list(), wants in list(), told in list()) {
        if !SERVED {
            return Ok(());
        }
        // A card that is not wanted is unplugged.
        let name = |card: &str| card.split(':').next().unwrap_or_default().to_owned();
        let mut cards: Vec<String> = wants.iter().map(|card| (*card).to_owned()).collect();
        for card in &has {
            if wants.iter().all(|wanted| name(wanted) != name(card)) {
                let definition = card.split(':').nth(1).unwrap_or_default();
                cards.push(format!("{}:{definition}:absent", name(card)));
            }
        }
        let cards: Vec<&str> = cards.iter().map(String::as_str).collect();
        let wanted = spec(&cards);
        let told: Vec<String> = told.iter().map(|card| name(card)).collect();
        let told: Vec<&str> = told.iter().map(String::as_str).collect();
        let mut vmi = vmi(&has, &told, true);
        for _ in 0..5 {
            let cards = plan(&wanted, &vmi, &Gates::default());
            prop_assert_eq!(&cards.refused, &None);
            let mut next = vmi.clone();
            (next.spec.domain.devices.interfaces, next.spec.networks) = (cards.interfaces, cards.networks);
            let causes = validate::vmi_update(&vmi, &next, Requester::Component, &Gates::default());
            prop_assert!(causes.is_empty(), "{:?}", causes);
            // The status lists exactly what the guest has.
            let there: Vec<String> = next.spec.domain.devices.interfaces.iter()
                .filter(|interface| !networks::is_absent(interface)).map(|interface| interface.name.clone()).collect();
            next.status.as_mut().unwrap().interfaces
                .retain(|told| there.iter().any(|name| told.name.as_ref() == Some(name)));
            vmi = next;
        }
        let sorted = |cards: Vec<String>| { let mut cards = cards; cards.sort(); cards };
        let has = shown(&vmi.spec.domain.devices.interfaces, &vmi.spec.networks);
        let wanted: Vec<String> = cards.iter().filter(|card| !card.ends_with(":absent"))
            .map(|card| (*card).to_owned()).collect();
        prop_assert_eq!(sorted(has), sorted(wanted));
    }
}
