//! [`ValidVmi`]: a valid instance with its defaults. All other code works on it.

use crate::defaults;
use crate::gates::Gates;
use crate::identity;
use crate::networks;
use crate::quantity;
use crate::sizing::{self, Topology};
use crate::syntax;
use crate::v1::{Disk, Interface, Network, VirtualMachineInstance, VirtualMachineInstanceSpec, Volume};
use crate::validate::{self, Cause, CauseKind, Path};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::sync::LazyLock;

/// Admission checked the gates, so an object that passed stays valid.
static GATES: LazyLock<Gates> = LazyLock::new(Gates::all);

/// Most queues of a network interface, as in KubeVirt: the kernel's limit for a tap.
const MAX_QUEUES: u32 = 256;

/// An instance that cannot be invalid.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidVmi {
    vmi: VirtualMachineInstance,
    guest_memory: u64,
    topology: Topology,
    disks: Vec<ValidDisk>,
    interfaces: Vec<ValidInterface>,
}

/// A disk with its volume.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidDisk {
    /// Its index in `spec.domain.devices.disks`.
    pub at: usize,
    /// How the guest sees the disk.
    pub disk: Disk,
    /// The source of its contents.
    pub volume: Volume,
    /// Its bus.
    pub bus: Bus,
}

/// Bus of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// virtio-blk.
    Virtio,
    /// AHCI.
    Sata,
    /// virtio-scsi.
    Scsi,
    /// A USB stick.
    Usb,
}

/// An interface with its network.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidInterface {
    /// How the guest sees the interface.
    pub interface: Interface,
    /// The network that it is connected to.
    pub network: Network,
    /// Its hardware address, given or derived: lower case, separated by colons.
    pub mac: String,
}

impl ValidVmi {
    /// Fills in defaults and validates; returns all causes if something is wrong.
    pub fn new(mut vmi: VirtualMachineInstance) -> Result<Self, Vec<Cause>> {
        defaults::vmi(&mut vmi);
        let mut causes = validate::vmi(&vmi, &GATES);
        let name = vmi.metadata.name.clone().unwrap_or_default();
        let namespace = vmi.metadata.namespace.clone().unwrap_or_default();
        if name.is_empty() {
            let field = Path::new("metadata.name");
            causes.push(Cause::new(CauseKind::Required, &field, "metadata.name is a required field"));
        }
        let guest_memory = sizing::guest_memory_bytes(&vmi.spec);
        let disks = pair_disks(&vmi.spec);
        let interfaces = pair_interfaces(&vmi.spec, &namespace, &name);
        match (causes.is_empty(), guest_memory, disks, interfaces) {
            (true, Some(guest_memory), Some(disks), Some(interfaces)) => {
                let topology = Topology::of(vmi.spec.domain.cpu.as_ref());
                Ok(ValidVmi { vmi, guest_memory, topology, disks, interfaces })
            }
            (false, ..) => Err(causes),
            // Validation has a cause for each of these. If it missed one, the object is still refused.
            (true, ..) => Err(vec![Cause::invalid(&Path::new("spec"), "spec cannot be put into effect")]),
        }
    }

    /// The object, with defaults.
    pub fn vmi(&self) -> &VirtualMachineInstance {
        &self.vmi
    }

    /// The object, with defaults.
    pub fn into_inner(self) -> VirtualMachineInstance {
        self.vmi
    }

    /// Its specification, with defaults.
    pub fn spec(&self) -> &VirtualMachineInstanceSpec {
        &self.vmi.spec
    }

