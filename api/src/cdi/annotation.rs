//! Annotations of CDI's on claims and DataVolumes, about what fills them.

/// The claim is to be filled by an upload.
pub const UPLOAD: &str = "cdi.kubevirt.io/storage.upload.target";
/// The claim is bound at once, whatever its storage class waits for; on a DataVolume too.
pub const BIND: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
/// What is uploaded: an image or an archive.
pub const CONTENT: &str = "cdi.kubevirt.io/storage.contentType";
/// Phase of the pod that fills the claim.
pub const PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
/// Whether that pod takes an upload.
pub const READY: &str = "cdi.kubevirt.io/storage.pod.ready";
/// How often that pod's program has been started again.
pub const RESTARTS: &str = "cdi.kubevirt.io/storage.pod.restarts";
/// Whether that program runs.
pub const RUNNING: &str = "cdi.kubevirt.io/storage.condition.running";
/// Why not, in a word.
pub const REASON: &str = "cdi.kubevirt.io/storage.condition.running.reason";
/// What was wrong with it.
pub const MESSAGE: &str = "cdi.kubevirt.io/storage.condition.running.message";
/// The DataVolume is deleted once it is filled.
pub const GOES: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";
/// The DataVolume is filled by way of another claim.
pub const POPULATOR: &str = "cdi.kubevirt.io/storage.usePopulator";
/// That other claim.
pub const PRIME: &str = "cdi.kubevirt.io/storage.populator.pvcPrime";
