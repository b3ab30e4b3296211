//! The planned machine: plain data, nothing left to decide.

use crate::cpu::Cpu;
use crate::device::balloon::Balloon;
use crate::device::channel::GuestAgent;
use crate::device::controller::{Controllers, RootPort};
use crate::device::disk::Disk;
use crate::device::nic::Nic;
use crate::device::panic::Panic;
use crate::device::rng::Rng;
use crate::device::serial::Serial;
use crate::device::video::Video;
use crate::facts::{Accelerator, FdSet, Monitors};
use crate::layout::Layout;
use crate::memory::Memory;
use barevirt_api::settings::Smbios;

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
    /// Controllers.
    pub controllers: Controllers,
    /// Network interfaces, in the manifest's order.
    pub nics: Vec<Nic>,
    /// Disks, in the manifest's order.
    pub disks: Vec<Disk>,
    /// Serial console.
    pub serial: Option<Serial>,
    /// The guest agent's channel.
    pub guest_agent: GuestAgent,
    /// Display.
    pub video: Option<Video>,
    /// Random numbers.
    pub rng: Option<Rng>,
    /// Balloon.
    pub balloon: Option<Balloon>,
    /// How a panic is reported.
    pub panic: Panic,
}
