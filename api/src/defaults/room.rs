//! Limits of growth: how many sockets and how much memory a guest can get while it runs.
//!
//! KubeVirt's rule: the instance's own limit, else the installation's maximum, else a multiple of the size at
//! the start. No limit above the start is set for dedicated CPUs and huge pages, because a node does not give
//! more of them to a running pod.

use crate::capacity::{MAX_VCPUS, memory_cannot_grow};
use crate::quantity;
use crate::settings::LiveUpdate;
use crate::v1::VirtualMachineInstanceSpec;

/// Fills in `cpu.maxSockets` and `memory.maxGuest`.
pub(super) fn make(spec: &mut VirtualMachineInstanceSpec, live: &LiveUpdate) {
    sockets(spec, live);
    memory(spec, live);
}

fn sockets(spec: &mut VirtualMachineInstanceSpec, live: &LiveUpdate) {
    let Some(cpu) = spec.domain.cpu.as_mut() else { return };
    let given = cpu.max_sockets.is_some_and(|most| most > 0);
    if given || cpu.dedicated_cpu_placement == Some(true) || cpu.realtime.is_some() || cpu.numa.is_some() {
        return;
    }
    let count = |value: Option<u32>| value.unwrap_or(1).max(1);
    let sockets = count(cpu.sockets);
    let most = match live.max_sockets {
        Some(most) => most,
        None => {
            let in_each = u64::from(count(cpu.cores)) * u64::from(count(cpu.threads));
            let fits = u32::try_from(MAX_VCPUS / in_each.max(1)).unwrap_or(u32::MAX);
            sockets.saturating_mul(live.ratio).min(fits)
        }
    };
    cpu.max_sockets = Some(most.max(sockets));
}

fn memory(spec: &mut VirtualMachineInstanceSpec, live: &LiveUpdate) {
    let Some(memory) = spec.domain.memory.as_ref() else { return };
    if memory.max_guest.is_some() || memory.hugepages.is_some() {
        return;
    }
    let guest = memory.guest.as_ref().and_then(|guest| quantity::bytes(guest).ok());
    let most = live.max_guest.or_else(|| guest?.checked_mul(u64::from(live.ratio)));
    let Some(most) = most.map(quantity::from_bytes) else { return };
    if memory_cannot_grow(spec, Some(&most)).is_none()
        && let Some(memory) = spec.domain.memory.as_mut()
    {
        memory.max_guest = Some(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn made(domain: Value, live: &LiveUpdate) -> (Option<u32>, Option<String>) {
        let mut spec: VirtualMachineInstanceSpec =
            serde_json::from_value(json!({"architecture": "amd64", "domain": domain})).unwrap();
        make(&mut spec, live);
        let most = spec.domain.memory.and_then(|memory| memory.max_guest).map(|most| most.0);
        (spec.domain.cpu.and_then(|cpu| cpu.max_sockets), most)
    }

    #[test]
    fn four_times_what_it_starts_with() {
        let domain = |cpu: Value, memory: Value| json!({"devices": {}, "cpu": cpu, "memory": memory});
        let gib = |text: &str| Some(text.to_owned());
        for (cpu, memory, expected) in [
            (json!({"sockets": 2}), json!({"guest": "1Gi"}), (Some(8), gib("4Gi"))),
            (
                json!({"sockets": 2, "maxSockets": 3}),
                json!({"guest": "2Gi", "maxGuest": "3Gi"}),
                (Some(3), gib("3Gi")),
            ),
            // Not more than a machine can have, and never less than it starts with.
            (json!({"sockets": 40, "cores": 4}), json!({"guest": "1023Mi"}), (Some(63), None)),
            (json!({"sockets": 300}), json!({"guest": "1025Mi"}), (Some(300), None)),
            (
                json!({"dedicatedCpuPlacement": true}),
                json!({"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}),
                (None, None),
            ),
            (json!({"dedicatedCpuPlacement": false}), json!({}), (Some(4), None)),
        ] {
            assert_eq!(
                made(domain(cpu.clone(), memory.clone()), &LiveUpdate::default()),
                expected,
                "{cpu} {memory}"
            );
        }
    }

    #[test]
    fn the_installation_may_set_limits() {
        let live = LiveUpdate { ratio: 2, max_sockets: Some(2), max_guest: Some(3 << 30) };
        let domain = json!({"devices": {}, "cpu": {"sockets": 1}, "memory": {"guest": "1Gi"}});
        assert_eq!(made(domain, &live), (Some(2), Some("3Gi".to_owned())));
        let larger = json!({"devices": {}, "cpu": {"sockets": 3}, "memory": {"guest": "4Gi"}});
        assert_eq!(made(larger, &live), (Some(3), None));
    }
}
