//! Controllers for other devices: root ports and bridges, SATA, SCSI and virtio-serial controllers.

use crate::device::io_thread::Served;
use crate::device::virtio::Virtio;
use crate::layout::{Port, Seat};
use crate::props::Props;

/// One PCIe root port, with one device or none behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootPort {
    /// Its number.
    pub port: Port,
    /// Its slot on pcie.0.
    pub slot: u16,
}

impl RootPort {
    pub(crate) fn props(self) -> Props {
        let Self { port, slot } = self;
        let (number, function) = (port.number(), port.function());
        let props = Props::device("pcie-root-port", &port.bus())
            .with("bus", "pcie.0")
            .with("addr", format!("{slot:#x}.{function:#x}"))
            // The guest sees physical slot numbers, and some guests read 0 as "no slot".
            .with("chassis", number + 1)
            .with("port", number);
        if function == 0 { props.with("multifunction", true) } else { props }
    }
}

/// A bridge to conventional PCI that replaces a root port, so that firmware gives the bus behind it the
/// number that the bus of the root port would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciBridge {
    /// The root port that it replaces.
    pub port: Port,
    /// Its slot on pcie.0.
    pub slot: u16,
}

impl PciBridge {
    pub(crate) fn props(self) -> Props {
        let Self { port, slot } = self;
        let props = Props::device("pcie-pci-bridge", &port.bridge())
            .with("bus", "pcie.0")
            .with("addr", format!("{slot:#x}.{:#x}", port.function()));
        if port.function() == 0 { props.with("multifunction", true) } else { props }
    }
}

/// An AHCI controller in addition to the chipset's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SataController {
    /// Counted from 1; 0 is the chipset's.
    pub number: u8,
}

impl SataController {
    /// Largest number of them: slots 0x1c to 0x1e of pcie.0.
    pub const MAX: u8 = 3;

    pub(crate) fn props(self) -> Props {
        // From 0x1e downwards, below the chipset's own slot.
        let slot = 0x1f_u8.saturating_sub(self.number);
        Props::device("ich9-ahci", &format!("sata{}", self.number))
            .with("bus", "pcie.0")
            .with("addr", format!("{slot:#x}"))
    }
}

/// The USB 3 controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsbController {
    /// Its place on the PCI bus.
    pub seat: Seat,
    /// Number of devices that are connected from the start.
    pub devices: usize,
}

impl UsbController {
    /// Number of USB ports by default.
    const USUAL: usize = 4;
    /// Most USB ports that QEMU supports.
    const MOST: usize = 15;

    fn props(self) -> Props {
        let props = Props::device("qemu-xhci", Controllers::USB).seated(self.seat, None);
        // QEMU puts a hub into the last free port; it is a USB 1 hub and too slow for the devices behind it.
        // So there is one spare port.
        let sockets = (self.devices + 1).clamp(Self::USUAL, Self::MOST);
        if sockets == Self::USUAL { props } else { props.with("p2", sockets).with("p3", sockets) }
    }
}

/// Controllers of which there is at most one each, and their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controllers {
    /// The chipset's SATA controller; switched off if it has no drive, because guests spend a second on its
    /// ports.
    pub chipset_sata: bool,
    /// Further SATA controllers.
    pub sata: Vec<SataController>,
    /// virtio-scsi, if a disk needs it.
    pub scsi: Option<Seat>,
    /// The threads that serve its queues.
    pub scsi_served: Served,
    /// Number of its queues, if it differs from QEMU's choice.
    pub scsi_queues: Option<u32>,
    /// USB 3, if a device needs it.
    pub usb: Option<UsbController>,
    /// virtio-serial, for channels.
    pub serial: Seat,
    /// Their version of virtio.
    pub virtio: Virtio,
}

impl Controllers {
    /// Name of the SCSI controller in the PCI layout; the names of the others follow.
    pub(crate) const SCSI: &'static str = "scsi0";
    pub(crate) const USB: &'static str = "usb0";
    pub(crate) const SERIAL: &'static str = "virtio-serial0";

    /// The SCSI controller.
    pub(crate) fn scsi(seat: Seat, virtio: Virtio, served: &Served, queues: Option<u32>) -> Props {
        let driver = virtio.of("virtio-scsi-pci", "virtio-scsi-pci-transitional");
        Props::device(driver, Self::SCSI)
            .seated(seat, Some(virtio))
            .maybe("num_queues", queues)
            .served(served)
    }

    pub(crate) fn props(&self) -> Vec<Props> {
        let sata = self.sata.iter().map(|controller| controller.props());
        let scsi = self.scsi.map(|seat| Self::scsi(seat, self.virtio, &self.scsi_served, self.scsi_queues));
        let usb = self.usb.map(UsbController::props);
        let driver = self.virtio.of("virtio-serial-pci", "virtio-serial-pci-transitional");
        let serial = Props::device(driver, Self::SERIAL).seated(self.serial, Some(self.virtio));
        sata.chain(scsi).chain(usb).chain([serial]).collect()
    }
}
