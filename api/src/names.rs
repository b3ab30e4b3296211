//! Names that several components share: labels, annotations, finalizers, phases, conditions, reasons.
//!
//! Those of KubeVirt keep KubeVirt's spelling, since tools and people's scripts compare them.

/// Label on the components and on launcher pods: which part of the system an object is.
pub const APP_LABEL: &str = "kubevirt.io";
/// Value of [`APP_LABEL`] on launcher pods.
pub const APP_LAUNCHER: &str = "virt-launcher";
/// Value of [`APP_LABEL`] on attachment pods, and name of their container.
pub const APP_HOTPLUG_DISK: &str = "hotplug-disk";
/// Value of [`APP_LABEL`] on pods that claims wait for before somebody fills them.
pub const APP_FIRST_CONSUMER: &str = "first-consumer";
/// Label on launcher and attachment pods: UID of the instance they were made for.
pub const CREATED_BY_LABEL: &str = "kubevirt.io/created-by";
/// Label on launcher pods: name of the instance.
pub const VM_NAME_LABEL: &str = "vm.kubevirt.io/name";
/// Label on launcher pods: the instance's [`vmi_id`], by which services select them.
pub const VMI_ID_LABEL: &str = "vmi.kubevirt.io/id";
/// Label on instances: node whose handler looks after them.
pub const NODE_NAME_LABEL: &str = "kubevirt.io/nodeName";
/// Label on instances: their launcher is not of the installed version.
pub const OUTDATED_LAUNCHER_LABEL: &str = "kubevirt.io/outdatedLauncherImage";
/// Annotation on launcher pods: name of the instance.
pub const DOMAIN_ANNOTATION: &str = "kubevirt.io/domain";
/// Annotation on instances: generation of the machine they were made from.
pub const VM_GENERATION_ANNOTATION: &str = "kubevirt.io/vm-generation";
/// On instances and machines: which device sits at which PCI address, so that it stays there at the next start.
pub const PCI_LAYOUT_ANNOTATION: &str = "barevirt.dev/pci-layout";
/// On instances: UIDs of launcher pods that a kubelet refused, with commas between them, the first one first.
pub const REFUSED_PODS_ANNOTATION: &str = "barevirt.dev/refused-pods";
/// On attachment pods: the volume of the instance that they are for.
pub const VOLUME_ANNOTATION: &str = "barevirt.dev/volume";
/// On attachment pods: the claim that the volume is on.
pub const CLAIM_ANNOTATION: &str = "barevirt.dev/claim";
/// Annotation, "true", on pods that claims wait for before somebody fills them.
pub const PROVISIONING_ANNOTATION: &str = "kubevirt.io/ephemeral-provisioning";
/// Annotation of an instance, "true": no pod is made for it until a migration brings its guest.
pub const MIGRATION_TARGET_ANNOTATION: &str = "kubevirt.io/create-migration-target";
/// Annotation on instances: their launcher is to fail at once. KubeVirt's tests of crash loops use it.
pub const FAIL_FAST_ANNOTATION: &str = "kubevirt.io/func-test-virt-launcher-fail-fast";
/// Annotation on instances: probes by `guestAgentPing` succeed without asking the guest agent.
pub const PAUSE_AGENT_PROBES_ANNOTATION: &str = "kubevirt.io/pause-guest-agent-probes";
/// Label on a pool's machines and on their instances: revision of the pool that they were made from.
pub const POOL_REVISION_LABEL: &str = "kubevirt.io/vm-pool-revision-name";
/// Label on the revisions that a machine or a pool keeps of itself: whose it is, as [`vmi_id`] shortens names.
pub const REVISION_OF_LABEL: &str = "barevirt.dev/revision-of";
/// Annotation on instances: the instance type they were made from, of their namespace.
pub const INSTANCETYPE_ANNOTATION: &str = "kubevirt.io/instancetype-name";
/// The same for one of all namespaces.
pub const CLUSTER_INSTANCETYPE_ANNOTATION: &str = "kubevirt.io/cluster-instancetype-name";
/// Annotation on instances: the preference they were made with, of their namespace.
pub const PREFERENCE_ANNOTATION: &str = "kubevirt.io/preference-name";
/// The same for one of all namespaces.
pub const CLUSTER_PREFERENCE_ANNOTATION: &str = "kubevirt.io/cluster-preference-name";
/// Annotation on launcher pods: memory beyond the guest's, in bytes.
pub const MEMORY_OVERHEAD_ANNOTATION: &str = "kubevirt.io/memory-overhead-bytes";
/// Annotation on nodes: when their handler last lived.
pub const HEARTBEAT_ANNOTATION: &str = "kubevirt.io/heartbeat";
/// Label on nodes: whether launcher pods may be placed there.
pub const SCHEDULABLE_LABEL: &str = "kubevirt.io/schedulable";
/// Label on nodes: whether the kubelet gives containers CPUs of their own.
pub const CPU_MANAGER_LABEL: &str = "kubevirt.io/cpumanager";
/// Its former name, which KubeVirt still writes.
pub const FORMER_CPU_MANAGER_LABEL: &str = "cpumanager";
/// Label on nodes: the kernel lets realtime threads run without end.
pub const REALTIME_LABEL: &str = "kubevirt.io/realtime";
/// Annotation on instances, and on the KubeVirt object for all of them: `isolateEmulatorThread` takes a second CPU where the sum
/// would be odd, so that none shares a core with another guest.
pub const EVEN_PARITY_ANNOTATION: &str = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity";
/// Prefix of labels on nodes: CPU models that guests can have there.
pub const CPU_MODEL_LABEL: &str = "cpu-model.node.kubevirt.io/";
/// Prefix of labels on nodes: CPU models that are known there, also those that guests cannot have.
pub const CPU_MODEL_MIGRATION_LABEL: &str = "cpu-model-migration.node.kubevirt.io/";
/// Prefix of labels on nodes: CPU features that guests can have there.
pub const CPU_FEATURE_LABEL: &str = "cpu-feature.node.kubevirt.io/";
/// Prefix of a label on nodes: the CPU's vendor.
pub const CPU_VENDOR_LABEL: &str = "cpu-vendor.node.kubevirt.io/";
/// Prefix of labels on nodes: the time stamp counter.
pub const CPU_TIMER_LABEL: &str = "cpu-timer.node.kubevirt.io/";
/// Prefix of a label on nodes: the named model that comes next to the node's CPU.
pub const HOST_MODEL_LABEL: &str = "host-model-cpu.node.kubevirt.io/";
/// Prefix of labels on nodes: features that the node's CPU has beyond that model.
pub const HOST_MODEL_FEATURE_LABEL: &str = "host-model-required-features.node.kubevirt.io/";
/// Label on nodes: that model counts as obsolete.
pub const OBSOLETE_HOST_MODEL_LABEL: &str = "node-labeller.kubevirt.io/obsolete-host-model";
/// Annotation on nodes: leave the labels about processor and machine alone.
pub const SKIP_LABELS_ANNOTATION: &str = "node-labeller.kubevirt.io/skip-node";
/// Prefix of labels on nodes: Hyper-V enlightenments that the kernel has.
pub const HYPERV_LABEL: &str = "hyperv.node.kubevirt.io/";
/// Prefix of labels on nodes: machine types that guests can have there.
pub const MACHINE_TYPE_LABEL: &str = "machine-type.node.kubevirt.io/";
/// Label on nodes: AMD's memory encryption.
pub const SEV_LABEL: &str = "kubevirt.io/sev";
/// Label on nodes: the same, registers as well.
pub const SEV_ES_LABEL: &str = "kubevirt.io/sev-es";
/// Label on nodes: the same, with integrity.
pub const SEV_SNP_LABEL: &str = "kubevirt.io/sev-snp";
/// Label on nodes: Intel's trust domains.
pub const TDX_LABEL: &str = "kubevirt.io/tdx";
/// Prefix of labels that only our components may set on instances.
pub const RESERVED_LABEL_PREFIX: &str = "kubevirt.io/";

