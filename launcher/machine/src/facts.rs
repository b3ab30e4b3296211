//! Facts that the launcher found, and files that it opened: everything that a plan needs in addition to the
//! manifest.

use crate::blocks::Blocks;
use crate::device::blockdev::{Cache, FileSource, ImageFormat};
use crate::device::flash::Flash;
use crate::device::host::HostSource;
use crate::device::nic::NetBackend;
use crate::host_cpu::HostCpu;
use crate::host_cpus::HostCpus;
use crate::layout::Layout;
use crate::units::{Bytes, Fd};
use barevirt_api::settings::Smbios;
use barevirt_api::v1::ClientPassthroughDevices;

/// The accelerator that runs the guest's instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// KVM.
    Kvm {
        /// The set that holds /dev/kvm, opened by a process with the right to do so; with `None` QEMU opens
        /// it.
        device: Option<u32>,
    },
    /// Emulation.
    Tcg {
        /// Size of the buffer for translated code; it counts as the pod's memory.
        buffer: Bytes,
    },
}

/// A numbered set of descriptors of one file, which QEMU opens as `/dev/fdset/<number>`.
///
/// QEMU selects the descriptor with exactly the access mode that it needs: a file that is only read needs a
/// descriptor that is open for reading, a writable file one that is open for both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdSet {
    /// Its number.
    pub number: u32,
    /// Its descriptors.
    pub members: Vec<FdSetMember>,
}

/// A descriptor of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdSetMember {
    /// Its number in QEMU.
    pub fd: Fd,
    /// Its purpose, for `query-fdsets`, such as `volume rootdisk`.
    pub what: String,
}

/// One prepared network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// Name of the interface in the manifest.
    pub name: String,
    /// The guest's MAC address.
    pub mac: String,
    /// MTU of the network, if the guest must know it.
    pub mtu: Option<u16>,
    /// The backend.
    pub backend: NetBackend,
}

/// One prepared volume; for cloud-init this is the ISO image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Name of the volume in the manifest.
    pub name: String,
    /// The image.
    pub source: FileSource,
    /// Its format, found by checking it.
    pub format: ImageFormat,
    /// Whether the image must not be written; writes then need an overlay.
    pub read_only: bool,
    /// An empty qcow2 file for the guest's writes, with the image's virtual size and without a backing file.
    pub overlay: Option<FileSource>,
    /// Cache mode if the manifest gives none.
    pub cache: Cache,
    /// Whether its space was allocated in advance, and is to stay so.
    pub thick: bool,
    /// Sizes of its blocks, if its disk is to have them. `None` also for an image that was made for this guest: its contents
    /// are made for blocks of 512 bytes.
    pub blocks: Option<Blocks>,
}

/// Both monitors: QEMU's ends of two socket pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Monitors {
    /// The launcher's own monitor.
    pub control: Fd,
    /// The monitor for users, whose clients the launcher multiplexes.
    pub people: Fd,
}

/// Firmware parts, if the manifest requests more than the BIOS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirmwareFacts {
    /// UEFI code and variables.
    pub flash: Option<Flash>,
    /// Path of the kernel, as QEMU sees it.
    pub kernel: Option<String>,
    /// Path of its initial file system.
    pub initrd: Option<String>,
    /// Paths of additional ACPI tables.
    pub acpi_tables: Vec<String>,
    /// Path of what Ignition is to do.
    pub ignition: Option<String>,
    /// QEMU's end of the TPM's control channel.
    pub tpm: Option<Fd>,
}

/// All facts that a plan needs in addition to the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// KVM or emulation.
    pub accelerator: Accelerator,
    /// Sets of descriptors that volumes and the accelerator refer to.
    pub fd_sets: Vec<FdSet>,
    /// Monitors.
    pub monitors: Monitors,
    /// QEMU's end of the serial console. Not used if the manifest has none.
    pub serial: Fd,
    /// QEMU's end of the guest agent's channel.
    pub guest_agent: Fd,
    /// /dev/vhost-vsock, if the manifest needs it.
    pub vhost_vsock: Option<Fd>,
    /// The guest's address on vsock, when it is assigned.
    pub context_id: Option<u32>,
    /// Devices of the node: path of the entry in the manifest, and its devices.
    pub host_devices: Vec<(String, Vec<HostSource>)>,
    /// QEMU's end of the channel for metrics, if the manifest has one.
    pub downward_metrics: Option<Fd>,
    /// Connections to the servers of shared directories, by the names of their volumes.
    pub filesystems: Vec<(String, Fd)>,
    /// Socket of the VNC server. Not used if the manifest has no display.
    pub vnc_socket: String,
    /// Sockets of the slots for USB devices of clients. Not used if the manifest has none.
    pub usb_sockets: [String; ClientPassthroughDevices::SLOTS],
    /// Interfaces, in any order.
    pub interfaces: Vec<InterfaceFacts>,
    /// Volumes, in any order.
    pub volumes: Vec<VolumeFacts>,
    /// Whether boot ROMs for network cards are installed beside QEMU.
    pub network_boot: bool,
    /// Firmware, kernel and TPM.
    pub firmware: FirmwareFacts,
    /// Machine type that an earlier start resolved (`pc-q35-10.0`), so that the guest keeps it.
    pub machine_type: Option<String>,
    /// Current sockets with processors of a guest that comes from another node. The manifest has the number
    /// at its start.
    pub sockets: Option<u32>,
    /// System information in SMBIOS that guests read.
    pub smbios: Smbios,
    /// Whether guests report free memory to the node, unless they are not to.
    pub free_page_reporting: bool,
    /// Time of the hardware clock at the start, if it is not UTC, such as `2026-11-22T01:02:03`.
    pub rtc_base: Option<String>,
    /// CPU features that a guest can have here, if [`CpuQuestion`](crate::CpuQuestion) needs them.
    pub host_cpu: Option<HostCpu>,
    /// CPUs for the guest's threads, if it has dedicated CPUs.
    pub host_cpus: Option<HostCpus>,
    /// PCI layout of an earlier start.
    pub layout: Option<Layout>,
}
