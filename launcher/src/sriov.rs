//! PCI functions of the node that are network cards of the guest. Three sources have to agree about each:
//!
//! | source | what it says |
//! |---|---|
//! | virt-controller, by an argument | the resource of the network |
//! | the kubelet, by the variable `PCIDEVICE_<RESOURCE>` of the device plugin | the functions of that resource that this pod has |
//! | Multus, by the pod's annotation, which the handler reads | the function that was set up for the network |
//!
//! Who may change the pod can write the annotation. It only decides between functions that the pod has.

use std::collections::BTreeMap;

use barevirt_api::names::{NETWORK_DEVICE_VARIABLE, device_variable};
use barevirt_api::network_resource::NetworkResource;
use barevirt_api::pci_address::PciAddress;
use barevirt_api::valid::ValidVmi;
use barevirt_machine::HostSource;
use barevirt_protocol::v1::Interface;

/// Why an interface has no card.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: network {network}: {reason}")]
pub struct NoCard {
    /// Path of the interface.
    field: String,
    /// Its network.
    network: String,
    /// What is wrong.
    reason: NoCardReason,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum NoCardReason {
    #[error("virt-controller did not name the resource of its devices")]
    Resource,
    #[error("this pod was given no device of {resource}: {variable} is empty or not set")]
    Missing { resource: String, variable: String },
    #[error("{variable}: {value:?} is not a PCI address")]
    Value { variable: String, value: String },
    #[error("Multus reports no PCI address for it on this pod, which was given {given} of {resource}")]
    NotReported { resource: String, given: String },
    #[error("Multus reports {address} for it, and this pod was given {given} of {resource}")]
    Foreign { resource: String, address: String, given: String },
    #[error("Multus reports {address} for it, and for network {other} as well")]
    Twice { address: PciAddress, other: String },
}

/// The function of each interface with an SR-IOV card, by the path of the interface.
///
/// # Errors
/// Names the first interface without a function, its network and the resource.
pub fn given(
    vmi: &ValidVmi,
    resources: &[NetworkResource],
    facts: &[Interface],
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, Vec<HostSource>)>, NoCard> {
    let mut taken: BTreeMap<PciAddress, String> = BTreeMap::new();
    let mut cards = Vec::new();
    for (field, interface) in vmi.sriov_cards() {
        let network = &interface.name;
        let reported = facts.iter().find(|facts| facts.name == *network).map(|facts| &*facts.pci_address);
        let card = function(network, resources, reported.unwrap_or_default(), &environment);
        let card = card.and_then(|address| match taken.insert(address, network.clone()) {
            Some(other) => Err(NoCardReason::Twice { address, other }),
            None => Ok(address),
        });
        match card {
            Ok(address) => cards.push((field, vec![HostSource::Pci(address)])),
            Err(reason) => return Err(NoCard { field, network: network.clone(), reason }),
        }
    }
    Ok(cards)
}

fn function(
    network: &str,
    resources: &[NetworkResource],
    reported: &str,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<PciAddress, NoCardReason> {
    let named = resources.iter().find(|named| named.network == network).ok_or(NoCardReason::Resource)?;
    let resource = || named.resource.clone();
    let variable = device_variable(NETWORK_DEVICE_VARIABLE, &named.resource);
    let text = environment(&variable).unwrap_or_default();
    let values = text.split(',').map(str::trim).filter(|value| !value.is_empty());
    let parsed = values.map(|value| {
        let wrong = |_| NoCardReason::Value { variable: variable.clone(), value: value.to_owned() };
        value.parse::<PciAddress>().map_err(wrong)
    });
    let has = parsed.collect::<Result<Vec<_>, _>>()?;
    if has.is_empty() {
        return Err(NoCardReason::Missing { resource: resource(), variable });
    }
    let given = || has.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if reported.is_empty() {
        return Err(NoCardReason::NotReported { resource: resource(), given: given() });
    }
    let address = reported.parse().ok().filter(|address| has.contains(address));
    address.ok_or_else(|| NoCardReason::Foreign {
        resource: resource(),
        address: reported.to_owned(),
        given: given(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// An instance with an SR-IOV card on each network.
    fn vmi(networks: &[&str]) -> ValidVmi {
        let all = |one: fn(&&str) -> Value| networks.iter().map(one).collect::<Vec<_>>();
        let vmi = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "a", "namespace": "b"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"},
                    "devices": {"interfaces": all(|name| json!({"name": name, "sriov": {}}))}},
                "networks": all(|name| json!({"name": name, "multus": {"networkName": name}})),
            },
        });
        ValidVmi::new(serde_json::from_value(vmi).unwrap()).unwrap()
    }

    /// The cards of networks with such addresses in the report, each with the resource a.b/c.
    fn of(
        reported: &[(&str, &str)],
        variable: Option<&str>,
    ) -> Result<Vec<(String, Vec<HostSource>)>, String> {
        let networks: Vec<_> = reported.iter().map(|(network, _)| *network).collect();
        let resources: Vec<_> =
            networks.iter().map(|network| NetworkResource::new(network, "a.b/c").unwrap()).collect();
        let facts: Vec<_> = reported
            .iter()
            .map(|(name, address)| Interface {
                name: (*name).to_owned(),
                pci_address: (*address).to_owned(),
                ..Interface::default()
            })
            .collect();
        let environment =
            |name: &str| variable.filter(|_| name == "PCIDEVICE_A_B_C").map(std::borrow::ToOwned::to_owned);
        given(&vmi(&networks), &resources, &facts, environment).map_err(|error| error.to_string())
    }

    #[test]
    fn each_network_has_the_function_that_was_set_up_for_it() {
        let reported = [("red", "0000:65:00.2"), ("blue", "0000:65:00.1")];
        let card = |index: usize, address: &str| {
            let field = format!("spec.domain.devices.interfaces[{index}]");
            (field, vec![HostSource::Pci(address.parse().unwrap())])
        };
        assert_eq!(
            of(&reported, Some("0000:65:00.1,0000:65:00.2,0000:65:00.3")).unwrap(),
            [card(0, "0000:65:00.2"), card(1, "0000:65:00.1")]
        );
    }

    #[test]
    fn a_missing_card_names_its_network_and_its_resource() {
        let at = "spec.domain.devices.interfaces[0]: network red: ";
        for (address, variable, expected) in [
            (
                "0000:65:00.1",
                None,
                "this pod was given no device of a.b/c: PCIDEVICE_A_B_C is empty or not set",
            ),
            (
                "0000:65:00.1",
                Some(" , "),
                "this pod was given no device of a.b/c: PCIDEVICE_A_B_C is empty or not set",
            ),
            (
                "",
                Some("0000:65:00.1, 0000:65:00.2"),
                "Multus reports no PCI address for it on this pod, which was given 0000:65:00.1, 0000:65:00.2 of a.b/c",
            ),
            (
                "0000:66:00.1",
                Some("0000:65:00.1"),
                "Multus reports 0000:66:00.1 for it, and this pod was given 0000:65:00.1 of a.b/c",
            ),
            (
                "0000:65:00.1,rombar=0",
                Some("0000:65:00.1"),
                "Multus reports 0000:65:00.1,rombar=0 for it, and this pod was given 0000:65:00.1 of a.b/c",
            ),
            ("0000:65:00.1", Some("0000:65:00.1,../x"), "PCIDEVICE_A_B_C: \"../x\" is not a PCI address"),
        ] {
            assert_eq!(of(&[("red", address)], variable).unwrap_err(), format!("{at}{expected}"));
        }
        let error = given(&vmi(&["red"]), &[], &[], |_| None).unwrap_err().to_string();
        assert_eq!(error, format!("{at}virt-controller did not name the resource of its devices"));
    }

    #[test]
    fn no_function_is_given_twice() {
        let reported = [("red", "0000:65:00.1"), ("blue", "0000:65:00.1")];
        assert_eq!(
            of(&reported, Some("0000:65:00.1,0000:65:00.2")).unwrap_err(),
            "spec.domain.devices.interfaces[1]: network blue: Multus reports 0000:65:00.1 for it, and for network red as well"
        );
    }
}
