//! What other devices are plugged into: root ports and bridges, SATA, SCSI and virtio-serial controllers.

use crate::device::io_thread::Served;
use crate::device::virtio::Virtio;
use crate::layout::Port;
use crate::props::Props;

/// One PCIe root port; a single device, or none yet, is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootPort {
    /// Its number.
    pub port: Port,
    /// Its slot of pcie.0.
    pub slot: u16,
}

impl RootPort {
    pub(crate) fn props(self) -> Props {
        let Self { port, slot } = self;
        let (number, function) = (port.number(), port.function());
        let props = Props::device("pcie-root-port", &port.bus())
            .with("bus", "pcie.0")
            .with("addr", format!("{slot:#x}.{function:#x}"))
            // Physical slot numbers are shown to the guest; 0 means "no slot" to some of them.
            .with("chassis", number + 1)
            .with("port", number);
        if function == 0 { props.with("multifunction", true) } else { props }
    }
}

/// A bridge to conventional PCI in the place of a root port, so that firmware gives the bus behind it the number that the one
/// behind the root port would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciBridge {
    /// The root port in whose place it is.
    pub port: Port,
    /// Its slot of pcie.0.
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

/// An AHCI controller beyond the chipset's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SataController {
    /// Counted from 1; 0 is the chipset's.
    pub number: u8,
}

impl SataController {
    /// Most that there can be: slots 0x1c to 0x1e of pcie.0.
    pub const MAX: u8 = 3;

    pub(crate) fn props(self) -> Props {
        // Downwards from 0x1e, below the chipset's own slot.
        let slot = 0x1f_u8.saturating_sub(self.number);
        Props::device("ich9-ahci", &format!("sata{}", self.number))
            .with("bus", "pcie.0")
            .with("addr", format!("{slot:#x}"))
    }
}

/// The USB 3 controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsbController {
    /// Where it is.
    pub port: Port,
    /// How many devices are on it from the start.
    pub devices: usize,
}

impl UsbController {
    /// Sockets where nothing is said.
    const USUAL: usize = 4;
    /// Most that QEMU gives it.
    const MOST: usize = 15;

    fn props(self) -> Props {
        let props = Props::device("qemu-xhci", Controllers::USB).behind(self.port);
        // Into the last free socket QEMU puts a hub, which is of USB 1 and too slow for what is behind it: one to spare.
        let sockets = (self.devices + 1).clamp(Self::USUAL, Self::MOST);
        if sockets == Self::USUAL { props } else { props.with("p2", sockets).with("p3", sockets) }
    }
}

/// Controllers that there is at most one of, and the port that each is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controllers {
    /// The chipset's SATA controller; switched off where no drive is on it, since guests spend a second on its ports.
    pub chipset_sata: bool,
    /// Further SATA controllers.
    pub sata: Vec<SataController>,
    /// virtio-scsi, when a disk asks for it.
    pub scsi: Option<Port>,
    /// Who serves its queues.
    pub scsi_served: Served,
    /// How many queues it has, where that is not QEMU's choice.
    pub scsi_queues: Option<u32>,
    /// USB 3, when a device is on it.
    pub usb: Option<UsbController>,
    /// virtio-serial, for channels.
    pub serial: Port,
    /// Which virtio they speak.
    pub virtio: Virtio,
}

impl Controllers {
    /// Name of the SCSI controller in the PCI layout; the others' follow.
    pub(crate) const SCSI: &'static str = "scsi0";
    pub(crate) const USB: &'static str = "usb0";
    pub(crate) const SERIAL: &'static str = "virtio-serial0";

    /// The SCSI controller.
    pub(crate) fn scsi(port: Port, virtio: Virtio, served: &Served, queues: Option<u32>) -> Props {
        let driver = virtio.of("virtio-scsi-pci", "virtio-scsi-pci-transitional");
        Props::device(driver, Self::SCSI).behind(port).maybe("num_queues", queues).served(served)
    }

    pub(crate) fn props(&self) -> Vec<Props> {
        let sata = self.sata.iter().map(|controller| controller.props());
        let scsi = self.scsi.map(|port| Self::scsi(port, self.virtio, &self.scsi_served, self.scsi_queues));
        let usb = self.usb.map(UsbController::props);
        let driver = self.virtio.of("virtio-serial-pci", "virtio-serial-pci-transitional");
        let serial = Props::device(driver, Self::SERIAL).behind(self.serial);
        sata.chain(scsi).chain(usb).chain([serial]).collect()
    }
}
