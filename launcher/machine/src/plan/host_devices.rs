//! Devices of the node: which of the pod's devices belongs to which entry of the manifest.

use super::boot::boot_index;
use super::nics;
use super::ports::Ports;
use crate::device::host::{HostDevice, HostPlace, HostSource, Screen};
use crate::error::PlanError;
use crate::facts::Facts;
use barevirt_api::networks;
use barevirt_api::v1::{Devices, Interface, VgpuOptions};

/// A device without its port.
struct Planned {
    id: String,
    field: String,
    card: Option<String>,
    source: HostSource,
    screen: Screen,
    acpi_index: Option<u32>,
    boot_index: Option<u32>,
}

/// All devices, in the manifest's order.
pub(super) struct PlannedHostDevices(Vec<Planned>);

/// An entry of the manifest.
struct Entry<'a> {
    field: String,
    /// Prefix of its ids.
    list: &'static str,
    name: &'a str,
    gpu: bool,
    options: Option<&'a VgpuOptions>,
    acpi_index: Option<i32>,
    boot_order: Option<i32>,
}

pub(super) fn plan(devices: &Devices, facts: &Facts) -> Result<PlannedHostDevices, PlanError> {
    let gpus = devices.gpus.iter().enumerate().map(|(index, gpu)| Entry {
        field: format!("spec.domain.devices.gpus[{index}]"),
        list: "gpu",
        name: &gpu.name,
        gpu: true,
        options: gpu.virtual_gpu_options.as_ref(),
        acpi_index: None,
        boot_order: None,
    });
    let others = devices.host_devices.iter().enumerate().map(|(index, device)| Entry {
        field: format!("spec.domain.devices.hostDevices[{index}]"),
        list: "hostdevice",
        name: &device.name,
        gpu: false,
        options: None,
        acpi_index: None,
        boot_order: None,
    });
    let is_there = |card: &Interface| card.sriov.is_some() && !networks::is_absent(card);
    let cards = devices.interfaces.iter().enumerate().filter(|(_, card)| is_there(card));
    let cards = cards.map(|(index, card)| Entry {
        field: nics::field(index),
        list: nics::LIST,
        name: &card.name,
        gpu: false,
        options: None,
        acpi_index: card.acpi_index,
        boot_order: card.boot_order,
    });
    let entries: Vec<Entry<'_>> = gpus.chain(others).chain(cards).collect();
    let chosen = entries.iter().any(|entry| display(entry.options).is_some());
    let mut planned: Vec<Planned> = Vec::new();
    for entry in &entries {
        let found = facts.host_devices.iter().find(|(field, _)| *field == entry.field);
        let sources = found.map(|(_, sources)| sources.as_slice()).unwrap_or_default();
        if sources.is_empty() {
            return Err(PlanError::Unprepared { field: entry.field.clone(), what: "device of the node" });
        }
        for (number, source) in sources.iter().enumerate() {
            let id = HostDevice::id_of(entry.list, entry.name, number);
            let first = !planned.iter().any(|other| other.screen != Screen::None);
            planned.push(Planned {
                id,
                field: entry.field.clone(),
                card: (entry.list == nics::LIST).then(|| entry.name.to_owned()),
                source: source.clone(),
                screen: screen(entry, source, chosen, first),
                acpi_index: nics::acpi_index(entry.acpi_index),
                boot_index: boot_index(entry.boot_order),
            });
        }
    }
    Ok(PlannedHostDevices(planned))
}

/// As in KubeVirt, a virtual GPU shows the screen if it says so, or if no entry says anything and it is the
/// first one; a whole GPU only if it explicitly says so.
fn screen(entry: &Entry<'_>, source: &HostSource, chosen: bool, first: bool) -> Screen {
    let mediated = matches!(source, HostSource::Mediated(_));
    match display(entry.options) {
        Some((enabled, early)) if enabled.unwrap_or(mediated) => {
            if early {
                Screen::Always
            } else {
                Screen::Driver
            }
        }
        None if entry.gpu && mediated && !chosen && first => Screen::Always,
        Some(_) | None => Screen::None,
    }
}

