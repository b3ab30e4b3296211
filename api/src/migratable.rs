//! Whether an instance can move to another node while it runs, as its conditions `LiveMigratable` and
//! `StorageLiveMigratable` say it. Pure.
//!
//! Reasons and messages are KubeVirt's where it knows the obstacle. Obstacles that KubeVirt does not know
//! have its general reason, `NotMigratable`. An instance with several obstacles names the first of them in
//! `LiveMigratable`, and all but its disks in `StorageLiveMigratable`, as in KubeVirt.

use crate::names::{
    CONDITION_LIVE_MIGRATABLE, CONDITION_STORAGE_LIVE_MIGRATABLE, MOVES_WITH_BRIDGE_ANNOTATION, PHASE_RUNNING,
};
use crate::pci::{self, Owner};
use crate::settings::Bindings;
use crate::v1::{
    Condition, CpuFeature, Disk, FeatureState, PersistentVolumeClaimInfo, VirtualMachineInstance,
    VirtualMachineInstanceSpec, Volume, VolumeClaim,
};

/// Whether this version moves instances between nodes. While it is false, migrations are refused at admission and no instance
/// is migratable.
pub const SERVED: bool = true;
/// Whether a migration copies disks that are files of the node: container disks, empty and ephemeral disks,
/// cloud-init and volumes made of objects. While it is false, an instance with one of them stays where it is.
pub const LOCAL_DISKS_COPIED: bool = true;

/// Reason of an instance that cannot move because of its disks.
pub const REASON_DISKS: &str = "DisksNotLiveMigratable";
/// Reason of an instance that cannot move because of an interface.
pub const REASON_INTERFACE: &str = "InterfaceNotLiveMigratable";
/// Reason of an instance that cannot move because of a device of its node.
pub const REASON_HOST_DEVICE: &str = "HostDeviceNotLiveMigratable";
/// Reason of an instance that cannot move because its memory is encrypted by AMD's SEV.
pub const REASON_SEV: &str = "SEVNotLiveMigratable";
/// Reason of an instance that cannot move because it is a trust domain of Intel's TDX.
pub const REASON_TDX: &str = "TDXNotLiveMigratable";
/// Reason of an instance that cannot move because the frequency of its time stamp counter is not pinned.
pub const REASON_TSC: &str = "NoTSCFrequencyNotLiveMigratable";
/// Reason of an instance that cannot move because it has every Hyper-V enlightenment of its node.
pub const REASON_HYPERV_PASSTHROUGH: &str = "HypervPassthroughNotLiveMigratable";
/// Reason of an instance that cannot move because of an obstacle without a reason in KubeVirt.
pub const REASON_OTHER: &str = "NotMigratable";
/// Reason while this version moves no instance at all.
pub const REASON_NOT_SERVED: &str = "MigrationNotSupported";

/// `status.migrationMethod` of an instance whose disks are all shared.
pub const METHOD_LIVE: &str = "LiveMigration";
/// `status.migrationMethod` of an instance with volumes that count as copied.
pub const METHOD_BLOCK: &str = "BlockMigration";

/// Message while this version moves no instance at all.
const NOT_SERVED: &str = "live migration is not part of this version of Barevirt";

/// Something that keeps an instance on its node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Obstacle {
    reason: &'static str,
    message: String,
}

/// `LiveMigratable` of an instance. Access modes of its claims are those of `status.volumeStatus`.
pub fn condition(vmi: &VirtualMachineInstance, bindings: &Bindings) -> Condition {
    condition_when(vmi, bindings, SERVED)
}

/// `StorageLiveMigratable` of an instance: whether it could move if its disks moved to other claims at the
/// same time. `None` while this version moves no instance at all.
pub fn storage_condition(vmi: &VirtualMachineInstance, bindings: &Bindings) -> Option<Condition> {
    storage_condition_when(vmi, bindings, SERVED)
}

/// `status.migrationMethod` of an instance: [`METHOD_BLOCK`] where KubeVirt counts a volume as one that is copied, else
/// [`METHOD_LIVE`]. `None` while this version moves no instance at all.
pub fn method(vmi: &VirtualMachineInstance) -> Option<&'static str> {
    SERVED.then(|| method_when_served(vmi))
}

