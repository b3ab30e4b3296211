//! Defaults, filled in where a field is not given. Pure, idempotent, and they never make a valid object invalid.
//!
//! They are KubeVirt's for amd64, with two differences: an instance without networks and interfaces gets the masquerade
//! binding (KubeVirt: bridge, which is not supported yet), and volumes get disks of their own only when no disk is listed
//! (KubeVirt: any volume without a disk), so that a forgotten one is reported.

use crate::identity;
use crate::names;
use crate::quantity;
use crate::v1::{
    Cpu, CpuTopology, Disk, DiskTarget, FeatureState, Interface, InterfaceMasquerade, Machine, MemoryStatus,
    Network, PodNetwork, ResourceRequirements, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec, record_phase_transition,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::HashSet;

/// Architecture of guests that name none.
pub const ARCHITECTURE: &str = "amd64";
/// Machine type of guests that name none.
pub const MACHINE_TYPE: &str = "q35";
/// CPU model of guests that name none.
pub const CPU_MODEL: &str = "host-model";
/// Bus of disks that name none: guests know it without a driver of their own.
pub const DISK_BUS: &str = "sata";
/// Name of the network and interface that are added.
pub const NETWORK_NAME: &str = "default";
/// Seconds a guest has to shut down when nothing is given.
pub const GRACE_PERIOD_SECONDS: i64 = 30;

/// Defaults of a machine: only what must stay the same from one run to the next.
pub fn vm(vm: &mut VirtualMachine) {
    let spec = &mut vm.spec.template.spec;
    spec.architecture.get_or_insert_with(|| ARCHITECTURE.to_owned());
    machine_type(spec);
}

/// Defaults of an instance's specification.
pub fn vmi(vmi: &mut VirtualMachineInstance) {
    let name = vmi.metadata.name.clone().unwrap_or_default();
    let namespace = vmi.metadata.namespace.clone().unwrap_or_default();
    spec(&mut vmi.spec);
    // The name of a generated one may come later; what has no identity yet gets no UUID yet.
    if !name.is_empty() {
        let firmware = vmi.spec.domain.firmware.get_or_insert_default();
        firmware.uuid.get_or_insert_with(|| identity::uuid(&namespace, &name));
    }
}

/// What the mutating webhook does to a new instance: defaults, the finalizer that holds it until its pods are gone, and a
/// first status. A status that the user sent does not stay.
pub fn admit_vmi(instance: &mut VirtualMachineInstance, now: &Time) {
    vmi(instance);
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

/// What the mutating webhook does to a new machine: defaults, and the finalizer that holds it until its instance is dealt
/// with.
pub fn admit_vm(machine: &mut VirtualMachine) {
    vm(machine);
    let finalizers = machine.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == names::VM_FINALIZER) {
        finalizers.push(names::VM_FINALIZER.to_owned());
    }
}

/// Defaults of a specification, without what needs a name.
pub fn spec(spec: &mut VirtualMachineInstanceSpec) {
    spec.architecture.get_or_insert_with(|| ARCHITECTURE.to_owned());
    spec.termination_grace_period_seconds.get_or_insert(GRACE_PERIOD_SECONDS);
    machine_type(spec);
    resource_requests(spec);
    guest_memory(spec);
    cpu(spec);
    features(spec);
    pull_policies(spec);
    network(spec);
    disks(spec);
}

fn machine_type(spec: &mut VirtualMachineInstanceSpec) {
    let machine = spec.domain.machine.get_or_insert_with(Machine::default);
    if machine.type_.as_deref().is_none_or(str::is_empty) {
        machine.type_ = Some(MACHINE_TYPE.to_owned());
    }
}

/// A CPU limit without a request is the request too.
fn resource_requests(spec: &mut VirtualMachineInstanceSpec) {
    let Some(resources) = spec.domain.resources.as_mut() else { return };
    let Some(limit) = resources.limit("cpu").filter(|limit| !is_zero(limit)).cloned() else { return };
    if resources.request("cpu").is_none_or(is_zero) {
        resources.requests.get_or_insert_default().insert("cpu".to_owned(), limit);
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
    if let Some(guest) = guest {
        spec.domain.memory.get_or_insert_default().guest = Some(guest);
    }
}

/// Without sockets, cores and threads: as many sockets as CPUs are allowed or requested. What is still missing is 1.
fn cpu(spec: &mut VirtualMachineInstanceSpec) {
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
        cpu.model = Some(CPU_MODEL.to_owned());
    }
}

fn sockets_from_resources(resources: &ResourceRequirements) -> Option<u32> {
    let cpus = resources.limit("cpu").filter(|limit| !is_zero(limit)).or_else(|| resources.request("cpu"))?;
    // Part of a CPU counts as a whole one. What cannot be read is left to validation.
    let millis = quantity::millis(cpus).ok()?;
    u32::try_from(millis.div_ceil(1000)).ok()
}

fn features(spec: &mut VirtualMachineInstanceSpec) {
    let features = spec.domain.features.get_or_insert_default();
    let acpi = features.acpi.get_or_insert_with(FeatureState::default);
    acpi.enabled.get_or_insert(true);
}

/// As Kubernetes does for containers: a moving tag is always pulled, others only when missing.
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
fn network(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    if devices.interfaces.is_empty()
        && spec.networks.is_empty()
        && devices.autoattach_pod_interface.unwrap_or(true)
    {
        devices.interfaces.push(Interface {
            name: NETWORK_NAME.to_owned(),
            masquerade: Some(InterfaceMasquerade {}),
            ..Default::default()
        });
        spec.networks.push(Network {
            name: NETWORK_NAME.to_owned(),
            pod: Some(PodNetwork::default()),
            ..Default::default()
        });
    }
}

/// Disks for the volumes of a specification that lists none, then target and bus of every disk.
fn disks(spec: &mut VirtualMachineInstanceSpec) {
    let disks = &mut spec.domain.devices.disks;
    if disks.is_empty() {
        let mut seen = HashSet::new();
        disks.extend(
            spec.volumes
                .iter()
                .filter(|volume| seen.insert(volume.name.as_str()))
                .map(|volume| Disk { name: volume.name.clone(), ..Default::default() }),
        );
    }
    for disk in disks {
        if disk.disk.is_none() && disk.cdrom.is_none() && disk.lun.is_none() {
            disk.disk = Some(DiskTarget::default());
        }
        if let Some(target) = &mut disk.disk {
            default_bus(&mut target.bus);
        }
        if let Some(target) = &mut disk.cdrom {
            default_bus(&mut target.bus);
            target.readonly.get_or_insert(true);
        }
    }
}

fn default_bus(bus: &mut Option<String>) {
    if bus.as_deref().is_none_or(str::is_empty) {
        *bus = Some(DISK_BUS.to_owned());
    }
}

fn is_zero(quantity: &Quantity) -> bool {
    quantity::millis(quantity) == Ok(0)
}

#[cfg(test)]
mod tests;
