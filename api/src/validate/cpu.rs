//! CPUs: requests, limits, arrangement and model.

use super::memory::refused;
use super::{Cause, CauseKind, Path};
use crate::capacity::{self, MAX_VCPUS};
use crate::quantity;
use crate::syntax::{is_cpu_model, quoted};
use crate::v1::{Cpu, VirtualMachineInstanceSpec};

/// Virtual CPUs of an arrangement, with 1 for numbers that are not given.
pub(super) fn whole(cpu: &Cpu) -> u64 {
    [cpu.sockets, cpu.cores, cpu.threads]
        .into_iter()
        .fold(1, |product: u64, count| product.saturating_mul(u64::from(count.unwrap_or(1).max(1))))
}

/// Policies of a CPU feature.
const POLICIES: [&str; 6] = ["", "force", "require", "optional", "disable", "forbid"];

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let resources = spec.domain.resources.as_ref();
    let request_field = path.child("domain.resources.requests.cpu");
    let limit_field = path.child("domain.resources.limits.cpu");
    let request = resources.and_then(|resources| resources.request("cpu"));
    let limit = resources.and_then(|resources| resources.limit("cpu"));
    let mut read = |field: &Path, quantity| {
        let quantity = quantity?;
        quantity::millis(quantity).map_err(|error| causes.push(refused(field, quantity, &error))).ok()
    };
    let request_millis = read(&request_field, request);
    let limit_millis = read(&limit_field, limit);
    if let (Some(request), Some(limit), Some(request_millis), Some(limit_millis @ 1..)) =
        (request, limit, request_millis, limit_millis)
        && request_millis > limit_millis
    {
        causes.push(Cause::invalid(
            &request_field,
            format!("{request_field} '{}' is greater than {limit_field} '{}'", request.0, limit.0),
        ));
    }

    let Some(cpu) = spec.domain.cpu.as_ref() else { return };
    let field = path.child("domain.cpu");
    let count = |value: Option<u32>| u64::from(value.unwrap_or(1).max(1));
    let sockets = count(cpu.sockets);
    if cpu.max_sockets.is_some_and(|max| max > 0 && u64::from(max) < sockets) {
        causes.push(Cause::invalid(
            &field.child("sockets"),
            "Number of sockets in CPU topology is greater than the maximum sockets allowed",
        ));
    }
    let most = sockets.max(cpu.max_sockets.map_or(0, u64::from));
    let vcpus = most.saturating_mul(count(cpu.cores)).saturating_mul(count(cpu.threads));
    if vcpus > MAX_VCPUS && !as_many_as_requested(spec, cpu) {
        causes.push(Cause::new(
            CauseKind::NotSupported,
            &field,
            format!("{field} has {vcpus} virtual CPUs, more than {MAX_VCPUS} are not supported yet"),
        ));
    }
    for (index, feature) in cpu.features.iter().enumerate() {
        let policy = feature.policy.as_deref().unwrap_or_default();
        if !POLICIES.contains(&policy) {
            causes.push(Cause::not_supported(
                &field.child("features").index(index).child("policy"),
                format!(
                    "CPU feature {} uses policy {} that is not supported.",
                    quoted(&feature.name),
                    quoted(policy)
                ),
            ));
        }
    }
    if let Some(model) = cpu.model.as_deref().filter(|model| !is_cpu_model(model)) {
        let field = field.child("model");
        causes.push(Cause::invalid(
            &field,
            format!(
                "{field} has invalid value {}, letters, digits, '-', '_' and '.' are allowed",
                quoted(model)
            ),
        ));
    }
}

/// Whether there is one virtual CPU for each CPU that is requested from the node. The scheduler then decides
/// whether a node has so many, as in KubeVirt.
fn as_many_as_requested(spec: &VirtualMachineInstanceSpec, cpu: &Cpu) -> bool {
    let requested = spec.domain.resources.as_ref().and_then(capacity::sockets_from_resources);
    let one = |count: Option<u32>| count.unwrap_or(1) <= 1;
    requested.is_some() && cpu.sockets == requested && one(cpu.cores) && one(cpu.threads)
}
