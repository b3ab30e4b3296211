//! CDI's annotations on claims and DataVolumes, about how they are filled.

/// An upload is to fill the claim.
pub const UPLOAD: &str = "cdi.kubevirt.io/storage.upload.target";
/// On a StorageProfile: the least size of claims of its class.
pub const LEAST_SIZE: &str = "cdi.kubevirt.io/minimumSupportedPvcSize";
/// What a claim without a DataVolume is to be filled from: an address. Only CDI acts on it.
pub const ENDPOINT: &str = "cdi.kubevirt.io/storage.import.endpoint";
/// The kind of that source, such as `http`, or `none` for an empty disk. Only CDI acts on it.
pub const SOURCE: &str = "cdi.kubevirt.io/storage.import.source";
/// The claim that a claim without a DataVolume is to be a copy of. Only CDI acts on it.
pub const CLONE_REQUEST: &str = "k8s.io/CloneRequest";
/// The claim is bound at once, even if its storage class waits for a consumer. Also used on DataVolumes.
pub const BIND: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
/// What is uploaded: an image or an archive.
pub const CONTENT: &str = "cdi.kubevirt.io/storage.contentType";
/// Phase of the pod that fills the claim.
pub const PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
/// Whether that pod takes an upload.
pub const READY: &str = "cdi.kubevirt.io/storage.pod.ready";
/// How often the program in that pod was restarted.
pub const RESTARTS: &str = "cdi.kubevirt.io/storage.pod.restarts";
/// Whether that program runs.
pub const RUNNING: &str = "cdi.kubevirt.io/storage.condition.running";
/// Why it does not run, as one word.
pub const REASON: &str = "cdi.kubevirt.io/storage.condition.running.reason";
/// Why it does not run, as a message.
pub const MESSAGE: &str = "cdi.kubevirt.io/storage.condition.running.message";
/// The claim's space was allocated in advance; with the value `true`.
pub const PREALLOCATED: &str = "cdi.kubevirt.io/storage.preallocation";
/// How the names of annotations go on that say so, whatever is before the slash; KubeVirt's.
pub const PREALLOCATED_NAMES: [&str; 2] = ["/storage.preallocation", "/storage.thick-provisioned"];
/// The pod that has filled the claim stays; with the value `true`.
pub const POD_STAYS: &str = "cdi.kubevirt.io/storage.pod.retainAfterCompletion";
/// The DataVolume is deleted once it is filled.
pub const DELETED_AFTERWARDS: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";
/// On a DataVolume: its claim was filled elsewhere, and a backup brings it back. The claim is neither made nor filled.
pub const RESTORED: &str = "cdi.kubevirt.io/storage.prePopulated";
/// On a DataVolume: a volume that names its claim is taken with its contents.
pub const STATIC: &str = "cdi.kubevirt.io/storage.checkStaticVolume";
/// The DataVolume is filled through another claim.
pub const POPULATOR: &str = "cdi.kubevirt.io/storage.usePopulator";
/// Name of that other claim.
pub const PRIME: &str = "cdi.kubevirt.io/storage.populator.pvcPrime";
/// How much of a claim that names a populator is filled, such as `41.53%`.
pub const PROGRESS: &str = "cdi.kubevirt.io/storage.populator.progress";
/// Phase of a claim that CDI copies through a populator.
pub const CLONE_PHASE: &str = "cdi.kubevirt.io/clonePhase";
