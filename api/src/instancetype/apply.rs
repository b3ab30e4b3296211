//! What an instance type sets in a specification. A field that the specification sets as well is a conflict.

use super::{CpuInstancetype, MemoryInstancetype, VirtualMachineInstancetypeSpec};
use crate::cause::{Cause, Path};
use crate::preference::VirtualMachinePreferenceSpec;
use crate::preference::topology::topology;
use crate::quantity;
use crate::v1::{Cpu, DiskIoThreads, Memory, ResourceRequirements, VirtualMachineInstanceSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Start of the field paths of faults in the instance type itself.
const OWN: &str = "instancetype.spec";

/// Applies an instance type to the specification at this path and to the annotations of its object.
///
/// # Errors
/// A cause for each conflict, and for each value of the instance type that cannot be used. The specification
/// is then only partly changed and must not be used.
pub(super) fn apply(
    path: &Path,
    instancetype: &VirtualMachineInstancetypeSpec,
    preference: Option<&VirtualMachinePreferenceSpec>,
    spec: &mut VirtualMachineInstanceSpec,
    annotations: &mut BTreeMap<String, String>,
) -> Result<(), Vec<Cause>> {
    let VirtualMachineInstancetypeSpec {
        annotations: own_annotations,
        cpu,
        gpus,
        host_devices,
        io_threads,
        io_threads_policy,
        launch_security,
        memory,
        node_selector,
        scheduler_name,
    } = instancetype;
    let mut conflicts = Conflicts { path, causes: Vec::new() };

    if !node_selector.is_empty() {
        match spec.node_selector {
            Some(_) => conflicts.add("nodeSelector"),
            None => spec.node_selector = Some(node_selector.clone()),
        }
    }
    if let Some(name) = scheduler_name.as_ref().filter(|name| !name.is_empty()) {
        match spec.scheduler_name.as_deref() {
            None | Some("") => spec.scheduler_name = Some(name.clone()),
            Some(_) => conflicts.add("schedulerName"),
        }
    }
    apply_cpu(cpu, preference, spec, &mut conflicts);
    apply_memory(memory, spec, &mut conflicts);
    if let Some(count) = io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count) {
        let threads = spec.domain.io_threads.get_or_insert_with(DiskIoThreads::default);
        match threads.supplemental_pool_thread_count {
            Some(_) => conflicts.add("domain.ioThreads.supplementalPoolThreadCount"),
            None => threads.supplemental_pool_thread_count = Some(count),
        }
    }
    conflicts.take(&mut spec.domain.io_threads_policy, io_threads_policy.as_ref(), "domain.ioThreadsPolicy");
    conflicts.take(&mut spec.domain.launch_security, launch_security.as_ref(), "domain.launchSecurity");
    if !gpus.is_empty() {
        match spec.domain.devices.gpus.is_empty() {
            true => spec.domain.devices.gpus.clone_from(gpus),
            false => conflicts.add("domain.devices.gpus"),
        }
    }
    if !host_devices.is_empty() {
        match spec.domain.devices.host_devices.is_empty() {
            true => spec.domain.devices.host_devices.clone_from(host_devices),
            false => conflicts.add("domain.devices.hostDevices"),
        }
    }
    for (name, value) in own_annotations {
        // Annotations are not below the specification, and KubeVirt names them without a path.
        if annotations.entry(name.clone()).or_insert_with(|| value.clone()) != value {
            conflicts.causes.push(conflict(&Path::new("annotations").child(name)));
        }
    }
    if conflicts.causes.is_empty() { Ok(()) } else { Err(conflicts.causes) }
}

/// End of the message about a field that both set.
pub(super) const CONFLICT: &str = "conflicts with selected instance type";

/// KubeVirt's message about a field that both set.
fn conflict(field: &Path) -> Cause {
    Cause::invalid(field, format!("VM field(s) {field} {CONFLICT}"))
}

/// The conflicts found so far.
struct Conflicts<'a> {
    path: &'a Path,
    causes: Vec<Cause>,
}

impl Conflicts<'_> {
    fn add(&mut self, field: &str) {
        self.causes.push(conflict(&self.path.child(field)));
    }

    /// Takes the instance type's value, if it has one.
    fn take<T: Clone>(&mut self, field: &mut Option<T>, own: Option<&T>, name: &str) {
        match (own, &field) {
            (None, _) => {}
            (Some(_), Some(_)) => self.add(name),
            (Some(own), None) => *field = Some(own.clone()),
        }
    }

    /// The same for a switch. A switch that is off conflicts with nothing.
    fn switch(&mut self, field: &mut Option<bool>, own: Option<bool>, name: &str) {
        match (own, *field) {
            (None, _) => {}
            (Some(_), Some(true)) => self.add(name),
            (Some(_), _) => *field = own,
        }
    }

    fn own(&mut self, field: &str, why: &str) {
        self.causes.push(Cause::invalid(&Path::new(OWN).child(field), why));
    }
}