/// Finalizer of instances: their pods are gone before they are.
pub const VMI_FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";
/// Finalizer of machines: their instance is dealt with before they are gone.
pub const VM_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
/// Finalizer of pools, and of machines of theirs that leave something for the next one of their number.
pub const POOL_FINALIZER: &str = "pool.kubevirt.io/finalizer";

/// Namespace of the components.
pub const INSTALL_NAMESPACE: &str = "kubevirt";
/// Service account of the API server.
pub const SERVICE_ACCOUNT_API: &str = "kubevirt-apiserver";
/// Service account of the controller.
pub const SERVICE_ACCOUNT_CONTROLLER: &str = "kubevirt-controller";
/// Config map of people's own that says which labels of machines metrics tell.
pub const VM_LABELS_CONFIG_MAP: &str = "kubevirt-vm-labels-config";
/// Service account of the handlers.
pub const SERVICE_ACCOUNT_HANDLER: &str = "kubevirt-handler";

/// Service account of the operator.
pub const SERVICE_ACCOUNT_OPERATOR: &str = "kubevirt-operator";

/// Signer of handlers' certificates: what requests for them name, and what rights are given for.
pub const HANDLER_SIGNER: &str = "barevirt.dev/virt-handler";
/// Common name of every handler's certificate.
pub const HANDLER_COMMON_NAME: &str = "virt-handler";
/// Common name of the certificate that virt-api shows to handlers.
pub const HANDLER_CLIENT_COMMON_NAME: &str = "kubevirt.io:system:client:virt-handler";

