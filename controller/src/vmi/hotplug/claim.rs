//! Whether the claim of a hot-plugged volume can be used, and its state for the status.

use crate::vmi::claims::{Found, claim_phase};
use barevirt_api::names::{REASON_PVC_NOT_FOUND, REASON_PVC_NOT_READY, VOLUME_BOUND, VOLUME_PENDING};
use barevirt_api::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

/// The claim, where a pod can be made for it. An unbound claim may be waiting for exactly that pod.
pub(super) fn usable<'a>(
    found: &'a Found,
    vmi: &VirtualMachineInstance,
    name: &str,
) -> Option<&'a PersistentVolumeClaim> {
    let claim = found.claim.as_ref()?;
    let in_trouble = found.trouble(&vmi.namespace().unwrap_or_default(), name).is_some();
    (!in_trouble && claim_phase(claim) != "Lost").then_some(claim)
}

/// Phase, reason and message of a volume without a disk, by its claim; KubeVirt's words.
pub(super) fn state_by_claim(
    name: &str,
    found: Option<&Found>,
    vmi: &VirtualMachineInstance,
) -> (&'static str, String, String) {
    let Some((found, claim)) = found.and_then(|found| Some((found, found.claim.as_ref()?))) else {
        let filling = found.and_then(|found| found.filling.as_ref()).is_some();
        let trouble = found.filter(|_| filling).and_then(|found| trouble(found, vmi, name));
        let absent = || (REASON_PVC_NOT_FOUND.to_owned(), format!("PVC {name} not found"));
        let (reason, message) = trouble.unwrap_or_else(absent);
        return (VOLUME_PENDING, reason, message);
    };
    let (phase, message) = match claim_phase(claim) {
        "Bound" => (VOLUME_BOUND, "PVC is in phase Bound"),
        "Lost" => (VOLUME_PENDING, "PVC is in phase Lost"),
        _ => (VOLUME_PENDING, "PVC is in phase ClaimPending"),
    };
    let plain = || (REASON_PVC_NOT_READY.to_owned(), message.to_owned());
    // A claim that only waits for a pod gets one.
    let trouble = trouble(found, vmi, name).filter(|_| !found.waits_for_consumer());
    let (reason, message) = trouble.unwrap_or_else(plain);
    (phase, reason, message)
}

fn trouble(found: &Found, vmi: &VirtualMachineInstance, name: &str) -> Option<(String, String)> {
    let trouble = found.trouble(&vmi.namespace().unwrap_or_default(), name);
    trouble.map(|(reason, message)| (reason.to_owned(), message))
}
