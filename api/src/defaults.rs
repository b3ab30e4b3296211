//! Defaults, filled in where a field is not given. They are pure and idempotent, and they never make a valid
//! object invalid.
//!
//! They are KubeVirt's defaults for amd64. A field that has no effect stays empty. They differ from
//! KubeVirt's where that is safer or more explicit:
//!
//! - an instance without networks and interfaces gets the masquerade binding (KubeVirt: bridge);
//! - UUID and serial number follow from the name or stay empty (KubeVirt: random);
//! - sockets, cores and threads, and the grace period, are filled in even if they are 1 and 30 seconds;
//! - a moving tag is distinguished from a registry's port, as in Kubernetes;
//! - limits of growth (`cpu.maxSockets`, `memory.maxGuest`) are set only where the guest can use them.
//!
//! The installation may choose the machine type, the CPU model, the CPU request, the binding and the eviction strategy
//! ([`GuestDefaults`]).

mod hyperv;
mod peripherals;
mod room;

use crate::capacity::sockets_from_resources;
use crate::identity;
use crate::names;
use crate::quantity::{self, is_zero};
use crate::settings::{Binding, GuestDefaults};
use crate::v1::{
    Cpu, CpuTopology, Disk, DiskTarget, FeatureState, Interface, InterfaceBridge, InterfaceMasquerade,
    Machine, MemoryStatus, Network, PodNetwork, ResourceRequirements, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec, record_phase_transition,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::HashSet;

pub use crate::architecture::DEFAULT as ARCHITECTURE;
pub use crate::settings::{CPU_MODEL, MACHINE_TYPE};

/// Bus of disks that name none: guests support it without an extra driver.
pub const DISK_BUS: &str = "sata";
/// State of a CD drive's tray.
pub const TRAY: &str = "closed";
/// Name of the network and the interface that are added by default.
pub const NETWORK_NAME: &str = "default";
/// Seconds a guest has to shut down when nothing is given.
pub const GRACE_PERIOD_SECONDS: i64 = 30;

/// Applies the defaults of a virtual machine: only those that must stay the same from one run to the next.
pub fn vm(vm: &mut VirtualMachine, guest: &GuestDefaults) {
    let spec = &mut vm.spec.template.spec;
    architecture(spec);
    machine_type(spec, guest);
}

/// Defaults of an instance, without choices of the installation.
pub fn vmi(vmi: &mut VirtualMachineInstance) {
    instance(vmi, &GuestDefaults::default());
}

fn instance(vmi: &mut VirtualMachineInstance, guest: &GuestDefaults) {
    let name = vmi.metadata.name.clone().unwrap_or_default();
    let namespace = vmi.metadata.namespace.clone().unwrap_or_default();
    chosen(&mut vmi.spec, guest);
    // The API server may generate the name later. An instance without a name gets no UUID yet.
    if !name.is_empty() {
        let firmware = vmi.spec.domain.firmware.get_or_insert_default();
        firmware.uuid.get_or_insert_with(|| identity::uuid(&namespace, &name));
    }
}

/// What the mutating webhook does to a new instance: defaults, the finalizer that holds it until its pods are gone, and a
/// first status. A status that the user sent does not stay.
pub fn admit_vmi(instance: &mut VirtualMachineInstance, guest: &GuestDefaults, now: &Time) {
    self::instance(instance, guest);
    // It stays what it was at the start, as in KubeVirt.
    if instance.spec.eviction_strategy.is_none() {
        instance.spec.eviction_strategy.clone_from(&guest.eviction_strategy);
    }
    if let Some(live) = &guest.live_update {
        room::make(&mut instance.spec, live);
    }
    let cpu = instance.spec.domain.cpu.as_ref();
    if guest.even_parity && cpu.is_some_and(|cpu| cpu.isolate_emulator_thread == Some(true)) {
        let annotations = instance.metadata.annotations.get_or_insert_default();
        annotations.insert(names::EVEN_PARITY_ANNOTATION.to_owned(), String::new());
    }
    let finalizers = instance.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == names::VMI_FINALIZER) {
        finalizers.push(names::VMI_FINALIZER.to_owned());
    }
    let domain = &instance.spec.domain;
    let mut status = crate::v1::VirtualMachineInstanceStatus {
        phase: Some(names::PHASE_PENDING.to_owned()),
        runtime_user: Some(names::LAUNCHER_UID),
        current_cpu_topology: domain.cpu.as_ref().map(|cpu| CpuTopology {
            sockets: cpu.sockets,
            cores: cpu.cores,
            threads: cpu.threads,
        }),
        memory: domain.memory.as_ref().and_then(|memory| memory.guest.clone()).map(|guest| MemoryStatus {
            guest_at_boot: Some(guest.clone()),
            guest_current: Some(guest.clone()),
            guest_requested: Some(guest),
            memory_overhead: None,
        }),
        ..Default::default()
    };
    record_phase_transition(&mut status.phase_transition_timestamps, names::PHASE_PENDING, now);
    instance.status = Some(status);
}