/// The name by which the handler of a node is known to those who call it. No address has it.
pub fn handler_host(node: &str) -> String {
    format!("{node}.virt-handler.{INSTALL_NAMESPACE}")
}

/// Name of the one `KubeVirt` object.
pub const KUBEVIRT_NAME: &str = "kubevirt";
/// User and group id of launchers.
pub const LAUNCHER_UID: i64 = 107;
/// Main container of a launcher pod.
pub const COMPUTE_CONTAINER: &str = "compute";

/// Phase: admitted, no pod yet.
pub const PHASE_PENDING: &str = "Pending";
/// Phase: a pod exists and does not run yet.
pub const PHASE_SCHEDULING: &str = "Scheduling";
/// Phase: the pod runs; the node's handler takes over.
pub const PHASE_SCHEDULED: &str = "Scheduled";
/// Phase: the guest runs.
pub const PHASE_RUNNING: &str = "Running";
/// Phase: ended as intended.
pub const PHASE_SUCCEEDED: &str = "Succeeded";
/// Phase: ended otherwise.
pub const PHASE_FAILED: &str = "Failed";
/// Phase: no pod is made until a migration brings the guest.
pub const PHASE_WAITING_FOR_SYNC: &str = "WaitingForSync";
/// Phase: its node cannot be reached.
pub const PHASE_UNKNOWN: &str = "Unknown";

/// Whether the phase is a last one.
pub fn is_final_phase(phase: &str) -> bool {
    phase == PHASE_SUCCEEDED || phase == PHASE_FAILED
}

/// Condition: the guest runs and can be used.
pub const CONDITION_READY: &str = "Ready";
/// Condition: what is asked for could be put into effect.
pub const CONDITION_SYNCHRONIZED: &str = "Synchronized";
/// Condition: the guest is paused.
pub const CONDITION_PAUSED: &str = "Paused";
/// Condition: the guest agent answers.
pub const CONDITION_AGENT_CONNECTED: &str = "AgentConnected";
/// Condition: the guest agent does not know commands that it is needed for.
pub const CONDITION_UNSUPPORTED_AGENT: &str = "UnsupportedAgent";
/// Condition: keys and passwords are in effect in the guest.
pub const CONDITION_ACCESS_CREDENTIALS: &str = "AccessCredentialsSynchronized";
/// Condition: the guest can move to another node while it runs.
pub const CONDITION_LIVE_MIGRATABLE: &str = "LiveMigratable";
/// Condition of machines: what runs is not what the machine says any more.
pub const CONDITION_RESTART_REQUIRED: &str = "RestartRequired";
/// The guest's sockets change while it runs.
pub const CONDITION_HOT_VCPU_CHANGE: &str = "HotVCPUChange";
/// The guest's memory changes while it runs.
pub const CONDITION_HOT_MEMORY_CHANGE: &str = "HotMemoryChange";
/// Reason: the pod of a guest with dedicated CPUs is not of the class `Guaranteed`.
pub const REASON_NOT_GUARANTEED: &str = "FailedGuaranteePodResources";
/// Reason of both: the launcher's pod is being resized.
pub const REASON_POD_RESIZING: &str = "PodResizing";
/// Reason of both: the pod has what the guest is to get.
pub const REASON_POD_RESIZED: &str = "PodResized";
/// Reason of both: the node puts the pod's resize off.
pub const REASON_POD_RESIZE_DEFERRED: &str = "PodResizeDeferred";
/// Reason of both where they are False: the cluster, or the node, cannot resize the pod.
pub const REASON_POD_RESIZE_INFEASIBLE: &str = "PodResizeInfeasible";
/// Reason of both where they are False: it took too long.
pub const REASON_POD_RESIZE_TIMED_OUT: &str = "PodResizeTimedOut";
/// Reason of `HotMemoryChange=False`: QEMU or the guest did not do it. KubeVirt's.
pub const REASON_MEMORY_HOTPLUG_FAILED: &str = "Memory Hotplug Failed";
/// Reason of `HotVCPUChange=False`: QEMU or the guest did not do it.
pub const REASON_CPU_HOTPLUG_FAILED: &str = "CPU Hotplug Failed";
/// Condition of replica sets and pools: what they keep could not be made or taken away.
pub const CONDITION_REPLICA_FAILURE: &str = "ReplicaFailure";
/// Condition of replica sets and pools: nothing is made or taken away.
pub const CONDITION_REPLICA_PAUSED: &str = "ReplicaPaused";
/// Condition of machines: the last action failed.
pub const CONDITION_FAILURE: &str = "Failure";
/// Condition of pods, copied to instances: scheduled or why not.
pub const CONDITION_POD_SCHEDULED: &str = "PodScheduled";
/// Condition: storage of DataVolumes waits for a pod, and is given one.
pub const CONDITION_PROVISIONING: &str = "Provisioning";
/// Condition: whether the DataVolumes of the disks are filled.
pub const CONDITION_DATA_VOLUMES_READY: &str = "DataVolumesReady";
/// Reason: they are.
pub const REASON_DATA_VOLUMES_READY: &str = "AllDVsReady";
/// Reason: one of them is not.
pub const REASON_DATA_VOLUMES_NOT_READY: &str = "NotAllDVsReady";

