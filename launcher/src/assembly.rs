//! Assembles everything that QEMU is started with: sockets, plan, command line.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use barevirt_api::names::START_STRATEGY_PAUSED;
use barevirt_api::settings::Smbios;
use barevirt_api::sizing::DedicatedCpus;
use barevirt_api::v1::ClientPassthroughDevices;
use barevirt_api::valid::ValidVmi;
use barevirt_machine::{
    Accelerator, Disk, Facts, Fd, FdSet, GuestAgent, HostCpu, HostCpus, HostSource, HotDisks, Image,
    InterfaceFacts, Layout, Monitors, PlanError, argv, attach_host_cards, plan, tagged_devices,
};
use tokio::net::UnixStream;

use crate::cards::Card;
use crate::clock::{self, ClockError};
use crate::cloudinit::{CloudInitError, Device};
use crate::descriptors::Descriptors;
use crate::firmware;
use crate::host_cpus;
use crate::migration::disks::{Copyable, LocalDisk};
use crate::migration::host_cards::HostCards;
use crate::pins::Pins;
use crate::process::Command;
use crate::supervisor::Launch;
use crate::volumes::{Made, Prepared};

/// Time limit for QEMU's answer to its first command. Allocating much guest memory takes long.
const ANSWERS_WITHIN: Duration = Duration::from_secs(300);

