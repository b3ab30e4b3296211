//! Watchdog, sound card, tablets, display, panic devices.

use super::ports::Ports;
use crate::device::controller::Controllers;
use crate::device::input::{Input, InputBus};
use crate::device::panic::Panic;
use crate::device::sound::{Sound, SoundModel};
use crate::device::usb_redirection::UsbSlot;
use crate::device::video::{Video, VideoModel};
use crate::device::watchdog::{Watchdog, WatchdogAction};
use crate::error::PlanError;
use crate::facts::Facts;
use barevirt_api::v1::{self, ClientPassthroughDevices, Devices};
use barevirt_api::valid::ValidVmi;

/// Names in the PCI layout, in the order in which they were introduced: new ones must be added at the end.
pub(super) fn pci_names(devices: &Devices, on_usb: bool) -> Vec<String> {
    let watchdog = devices.watchdog.is_some().then(|| Watchdog::ID.to_owned());
    let sound = devices.sound.is_some().then(|| Sound::ID.to_owned());
    let usb = on_usb.then(|| Controllers::USB.to_owned());
    let tablets = devices.inputs.iter().filter(|input| is_virtio(input));
    let tablets = tablets.map(|input| Input::id_of(&input.name));
    watchdog.into_iter().chain(sound).chain(usb).chain(tablets).collect()
}

/// Number of peripherals on the USB controller, which only exists for its devices.
pub(super) fn on_usb(devices: &Devices) -> usize {
    let slots = if devices.client_passthrough.is_some() { ClientPassthroughDevices::SLOTS } else { 0 };
    devices.inputs.iter().filter(|input| !is_virtio(input)).count() + slots
}

pub(super) fn usb_slots(devices: &Devices, facts: &Facts) -> Vec<UsbSlot> {
    if devices.client_passthrough.is_none() {
        return Vec::new();
    }
    let slot = |(number, socket): (usize, &String)| UsbSlot { number, socket: socket.clone() };
    facts.usb_sockets.iter().enumerate().map(slot).collect()
}

fn is_virtio(input: &v1::Input) -> bool {
    input.bus.as_deref() == Some("virtio")
}

pub(super) fn inputs(devices: &Devices, ports: &Ports<'_>) -> Result<Vec<Input>, PlanError> {
    let tablet = |input: &v1::Input| {
        let bus = if is_virtio(input) {
            InputBus::Virtio(ports.seat(&Input::id_of(&input.name))?)
        } else {
            InputBus::Usb
        };
        Ok(Input { name: input.name.clone(), bus })
    };
    devices.inputs.iter().map(tablet).collect()
}

pub(super) fn watchdog(devices: &Devices, ports: &Ports<'_>) -> Result<Option<Watchdog>, PlanError> {
    let Some(watchdog) = &devices.watchdog else { return Ok(None) };
    let given = watchdog.i6300esb.as_ref().and_then(|model| model.action.as_deref()).unwrap_or_default();
    let action = if given.is_empty() { Some(WatchdogAction::Reset) } else { WatchdogAction::from_api(given) };
    let Some(action) = action else {
        let field = "spec.domain.devices.watchdog.i6300esb.action".to_owned();
        let why = "poweroff, reset and shutdown are";
        return Err(PlanError::Unsupported { field, value: given.to_owned(), why });
    };
    Ok(Some(Watchdog { action, seat: ports.seat(Watchdog::ID)? }))
}

pub(super) fn sound(devices: &Devices, ports: &Ports<'_>) -> Result<Option<Sound>, PlanError> {
    let Some(sound) = &devices.sound else { return Ok(None) };
    let model = match sound.model.as_deref().unwrap_or_default() {
        "" | "ich9" => SoundModel::Ich9,
        "ac97" => SoundModel::Ac97,
        other => {
            let (field, value) = ("spec.domain.devices.sound.model".to_owned(), other.to_owned());
            return Err(PlanError::Unsupported { field, value, why: "ich9 and ac97 are" });
        }
    };
    Ok(Some(Sound { model, seat: ports.seat(Sound::ID)? }))
}

pub(super) fn video(vmi: &ValidVmi, facts: &Facts) -> Result<Option<Video>, PlanError> {
    let devices = &vmi.spec().domain.devices;
    if !devices.autoattach_graphics_device.unwrap_or(true) {
        return Ok(None);
    }
    let given = devices.video.as_ref().and_then(|video| video.type_.as_deref()).unwrap_or_default();
    let model = match given {
        // Guests with UEFI do not need VGA.
        "" if barevirt_api::firmware::efi(vmi.spec()).is_some() => VideoModel::Bochs,
        "" => VideoModel::Vga,
        given => VideoModel::from_api(given).ok_or_else(|| PlanError::Unsupported {
            field: "spec.domain.devices.video.type".to_owned(),
            value: given.to_owned(),
            why: "vga, cirrus, virtio, ramfb and bochs are",
        })?,
    };
    Ok(Some(Video { vnc_socket: facts.vnc_socket.clone(), model }))
}

/// The device on PCI always exists; Hyper-V's is a property of the CPU.
pub(super) fn panic(devices: &Devices) -> Panic {
    let isa = |model: &Option<String>| matches!(model.as_deref(), None | Some("" | "isa"));
    Panic { isa: devices.panic_devices.iter().any(|device| isa(&device.model)) }
}
