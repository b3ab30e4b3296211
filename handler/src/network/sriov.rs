//! Cards that are PCI functions of the node. Device plugin and CNI set them up, and the launcher's QEMU opens
//! them, so nothing is done in the pod's network namespace. Pure.
//!
//! A pod gets its functions when it is made. A card that is added while the guest runs comes on the node that the guest moves
//! to; one that is to be removed stays behind there.

use barevirt_api::network_status::{NETWORK_STATUS, Noted};
use barevirt_api::networks;
use barevirt_api::valid::{ValidInterface, ValidVmi};
use barevirt_protocol::v1;
use thiserror::Error;

use super::guest::{candidates_of, runs};
use crate::status::interfaces::Interface;

/// The pod has no such network yet, as far as it was seen.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("interface {interface}: the pod's annotation {NETWORK_STATUS} has no link of its network yet")]
pub struct NotAttached {
    interface: String,
}

/// A card as the status has it, and what the launcher is sent about it.
pub type ReportedCard = (Interface, v1::Interface);

/// The cards that this pod's guest has or gets, each with its index in the specification. `links` are those of the pod. `here`
/// is false for a guest that is yet to arrive on this node.
pub fn cards(vmi: &ValidVmi, links: &[Noted], here: bool) -> Result<Vec<(usize, ReportedCard)>, NotAttached> {
    let cards = vmi.interfaces().iter().enumerate().filter(|(_, valid)| valid.interface.sriov.is_some());
    let reported = cards.filter_map(|(index, valid)| {
        let card = card(vmi, valid, links, here).transpose()?;
        Some(card.map(|card| (index, card)))
    });
    reported.collect()
}

