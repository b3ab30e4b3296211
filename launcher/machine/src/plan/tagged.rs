//! Devices with a tag, as the guest finds them: a config drive tells the guest which device has which tag.

use barevirt_api::valid::{ValidInterface, ValidVmi};

use super::nics;
use super::ports::DEVICES;
use crate::device::host::HostPlace;
use crate::machine::Machine;

/// A device with a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedDevice {
    /// What it is.
    pub kind: TaggedKind,
    /// Its address on the guest's PCI bus, as `0000:01:00.0`.
    pub address: String,
    /// The MAC address of a network card; a device of the node has one that the machine does not know.
    pub mac: Option<String>,
    /// The tag.
    pub tag: String,
}

/// What a device with a tag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaggedKind {
    /// The card of an interface.
    Card,
    /// A GPU or another device of the node.
    OfNode,
}

/// The devices of the machine on PCI whose interfaces or entries have a tag: cards, GPUs and others, each in the manifest's
/// order.
#[must_use]
pub fn tagged_devices(machine: &Machine, vmi: &ValidVmi) -> Vec<TaggedDevice> {
    let card = |(at, valid): (usize, &ValidInterface)| {
        let tag = given(valid.interface.tag.as_ref())?;
        if let Some(nic) = machine.nics.iter().find(|nic| nic.at == at) {
            let (address, mac) = (nic.seat.address(), Some(nic.mac.clone()));
            return Some(TaggedDevice { kind: TaggedKind::Card, address, mac, tag });
        }
        of_node(machine, &nics::field(at), TaggedKind::Card, &tag).next()
    };
    let cards = vmi.interfaces().iter().enumerate().filter_map(card);
    let devices = &vmi.spec().domain.devices;
    let gpus = devices.gpus.iter().enumerate().map(|(at, gpu)| (format!("{DEVICES}.gpus[{at}]"), &gpu.tag));
    let others = devices.host_devices.iter().enumerate();
    let others = others.map(|(at, device)| (format!("{DEVICES}.hostDevices[{at}]"), &device.tag));
    let entries = gpus.chain(others).filter_map(|(field, tag)| Some((field, given(tag.as_ref())?)));
    let of_entries = entries
        .flat_map(|(field, tag)| of_node(machine, &field, TaggedKind::OfNode, &tag).collect::<Vec<_>>());
    cards.chain(of_entries).collect()
}

fn given(tag: Option<&String>) -> Option<String> {
    tag.filter(|tag| !tag.is_empty()).cloned()
}

/// The devices of an entry that are on PCI: one on USB has no such address.
fn of_node<'a>(
    machine: &'a Machine,
    field: &'a str,
    kind: TaggedKind,
    tag: &'a str,
) -> impl Iterator<Item = TaggedDevice> + 'a {
    machine.host_devices.iter().filter(move |device| device.field == field).filter_map(move |device| {
        match device.place {
            HostPlace::Pci(seat) => {
                Some(TaggedDevice { kind, address: seat.address(), mac: None, tag: tag.to_owned() })
            }
            HostPlace::Usb => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::plan;
    use super::super::tests::{facts, valid, vmi};
    use super::*;
    use crate::device::host::HostSource;

    #[test]
    fn tagged_cards_have_the_guests_addresses() {
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
        let told = tagged_devices(&machine, &vmi);
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

    #[test]
    fn tagged_devices_of_the_node_have_the_guests_addresses() {
        let mut manifest = vmi(&[]);
        let devices = &mut manifest["spec"]["domain"]["devices"];
        devices["disks"] = json!([{"name": "config", "disk": {"bus": "sata"}}]);
        devices["gpus"] = json!([
            {"name": "plain", "deviceName": "x/y", "tag": ""},
            {"name": "first", "deviceName": "x/y", "tag": "the GPU"},
        ]);
        devices["hostDevices"] = json!([{"name": "mixed", "deviceName": "x/z", "tag": "the others"}]);
        manifest["spec"]["volumes"] = json!([{"name": "config", "cloudInitConfigDrive": {"userData": "#"}}]);
        let vmi = valid(manifest);
        let function = |number: u8| HostSource::Pci(format!("0000:65:00.{number}").parse().unwrap());
        let mut facts = facts(&vmi);
        facts.host_devices = vec![
            (format!("{DEVICES}.gpus[0]"), vec![function(0)]),
            (format!("{DEVICES}.gpus[1]"), vec![HostSource::Mediated("u".to_owned())]),
            (
                format!("{DEVICES}.hostDevices[0]"),
                vec![function(1), HostSource::Usb { bus: 1, device: 2 }, function(2)],
            ),
        ];
        let machine = plan(&vmi, &facts).unwrap();
        let at = |id: &str| format!("0000:{:02x}:00.0", machine.layout.port(id).unwrap().number() + 1);
        let device = |id: &str, tag: &str| TaggedDevice {
            kind: TaggedKind::OfNode,
            address: at(id),
            mac: None,
            tag: tag.to_owned(),
        };
        let expected = [
            device("gpu-first", "the GPU"),
            device("hostdevice-mixed", "the others"),
            device("hostdevice-mixed-2", "the others"),
        ];
        assert_eq!(tagged_devices(&machine, &vmi), expected);
    }
}