    /// Its name; never empty.
    pub fn name(&self) -> &str {
        self.vmi.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its namespace; empty if it was read from a file.
    pub fn namespace(&self) -> &str {
        self.vmi.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// The value of one of its annotations.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.vmi.metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }

    /// Its UID; empty if it was read from a file.
    pub fn uid(&self) -> &str {
        self.vmi.metadata.uid.as_deref().unwrap_or_default()
    }

    /// SMBIOS UUID, given or derived from the name, in its usual form.
    pub fn firmware_uuid(&self) -> String {
        let named = self.named_uuid();
        syntax::uuid(&named).unwrap_or(named)
    }

    /// The same as the instance has it, which is also what cloud-init reads: it may be without dashes.
    pub fn named_uuid(&self) -> String {
        let given = self.spec().domain.firmware.as_ref().and_then(|firmware| firmware.uuid.clone());
        given.filter(|uuid| !uuid.is_empty()).unwrap_or_else(|| identity::uuid(self.namespace(), self.name()))
    }

    /// Guest memory in bytes, whole MiB.
    pub fn guest_memory(&self) -> u64 {
        self.guest_memory
    }

    /// The most memory that the guest can grow to, in bytes; `None` if it cannot grow.
    pub fn max_guest_memory(&self) -> Option<u64> {
        let max = self.spec().domain.memory.as_ref()?.max_guest.as_ref()?;
        quantity::bytes(max).ok().filter(|max| *max > self.guest_memory)
    }

    /// Page size of guest memory, if it consists of huge pages.
    pub fn huge_page(&self) -> Option<u64> {
        let pages = self.spec().domain.memory.as_ref()?.hugepages.as_ref()?;
        let size = Quantity(pages.page_size.clone()?);
        quantity::bytes(&size).ok()
    }

    /// Arrangement of virtual CPUs.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// CPU model: `host-model`, `host-passthrough` or a name.
    pub fn cpu_model(&self) -> &str {
        self.spec().domain.cpu.as_ref().and_then(|cpu| cpu.model.as_deref()).unwrap_or(defaults::CPU_MODEL)
    }

    /// QEMU's machine type.
    pub fn machine_type(&self) -> &str {
        let machine = self.spec().domain.machine.as_ref();
        machine.and_then(|machine| machine.type_.as_deref()).unwrap_or(defaults::MACHINE_TYPE)
    }

    /// Disks in their order, each with its volume. A CD drive without a disc is not among them.
    pub fn disks(&self) -> &[ValidDisk] {
        &self.disks
    }

    /// The disks that the guest starts with.
    pub fn boot_disks(&self) -> impl Iterator<Item = &ValidDisk> {
        self.disks.iter().filter(|disk| !disk.volume.is_hotpluggable())
    }

    /// CD drives that the guest starts with and whose disc comes and goes.
    pub fn drives(&self) -> impl Iterator<Item = &Disk> {
        let stays = |disk: &Disk| self.boot_disks().any(|with| with.disk.name == disk.name);
        self.spec().domain.devices.disks.iter().filter(move |disk| disk.is_cdrom() && !stays(disk))
    }

    /// The volumes that are part of the launcher's pod, in their order. They stay the same during the life of
    /// the instance.
    pub fn boot_volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes().iter().filter(|volume| !volume.is_hotpluggable())
    }

    /// Volumes in their order; each has a disk, or is shared as a directory.
    pub fn volumes(&self) -> &[Volume] {
        &self.spec().volumes
    }

    /// Interfaces in their order, each with its network.
    pub fn interfaces(&self) -> &[ValidInterface] {
        &self.interfaces
    }

    /// Queues of an interface: one for each virtual CPU, if that is requested and the card can have several. A card that the
    /// guest has keeps its number, which the status has. A card of passt has one queue.
    pub fn queues(&self, interface: &Interface) -> u32 {
        let wanted = self.spec().domain.devices.network_interface_multiqueue == Some(true);
        let virtio = interface.model.as_deref().is_none_or(|model| model.is_empty() || model == "virtio");
        if !wanted || !virtio || interface.passt_binding.is_some() {
            return 1;
        }
        let present = networks::queues_in_guest(&self.vmi, &interface.name);
        present.unwrap_or_else(|| self.topology.vcpus()).clamp(1, MAX_QUEUES)
    }

    /// Devices of the node for the guest: field path and resource of each. GPUs come first.
    pub fn host_devices(&self) -> impl Iterator<Item = (String, &str)> {
        let devices = &self.spec().domain.devices;
        let gpus = devices.gpus.iter().map(|gpu| gpu.device_name.as_deref());
        let others = devices.host_devices.iter().map(|device| device.device_name.as_deref());
        let path = |list: &str, index: usize| format!("spec.domain.devices.{list}[{index}]");
        let gpus = gpus.enumerate().map(move |(index, name)| (path("gpus", index), name));
        let others = others.enumerate().map(move |(index, name)| (path("hostDevices", index), name));
        gpus.chain(others).filter_map(|(path, name)| Some((path, name?)))
    }

    /// Interfaces for which the guest gets a PCI function of the node: field path of each, and the interface. Those that are to
    /// be removed are not among them.
    pub fn sriov_cards(&self) -> impl Iterator<Item = (String, &Interface)> {
        let cards = self.interfaces.iter().enumerate().map(|(index, valid)| (index, &valid.interface));
        let path = |index: usize| format!("spec.domain.devices.interfaces[{index}]");
        let has = |card: &Interface| card.sriov.is_some() && !networks::is_absent(card);
        cards.filter(move |(_, card)| has(card)).map(move |(index, card)| (path(index), card))
    }

    /// Number of the node's devices that are handed to the guest.
    pub fn passed_through(&self) -> usize {
        self.host_devices().count() + self.sriov_cards().count()
    }

    /// Its vsock address, once one is assigned.
    pub fn context_id(&self) -> Option<u32> {
        u32::try_from(self.vmi.status.as_ref()?.vsockcid?).ok()
    }

    /// Seconds the guest has to shut down.
    pub fn grace_period_seconds(&self) -> u64 {
        let seconds = self.spec().termination_grace_period_seconds.unwrap_or(defaults::GRACE_PERIOD_SECONDS);
        u64::try_from(seconds).unwrap_or(0)
    }

    /// Whether the machine has ACPI.
    pub fn acpi(&self) -> bool {
        let acpi = self.spec().domain.features.as_ref().and_then(|features| features.acpi.as_ref());
        acpi.is_none_or(|acpi| acpi.is_enabled())
    }

    /// The guest's host name: the given one, else the instance's name up to its first dot, cut to 63
    /// characters.
    pub fn hostname(&self) -> String {
        match self.spec().hostname.as_deref() {
            Some(given) if !given.is_empty() => given.to_owned(),
            _ => {
                let label: String =
                    self.name().split('.').next().unwrap_or_default().chars().take(63).collect();
                label.trim_end_matches('-').to_owned()
            }
        }
    }
}

/// Each disk with its volume and bus; `None` if one of them is missing or unknown. Only a CD drive may have no volume.
fn pair_disks(spec: &VirtualMachineInstanceSpec) -> Option<Vec<ValidDisk>> {
    let volume = |disk: &Disk| spec.volumes.iter().find(|volume| volume.name == disk.name);
    let pair = |(at, disk): (usize, &Disk)| {
        let volume = volume(disk)?.clone();
        let bus = match disk.bus()? {
            "virtio" => Bus::Virtio,
            "sata" => Bus::Sata,
            "scsi" => Bus::Scsi,
            "usb" => Bus::Usb,
            _ => return None,
        };
        Some(ValidDisk { at, disk: disk.clone(), volume, bus })
    };
    let disks = spec.domain.devices.disks.iter().enumerate();
    disks.filter(|(_, disk)| !disk.is_cdrom() || volume(disk).is_some()).map(pair).collect()
}

/// Each interface with its network and hardware address; `None` if a network is missing.
fn pair_interfaces(
    spec: &VirtualMachineInstanceSpec,
    namespace: &str,
    name: &str,
) -> Option<Vec<ValidInterface>> {
    let pair = |interface: &Interface| {
        let network = spec.networks.iter().find(|network| network.name == interface.name)?.clone();
        let mac = match interface.mac_address.as_deref().filter(|mac| !mac.is_empty()) {
            Some(given) => given.to_ascii_lowercase().replace('-', ":"),
            None => identity::mac(namespace, name, &interface.name),
        };
        Some(ValidInterface { interface: interface.clone(), network, mac })
    };
    spec.domain.devices.interfaces.iter().map(pair).collect()
}

#[cfg(test)]
mod tests;
