//! Devices of the node that the guest is given.

use crate::layout::Port;
use crate::name;
use crate::props::Props;
use serde_json::Value;

/// Which device of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSource {
    /// A PCI function, by its address `0000:65:00.0`.
    Pci(String),
    /// A mediated device, by its UUID.
    Mediated(String),
    /// A USB device, by the numbers of its bus and of itself there.
    Usb {
        /// Number of the bus.
        bus: u16,
        /// Number on the bus.
        device: u16,
    },
}

/// How the guest sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPlace {
    /// Alone behind a root port.
    Port(Port),
    /// On the machine's USB controller.
    Usb,
}

/// Whether the guest's screen is the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// No.
    None,
    /// Yes, once the guest's driver shows something.
    Driver,
    /// Yes, and before that a frame buffer of the firmware's.
    Always,
}

/// A device of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Its id: unique among the machine's devices.
    pub id: String,
    /// Which one it is.
    pub source: HostSource,
    /// Where the guest finds it.
    pub place: HostPlace,
    /// What it shows.
    pub screen: Screen,
}

impl HostDevice {
    /// The id of a GPU or host device by its name in the manifest; a resource may be several devices.
    pub(crate) fn id_of(list: &str, entry: &str, number: usize) -> String {
        let id = name::device(list, entry);
        if number == 0 { id } else { format!("{id}-{number}") }
    }

    pub(crate) fn props(&self) -> Props {
        let driver = match (&self.source, self.screen) {
            (HostSource::Usb { .. }, _) => "usb-host",
            // With a frame buffer of the firmware's it cannot be unplugged.
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
