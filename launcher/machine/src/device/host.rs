//! Devices of the node for the guest.

use crate::layout::Seat;
use crate::name;
use crate::props::Props;
use barevirt_api::pci_address::PciAddress;
use serde_json::Value;

/// A device of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSource {
    /// A PCI function.
    Pci(PciAddress),
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
    /// On the PCI bus.
    Pci(Seat),
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
    /// Path of its entry in the manifest.
    pub field: String,
    /// Name of the interface whose card it is. A guest that moves leaves its cards behind, and gets those of the other node.
    pub card: Option<String>,
    /// The device.
    pub source: HostSource,
    /// Its place in the guest.
    pub place: HostPlace,
    /// Its screen.
    pub screen: Screen,
    /// Number from which guests make the name of a network card (`eno1`), wherever it is.
    pub acpi_index: Option<u32>,
    /// Place in the boot order.
    pub boot_index: Option<u32>,
}

impl HostDevice {
    /// The id of a GPU, host device or network card, from its name in the manifest. A resource may consist of several
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
            HostSource::Pci(address) => props.with("host", address.to_string()),
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
        let props = match self.place {
            HostPlace::Pci(seat) => props.seated(seat, None),
            HostPlace::Usb => props.with("bus", "usb0.0"),
        };
        props.maybe("acpi-index", self.acpi_index).maybe("bootindex", self.boot_index)
    }
}