fn card(
    vmi: &ValidVmi,
    valid: &ValidInterface,
    links: &[Noted],
    here: bool,
) -> Result<Option<ReportedCard>, NotAttached> {
    let name = &valid.interface.name;
    let candidates = candidates_of(vmi.vmi(), valid);
    let found = candidates.iter().find_map(|link| links.iter().find(|noted| noted.link == *link));
    let in_guest = networks::is_in_guest(vmi.vmi(), name);
    let is_absent = networks::is_absent(&valid.interface);
    if is_absent && !(here && in_guest) {
        return Ok(None);
    }
    let Some(noted) = found else {
        let is_elsewhere = is_absent || runs(vmi.vmi()) && !in_guest;
        return if is_elsewhere { Ok(None) } else { Err(NotAttached { interface: name.clone() }) };
    };
    // The CNI plugin sets the address that the manifest gives, or reports the card's own.
    let given = valid.interface.mac_address.as_deref().is_some_and(|mac| !mac.is_empty());
    let mac = if given { Some(valid.mac.clone()) } else { noted.mac.clone() }.unwrap_or_default();
    let status = Interface {
        name: name.clone(),
        mac: mac.clone(),
        pod_interface: noted.link.clone(),
        addresses: Vec::new(),
        queues: 0,
        is_primary: false,
        is_device: true,
        lingers: false,
    };
    let facts = v1::Interface {
        name: name.clone(),
        network: valid.network.name.clone(),
        mac,
        pci_address: noted.pci.map(|address| address.to_string()).unwrap_or_default(),
        ..v1::Interface::default()
    };
    Ok(Some((status, facts)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use barevirt_api::settings::NO_BINDINGS;
    use serde_json::{Value, json};

    use super::super::guest;
    use super::*;

    #[test]
    fn nothing_is_prepared_in_the_network_of_the_pod() {
        let valid = vmi(json!({}));
        let held = BTreeSet::new();
        let prepared = guest::wanted(&valid, &held, true, &NO_BINDINGS).unwrap();
        assert_eq!(prepared.into_iter().map(|card| card.interface).collect::<Vec<_>>(), ["default"]);
        assert_eq!(guest::due(valid.vmi(), &held, true).len(), 2);
        assert!(guest::taps(&valid).iter().all(|(interface, _)| interface == "default"));
    }

    fn vmi(red: Value) -> ValidVmi {
        let mut card = json!({"name": "red", "sriov": {}});
        card.as_object_mut().unwrap().extend(red.as_object().unwrap().clone());
        let vmi = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"},
                    "devices": {"interfaces": [{"name": "default", "masquerade": {}}, card]}},
                "networks": [
                    {"name": "default", "pod": {}}, {"name": "red", "multus": {"networkName": "red"}}],
            },
        });
        ValidVmi::new(serde_json::from_value(vmi).unwrap()).unwrap()
    }

    fn noted(link: &str, mac: Option<&str>, pci: Option<&str>) -> Noted {
        Noted {
            link: link.to_owned(),
            definition: "shop/red".to_owned(),
            mac: mac.map(str::to_owned),
            pci: pci.map(|address| address.parse().unwrap()),
        }
    }

    #[test]
    fn a_card_has_the_function_of_its_link() {
        let links = [
            noted("eth0", Some("02:00:00:00:00:01"), Some("0000:01:00.0")),
            noted("podb1f51a511f1", Some("02:00:00:00:00:02"), Some("0000:65:00.2")),
        ];
        let told = |vmi: &ValidVmi, links: &[Noted]| {
            let [(index, (status, facts))] = &cards(vmi, links, true).unwrap()[..] else { panic!() };
            assert_eq!((*index, status.is_device, status.mac.as_str()), (1, true, facts.mac.as_str()));
            assert_eq!((facts.name.as_str(), facts.network.as_str()), ("red", "red"));
            [facts.mac.clone(), facts.pci_address.clone(), status.pod_interface.clone()]
        };
        let own = vmi(json!({}));
        assert_eq!(told(&own, &links), ["02:00:00:00:00:02", "0000:65:00.2", "podb1f51a511f1"]);
        let given = vmi(json!({"macAddress": "02-AA-00-00-00-07"}));
        assert_eq!(told(&given, &links)[0], "02:aa:00:00:00:07");
        // Multus has chosen the names, and reports no device.
        assert_eq!(told(&own, &[noted("net1", None, None)]), ["", "", "net1"]);
        let error = cards(&own, &links[..1], true).unwrap_err().to_string();
        assert!(error.starts_with("interface red: the pod's annotation"), "{error}");
    }

    #[test]
    fn a_card_comes_with_another_pod_and_one_that_is_to_go_does_not() {
        let of = |source: Option<&str>, state: Option<&str>, is_attached: bool, here: bool| {
            let mut vmi = vmi(json!({})).vmi().clone();
            vmi.spec.domain.devices.interfaces[1].state = state.map(str::to_owned);
            let told = source.map(|source| json!({"name": "red", "infoSource": source}));
            let status = json!({"phase": "Running", "interfaces": told.as_slice()});
            vmi.status = Some(serde_json::from_value(status).unwrap());
            let links = [noted("podb1f51a511f1", None, Some("0000:65:00.2"))];
            let links = if is_attached { &links[..] } else { &[] };
            cards(&ValidVmi::new(vmi).unwrap(), links, here).map(|cards| cards.len())
        };
        let (in_guest, waits) = (Some("domain, multus-status"), None);
        // This node has no device for it, nor has a target that was made before it was wanted.
        assert_eq!([of(waits, None, false, true), of(waits, None, false, false)], [Ok(0), Ok(0)]);
        assert_eq!([of(waits, None, true, false), of(waits, None, true, true)], [Ok(1), Ok(1)]);
        // A guest that has one needs another one there.
        assert!(of(in_guest, None, false, false).is_err());
        let absent = Some("absent");
        assert_eq!([of(in_guest, absent, true, true), of(in_guest, absent, true, false)], [Ok(1), Ok(0)]);
        assert_eq!([of(in_guest, absent, false, true), of(waits, absent, true, true)], [Ok(0), Ok(0)]);
    }

    #[test]
    fn what_is_to_be_done_changes_when_a_card_goes() {
        let of = |more: Value| guest::due(vmi(more).vmi(), &BTreeSet::new(), true)[1].1;
        assert_eq!(of(json!({})), guest::Due::There);
        assert_eq!(of(json!({"state": "absent"})), guest::Due::Gone);
    }
}