/// The display options: whether there is a display, and whether it shows something before its driver does.
fn display(options: Option<&VgpuOptions>) -> Option<(Option<bool>, bool)> {
    let display = options?.display.as_ref()?;
    let early = display.ram_fb.as_ref().is_none_or(|state| state.enabled.unwrap_or(true));
    Some((display.enabled, early))
}

impl PlannedHostDevices {
    /// Names in the PCI layout.
    pub(super) fn pci_names(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter(|device| !device.is_usb()).map(|device| device.id.clone())
    }

    /// Number of devices on the USB controller.
    pub(super) fn on_usb(&self) -> usize {
        self.0.iter().filter(|device| device.is_usb()).count()
    }

    pub(super) fn finish(self, ports: &Ports<'_>) -> Result<Vec<HostDevice>, PlanError> {
        let one = |device: Planned| {
            let place =
                if device.is_usb() { HostPlace::Usb } else { HostPlace::Pci(ports.seat(&device.id)?) };
            let Planned { id, field, card, source, screen, acpi_index, boot_index } = device;
            Ok(HostDevice { id, field, card, source, place, screen, acpi_index, boot_index })
        };
        self.0.into_iter().map(one).collect()
    }
}

impl Planned {
    fn is_usb(&self) -> bool {
        matches!(self.source, HostSource::Usb { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{facts, valid};
    use super::*;
    use crate::plan::plan;
    use serde_json::{Value, json};

    fn with(devices: Value) -> barevirt_api::valid::ValidVmi {
        valid(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "vm", "namespace": "ns"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": devices}},
        }))
    }

    /// Screens of GPUs with these options, each on a device of this kind.
    fn screens(gpus: &[(HostSource, Value)]) -> Vec<Screen> {
        let entries: Vec<Value> = gpus
            .iter()
            .enumerate()
            .map(|(number, (_, options))| {
                json!({"name": format!("g{number}"), "deviceName": "x/y", "virtualGPUOptions": options})
            })
            .collect();
        let vmi = with(json!({"gpus": entries}));
        let mut facts = facts(&vmi);
        let sources = gpus.iter().map(|(source, _)| vec![source.clone()]);
        facts.host_devices = vmi.host_devices().map(|(field, _)| field).zip(sources).collect();
        plan(&vmi, &facts).unwrap().host_devices.iter().map(|device| device.screen).collect()
    }

    #[test]
    fn one_virtual_gpu_shows_the_screen_unless_the_manifest_says_otherwise() {
        let mediated = || HostSource::Mediated("u".to_owned());
        let whole = || HostSource::Pci("0000:01:00.0".parse().unwrap());
        let on = json!({"display": {"enabled": true}});
        let late = json!({"display": {"ramFB": {"enabled": false}}});
        let off = json!({"display": {"enabled": false}});
        assert_eq!(
            screens(&[(whole(), json!(null)), (mediated(), json!(null)), (mediated(), json!(null))]),
            [Screen::None, Screen::Always, Screen::None]
        );
        assert_eq!(screens(&[(mediated(), json!(null)), (mediated(), late)]), [Screen::None, Screen::Driver]);
        assert_eq!(screens(&[(mediated(), off.clone())]), [Screen::None]);
        assert_eq!(screens(&[(whole(), on)]), [Screen::Always]);
        assert_eq!(screens(&[(whole(), json!({"display": {}}))]), [Screen::None]);
    }

    #[test]
    fn a_device_that_the_pod_was_not_given_is_named() {
        let vmi = with(json!({"hostDevices": [{"name": "a", "deviceName": "x/y"}]}));
        let error = plan(&vmi, &facts(&vmi)).unwrap_err().to_string();
        assert!(error.starts_with("spec.domain.devices.hostDevices[0]: "), "{error}");
    }
}
