//! Network cards that are plugged and unplugged while the machine runs: each takes a free root port.

use barevirt_api::valid::ValidVmi;

use super::addresses::Addresses;
use super::hot_disk::HotDisks;
use super::nics;
use super::ports::{Ports, virtio};
use crate::device::nic::Nic;
use crate::error::PlanError;
use crate::facts::InterfaceFacts;
use crate::hotplug::{Step, attach_nic};

/// The plan for plugging in a card.
#[derive(Clone, Debug)]
pub struct HotNic {
    /// The card.
    pub nic: Nic,
    /// Commands that plug it in.
    pub steps: Vec<Step>,
    /// The free places afterwards.
    pub room: HotDisks,
}

impl HotDisks {
    /// Plans a card of the specification. `network_boot` says whether boot ROMs for cards are installed
    /// beside QEMU.
    ///
    /// # Errors
    /// If there is no place for it, or its settings do not fit its kind.
    pub fn plan_nic(
        &self,
        vmi: &ValidVmi,
        ready: &InterfaceFacts,
        network_boot: bool,
    ) -> Result<HotNic, PlanError> {
        let found = vmi.interfaces().iter().enumerate().find(|(_, valid)| valid.interface.name == ready.name);
        let (at, valid) = found.ok_or_else(|| PlanError::InterfaceMissing {
            field: "spec.domain.devices.interfaces".to_owned(),
            interface: ready.name.clone(),
        })?;
        let field = nics::field(at);
        if let Some(address) = valid.interface.pci_address.clone().filter(|address| !address.is_empty()) {
            return Err(PlanError::Unsupported {
                field: format!("{field}.pciAddress"),
                value: address,
                why: "a card that is plugged into a running machine takes the first free port",
            });
        }
        let virtio = virtio(&vmi.spec().domain.devices);
        let planned = nics::planned(at, valid, Ok(ready), network_boot, virtio)?;
        let mut room = self.clone();
        room.occupy(&planned.id(), &field)?;
        let nic = planned.finish(&Ports { layout: room.layout(), addresses: &Addresses::default() })?;
        let steps = attach_nic(&nic);
        Ok(HotNic { nic, steps, room })
    }

    /// Frees the place of a card that is gone.
    pub fn free_nic(&mut self, id: &str) {
        self.vacate(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::nic::{NetBackend, TapFd};
    use crate::expected;
    use crate::facts::Accelerator;
    use crate::units::Bytes;
    use barevirt_api::settings::Smbios;
    use serde_json::{Value, json};

    fn vmi(second: &Value) -> ValidVmi {
        let object = json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [
                    {"name": "default", "masquerade": {}}, second,
                ]}},
                "networks": [{"name": "default", "pod": {}}, {"name": "red", "multus": {"networkName": "red"}}],
            },
        });
        ValidVmi::new(serde_json::from_value(object).unwrap()).unwrap()
    }

    fn ready() -> InterfaceFacts {
        let taps = ["card-0", "card-1"].map(|name| TapFd::Named(name.to_owned()));
        InterfaceFacts {
            name: "red".to_owned(),
            mac: "02:00:00:00:00:02".to_owned(),
            mtu: Some(1400),
            backend: NetBackend::Tap(taps.into()),
        }
    }

    /// The free places of the machine at its start, when the second card is not there yet.
    fn room(vmi: &ValidVmi) -> HotDisks {
        let mut start = vmi.vmi().clone();
        start.spec.domain.devices.interfaces.truncate(1);
        start.spec.networks.truncate(1);
        let start = ValidVmi::new(start).unwrap();
        let facts = expected(&start, Accelerator::Tcg { buffer: Bytes::mib(32) }, Smbios::default());
        HotDisks::of(&crate::plan(&start, &facts).unwrap(), &start)
    }

    #[test]
    fn a_card_takes_a_port_and_gives_it_back() {
        let vmi = vmi(&json!({"name": "red", "bridge": {}}));
        let before = room(&vmi);
        let HotNic { nic, steps, mut room } = before.plan_nic(&vmi, &ready(), false).unwrap();
        let commands: Vec<_> = steps.iter().map(|step| step.forward.execute).collect();
        assert_eq!(commands, ["netdev_add", "device_add"]);
        assert_eq!(steps[0].forward.arguments["fds"], json!("card-0:card-1"));
        let device = &steps[1].forward.arguments;
        assert_eq!((&device["mac"], &device["host_mtu"]), (&json!("02:00:00:00:00:02"), &json!(1400)));
        assert_eq!((&device["mq"], &device["vectors"]), (&json!(true), &json!(6)));
        assert_ne!(room.layout(), before.layout());
        room.free_nic(&nic.id());
        assert_eq!(room.layout(), before.layout());
    }

    #[test]
    fn a_card_that_cannot_be_plugged_is_named() {
        let fixed = vmi(&json!({"name": "red", "bridge": {}, "pciAddress": "0000:05:00.0"}));
        let error = room(&fixed).plan_nic(&fixed, &ready(), false).unwrap_err();
        assert_eq!(error.field(), "spec.domain.devices.interfaces[1].pciAddress");
        let boots = vmi(&json!({"name": "red", "bridge": {}, "bootOrder": 2}));
        let error = room(&boots).plan_nic(&boots, &ready(), false).unwrap_err();
        assert_eq!(error.field(), "spec.domain.devices.interfaces[1].bootOrder");
        assert!(room(&boots).plan_nic(&boots, &ready(), true).is_ok());
    }
}
