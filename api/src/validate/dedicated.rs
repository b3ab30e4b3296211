//! Dedicated CPUs of a guest: pinning, NUMA, realtime. Each needs the one before it.

use super::cpu::whole;
use super::{Cause, Path};
use crate::quantity;
use crate::syntax::quoted;
use crate::v1::{Cpu, ResourceRequirements, VirtualMachineInstanceSpec};
use crate::vcpu_mask::VcpuMask;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let Some(cpu) = spec.domain.cpu.as_ref() else { return };
    let field = path.child("domain.cpu");
    let dedicated = cpu.dedicated_cpu_placement == Some(true);
    if dedicated {
        pinning(path, spec, cpu, causes);
    }
    if cpu.isolate_emulator_thread == Some(true) && !dedicated {
        causes.push(Cause::invalid(
            &field.child("isolateEmulatorThread"),
            "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement",
        ));
    }
    let field_dedicated = field.child("dedicatedCpuPlacement");
    let field_numa = field.child("numa.guestMappingPassthrough");
    let numa = cpu.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough.is_some());
    if numa && !dedicated {
        causes.push(Cause::invalid(
            &field_numa,
            format!(
                "{field_dedicated} must be set to true when NUMA topology strategy is set in {field_numa}"
            ),
        ));
    }
    if numa && spec.domain.memory.as_ref().is_none_or(|memory| memory.hugepages.is_none()) {
        let hugepages = path.child("domain.memory.hugepages");
        causes.push(Cause::invalid(
            &field_numa,
            format!("{hugepages} must be requested when NUMA topology strategy is set in {field_numa}"),
        ));
    }
    if let Some(given) = &cpu.realtime {
        let mask = given.mask.as_deref().unwrap_or_default();
        if VcpuMask::parse(mask).is_none() {
            let field = field.child("realtime.mask");
            causes.push(Cause::invalid(
                &field,
                format!("{field} {} is not a list of virtual CPUs such as 0-3,^1", quoted(mask)),
            ));
        }
        let realtime = field.child("realtime");
        if !dedicated {
            causes.push(Cause::required(
                &field_dedicated,
                format!("{field_dedicated} must be set to true when {realtime} is used"),
            ));
        }
        if !numa {
            causes.push(Cause::required(
                &field_numa,
                format!("{field_numa} must be defined when {realtime} is used"),
            ));
        }
    }
}

/// A pinned guest has whole CPUs, and its requests equal its limits.
fn pinning(path: &Path, spec: &VirtualMachineInstanceSpec, cpu: &Cpu, causes: &mut Vec<Cause>) {
    let none = ResourceRequirements::default();
    let resources = spec.domain.resources.as_ref().unwrap_or(&none);
    let field = path.child("domain.cpu.dedicatedCpuPlacement");
    let requests = path.child("domain.resources.requests");
    let limits = path.child("domain.resources.limits");
    memory(path, spec, resources, causes);

    // A quantity that cannot be read has its own cause.
    let millis = |quantity: Option<&Quantity>| quantity.and_then(|q| quantity::millis(q).ok()).unwrap_or(0);
    let (request, limit) = (millis(resources.request("cpu")), millis(resources.limit("cpu")));
    for (amount, list, word) in [(request, &requests, "requests"), (limit, &limits, "limits")] {
        if !amount.is_multiple_of(1000) {
            causes.push(Cause::invalid(
                &list.child("cpu"),
                format!("provided resources CPU {word} must be an interger"),
            ));
        }
    }
    let (request, limit) = (request.div_ceil(1000), limit.div_ceil(1000));
    let given = [cpu.sockets, cpu.cores, cpu.threads].iter().any(|count| count.unwrap_or(0) > 0);
    let vcpus = if given { whole(cpu) } else { 0 };
    let (field_request, field_limit) = (requests.child("cpu"), limits.child("cpu"));
    let cores = path.child("domain.cpu.cores");
    if request == 0 && limit == 0 && vcpus == 0 {
        causes.push(Cause::invalid(
            &field,
            format!(
                "either {field_request} or {field_limit} or {cores} must be provided when DedicatedCPUPlacement is true "
            ),
        ));
    }
    if request > 0 && limit > 0 && request != limit {
        causes.push(Cause::invalid(
            &field,
            format!("{field_request} or {field_limit} must be equal when DedicatedCPUPlacement is true "),
        ));
    }
    if (request > 0 || limit > 0) && vcpus > 0 && request != vcpus && limit != vcpus {
        causes.push(Cause::invalid(
            &field,
            format!(
                "{field_request} or {field_limit} must not be provided at the same time with {cores} when DedicatedCPUPlacement is true "
            ),
        ));
    }
    if let Some(threads @ 3..) = cpu.threads {
        let at = path.child("domain.cpu.threads");
        causes.push(Cause::invalid(
            &field,
            format!(
                "Not more than two threads must be provided at {at} (got {threads}) when DedicatedCPUPlacement is true"
            ),
        ));
    }
}

fn memory(
    path: &Path,
    spec: &VirtualMachineInstanceSpec,
    resources: &ResourceRequirements,
    causes: &mut Vec<Cause>,
) {
    let request_field = path.child("domain.resources.requests.memory");
    let limit_field = path.child("domain.resources.limits.memory");
    let bytes = |quantity: Option<&Quantity>| quantity.and_then(|q| quantity::bytes(q).ok()).unwrap_or(0);
    let (request, limit) = (bytes(resources.request("memory")), bytes(resources.limit("memory")));
    let memory = spec.domain.memory.as_ref();
    let guest = memory.and_then(|memory| memory.guest.as_ref());
    let given = |quantity: Option<&Quantity>| quantity.is_some_and(|q| quantity::bytes(q) != Ok(0));
    let hugepages = memory.is_some_and(|memory| memory.hugepages.is_some());
    if ![guest, resources.request("memory"), resources.limit("memory")].into_iter().any(given) && !hugepages {
        causes.push(Cause::invalid(
            &limit_field,
            format!(
                "{request_field}, {limit_field}, {} or {} should be provided",
                path.child("domain.memory.hugepages"),
                path.child("domain.memory.guest"),
            ),
        ));
    }
    if request > 0 && limit > 0 && request != limit {
        causes
            .push(Cause::invalid(&request_field, format!("{request_field} must be equal to {limit_field}")));
    }
}
