//! Network interfaces: model, backend, place.

use super::boot::boot_index;
use super::ports::Ports;
use crate::device::nic::{Nic, NicModel};
use crate::device::virtio::Virtio;
use crate::error::PlanError;
use crate::facts::{Facts, InterfaceFacts};
use crate::name;
use barevirt_api::valid::{ValidInterface, ValidVmi};

/// Prefix of the ids of cards.
pub(super) const LIST: &str = "nic";

/// An interface without its port.
pub(super) struct Planned {
    at: usize,
    name: String,
    model: NicModel,
    boot_index: Option<u32>,
    acpi_index: Option<u32>,
    facts: InterfaceFacts,
}

pub(super) fn plan(vmi: &ValidVmi, facts: &Facts, virtio: Virtio) -> Result<Vec<Planned>, PlanError> {
    // A removed card stays in the manifest with this state. A card of the node is one of its devices.
    let is_there = |valid: &ValidInterface| {
        valid.interface.state.as_deref() != Some("absent") && valid.interface.sriov.is_none()
    };
    let there = vmi.interfaces().iter().enumerate().filter(|(_, valid)| is_there(valid));
    let one = |(at, valid): (usize, &ValidInterface)| {
        let name = &valid.interface.name;
        let ready = facts.interfaces.iter().find(|ready| ready.name == *name);
        let missing = || PlanError::InterfaceMissing { field: field(at), interface: name.clone() };
        planned(at, valid, ready.ok_or_else(missing), facts.network_boot, virtio)
    };
    there.map(one).collect()
}

/// Path of an interface in the manifest.
pub(super) fn field(at: usize) -> String {
    format!("spec.domain.devices.interfaces[{at}]")
}

/// A card of the manifest with this index in the list.
pub(super) fn planned(
    at: usize,
    valid: &ValidInterface,
    ready: Result<&InterfaceFacts, PlanError>,
    network_boot: bool,
    virtio: Virtio,
) -> Result<Planned, PlanError> {
    let wanted = &valid.interface;
    let field = field(at);
    let model_name = wanted.model.as_deref().filter(|name| !name.is_empty()).unwrap_or("virtio");
    let model = NicModel::from_api(model_name).ok_or_else(|| PlanError::Unsupported {
        field: format!("{field}.model"),
        value: model_name.to_owned(),
        why: "no such network card can be built",
    })?;
    let model = if matches!(model, NicModel::Virtio(_)) { NicModel::Virtio(virtio) } else { model };
    if wanted.boot_order.is_some() && !network_boot {
        return Err(PlanError::Unsupported {
            field: format!("{field}.bootOrder"),
            value: wanted.boot_order.unwrap_or_default().to_string(),
            why: "there are no boot ROMs for network cards beside this QEMU",
        });
    }
    Ok(Planned {
        at,
        acpi_index: acpi_index(wanted.acpi_index),
        name: wanted.name.clone(),
        model,
        boot_index: boot_index(wanted.boot_order),
        facts: ready?.clone(),
    })
}

/// The number by which guests name the card. Zero means none.
pub(super) fn acpi_index(given: Option<i32>) -> Option<u32> {
    given.and_then(|index| u32::try_from(index).ok()).filter(|index| *index > 0)
}

impl Planned {
    /// The device's id, which is its name in the layout.
    pub(super) fn id(&self) -> String {
        name::device(LIST, &self.name)
    }

    pub(super) fn finish(self, ports: &Ports<'_>) -> Result<Nic, PlanError> {
        let seat = ports.seat(&self.id())?;
        let Planned { at, name, model, boot_index, acpi_index, facts } = self;
        let InterfaceFacts { name: _, mac, mtu, backend } = facts;
        Ok(Nic { at, name, model, mac, mtu, backend, seat, acpi_index, boot_index })
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::super::tests::{facts, valid, vmi};
    use serde_json::{Value, json};

    #[test]
    fn an_index_of_zero_is_not_given_to_qemu() {
        assert_eq!([None, Some(0), Some(7)].map(super::acpi_index), [None, None, Some(7)]);
    }

    /// Programs that fill in manifests write empty texts where nothing was chosen. KubeVirt takes them for nothing.
    #[test]
    fn an_empty_text_is_no_choice() {
        let machine = |disk: Value, card: Value, firmware: Value| {
            let mut manifest = vmi(&[disk]);
            manifest["spec"]["domain"]["devices"]["interfaces"] = json!([card]);
            manifest["spec"]["domain"]["firmware"] = firmware;
            let vmi = valid(manifest);
            plan(&vmi, &facts(&vmi)).unwrap()
        };
        let chosen = machine(
            json!({
                "name": "a", "disk": { "bus": "virtio", "pciAddress": "" },
                "cache": "", "io": "", "errorPolicy": "", "serial": "",
            }),
            json!({ "name": "default", "masquerade": {}, "model": "", "macAddress": "", "pciAddress": "", "state": "" }),
            json!({ "serial": "" }),
        );
        let silent = machine(
            json!({ "name": "a", "disk": { "bus": "virtio" } }),
            json!({ "name": "default", "masquerade": {} }),
            json!({}),
        );
        assert_eq!(crate::argv(&chosen), crate::argv(&silent));
    }
}