/// Run strategy: runs, and is started again whenever it ended.
pub const RUN_STRATEGY_ALWAYS: &str = "Always";
/// Run strategy: does not run.
pub const RUN_STRATEGY_HALTED: &str = "Halted";
/// Run strategy: only commands decide.
pub const RUN_STRATEGY_MANUAL: &str = "Manual";
/// Run strategy: started again after a failure only.
pub const RUN_STRATEGY_RERUN_ON_FAILURE: &str = "RerunOnFailure";
/// Run strategy: started once.
pub const RUN_STRATEGY_ONCE: &str = "Once";
/// Run strategy: waits for a migration that brings the guest.
pub const RUN_STRATEGY_WAIT_AS_RECEIVER: &str = "WaitAsReceiver";

/// Start strategy: the guest's CPUs stand still until somebody lets them go.
pub const START_STRATEGY_PAUSED: &str = "Paused";

/// Action of a state change request: start.
pub const ACTION_START: &str = "Start";
/// Action of a state change request: stop.
pub const ACTION_STOP: &str = "Stop";
/// Member of a start request's data: whether the guest's processors are to stand still.
pub const START_PAUSED: &str = "paused";

/// Printable status: does not run.
pub const STATUS_STOPPED: &str = "Stopped";
/// Printable status: on its way to run.
pub const STATUS_STARTING: &str = "Starting";
/// Printable status: runs.
pub const STATUS_RUNNING: &str = "Running";
/// Printable status: paused.
pub const STATUS_PAUSED: &str = "Paused";
/// Printable status: its instance is being ended.
pub const STATUS_STOPPING: &str = "Stopping";
/// Printable status: the machine itself is being deleted.
pub const STATUS_TERMINATING: &str = "Terminating";
/// Printable status: no node takes the pod.
pub const STATUS_UNSCHEDULABLE: &str = "ErrorUnschedulable";
/// Printable status: the claim of a disk is not there.
pub const STATUS_PVC_NOT_FOUND: &str = "ErrorPvcNotFound";
/// Printable status: an image cannot be pulled.
pub const STATUS_ERR_IMAGE_PULL: &str = "ErrImagePull";
/// Printable status: an image cannot be pulled, and the next try is some time away.
pub const STATUS_IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
/// Printable status: failed again and again; the next start is some time away.
pub const STATUS_CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
/// Printable status: DataVolumes of its templates are being filled.
pub const STATUS_PROVISIONING: &str = "Provisioning";
/// Printable status: a claim is bound once the pod that uses it has a node.
pub const STATUS_WAITING_FOR_VOLUME_BINDING: &str = "WaitingForVolumeBinding";
/// Printable status: a DataVolume cannot be filled.
pub const STATUS_DATA_VOLUME_ERROR: &str = "DataVolumeError";
/// Printable status: waits for a migration that brings the guest.
pub const STATUS_WAITING_FOR_RECEIVER: &str = "WaitingForReceiver";
/// Printable status: its node cannot be reached.
pub const STATUS_UNKNOWN: &str = "Unknown";