fn condition_when(vmi: &VirtualMachineInstance, bindings: &Bindings, served: bool) -> Condition {
    if !served {
        return Condition::new(CONDITION_LIVE_MIGRATABLE, false, REASON_NOT_SERVED, NOT_SERVED);
    }
    let first = other_than_disks(vmi, bindings).into_iter().next().or_else(|| disks(vmi));
    match first {
        Some(Obstacle { reason, message }) => {
            Condition::new(CONDITION_LIVE_MIGRATABLE, false, reason, message)
        }
        None => Condition::new(CONDITION_LIVE_MIGRATABLE, true, "", ""),
    }
}

fn storage_condition_when(
    vmi: &VirtualMachineInstance,
    bindings: &Bindings,
    served: bool,
) -> Option<Condition> {
    if !served {
        return None;
    }
    let obstacles = other_than_disks(vmi, bindings);
    let told: Vec<String> =
        obstacles.iter().map(|Obstacle { reason, message }| format!("{reason}: {message}")).collect();
    Some(if told.is_empty() {
        Condition::new(CONDITION_STORAGE_LIVE_MIGRATABLE, true, "", "")
    } else {
        Condition::new(CONDITION_STORAGE_LIVE_MIGRATABLE, false, REASON_OTHER, told.join(", "))
    })
}

fn method_when_served(vmi: &VirtualMachineInstance) -> &'static str {
    let moves_volumes = vmi.status.as_ref().is_some_and(|status| !status.migrated_volumes.is_empty());
    let copied = moves_volumes || vmi.spec.volumes.iter().any(|volume| counts_as_copied(vmi, volume));
    if copied { METHOD_BLOCK } else { METHOD_LIVE }
}

/// Whether KubeVirt counts the volume as one that is copied: it is not shared, and neither a directory nor on a CD that is only
/// read. Other disks that are only read count, and so does a volume without a disk.
fn counts_as_copied(vmi: &VirtualMachineInstance, volume: &Volume) -> bool {
    if volume.claim().is_some_and(|claim| !claim.is_ephemeral) {
        return !is_shared(vmi, volume);
    }
    if let Some(host_disk) = &volume.host_disk {
        return !host_disk.shared.unwrap_or(false);
    }
    let devices = &vmi.spec.domain.devices;
    let is_directory = devices.filesystems.iter().any(|directory| directory.name == volume.name);
    let is_read_only_cd = |disk: &Disk| disk.cdrom.as_ref().is_some_and(|cd| cd.readonly.unwrap_or(true));
    let is_cd = devices.disks.iter().any(|disk| disk.name == volume.name && is_read_only_cd(disk));
    !is_directory && !is_cd
}

