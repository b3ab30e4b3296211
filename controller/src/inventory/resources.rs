//! What a guest is given and its pod asks for, as metrics.

use barevirt_api::quantity;
use barevirt_api::sizing::{Topology, guest_memory_bytes};
use barevirt_api::v1::VirtualMachineInstanceSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Resource, unit, source, amount.
type Requests = Vec<(&'static str, &'static str, &'static str, f64)>;
/// Resource, unit, amount.
type Limits = Vec<(&'static str, &'static str, f64)>;

/// Processors and memory of one specification.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) requests: Requests,
    pub(super) limits: Limits,
}

impl Resources {
    pub(super) fn of(spec: &VirtualMachineInstanceSpec) -> Self {
        let bytes =
            |given: Option<&Quantity>| given.and_then(|q| quantity::bytes(q).ok()).filter(|bytes| *bytes > 0);
        let millis =
            |given: Option<&Quantity>| given.and_then(|q| quantity::millis(q).ok()).filter(|cpu| *cpu > 0);
        let given = spec.domain.resources.as_ref();
        let memory = spec.domain.memory.as_ref();
        let mut requests = Requests::new();
        let mut add = |source, amount: Option<u64>| {
            requests.extend(amount.map(|amount| ("memory", "bytes", source, number(amount))));
        };
        add("domain", bytes(given.and_then(|given| given.request("memory"))));
        add("guest", bytes(memory.and_then(|memory| memory.guest.as_ref())));
        add("guest_effective", guest_memory_bytes(spec));
        let asked = millis(given.and_then(|given| given.request("cpu")));
        match &spec.domain.cpu {
            Some(cpu) => {
                for (unit, count) in
                    [("cores", cpu.cores), ("threads", cpu.threads), ("sockets", cpu.sockets)]
                {
                    let count = count.filter(|count| *count > 0);
                    requests.extend(count.map(|count| ("cpu", unit, "domain", f64::from(count))));
                }
            }
            None if asked.is_none() => {
                requests.extend(["cores", "threads", "sockets"].map(|unit| ("cpu", unit, "default", 1.0)));
            }
            None => {}
        }
        requests.extend(asked.map(|millis| ("cpu", "cores", "requests", number(millis) / 1000.0)));
        let vcpus = Topology::of(spec.domain.cpu.as_ref()).vcpus();
        requests.push(("cpu", "cores", "guest_effective", f64::from(vcpus)));
        let mut limits = Limits::new();
        let limit = bytes(given.and_then(|given| given.limit("memory")));
        limits.extend(limit.map(|bytes| ("memory", "bytes", number(bytes))));
        let limit = millis(given.and_then(|given| given.limit("cpu")));
        limits.extend(limit.map(|millis| ("cpu", "cores", number(millis) / 1000.0)));
        Resources { requests, limits }
    }
}

/// Exact as a float: amounts are far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn number(number: u64) -> f64 {
    number as f64
}