/// What the mutating webhook does to a new machine: defaults, and the finalizer that keeps it until its instance is
/// gone.
pub fn admit_vm(machine: &mut VirtualMachine, guest: &GuestDefaults) {
    vm(machine, guest);
    let finalizers = machine.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == names::VM_FINALIZER) {
        finalizers.push(names::VM_FINALIZER.to_owned());
    }
}

/// Defaults of a specification that need no name, without choices of the installation.
pub fn spec(spec: &mut VirtualMachineInstanceSpec) {
    chosen(spec, &GuestDefaults::default());
}

/// Defaults of a specification with the installation's choices.
pub(crate) fn chosen(spec: &mut VirtualMachineInstanceSpec, guest: &GuestDefaults) {
    architecture(spec);
    spec.termination_grace_period_seconds.get_or_insert(GRACE_PERIOD_SECONDS);
    machine_type(spec, guest);
    resource_requests(spec, guest);
    guest_memory(spec);
    cpu(spec, guest);
    features(spec);
    hyperv::complete(spec);
    peripherals::tablet(spec);
    peripherals::complete(spec);
    pull_policies(spec);
    network(spec, guest.binding);
    disks(spec);
}

/// Only the default devices: disks of volumes, the pod network, a tablet. A preference chooses their bus and model
/// before [`spec`] does.
pub fn devices(spec: &mut VirtualMachineInstanceSpec, binding: Binding) {
    network(spec, binding);
    volume_disks(spec);
    peripherals::tablet(spec);
}

fn architecture(spec: &mut VirtualMachineInstanceSpec) {
    if spec.architecture.as_deref().is_none_or(str::is_empty) {
        spec.architecture = Some(ARCHITECTURE.to_owned());
    }
}

fn machine_type(spec: &mut VirtualMachineInstanceSpec, guest: &GuestDefaults) {
    let machine = spec.domain.machine.get_or_insert_with(Machine::default);
    if machine.type_.as_deref().is_none_or(str::is_empty) {
        machine.type_ = Some(guest.machine_type.clone());
    }
}

/// A CPU limit without a request becomes the request, too. Without both, the installation's request is used,
/// unless CPUs are dedicated.
fn resource_requests(spec: &mut VirtualMachineInstanceSpec, guest: &GuestDefaults) {
    let limit =
        |resources: &ResourceRequirements| resources.limit("cpu").filter(|limit| !is_zero(limit)).cloned();
    if let Some(resources) = spec.domain.resources.as_mut()
        && let Some(limit) = limit(resources)
        && resources.request("cpu").is_none_or(is_zero)
    {
        resources.requests.get_or_insert_default().insert("cpu".to_owned(), limit);
    }
    let dedicated = spec.domain.cpu.as_ref().and_then(|cpu| cpu.dedicated_cpu_placement) == Some(true);
    let Some(request) = guest.cpu_request().filter(|_| !dedicated) else { return };
    let resources = spec.domain.resources.get_or_insert_default();
    if resources.request("cpu").is_none() {
        resources.requests.get_or_insert_default().insert("cpu".to_owned(), request);
    }
}

/// Guest memory from the memory request, else from the limit.
fn guest_memory(spec: &mut VirtualMachineInstanceSpec) {
    if spec.domain.memory.as_ref().is_some_and(|memory| memory.guest.is_some()) {
        return;
    }
    let resources = spec.domain.resources.as_ref();
    let given = |quantity: Option<&Quantity>| quantity.filter(|quantity| !is_zero(quantity)).cloned();
    let guest = resources
        .and_then(|resources| given(resources.request("memory")))
        .or_else(|| resources.and_then(|resources| given(resources.limit("memory"))));
    // One page, if nothing else is given.
    let page = || {
        let pages = spec.domain.memory.as_ref()?.hugepages.as_ref()?;
        let size = pages.page_size.clone().map(Quantity)?;
        quantity::bytes(&size).is_ok().then_some(size)
    };
    if let Some(guest) = guest.or_else(page) {
        spec.domain.memory.get_or_insert_default().guest = Some(guest);
    }
}