/// All obstacles except disks, in KubeVirt's order, then our own. The state of a TPM and the UEFI variables are no obstacle: they move
/// in QEMU's stream, to another claim if their claim is reached from one node only.
fn other_than_disks(vmi: &VirtualMachineInstance, bindings: &Bindings) -> Vec<Obstacle> {
    let spec = &vmi.spec;
    let devices = &spec.domain.devices;
    let features = spec.domain.features.as_ref();
    let cpu = spec.domain.cpu.as_ref();
    let security = spec.domain.launch_security.as_ref();
    let mut obstacles = Vec::new();
    let mut add = |there: bool, reason: &'static str, message: &str| {
        if there {
            obstacles.push(Obstacle { reason, message: message.to_owned() });
        }
    };
    add(
        !is_reached_elsewhere(vmi, bindings),
        REASON_INTERFACE,
        "cannot migrate VMI which does not use masquerade or a migratable plugin to connect to the pod network",
    );
    let fixed = fixed_card(vmi);
    add(fixed.is_some(), REASON_INTERFACE, fixed.as_deref().unwrap_or_default());
    add(
        !devices.host_devices.is_empty(),
        REASON_HOST_DEVICE,
        "VMI specifies non-migratable generic PCI host device",
    );
    add(!devices.gpus.is_empty(), REASON_HOST_DEVICE, "VMI specifies non-migratable GPU device");
    add(
        security.is_some_and(|security| security.sev.is_some() || security.snp.is_some()),
        REASON_SEV,
        "VMI uses SEV",
    );
    add(security.is_some_and(|security| security.tdx.is_some()), REASON_TDX, "VMI uses TDX");
    let reenlightenment = features.and_then(|features| features.hyperv.as_ref()?.reenlightenment.as_ref());
    add(
        reenlightenment.is_some_and(FeatureState::is_enabled),
        REASON_TSC,
        "HyperV Reenlightenment VMIs cannot migrate when TSC Frequency is not exposed on the cluster: guest \
         timers might be inconsistent",
    );
    // QEMU itself refuses to migrate a guest with this CPU.
    let invariant = |feature: &CpuFeature| {
        feature.name == "invtsc" && matches!(feature.policy.as_deref(), Some("require" | "force"))
    };
    add(
        cpu.is_some_and(|cpu| cpu.features.iter().any(invariant)),
        REASON_TSC,
        "VMI with invtsc CPU feature cannot migrate when TSC Frequency is not exposed on the cluster",
    );
    let passthrough = features.and_then(|features| features.hyperv_passthrough.as_ref());
    add(
        passthrough.is_some_and(|passthrough| passthrough.enabled.unwrap_or(true)),
        REASON_HYPERV_PASSTHROUGH,
        "VMI uses hyperv passthrough",
    );
    add(devices.autoattach_vsock.unwrap_or(false), REASON_OTHER, "VMI uses VSOCK");
    add(
        devices.client_passthrough.is_some(),
        REASON_OTHER,
        "VMI has slots for USB devices of clients (clientPassthrough)",
    );
    add(
        cpu.is_some_and(|cpu| cpu.dedicated_cpu_placement.unwrap_or(false)),
        REASON_OTHER,
        "VMI has dedicated CPUs of its node (dedicatedCpuPlacement)",
    );
    add(cpu.is_some_and(|cpu| cpu.realtime.is_some()), REASON_OTHER, "VMI has realtime CPUs");
    obstacles
}

/// An SR-IOV card that cannot be unplugged before the guest moves, as a sentence.
fn fixed_card(vmi: &VirtualMachineInstance) -> Option<String> {
    let cards = vmi.spec.domain.devices.interfaces.iter().filter(|card| card.sriov.is_some());
    let (name, why) = cards.filter_map(|card| Some((&card.name, fixes(vmi, &card.name)?))).next()?;
    Some(format!(
        "cannot migrate VMI with SR-IOV interface {name}: {why} keeps its card from being unplugged"
    ))
}

/// What keeps the card of an interface in its place while the guest runs: a field of the specification, or an annotation.
pub fn fixes(vmi: &VirtualMachineInstance, name: &str) -> Option<&'static str> {
    let spec = &vmi.spec;
    if is_on_root(vmi) {
        return Some(pci::ON_ROOT_ANNOTATION);
    }
    if spec.domain.devices.disable_hotplug == Some(true) {
        return Some("disableHotplug");
    }
    // Only cards behind a root port of their own come and go.
    let mut placed = pci::requests(spec).into_iter();
    let is_fixed = placed.any(|request| {
        request.owner == Owner::Interface(name) && (request.place.bus == 0 || request.place.is_bridged())
    });
    is_fixed.then_some("its pciAddress")
}

/// Whether the guest was started with all its devices on bus 00. Its annotations decide that at its start, and may change since.
fn is_on_root(vmi: &VirtualMachineInstance) -> bool {
    let runs = vmi.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some(PHASE_RUNNING));
    let annotations = vmi.metadata.annotations.as_ref();
    let started = if runs { pci::guest_is_on_root(annotations) } else { None };
    started.unwrap_or_else(|| pci::are_on_root(annotations))
}

