//! Annotations of CDI's on claims and DataVolumes.

/// The claim is to be filled by an upload.
pub(super) const UPLOAD: &str = "cdi.kubevirt.io/storage.upload.target";
/// The claim is bound at once, whatever its storage class waits for.
pub(super) const BIND: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
/// What is uploaded: an image or an archive.
pub(super) const CONTENT: &str = "cdi.kubevirt.io/storage.contentType";
/// Phase of the pod that fills the claim.
pub(super) const PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
/// Whether that pod takes an upload.
pub(super) const READY: &str = "cdi.kubevirt.io/storage.pod.ready";
/// How often that pod's program has been started again.
pub(super) const RESTARTS: &str = "cdi.kubevirt.io/storage.pod.restarts";
/// What was wrong with it.
pub(super) const MESSAGE: &str = "cdi.kubevirt.io/storage.condition.running.message";
/// The DataVolume is deleted once it is filled.
pub(super) const GOES: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";
/// The DataVolume is filled by way of another claim.
pub(super) const POPULATOR: &str = "cdi.kubevirt.io/storage.usePopulator";
/// That other claim.
pub(super) const PRIME: &str = "cdi.kubevirt.io/storage.populator.pvcPrime";
