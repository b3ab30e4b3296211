//! The planned machine: plain data, nothing left to decide.

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

/// Who the machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `<namespace>_<name>`, QEMU's name for it and that of its process.
    pub name: String,
    /// SMBIOS system UUID.
    pub uuid: String,
    /// SMBIOS system serial number.
    pub serial: Option<String>,
    /// What the guest reads about its maker and model.
    pub smbios: Smbios,
    /// What the guest reads about its case.
    pub chassis: Option<Chassis>,
}

/// Board and firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firmware {
    /// QEMU's machine type.
    pub machine_type: String,
    /// ACPI tables and power button.
    pub acpi: bool,
    /// The BIOS talks on the serial port and not on the display.
    pub on_serial: bool,
    /// System management mode, which only the firmware's code enters.
    pub smm: bool,
    /// The variables are written by firmware in that mode only.
    pub secure_boot: bool,
    /// UEFI; BIOS without.
    pub flash: Option<Flash>,
    /// Started by the firmware at once.
    pub kernel: Option<Kernel>,
    /// Paths of further tables of ACPI.
    pub acpi_tables: Vec<String>,
}

/// A kernel that is on no disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Path of its image.
    pub image: String,
    /// Path of its initial file system.
    pub initrd: Option<String>,
    /// Its command line.
    pub arguments: Option<String>,
}

/// What the guest's reboot comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnReboot {
    /// The machine is reset, and the guest begins anew.
    Reset,
    /// QEMU ends.
    End,
}

/// Everything QEMU is told. Made by [`plan`](crate::plan()), printed by [`argv`](crate::argv()).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Names.
    pub identity: Identity,
    /// Board and firmware.
    pub firmware: Firmware,
    /// What runs it.
    pub accelerator: Accelerator,
    /// CPUs.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Descriptors that are files.
    pub fd_sets: Vec<FdSet>,
    /// Monitors.
    pub monitors: Monitors,
    /// Which device is behind which root port; to be saved.
    pub layout: Layout,
    /// Root ports, in order.
    pub root_ports: Vec<RootPort>,
    /// Bridges in the place of root ports.
    pub bridges: Vec<PciBridge>,
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
    /// The guest's line to its host.
    pub vsock: Option<Vsock>,
    /// Devices of the node, in the manifest's order, GPUs first.
    pub host_devices: Vec<HostDevice>,
    /// Where the guest asks for metrics of its node.
    pub downward_metrics: Option<DownwardMetrics>,
    /// Display.
    pub video: Option<Video>,
    /// Random numbers.
    pub rng: Option<Rng>,
    /// Queues of disks that are to have as many as those that the guest started with, where QEMU would choose otherwise.
    pub queues: Option<u32>,
    /// Room for memory that is plugged in later.
    pub virtio_mem: Option<VirtioMem>,
    /// Balloon.
    pub balloon: Option<Balloon>,
    /// TPM.
    pub tpm: Option<Tpm>,
    /// How a panic is reported.
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
    /// Which thread runs on which CPU of the host, where they are the guest's own.
    pub pinning: Option<Pinning>,
    /// NUMA nodes. Without any, the memory is one piece.
    pub cells: Vec<NumaCell>,
    /// The hardware clock.
    pub rtc: Rtc,
    /// Timers.
    pub timers: Timers,
    /// What the guest's reboot comes to.
    pub on_reboot: OnReboot,
    /// Fields that ask for what this accelerator does not have, and that change nothing else: to be told.
    pub left_out: Vec<String>,
}
