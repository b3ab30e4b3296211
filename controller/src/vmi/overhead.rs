//! `status.memory.memoryOverhead`: what a launcher pod has beyond its guest's memory. Pure.
//!
//! ```text
//!   hand-over       that of the pod, as its annotation says
//!   resize          by the formula that the pod was resized with, once the guest has followed
//!   migration       the target pod's is in the record of the migration, and becomes the instance's when the guest arrives
//! ```
//!
//! Each time it is part of a patch that is written anyway.

use barevirt_api::names::MEMORY_OVERHEAD_ANNOTATION;
use barevirt_api::quantity;
use barevirt_api::v1::VirtualMachineInstanceStatus;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

/// What a launcher pod was made with. Users may have changed the annotation: anything but a number of bytes counts as nothing.
pub(crate) fn of_pod(pod: &Pod) -> Option<Quantity> {
    let text = pod.annotations().get(MEMORY_OVERHEAD_ANNOTATION)?;
    let bytes: i64 = text.parse().ok()?;
    u64::try_from(bytes).ok().map(quantity::from_bytes)
}

/// Writes it, where it is known.
pub(super) fn note(status: &mut VirtualMachineInstanceStatus, overhead: Option<Quantity>) {
    if overhead.is_some() {
        status.memory.get_or_insert_default().memory_overhead = overhead;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_number_of_bytes_is_believed() {
        let of = |text: &str| {
            let annotations = json!({MEMORY_OVERHEAD_ANNOTATION: text});
            let pod = json!({"metadata": {"name": "p", "annotations": annotations}});
            of_pod(&serde_json::from_value(pod).unwrap()).map(|told| told.0)
        };
        assert_eq!(of("239075328").as_deref(), Some("228Mi"));
        for no_number in ["", "228Mi", "-1", "99999999999999999999"] {
            assert_eq!(of(no_number), None, "{no_number}");
        }
        assert_eq!(of_pod(&Pod::default()), None);
    }

    #[test]
    fn it_is_written_beside_what_the_guest_has() {
        let given = json!({"memory": {"guestCurrent": "1Gi"}});
        let mut status: VirtualMachineInstanceStatus = serde_json::from_value(given).unwrap();
        note(&mut status, None);
        assert_eq!(status.memory.as_ref().unwrap().memory_overhead, None);
        note(&mut status, Some(Quantity("98Mi".to_owned())));
        let memory = serde_json::to_value(status.memory).unwrap();
        assert_eq!(memory, json!({"guestCurrent": "1Gi", "memoryOverhead": "98Mi"}));
    }
}
