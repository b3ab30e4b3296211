//! Devices of the node for the guest.

use crate::layout::Port;
use crate::name;
use crate::props::Props;
use serde_json::Value;

/// A device of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSource {
    /// A PCI function, by its address `0000:65:00.0`.
    Pci(String),
    /// A mediated device, by its UUID.
    Mediated(String),
    /// A USB device, by its bus and its number there.
    Usb {
        /// Number of the bus.
        bus: u16,
        /// Number on the bus.
        device: u16,
    },
}

/// The place of the device in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPlace {
    /// Behind its own root port.
    Port(Port),
    /// On the machine's USB controller.
    Usb,
}

/// Whether the device provides the guest's screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// No.
    None,
    /// Yes, as soon as the guest's driver shows something.
    Driver,
    /// Yes, with a frame buffer of the firmware before that.
    Always,
}

/// A device of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Its id: unique among the machine's devices.
    pub id: String,
    /// The device.
    pub source: HostSource,
    /// Its place in the guest.
    pub place: HostPlace,
    /// Its screen.
    pub screen: Screen,
}

impl HostDevice {
    /// The id of a GPU or host device, from its name in the manifest. A resource may consist of several
    /// devices.
    pub(crate) fn id_of(list: &str, entry: &str, number: usize) -> String {
        let id = name::device(list, entry);
        if number == 0 { id } else { format!("{id}-{number}") }
    }

    pub(crate) fn props(&self) -> Props {
        let driver = match (&self.source, self.screen) {
            (HostSource::Usb { .. }, _) => "usb-host",
            // A device with the firmware's frame buffer cannot be unplugged.
            (_, Screen::Always) => "vfio-pci-nohotplug",
            (_, Screen::None | Screen::Driver) => "vfio-pci",
        };
        let props = Props::device(driver, &self.id);
        let props = match &self.source {
            HostSource::Pci(address) => props.with("host", address.clone()),
            HostSource::Mediated(uuid) => props.with("sysfsdev", format!("/sys/bus/mdev/devices/{uuid}")),
            HostSource::Usb { bus, device } => {
                props.with("hostdevice", format!("/dev/bus/usb/{bus:03}/{device:03}"))
            }
        };
        let props = match self.screen {
            Screen::None => props,
            Screen::Driver => props.with("display", "on"),
            Screen::Always => props.with("display", "on").with("ramfb", Value::Bool(true)),
        };
        match self.place {
            HostPlace::Port(port) => props.behind(port),
            HostPlace::Usb => props.with("bus", "usb0.0"),
        }
    }
}
