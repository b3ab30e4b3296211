//! CPUs and memory in a VMI's status: what the machine has, and why it differs from what is wanted.

use barevirt_api::names::{
    CONDITION_HOT_MEMORY_CHANGE, CONDITION_HOT_VCPU_CHANGE, REASON_CPU_HOTPLUG_FAILED,
    REASON_MEMORY_HOTPLUG_FAILED,
};
use barevirt_api::v1::{
    Condition, VirtualMachineInstanceSpec, VirtualMachineInstanceStatus, merge_condition,
};
use barevirt_api::{quantity, sizing};
use barevirt_protocol::v1::MachineSize;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Writes the launcher's numbers, limited by the maxima of the specification, because the controller sizes
/// its pod by them. The controller adds and removes the conditions; here they can only become false.
pub(super) fn report(
    status: &mut VirtualMachineInstanceStatus,
    spec: &VirtualMachineInstanceSpec,
    size: &MachineSize,
    now: &Time,
) {
    let MachineSize { sockets, memory_bytes, requested_memory_bytes, processor_trouble, memory_trouble } =
        size;
    if let Some(cpu) = spec.domain.cpu.as_ref().filter(|_| *sockets > 0) {
        let topology = status.current_cpu_topology.get_or_insert_default();
        topology.sockets = Some((*sockets).min(sizing::Topology::of(Some(cpu)).max_sockets));
        topology.cores = topology.cores.or(cpu.cores);
        topology.threads = topology.threads.or(cpu.threads);
    }
    let grows = spec.domain.memory.as_ref().is_some_and(|memory| memory.max_guest.is_some());
    if let Some(memory) = status.memory.as_mut().filter(|_| grows) {
        let most = sizing::most_guest_memory_bytes(spec).unwrap_or_default();
        amount(&mut memory.guest_current, (*memory_bytes).min(most));
        amount(&mut memory.guest_requested, (*requested_memory_bytes).min(most));
    }
    for (type_, reason, trouble) in [
        (CONDITION_HOT_VCPU_CHANGE, REASON_CPU_HOTPLUG_FAILED, processor_trouble),
        (CONDITION_HOT_MEMORY_CHANGE, REASON_MEMORY_HOTPLUG_FAILED, memory_trouble),
    ] {
        if !trouble.is_empty() && Condition::is_set(&status.conditions, type_) {
            merge_condition(&mut status.conditions, Condition::new(type_, false, reason, trouble), now);
        }
    }
}

/// An equal amount keeps its notation.
fn amount(stored: &mut Option<Quantity>, bytes: u64) {
    if stored.as_ref().and_then(|stored| quantity::bytes(stored).ok()) != Some(bytes) {
        *stored = Some(quantity::from_bytes(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        #[test]
        fn no_reported_size_is_above_the_maxima(sockets in any::<u32>(), bytes in any::<u64>(), asked in any::<u64>()) {
            let spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({"domain": {"devices": {},
                "cpu": {"sockets": 1, "maxSockets": 4}, "memory": {"guest": "1Gi", "maxGuest": "4Gi"}}}))
            .unwrap();
            let mut status = VirtualMachineInstanceStatus { memory: Some(Default::default()), ..Default::default() };
            let size = MachineSize { sockets, memory_bytes: bytes, requested_memory_bytes: asked, ..MachineSize::default() };
            report(&mut status, &spec, &size, &Time(Timestamp::UNIX_EPOCH));
            prop_assert!(status.current_cpu_topology.is_none_or(|told| told.sockets <= Some(4)));
            let memory = status.memory.unwrap();
            for told in [memory.guest_current, memory.guest_requested] {
                prop_assert!(quantity::bytes(&told.unwrap()).unwrap() <= 4 << 30);
            }
        }
    }

    #[test]
    fn the_machines_size_and_its_trouble_are_reported() {
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({"domain": {"devices": {},
            "cpu": {"sockets": 1, "cores": 2, "maxSockets": 4}, "memory": {"guest": "1Gi", "maxGuest": "4Gi"}}}))
        .unwrap();
        let mut status: VirtualMachineInstanceStatus = serde_json::from_value(json!({
            "currentCPUTopology": {"sockets": 1, "cores": 2},
            "memory": {"guestAtBoot": "1Gi", "guestCurrent": "1024Mi", "guestRequested": "1Gi"},
            "conditions": [{"type": "HotMemoryChange", "status": "True"}],
        }))
        .unwrap();
        let before = status.clone();
        let now = Time(Timestamp::UNIX_EPOCH);
        let mut size = MachineSize {
            sockets: 1,
            memory_bytes: 1 << 30,
            requested_memory_bytes: 1 << 30,
            ..MachineSize::default()
        };
        report(&mut status, &spec, &size, &now);
        assert_eq!(status, before);
        size.sockets = 3;
        size.requested_memory_bytes = 2 << 30;
        size.memory_trouble = "no".to_owned();
        // No change of CPUs is in progress, so a message about them is outdated.
        size.processor_trouble = "no".to_owned();
        report(&mut status, &spec, &size, &now);
        assert_eq!(status.current_cpu_topology.unwrap().sockets, Some(3));
        let memory = status.memory.unwrap();
        assert_eq!(
            (memory.guest_current.unwrap().0, memory.guest_requested.unwrap().0),
            ("1024Mi".into(), "2Gi".into())
        );
        assert_eq!(status.conditions.len(), 1);
        assert_eq!(status.conditions[0].reason.as_deref(), Some("Memory Hotplug Failed"));
        assert_eq!(status.conditions[0].status, "False");
    }
}