/// Whether the pod network, if the instance uses it, is reached in a way that also works from another pod.
fn is_reached_elsewhere(vmi: &VirtualMachineInstance, bindings: &Bindings) -> bool {
    let spec = &vmi.spec;
    let interfaces = &spec.domain.devices.interfaces;
    let Some(network) = spec.networks.iter().find(|network| network.pod.is_some()) else { return true };
    let Some(interface) = interfaces.iter().find(|interface| interface.name == network.name) else {
        return interfaces.is_empty();
    };
    let annotations = vmi.metadata.annotations.as_ref();
    // Its owner says that the cluster's network gives the next pod the same address, or that the guest may get another one.
    let allowed = annotations.is_some_and(|all| all.contains_key(MOVES_WITH_BRIDGE_ANNOTATION));
    interface.masquerade.is_some()
        || interface.passt_binding.is_some()
        || interface.bridge.is_some() && allowed
        || bindings.of(interface).is_some_and(|plugin| plugin.moves)
}

/// The first disk that the target's node cannot have.
fn disks(vmi: &VirtualMachineInstance) -> Option<Obstacle> {
    let message = vmi.spec.volumes.iter().find_map(|volume| disk(vmi, volume))?;
    Some(Obstacle { reason: REASON_DISKS, message })
}

/// Why a volume keeps the instance on its node.
fn disk(vmi: &VirtualMachineInstance, volume: &Volume) -> Option<String> {
    if let Some(VolumeClaim { name, is_ephemeral: true, .. }) = volume.claim() {
        let info = claim_info(vmi, &volume.name)?;
        let elsewhere = |mode: &String| ["ReadOnlyMany", "ReadWriteMany"].contains(&mode.as_str());
        return (!info.access_modes.iter().any(elsewhere)).then(|| {
            format!(
                "cannot migrate VMI: PVC {name} below an ephemeral disk is read on one node only (it needs the access \
                 mode ReadOnlyMany or ReadWriteMany)"
            )
        });
    }
    if let Some(VolumeClaim { name, .. }) = volume.claim() {
        return match claim_info(vmi, &volume.name) {
            None => Some(format!(
                "cannot migrate VMI: Unable to determine if PVC {name} is shared, live migration requires that all \
                 PVCs must be shared (using ReadWriteMany access mode)"
            )),
            Some(_) if !is_shared(vmi, volume) && !moves_along(vmi, volume) => Some(format!(
                "cannot migrate VMI: PVC {name} is not shared, live migration requires that all PVCs must be shared \
                 (using ReadWriteMany access mode)"
            )),
            Some(_) => None,
        };
    }
    if let Some(host_disk) = &volume.host_disk {
        let shared = host_disk.shared.unwrap_or(false);
        return (!shared).then(|| "cannot migrate VMI with non-shared HostDisk".to_owned());
    }
    (!LOCAL_DISKS_COPIED && is_local_disk(&vmi.spec, volume)).then(|| {
        format!("cannot migrate VMI: disk {} is on its node alone and is not copied yet", volume.name)
    })
}

/// Whether the volume is a disk of the guest that it may write to, and a file of its node.
fn is_local_disk(spec: &VirtualMachineInstanceSpec, volume: &Volume) -> bool {
    let mut disks = spec.domain.devices.disks.iter();
    let is_disk = disks.any(|disk| disk.name == volume.name && !disk.is_readonly());
    let elsewhere = volume.claim().is_some_and(|claim| !claim.is_ephemeral) || volume.host_disk.is_some();
    is_disk && !elsewhere
}

/// Whether the volume moves to another claim with its guest.
fn moves_along(vmi: &VirtualMachineInstance, volume: &Volume) -> bool {
    let mut moving = vmi.status.iter().flat_map(|status| &status.migrated_volumes);
    moving.any(|moved| moved.volume_name == volume.name)
}

/// Whether several nodes may write to the volume's claim at once.
fn is_shared(vmi: &VirtualMachineInstance, volume: &Volume) -> bool {
    let modes = claim_info(vmi, &volume.name).map(|info| info.access_modes.as_slice()).unwrap_or_default();
    modes.iter().any(|mode| mode == "ReadWriteMany")
}

fn claim_info<'a>(vmi: &'a VirtualMachineInstance, volume: &str) -> Option<&'a PersistentVolumeClaimInfo> {
    vmi.status.as_ref()?.claim_info(volume)
}

#[cfg(test)]
mod tests;
