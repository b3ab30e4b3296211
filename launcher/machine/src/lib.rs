//! From a `VirtualMachineInstance` to QEMU: devices, command line and QMP steps.
//!
//! ```text
//!   ValidVmi ──┐
//!              ├── plan() ──> Machine ──┬── argv()   ──> Vec<String>, QEMU's arguments
//!   Facts ─────┘                        └── attach*() ──> Vec<Step>, QMP commands, each with its inverse
//! ```
//!
//! Everything here is pure: no files, no clock, no sockets. The launcher finds out everything about the host
//! (descriptors, image formats, the accelerator) once, and passes it as [`Facts`].
//!
//! Every device is one value (one file each in `device`) with one serialisation: the JSON properties of
//! `-device` are also the arguments of `device_add`. The same holds for `-blockdev`/`blockdev-add`,
//! `-netdev`/`netdev_add` and `-object`/`object-add`. If QEMU has no JSON for an option (`-machine`, `-smp`,
//! `-chardev`, ...), the quoting function in `quote` handles its values.
//!
//! Everything that the guest can see is stable by name: see [`layout`] for PCI addresses and `name` for
//! identifiers.
//!
//! The modules, from the outside in. Each module uses only modules that are listed below it.
//!
//! **Functions**
//!
//! - `plan` decides: manifest and facts in, a [`Machine`] out. It has a file for each part of a machine.
//! - `argv` prints the machine as a command line; `hotplug` and `resize` change a running one by QMP commands.
//! - `expected`: the facts of a pod, for programs without one.
//!
//! **A machine**
//!
//! - `machine` is the whole; `cpu`, `memory`, `numa`, `clock` and the devices in `device` are its parts.
//! - [`layout`]: places of devices on the PCI bus; `pinning`: CPUs of threads.
//!
//! **Shared parts**
//!
//! - `facts`, `host_cpu` and `host_cpus`: facts that the launcher found; `error`: why there is no machine.
//! - `props` and `quote`: JSON and `key=value` as QEMU reads them; `name`: identifiers; `blocks`, `units`: sizes of
//!   blocks, bytes and descriptors.

mod argv;
mod blocks;
mod clock;
mod cpu;
mod device;
mod error;
mod expected;
mod facts;
mod host_cpu;
mod host_cpus;
mod hotplug;
pub mod layout;
mod machine;
mod memory;
mod name;
mod numa;
mod pinning;
mod plan;
mod props;
mod quote;
mod resize;
mod units;

pub use argv::{Part, argv, parts};
pub use blocks::Blocks;
pub use clock::{LostTicks, Rtc, Timers, Track};
pub use cpu::{Cpu, CpuModel, Flag};
pub use device::balloon::Balloon;
pub use device::blockdev::{Aio, Cache, FileSource, Image, ImageFormat, ReadMode};
pub use device::channel::{DownwardMetrics, GuestAgent};
pub use device::controller::{Controllers, PciBridge, RootPort, SataController, UsbController};
pub use device::disk::{Bus, Disk, DiskDevice, DiskKind, IdeSlot, OnError};
pub use device::filesystem::Filesystem;
pub use device::flash::Flash;
pub use device::host::{HostDevice, HostPlace, HostSource, Screen};
pub use device::input::{Input, InputBus};
pub use device::io_thread::{IoThread, Served};
pub use device::nic::{HostForward, NetBackend, Nic, NicModel, TapFd};
pub use device::panic::Panic;
pub use device::rng::Rng;
pub use device::serial::Serial;
pub use device::sound::{Sound, SoundModel};
pub use device::tpm::Tpm;
pub use device::usb_redirection::UsbSlot;
pub use device::video::{Video, VideoModel};
pub use device::virtio::{MOST_TRANSITIONAL, Virtio};
pub use device::virtio_mem::VirtioMem;
pub use device::vsock::Vsock;
pub use device::watchdog::{Watchdog, WatchdogAction};
pub use error::PlanError;
pub use expected::{QEMU_DIRECTORY, expected};
pub use facts::{
    Accelerator, Facts, FdSet, FdSetMember, FirmwareFacts, InterfaceFacts, Monitors, VolumeFacts,
};
pub use host_cpu::{CpuQuestion, HostCpu};
pub use host_cpus::{CpuSet, HostCell, HostCpus};
pub use hotplug::{Command, HostCard, Step, attach_disk, attach_host_cards, attach_nic, insert_disc};
pub use layout::{Layout, Port, Seat};
pub use machine::{Firmware, Identity, Kernel, Machine, OnReboot};
pub use memory::Memory;
pub use numa::{NumaCell, Placed, misplaced};
pub use pinning::{Demand, Pinning, PinningError};
pub use plan::hot_disk::{HotDisk, HotDisks};
pub use plan::hot_nic::HotNic;
pub use plan::tagged::{TaggedDevice, TaggedKind, tagged_devices};
pub use plan::{demand, plan};
pub use resize::{Plugged, Processors};
pub use units::{Bytes, Fd};