/// Phase of a volume that comes and goes: its claim is not there, or not bound.
pub const VOLUME_PENDING: &str = "Pending";
/// Phase of a volume: its claim is bound.
pub const VOLUME_BOUND: &str = "Bound";
/// Phase of a volume: its attachment pod offers the disk.
pub const VOLUME_ATTACHED: &str = "AttachedToNode";
/// Phase of a volume: the guest has the disk.
pub const VOLUME_READY: &str = "Ready";
/// Phase of a volume: the guest is to give the disk back.
pub const VOLUME_DETACHING: &str = "Detaching";
/// Phase of a volume: the launcher has let go of the disk.
pub const VOLUME_UNMOUNTED: &str = "UnMountedFromPod";

/// Event reason: the DataVolume of a template was made.
pub const REASON_SUCCESSFUL_DATA_VOLUME_CREATE: &str = "SuccessfulDataVolumeCreate";
/// Event reason: the DataVolume of a template could not be made.
pub const REASON_FAILED_DATA_VOLUME_CREATE: &str = "FailedDataVolumeCreate";
/// Event reason: the machine's account may not copy what a template asks for.
pub const REASON_UNAUTHORIZED_DATA_VOLUME_CREATE: &str = "UnauthorizedDataVolumeCreate";
/// Event reason: a DataVolume could not be filled.
pub const REASON_FAILED_DATA_VOLUME_IMPORT: &str = "FailedDataVolumeImport";
/// Reason of an instance that waits for a DataVolume.
pub const REASON_DATA_VOLUME_NOT_READY: &str = "DataVolumeNotReady";
/// Event reason: the claim that a template copies is not there. KubeVirt's spelling.
pub const REASON_SOURCE_CLAIM_NOT_AVAILABLE: &str = "SourcePVCNotAvailabe";
/// Event reason: an object was created.
pub const REASON_SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
/// Reason of an instance that waits for the claim of a disk.
pub const REASON_PVC_NOT_FOUND: &str = "FailedPvcNotFound";
/// Reason of a volume whose claim is there, and its attachment pod not yet.
pub const REASON_PVC_NOT_READY: &str = "PVCNotReady";
/// Reason of a volume that cannot be plugged in, or that the guest does not let go; the handler's.
pub const REASON_HOTPLUG_FAILED: &str = "FailedHotplugSync";
/// Reason of a volume whose attachment pod does not run any more.
pub const REASON_MISSING_ATTACHMENT_POD: &str = "MissingAttachmentPod";
/// Event reason: an object could not be created.
pub const REASON_FAILED_CREATE: &str = "FailedCreate";
/// Failure condition's reason: the instance type that a machine names is not there.
pub const REASON_FAILED_FIND_INSTANCETYPE: &str = "FailedFindInstancetype";
/// Failure condition's reason: the preference that a machine names is not there.
pub const REASON_FAILED_FIND_PREFERENCE: &str = "FailedFindPreference";
/// Event reason: an object was deleted.
pub const REASON_SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
/// Event reason: an object could not be deleted.
pub const REASON_FAILED_DELETE: &str = "FailedDelete";
/// Event reason: an object could not be changed.
pub const REASON_FAILED_UPDATE: &str = "FailedUpdate";
/// Event reason: an object was changed.
pub const REASON_SUCCESSFUL_UPDATE: &str = "SuccessfulUpdate";
/// Event reason: a replica set or a pool stands still from now on.
pub const REASON_SUCCESSFUL_PAUSED: &str = "SuccessfulPaused";
/// Event reason: the guest runs.
pub const REASON_STARTED: &str = "Started";
/// Paused condition's reason: somebody asked for it.
pub const REASON_PAUSED_BY_USER: &str = "PausedByUser";
/// Paused condition's reason: a disk could not be read or written.
pub const REASON_PAUSED_IO_ERROR: &str = "PausedIOError";
/// Event reason: the guest was stopped because a disk could not be read or written.
pub const REASON_IO_ERROR: &str = "IOerror";
/// Event reason: the guest's kernel panicked.
pub const REASON_GUEST_PANICKED: &str = "GuestPanicked";
/// Event reason: a probe by `guestAgentPing` failed.
pub const REASON_PING_FAILED: &str = "GuestAgentPingFailed";
/// Event reason: about a migration, also one that cannot be.
pub const REASON_MIGRATED: &str = "Migrated";
/// Event reason: the guest's CPUs stand still.
pub const REASON_PAUSED: &str = "Paused";
/// Event reason: they go on.
pub const REASON_UNPAUSED: &str = "Unpaused";
/// Event reason: somebody pressed the guest's reset button.
pub const REASON_RESET: &str = "Reset";
/// Event reason: somebody had the guest boot again.
pub const REASON_SOFT_REBOOTED: &str = "SoftRebooted";
/// Event reason: the guest's file systems could not be frozen.
pub const REASON_FREEZE_ERROR: &str = "FreezeError";
/// Event reason: keys and passwords are in effect in the guest.
pub const REASON_ACCESS_CREDENTIALS_SYNCED: &str = "AccessCredentialsSyncSuccess";
/// Event reason: they are not.
pub const REASON_ACCESS_CREDENTIALS_FAILED: &str = "AccessCredentialsSyncFailed";
/// Event reason: the guest is being shut down.
pub const REASON_SHUTTING_DOWN: &str = "ShuttingDown";
/// Event reason: the guest was ended because its instance is deleted.
pub const REASON_DELETED: &str = "Deleted";
/// Event reason: the guest ended otherwise than intended.
pub const REASON_STOPPED: &str = "Stopped";
/// Event and condition reason: what is asked for could not be put into effect.
pub const REASON_SYNC_FAILED: &str = "SyncFailed";
/// Ready condition's reason: no pod, or it is not there any more.
pub const REASON_POD_NOT_EXISTS: &str = "PodNotExists";
/// Ready condition's reason: the guest does not run yet.
pub const REASON_GUEST_NOT_RUNNING: &str = "GuestNotRunning";
/// Ready condition's reason of a machine without an instance.
pub const REASON_VMI_NOT_EXISTS: &str = "VMINotExists";
/// Instance's reason: its pod was evicted.
pub const REASON_EVICTED: &str = "Evicted";
/// Instance's reason: its node does not answer.
pub const REASON_NODE_UNRESPONSIVE: &str = "NodeUnresponsive";