/// Why QEMU cannot be assembled.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// The CPUs that the launcher may use cannot be found.
    #[error("cannot find the container's CPUs")]
    HostCpus(#[source] io::Error),
    /// The machine cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The clock settings cannot be used.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// A config drive cannot be made.
    #[error(transparent)]
    ConfigDrive(#[from] CloudInitError),
    /// A socket cannot be made.
    #[error("cannot make the socket of {what}")]
    Socket {
        /// Its purpose.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// Everything that was prepared for one machine.
#[derive(Debug)]
pub struct Parts {
    /// KVM or emulation.
    pub accelerator: Accelerator,
    /// Sets of descriptors, except those of the volumes.
    pub fd_sets: Vec<FdSet>,
    /// Volumes.
    pub volumes: Prepared,
    /// Interfaces.
    pub interfaces: Vec<InterfaceFacts>,
    /// Firmware and TPM.
    pub firmware: firmware::Prepared,
    /// Descriptors that the parts above refer to.
    pub descriptors: Descriptors,
    /// Addresses of an earlier start.
    pub layout: Option<Layout>,
    /// CPU features that a guest can have here, if the manifest needs to know.
    pub host_cpu: Option<HostCpu>,
    /// Connections to the servers of shared directories, by the names of their volumes.
    pub filesystems: Vec<(String, OwnedFd)>,
    /// Devices of the node that the pod has.
    pub node: FromNode,
    /// Set if the guest comes from another node.
    pub incoming: Option<Incoming>,
    /// Directory in which QEMU reads the keys of migrations.
    pub keys: PathBuf,
}

/// A guest that already runs on another node.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// UID of the migration.
    pub uid: String,
    /// Its machine type, as QEMU resolved it there.
    pub machine_type: Option<String>,
    /// Number of sockets with processors there.
    pub sockets: Option<u32>,
}

/// Devices of a node, if there is a node.
#[derive(Debug, Default)]
pub struct FromNode {
    /// /dev/vhost-vsock.
    pub vhost_vsock: Option<Fd>,
    /// Entries of the manifest by their paths, and the devices of each.
    pub host_devices: Vec<(String, Vec<HostSource>)>,
}

/// Paths on this machine.
#[derive(Debug, Clone)]
pub struct Installation {
    /// QEMU, by path or by name.
    pub qemu: PathBuf,
    /// Socket of its VNC server.
    pub vnc_socket: PathBuf,
    /// Socket on which it receives the disks of an incoming guest.
    pub disk_socket: PathBuf,
    /// Sockets of its slots for USB devices of clients.
    pub usb_sockets: UsbSockets,
    /// System information in SMBIOS that guests read.
    pub smbios: Smbios,
    /// Whether guests report free memory to the node, unless they are not to.
    pub free_page_reporting: bool,
}

/// A socket for each slot.
pub type UsbSockets = [PathBuf; ClientPassthroughDevices::SLOTS];

/// The sockets of the slots for USB devices in this directory.
#[must_use]
pub fn usb_sockets(directory: &Path) -> UsbSockets {
    std::array::from_fn(|slot| directory.join(format!("usb{slot}.sock")))
}

impl Installation {
    /// Whether the boot ROMs for network cards are installed beside QEMU.
    pub fn has_network_boot(&self) -> bool {
        ["/usr/share/qemu", "/usr/lib/ipxe/qemu", "/usr/share/qemu-efi"]
            .iter()
            .any(|directory| Path::new(directory).join("efi-virtio.rom").exists())
    }
}

/// Our ends of the guest's and QEMU's streams.
#[derive(Debug)]
pub struct Ends {
    /// The monitor for users.
    pub people: UnixStream,
    /// The serial console.
    pub serial: UnixStream,
    /// The guest agent's channel.
    pub agent: UnixStream,
    /// The port on which the guest requests metrics, if it has one.
    pub downward_metrics: Option<UnixStream>,
}

/// A machine that is ready to start.
#[derive(Debug)]
pub struct Assembly {
    /// For the supervisor.
    pub launch: Launch,
    /// For the tasks that serve them.
    pub ends: Ends,
    /// The addresses of devices, to be kept for the next start.
    pub layout: Layout,
    /// Places for further disks.
    pub hot_disks: HotDisks,
    /// Disks that an incoming guest brings along, because they were plugged in while it ran.
    pub came: Vec<Disk>,
}

/// Plans the machine and makes its sockets.
///
/// # Errors
/// If the plan is refused, or no descriptors are left.
pub fn assemble(
    vmi: &ValidVmi,
    parts: Parts,
    installation: &Installation,
) -> Result<Assembly, AssemblyError> {
    let Parts {
        accelerator,
        mut fd_sets,
        volumes,
        interfaces,
        firmware,
        mut descriptors,
        layout,
        host_cpu,
        filesystems,
        node,
        incoming,
        keys,
    } = parts;
    fd_sets.extend(volumes.fd_sets);
    fd_sets.extend(firmware.fd_sets);
    let (monitor, control) = pair("the monitor")?;
    let (people, for_people) = pair("the users' monitor")?;
    let (serial, console) = pair("the serial console")?;
    let (agent, channel) = pair("the guest agent")?;
    let wants_metrics = vmi.spec().domain.devices.downward_metrics.is_some();
    let metrics = wants_metrics.then(|| pair("the channel for metrics")).transpose()?;
    let (downward_metrics, for_metrics) = metrics.unzip();
    let control = descriptors.add(control);
    let for_people = descriptors.add(for_people);
    let facts = Facts {
        accelerator,
        fd_sets,
        monitors: Monitors { control, people: for_people },
        serial: descriptors.add(console),
        guest_agent: descriptors.add(channel),
        downward_metrics: for_metrics.map(|channel| descriptors.add(channel)),
        vhost_vsock: node.vhost_vsock,
        context_id: vmi.context_id(),
        host_devices: node.host_devices,
        filesystems: filesystems.into_iter().map(|(name, socket)| (name, descriptors.add(socket))).collect(),
        vnc_socket: installation.vnc_socket.display().to_string(),
        usb_sockets: installation.usb_sockets.each_ref().map(|socket| socket.display().to_string()),
        interfaces,
        volumes: volumes.volumes,
        network_boot: installation.has_network_boot(),
        firmware: firmware.facts,
        machine_type: incoming.as_ref().and_then(|incoming| incoming.machine_type.clone()),
        sockets: incoming.as_ref().and_then(|incoming| incoming.sockets),
        smbios: installation.smbios.clone(),
        free_page_reporting: installation.free_page_reporting,
        rtc_base: clock::base(vmi.spec().domain.clock.as_ref(), jiff::Timestamp::now())?,
        host_cpu,
        host_cpus: own_cpus(vmi)?,
        layout,
    };
    let mut machine = plan(vmi, &facts)?;
    if !machine.left_out.is_empty() {
        tracing::warn!(fields = machine.left_out.join(", "), "left out: emulation does not have it");
    }
    let devices: Vec<Device> = tagged_devices(&machine, vmi).into_iter().map(Device::from).collect();
    for drive in volumes.config_drives {
        drive.make(&devices)?;
    }
    let host_cards = HostCards::new(attach_host_cards(&machine.host_devices));
    if incoming.is_some() {
        // The guest has given its own back, and gets these once it is here.
        machine.host_devices.retain(|device| device.card.is_none());
    }
    let mut arguments = argv(&machine);
    if incoming.is_some() {
        arguments.extend(["-incoming", "defer"].map(str::to_owned));
    }
    let command = Command {
        program: installation.qemu.clone(),
        arguments,
        descriptors: descriptors.into_numbered(),
        domain: None,
    };
    let agent_port = GuestAgent::ID.to_owned();
    let hot_disks = HotDisks::of(&machine, vmi);
    let hot = |name: &str| {
        let mut volumes = vmi.volumes().iter();
        volumes.any(|volume| volume.name == name && volume.is_hotpluggable())
    };
    let came = machine.disks.iter().filter(|disk| disk.image.is_some() && hot(&disk.name)).cloned().collect();
    let launch = Launch {
        command,
        tpm: firmware.tpm,
        monitor,
        answers_within: ANSWERS_WITHIN,
        pins: machine.pinning.map(|pinning| Pins { pinning, cells: machine.cells }),
        real_time: None,
        cards: Card::of(&machine.nics, vmi),
        host_cards,
        acpi: vmi.acpi(),
        paused: vmi.vmi().spec.start_strategy.as_deref() == Some(START_STRATEGY_PAUSED),
        agent_port,
        disks: copyable(vmi, &machine.disks, &volumes.made, installation, incoming.is_some()),
        incoming: incoming.map(|incoming| incoming.uid),
        keys,
    };
    let ends = Ends { people, serial, agent, downward_metrics };
    Ok(Assembly { launch, ends, layout: machine.layout, hot_disks, came })
}

/// Disks that the guest writes, and those that it only reads and that were made here. Other disks that are only read are
/// the same files, or equal ones, on the target.
fn copyable(
    vmi: &ValidVmi,
    disks: &[Disk],
    made: &[Made],
    installation: &Installation,
    comes: bool,
) -> Copyable {
    let written = disks.iter().filter(|disk| disk.is_written()).filter_map(|disk| {
        let volume = vmi.volumes().iter().find(|volume| volume.name == disk.name)?;
        // If the file is shared, the target has the same file; if not, the guest does not move.
        if volume.host_disk.is_some() {
            return None;
        }
        let on_claim = volume.claim().is_some_and(|claim| !claim.is_ephemeral);
        Some(LocalDisk { name: disk.name.clone(), node: Image::node_of(&disk.name), on_claim, image: None })
    });
    let (claims, local) = written.partition(|disk| disk.on_claim);
    let moved = vmi.vmi().status.iter().flat_map(|status| &status.migrated_volumes);
    let moved = moved.filter(|_| comes).map(|moved| &moved.volume_name);
    let come = made.iter().filter(|made| made.comes).map(|made| &made.volume);
    let awaited = moved.chain(come).cloned().collect();
    let images = made.iter().filter(|made| made.read_only).map(|made| LocalDisk {
        name: made.volume.clone(),
        node: Image::node_of(&made.volume),
        on_claim: false,
        image: Some(made.path.clone()),
    });
    Copyable { local, claims, images: images.collect(), awaited, socket: installation.disk_socket.clone() }
}

/// Dedicated CPUs for the guest, if requested.
fn own_cpus(vmi: &ValidVmi) -> Result<Option<HostCpus>, AssemblyError> {
    let dedicated = DedicatedCpus::of(vmi).map(|_| host_cpus::find(Path::new(host_cpus::SYSTEM)));
    dedicated.transpose().map_err(AssemblyError::HostCpus)
}

/// Our end, for tokio, and QEMU's end.
fn pair(what: &'static str) -> Result<(UnixStream, OwnedFd), AssemblyError> {
    let make = || {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok((UnixStream::from_std(ours)?, OwnedFd::from(theirs)))
    };
    make().map_err(|source| AssemblyError::Socket { what, source })
}