/// Without sockets, cores and threads: as many sockets as CPUs are allowed or requested. What is still missing is 1.
fn cpu(spec: &mut VirtualMachineInstanceSpec, guest: &GuestDefaults) {
    let from_resources = spec.domain.resources.as_ref().and_then(sockets_from_resources);
    let cpu = spec.domain.cpu.get_or_insert_with(Cpu::default);
    let given = |value: Option<u32>| value.filter(|value| *value > 0);
    if given(cpu.sockets).is_none() && given(cpu.cores).is_none() && given(cpu.threads).is_none() {
        cpu.sockets = from_resources;
    }
    for count in [&mut cpu.sockets, &mut cpu.cores, &mut cpu.threads] {
        *count = Some(given(*count).unwrap_or(1));
    }
    if cpu.model.as_deref().is_none_or(str::is_empty) {
        cpu.model = Some(guest.cpu_model.clone());
    }
}

fn features(spec: &mut VirtualMachineInstanceSpec) {
    let features = spec.domain.features.get_or_insert_default();
    let acpi = features.acpi.get_or_insert_with(FeatureState::default);
    acpi.enabled.get_or_insert(true);
}

/// As Kubernetes does for containers: an image with a moving tag is always pulled, others only when missing.
fn pull_policies(spec: &mut VirtualMachineInstanceSpec) {
    for disk in spec.volumes.iter_mut().filter_map(|volume| volume.container_disk.as_mut()) {
        if disk.image_pull_policy.as_deref().is_none_or(str::is_empty) {
            // A colon before the last slash belongs to the registry's port.
            let last = disk.image.rsplit('/').next().unwrap_or_default();
            let moving = disk.image.ends_with(":latest") || !last.contains([':', '@']);
            disk.image_pull_policy = Some(if moving { "Always" } else { "IfNotPresent" }.to_owned());
        }
    }
}

/// The pod network, where neither networks nor interfaces are given and it is not switched off.
fn network(spec: &mut VirtualMachineInstanceSpec, binding: Binding) {
    let devices = &mut spec.domain.devices;
    if devices.interfaces.is_empty()
        && spec.networks.is_empty()
        && devices.autoattach_pod_interface.unwrap_or(true)
    {
        devices.interfaces.push(Interface {
            name: NETWORK_NAME.to_owned(),
            masquerade: (binding == Binding::Masquerade).then_some(InterfaceMasquerade {}),
            bridge: (binding == Binding::Bridge).then_some(InterfaceBridge {}),
            ..Default::default()
        });
        spec.networks.push(Network {
            name: NETWORK_NAME.to_owned(),
            pod: Some(PodNetwork::default()),
            ..Default::default()
        });
    }
}

/// Disks for the volumes that no disk names and that are not shared as directories.
fn volume_disks(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    let named = devices.disks.iter().map(|disk| disk.name.clone());
    let mut seen: HashSet<String> =
        named.chain(devices.filesystems.iter().map(|shared| shared.name.clone())).collect();
    for volume in &spec.volumes {
        if seen.insert(volume.name.clone()) {
            devices.disks.push(Disk { name: volume.name.clone(), ..Default::default() });
        }
    }
}

/// Adds the default disks, then the target and bus of every disk.
fn disks(spec: &mut VirtualMachineInstanceSpec) {
    volume_disks(spec);
    // A disk of metrics is always on this bus.
    let metrics = spec.volumes.iter().find(|volume| volume.downward_metrics.is_some());
    let metrics = metrics.map(|volume| volume.name.clone());
    for disk in &mut spec.domain.devices.disks {
        if disk.disk.is_none() && disk.cdrom.is_none() && disk.lun.is_none() {
            disk.disk = Some(DiskTarget::default());
        }
        if metrics.as_ref() == Some(&disk.name)
            && let Some(target) = &mut disk.disk
            && target.bus.as_deref().is_none_or(str::is_empty)
        {
            target.bus = Some("virtio".to_owned());
        }
        if let Some(target) = &mut disk.disk {
            default_bus(&mut target.bus);
        }
        if let Some(target) = &mut disk.lun
            && target.bus.as_deref().is_none_or(str::is_empty)
        {
            // A LUN needs this bus.
            target.bus = Some("scsi".to_owned());
        }
        if let Some(target) = &mut disk.cdrom {
            default_bus(&mut target.bus);
            target.readonly.get_or_insert(true);
            target.tray.get_or_insert_with(|| TRAY.to_owned());
        }
    }
}

fn default_bus(bus: &mut Option<String>) {
    if bus.as_deref().is_none_or(str::is_empty) {
        *bus = Some(DISK_BUS.to_owned());
    }
}

#[cfg(test)]
mod tests;