/// What follows the name of a secret with access credentials in the name of its volume and of the directory that it is
/// mounted at.
pub const ACCESS_CREDENTIAL_SUFFIX: &str = "-access-cred";

/// The longest value of a label.
const LABEL_VALUE_MAX: usize = 63;

/// Value of [`VMI_ID_LABEL`]: the instance's name, or where that is too long for a label its beginning and eight digits
/// of its SHA-1. KubeVirt's own clients compute the same.
pub fn vmi_id(name: &str) -> String {
    use sha1::{Digest, Sha1};
    if name.len() <= LABEL_VALUE_MAX {
        return name.to_owned();
    }
    let hash = Sha1::digest(name.as_bytes());
    let digits: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let start: String = name.chars().take(LABEL_VALUE_MAX - 1 - digits.len()).collect();
    format!("{start}-{digits}")
}

/// Directory where images of container disks are mounted into a launcher, where they are volumes of its pod; KubeVirt's.
pub const IMAGE_VOLUMES: &str = "/var/run/kubevirt-image-volume";

/// Where the image of a volume is mounted: by its place in the list, for no name of a tenant is part of a path.
pub fn image_volume(index: usize) -> String {
    format!("{IMAGE_VOLUMES}/disk_{index}")
}

/// Directory where claims with file systems are mounted into a launcher, each by the name of its volume; KubeVirt's.
pub const CLAIMS: &str = "/var/run/kubevirt-private/vmi-disks";
/// Directory where claims that are devices are put into a launcher, each by the name of its volume; KubeVirt's.
pub const CLAIM_DEVICES: &str = "/dev";

/// Where the image of a kernel boot is mounted.
pub fn kernel_image_volume() -> String {
    format!("{IMAGE_VOLUMES}/kernel-boot")
}

/// Prefix of the variable that tells a launcher which PCI functions its pod was given; KubeVirt's, as the next two.
pub const PCI_VARIABLE: &str = "PCI_RESOURCE";
/// The same for mediated devices.
pub const MEDIATED_VARIABLE: &str = "MDEV_PCI_RESOURCE";
/// The same for USB devices.
pub const USB_VARIABLE: &str = "USB_RESOURCE";

/// Name of that variable for a resource: in capitals, `_` in the place of `/` and `.`.
pub fn device_variable(prefix: &str, resource: &str) -> String {
    format!("{prefix}_{}", resource.to_uppercase().replace(['/', '.'], "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_becomes_a_label_of_its_own() {
        assert_eq!(vmi_id("web"), "web");
        let (a, b) = (vmi_id(&format!("{}a", "x".repeat(70))), vmi_id(&format!("{}b", "x".repeat(70))));
        assert_eq!(a.len(), 63);
        assert_ne!(a, b);
    }
}
