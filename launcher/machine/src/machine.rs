//! The planned machine: plain data without open decisions.

use crate::clock::{Rtc, Timers};
use crate::cpu::Cpu;
use crate::device::balloon::Balloon;
use crate::device::channel::{DownwardMetrics, GuestAgent};
use crate::device::controller::{Controllers, PciBridge, RootPort};
use crate::device::disk::Disk;
use crate::device::filesystem::Filesystem;
use crate::device::flash::Flash;
use crate::device::host::HostDevice;
use crate::device::input::Input;
use crate::device::io_thread::IoThread;
use crate::device::nic::Nic;
use crate::device::panic::Panic;
use crate::device::rng::Rng;
use crate::device::serial::Serial;
use crate::device::sound::Sound;
use crate::device::tpm::Tpm;
use crate::device::usb_redirection::UsbSlot;
use crate::device::video::Video;
use crate::device::virtio_mem::VirtioMem;
use crate::device::vsock::Vsock;
use crate::device::watchdog::Watchdog;
use crate::facts::{Accelerator, FdSet, Monitors};
use crate::layout::Layout;
use crate::memory::Memory;
use crate::numa::NumaCell;
use crate::pinning::Pinning;
use barevirt_api::settings::Smbios;
use barevirt_api::v1::Chassis;

/// The identity of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `<namespace>_<name>`, QEMU's name for the machine and for its process.
    pub name: String,
    /// SMBIOS system UUID.
    pub uuid: String,
    /// SMBIOS system serial number.
    pub serial: Option<String>,
    /// Manufacturer and model that the guest reads.
    pub smbios: Smbios,
    /// Data of the case that the guest reads.
    pub chassis: Option<Chassis>,
}

/// Board and firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firmware {
    /// QEMU's machine type.
    pub machine_type: String,
    /// Whether there are ACPI tables and an ACPI power button.
    pub acpi: bool,
    /// Whether the BIOS writes to the serial port and not to the display.
    pub on_serial: bool,
    /// Whether there is system management mode, which only the firmware's code enters.
    pub smm: bool,
    /// Whether only firmware in that mode can write the variables.
    pub secure_boot: bool,
    /// UEFI; `None` means BIOS.
    pub flash: Option<Flash>,
    /// Kernel that the firmware starts directly.
    pub kernel: Option<Kernel>,
    /// Paths of additional ACPI tables.
    pub acpi_tables: Vec<String>,
    /// Path of what Ignition is to do.
    pub ignition: Option<String>,
}

/// A kernel that is not on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Path of its image.
    pub image: String,
    /// Path of its initial file system.
    pub initrd: Option<String>,
    /// Its command line.
    pub arguments: Option<String>,
}

/// The effect of the guest's reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnReboot {
    /// The machine is reset, and the guest starts again.
    Reset,
    /// QEMU ends.
    End,
}

/// All options for QEMU. Made by [`plan`](crate::plan()), printed by [`argv`](crate::argv()).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Names.
    pub identity: Identity,
    /// Board and firmware.
    pub firmware: Firmware,
    /// The accelerator.
    pub accelerator: Accelerator,
    /// CPUs.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Sets of file descriptors.
    pub fd_sets: Vec<FdSet>,
    /// Monitors.
    pub monitors: Monitors,
    /// Root ports of devices; to be saved.
    pub layout: Layout,
    /// Root ports, in order.
    pub root_ports: Vec<RootPort>,
    /// Bridges that replace root ports.
    pub bridges: Vec<PciBridge>,
    /// Whether PCI devices can have memory above the guest's.
    pub pci_hole64: bool,
    /// Controllers.
    pub controllers: Controllers,
    /// Network interfaces, in the manifest's order.
    pub nics: Vec<Nic>,
    /// Disks, in the manifest's order.
    pub disks: Vec<Disk>,
    /// Shared directories, in the manifest's order.
    pub filesystems: Vec<Filesystem>,
    /// Serial console.
    pub serial: Option<Serial>,
    /// The guest agent's channel.
    pub guest_agent: GuestAgent,
    /// The guest's connection to its host.
    pub vsock: Option<Vsock>,
    /// Devices of the node, in the manifest's order, GPUs first.
    pub host_devices: Vec<HostDevice>,
    /// Channel on which the guest requests metrics of its node.
    pub downward_metrics: Option<DownwardMetrics>,
    /// Display.
    pub video: Option<Video>,
    /// Random numbers.
    pub rng: Option<Rng>,
    /// Number of queues for plugged disks, to match those of the first disks, if QEMU would choose otherwise.
    pub queues: Option<u32>,
    /// Range for memory that is plugged in later.
    pub virtio_mem: Option<VirtioMem>,
    /// Balloon.
    pub balloon: Option<Balloon>,
    /// TPM.
    pub tpm: Option<Tpm>,
    /// The panic device.
    pub panic: Panic,
    /// Watchdog.
    pub watchdog: Option<Watchdog>,
    /// Sound card.
    pub sound: Option<Sound>,
    /// Tablets.
    pub inputs: Vec<Input>,
    /// Slots for USB devices of clients.
    pub usb_slots: Vec<UsbSlot>,
    /// Threads that serve disks.
    pub io_threads: Vec<IoThread>,
    /// CPUs of threads, if the guest has dedicated CPUs.
    pub pinning: Option<Pinning>,
    /// NUMA nodes. Without nodes, the memory is one piece.
    pub cells: Vec<NumaCell>,
    /// The hardware clock.
    pub rtc: Rtc,
    /// Timers.
    pub timers: Timers,
    /// The effect of the guest's reboot.
    pub on_reboot: OnReboot,
    /// Fields that request features which this accelerator does not have and which change nothing else; to be
    /// reported.
    pub left_out: Vec<String>,
}
