//! What the launcher found or opened: everything a plan needs that is not in the manifest.

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

/// What runs the guest's instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The kernel.
    Kvm {
        /// The set that holds /dev/kvm, opened by someone with the right to do so; `None` lets QEMU open it.
        device: Option<u32>,
    },
    /// QEMU's translator.
    Tcg {
        /// Size of the buffer for translated code; it counts as the pod's memory.
        buffer: Bytes,
    },
}

/// A numbered set of descriptors of one file, which QEMU opens as `/dev/fdset/<number>`.
///
/// QEMU picks the descriptor whose access mode is exactly the one it wants: a file that is read only needs one that
/// is open for reading, a file that is written one that is open for both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdSet {
    /// Its number.
    pub number: u32,
    /// What is in it.
    pub members: Vec<FdSetMember>,
}

/// A descriptor of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdSetMember {
    /// Its number in QEMU.
    pub fd: Fd,
    /// What it is, for `query-fdsets`; such as `volume rootdisk`.
    pub what: String,
}

/// One ready network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// Name of the interface in the manifest.
    pub name: String,
    /// The guest's MAC address.
    pub mac: String,
    /// MTU of the network, where the guest has to be told.
    pub mtu: Option<u16>,
    /// Where frames go.
    pub backend: NetBackend,
}

/// One ready volume; for cloud-init this is the ISO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Name of the volume in the manifest.
    pub name: String,
    /// The image.
    pub source: FileSource,
    /// Its format, found by looking at it with care.
    pub format: ImageFormat,
    /// The image is not to be written, by descriptor or by promise; writes need an overlay.
    pub read_only: bool,
    /// An empty qcow2 file for what the guest writes, of the image's virtual size and without a backing file.
    pub overlay: Option<FileSource>,
    /// How it is cached where the manifest does not say.
    pub cache: Cache,
}

/// Both monitors: QEMU's ends of two socket pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Monitors {
    /// The launcher's own.
    pub control: Fd,
    /// The one for people, whose clients the launcher multiplexes.
    pub people: Fd,
}

/// What the machine starts with, where the manifest asks for more than the BIOS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirmwareFacts {
    /// UEFI code and variables.
    pub flash: Option<Flash>,
    /// Path of the kernel, in QEMU's eyes.
    pub kernel: Option<String>,
    /// Path of its initial file system.
    pub initrd: Option<String>,
    /// Paths of further tables of ACPI.
    pub acpi_tables: Vec<String>,
    /// QEMU's end of the TPM's control channel.
    pub tpm: Option<Fd>,
}

/// All that a plan needs beside the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// KVM or emulation.
    pub accelerator: Accelerator,
    /// Sets of descriptors that volumes and the accelerator refer to.
    pub fd_sets: Vec<FdSet>,
    /// Monitors.
    pub monitors: Monitors,
    /// QEMU's end of the serial console. Not used where the manifest wants none.
    pub serial: Fd,
    /// QEMU's end of the guest agent's channel.
    pub guest_agent: Fd,
    /// /dev/vhost-vsock, where the manifest wants it.
    pub vhost_vsock: Option<Fd>,
    /// The guest's address on vsock, once it was given one.
    pub context_id: Option<u32>,
    /// Devices of the node: path of the entry in the manifest, and what it is.
    pub host_devices: Vec<(String, Vec<HostSource>)>,
    /// QEMU's end of the channel for metrics, where the manifest wants it.
    pub downward_metrics: Option<Fd>,
    /// Connections to what serves shared directories, by the names of their volumes.
    pub filesystems: Vec<(String, Fd)>,
    /// Where the VNC server listens. Not used where the manifest wants no display.
    pub vnc_socket: String,
    /// Where slots for USB devices of clients listen. Not used where the manifest wants none.
    pub usb_sockets: [String; ClientPassthroughDevices::SLOTS],
    /// Interfaces, in any order.
    pub interfaces: Vec<InterfaceFacts>,
    /// Volumes, in any order.
    pub volumes: Vec<VolumeFacts>,
    /// Boot ROMs for network cards are installed beside QEMU.
    pub network_boot: bool,
    /// Firmware, kernel and TPM.
    pub firmware: FirmwareFacts,
    /// Machine type that an earlier start resolved (`pc-q35-10.0`), so that the guest keeps it.
    pub machine_type: Option<String>,
    /// Sockets that have processors now, of a guest that comes from another node. The manifest has those that it started with.
    pub sockets: Option<u32>,
    /// What the guest reads about its system.
    pub smbios: Smbios,
    /// What the hardware clock shows at start, where that is not UTC: such as `2026-11-22T01:02:03`.
    pub rtc_base: Option<String>,
    /// What a guest's CPU can have here, where [`CpuQuestion`](crate::CpuQuestion) says that it matters.
    pub host_cpu: Option<HostCpu>,
    /// CPUs that the guest's threads may run on, where they are to be its own.
    pub host_cpus: Option<HostCpus>,
    /// PCI layout of an earlier start.
    pub layout: Option<Layout>,
}