fn resource_conflicts(resources: Option<&ResourceRequirements>, name: &str, conflicts: &mut Conflicts<'_>) {
    let Some(resources) = resources else { return };
    if resources.request(name).is_some() {
        conflicts.add(&format!("domain.resources.requests.{name}"));
    }
    if resources.limit(name).is_some() {
        conflicts.add(&format!("domain.resources.limits.{name}"));
    }
}

fn apply_cpu(
    own: &CpuInstancetype,
    preference: Option<&VirtualMachinePreferenceSpec>,
    spec: &mut VirtualMachineInstanceSpec,
    conflicts: &mut Conflicts<'_>,
) {
    let CpuInstancetype {
        dedicated_cpu_placement,
        guest,
        isolate_emulator_thread,
        max_sockets,
        model,
        numa,
        realtime,
    } = own;
    resource_conflicts(spec.domain.resources.as_ref(), "cpu", conflicts);
    let cpu: &mut Cpu = spec.domain.cpu.get_or_insert_default();
    for (count, name) in [(cpu.sockets, "sockets"), (cpu.cores, "cores"), (cpu.threads, "threads")] {
        if count.is_some_and(|count| count > 0) {
            conflicts.add(&format!("domain.cpu.{name}"));
        }
    }
    if cpu.model.as_deref() == Some("") {
        cpu.model = None;
    }
    conflicts.take(&mut cpu.model, model.as_ref(), "domain.cpu.model");
    // KubeVirt spells these two differently from the fields.
    conflicts.switch(
        &mut cpu.dedicated_cpu_placement,
        *dedicated_cpu_placement,
        "domain.cpu.dedicatedCPUPlacement",
    );
    conflicts.switch(
        &mut cpu.isolate_emulator_thread,
        *isolate_emulator_thread,
        "domain.cpu.isolateEmulatorThread",
    );
    conflicts.take(&mut cpu.numa, numa.as_ref(), "domain.cpu.numa");
    conflicts.take(&mut cpu.realtime, realtime.as_ref(), "domain.cpu.realtime");
    if let Some(most) = max_sockets {
        match u32::try_from(*most) {
            Ok(most) => cpu.max_sockets = Some(most),
            Err(_) => conflicts
                .own("cpu.maxSockets", &format!("{OWN}.cpu.maxSockets '{most}' is not a number of sockets")),
        }
    }
    let layout = topology(&Path::new("preference.spec"), preference);
    match (u32::try_from(*guest), layout) {
        (_, Err(cause)) => conflicts.causes.push(cause),
        (Ok(vcpus @ 1..), Ok(topology)) => match topology.divide(vcpus) {
            Ok(layout) => {
                cpu.sockets = Some(layout.sockets);
                cpu.cores = Some(layout.cores);
                cpu.threads = Some(layout.threads);
            }
            Err(why) => conflicts.own("cpu.guest", &why),
        },
        _ => conflicts.own("cpu.guest", &format!("{OWN}.cpu.guest '{guest}' is not a number of vCPUs")),
    }
}

fn apply_memory(
    own: &MemoryInstancetype,
    spec: &mut VirtualMachineInstanceSpec,
    conflicts: &mut Conflicts<'_>,
) {
    let MemoryInstancetype { guest, hugepages, max_guest, overcommit_percent } = own;
    let memory: &mut Memory = spec.domain.memory.get_or_insert_default();
    conflicts.take(&mut memory.guest, Some(guest), "domain.memory.guest");
    conflicts.take(&mut memory.hugepages, hugepages.as_ref(), "domain.memory.hugepages");
    conflicts.take(&mut memory.max_guest, max_guest.as_ref(), "domain.memory.maxGuest");
    resource_conflicts(spec.domain.resources.as_ref(), "memory", conflicts);
    match overcommit_percent {
        None | Some(0) => {}
        Some(percent) => match requested(guest, *percent) {
            Ok(request) => {
                let resources = spec.domain.resources.get_or_insert_default();
                resources.requests.get_or_insert_default().insert("memory".to_owned(), request);
            }
            Err(why) => conflicts.own("memory.overcommitPercent", &why),
        },
    }
}

/// Memory request of the pod if this percentage of guest memory is overcommitted.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "KubeVirt calculates with this precision, and its clients compare every byte; what does not fit saturates"
)]
fn requested(guest: &Quantity, percent: i32) -> Result<Quantity, String> {
    let percent = u8::try_from(percent).ok().filter(|percent| *percent <= 100).ok_or_else(|| {
        format!("{OWN}.memory.overcommitPercent '{percent}': must be in range between 0 and 100.")
    })?;
    let bytes = quantity::bytes(guest).map_err(|error| format!("{OWN}.memory.guest: {error}"))?;
    let request = bytes as f32 * (1.0 - f32::from(percent) / 100.0);
    Ok(quantity::from_bytes(request as u64))
}

#[cfg(test)]
mod tests;
