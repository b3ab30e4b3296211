//! Network cards with a tag, as the guest finds them: a config drive tells the guest which card has which tag.

use barevirt_api::valid::{ValidInterface, ValidVmi};

use super::nics;
use crate::device::host::HostPlace;
use crate::machine::Machine;

/// A network card with a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedCard {
    /// Its address on the guest's PCI bus, as `0000:01:00.0`.
    pub address: String,
    /// Its MAC address; a device of the node has one that the machine does not know.
    pub mac: Option<String>,
    /// The tag.
    pub tag: String,
}

/// The cards of the machine whose interfaces have a tag, in the manifest's order.
#[must_use]
pub fn tagged_cards(machine: &Machine, vmi: &ValidVmi) -> Vec<TaggedCard> {
    let card = |(at, valid): (usize, &ValidInterface)| {
        let tag = valid.interface.tag.clone().filter(|tag| !tag.is_empty())?;
        if let Some(nic) = machine.nics.iter().find(|nic| nic.at == at) {
            return Some(TaggedCard { address: nic.seat.address(), mac: Some(nic.mac.clone()), tag });
        }
        let field = nics::field(at);
        let device = machine.host_devices.iter().find(|device| device.field == field)?;
        match device.place {
            HostPlace::Pci(seat) => Some(TaggedCard { address: seat.address(), mac: None, tag }),
            HostPlace::Usb => None,
        }
    };
    vmi.interfaces().iter().enumerate().filter_map(card).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::plan;
    use super::super::tests::{facts, valid, vmi};
    use super::*;
    use crate::device::host::HostSource;

    #[test]
    fn cards_with_a_tag_are_told_as_the_guest_finds_them() {
        let mut manifest = vmi(&[]);
        let spec = &mut manifest["spec"];
        let card = |name: &str, more: Value| {
            let mut card = json!({"name": name, "bridge": {}, "tag": format!("the {name} one")});
            card.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            card
        };
        spec["domain"]["devices"]["interfaces"] = json!([
            {"name": "default", "masquerade": {}},
            card("free", json!({})),
            card("placed", json!({"pciAddress": "0000:0c:00.0"})),
            card("root", json!({"pciAddress": "0000:00:10.0"})),
            card("older", json!({"model": "e1000", "pciAddress": "0000:03:07.0"})),
            {"name": "fast", "sriov": {}, "pciAddress": "0000:0d:00.0", "tag": "the fast one"},
        ]);
        let others = ["free", "placed", "root", "older", "fast"];
        let networks = others.map(|name| json!({"name": name, "multus": {"networkName": name}}));
        spec["networks"].as_array_mut().unwrap().extend(networks);
        spec["volumes"] = json!([{"name": "config", "cloudInitConfigDrive": {"userData": "#"}}]);
        spec["domain"]["devices"]["disks"] = json!([{"name": "config", "disk": {"bus": "sata"}}]);
        let vmi = valid(manifest);
        let function = HostSource::Pci("0000:65:00.1".parse().unwrap());
        let mut facts = facts(&vmi);
        facts.host_devices = vec![(nics::field(5), vec![function])];
        let machine = plan(&vmi, &facts).unwrap();
        let told = tagged_cards(&machine, &vmi);
        let free = machine.layout.port("nic-free").unwrap().number() + 1;
        let expected = [
            (format!("0000:{free:02x}:00.0"), "the free one"),
            ("0000:0c:00.0".to_owned(), "the placed one"),
            ("0000:00:10.0".to_owned(), "the root one"),
            ("0000:03:07.0".to_owned(), "the older one"),
            ("0000:0d:00.0".to_owned(), "the fast one"),
        ];
        let found = told.iter().map(|card| (card.address.clone(), card.tag.as_str()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
        let macs: Vec<_> = told.iter().map(|card| card.mac.as_deref()).collect();
        assert_eq!(macs[4], None);
        assert!(macs[..4].iter().all(|mac| *mac == Some("02:00:00:00:00:01")), "{macs:?}");
    }
}
