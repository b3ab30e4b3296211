//! Cards that are PCI functions of the node. Device plugin and CNI set them up, and the launcher's QEMU opens
//! them, so nothing is done in the pod's network namespace. Pure.

use barevirt_api::network_status::{NETWORK_STATUS, Noted};
use barevirt_api::valid::{ValidInterface, ValidVmi};
use barevirt_protocol::v1;
use thiserror::Error;

use super::guest::candidates_of;
use crate::status::interfaces::Interface;

/// The pod has no such network yet, as far as it was seen.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("interface {interface}: the pod's annotation {NETWORK_STATUS} has no link of its network yet")]
pub struct NotAttached {
    interface: String,
}

/// A card as the status has it, and what the launcher gets to know about it.
pub type Told = (Interface, v1::Interface);

/// The cards, each with its index in the specification. `links` are those of the pod.
pub fn cards(vmi: &ValidVmi, links: &[Noted]) -> Result<Vec<(usize, Told)>, NotAttached> {
    let cards = vmi.interfaces().iter().enumerate().filter(|(_, valid)| valid.interface.sriov.is_some());
    cards.map(|(index, valid)| Ok((index, card(vmi, valid, links)?))).collect()
}

fn card(vmi: &ValidVmi, valid: &ValidInterface, links: &[Noted]) -> Result<Told, NotAttached> {
    let name = &valid.interface.name;
    let candidates = candidates_of(vmi.vmi(), valid);
    let found = candidates.iter().find_map(|link| links.iter().find(|noted| noted.link == *link));
    let noted = found.ok_or_else(|| NotAttached { interface: name.clone() })?;
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
    Ok((status, facts))
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
        assert_eq!(guest::due(valid.vmi(), &held, true).len(), 1);
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
            let [(index, (status, facts))] = &cards(vmi, links).unwrap()[..] else { panic!() };
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
        let error = cards(&own, &links[..1]).unwrap_err().to_string();
        assert!(error.starts_with("interface red: the pod's annotation"), "{error}");
    }
}
