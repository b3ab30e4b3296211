//! Pods that use a claim. Pure.

use k8s_openapi::api::core::v1::{Pod, Volume};

/// Whether a pod has the claim of that name in its namespace open, or will.
pub fn uses(pod: &Pod, claim: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let has = |volume: &Volume| {
        volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim)
    };
    !matches!(phase, Some("Succeeded" | "Failed")) && volumes.iter().any(has)
}
