//! Reasons of events and conditions.

/// Reason: the pod of a guest with dedicated CPUs is not of the class `Guaranteed`.
pub const REASON_NOT_GUARANTEED: &str = "FailedGuaranteePodResources";
/// Reason of `HotVCPUChange` and `HotMemoryChange`: the launcher's pod is being resized.
pub const REASON_POD_RESIZING: &str = "PodResizing";
/// Reason of both: the pod has the resources that the guest is to get.
pub const REASON_POD_RESIZED: &str = "PodResized";
/// Reason of both: the node postpones the pod's resize.
pub const REASON_POD_RESIZE_DEFERRED: &str = "PodResizeDeferred";
/// Reason of both if they are False: the cluster or the node cannot resize the pod.
pub const REASON_POD_RESIZE_INFEASIBLE: &str = "PodResizeInfeasible";
/// Reason of both if they are False: the resize took too long.
pub const REASON_POD_RESIZE_TIMED_OUT: &str = "PodResizeTimedOut";
/// Reason of an instance whose eviction from its node was requested.
pub const REASON_EVICTION_REQUESTED: &str = "EvictionRequested";
/// Reason of `HotMemoryChange=False`: QEMU or the guest did not carry out the change. KubeVirt's.
pub const REASON_MEMORY_HOTPLUG_FAILED: &str = "Memory Hotplug Failed";
/// Reason of `HotVCPUChange=False`: QEMU or the guest did not carry out the change.
pub const REASON_CPU_HOTPLUG_FAILED: &str = "CPU Hotplug Failed";
/// Reason: all DataVolumes of the disks are filled.
pub const REASON_DATA_VOLUMES_READY: &str = "AllDVsReady";
/// Reason: a DataVolume of the disks is not filled.
pub const REASON_DATA_VOLUMES_NOT_READY: &str = "NotAllDVsReady";
/// Event reason: the DataVolume of a template was made.
pub const REASON_SUCCESSFUL_DATA_VOLUME_CREATE: &str = "SuccessfulDataVolumeCreate";
/// Event reason: the DataVolume of a template could not be made.
pub const REASON_FAILED_DATA_VOLUME_CREATE: &str = "FailedDataVolumeCreate";
/// Event reason: the machine's account may not copy the source of a template.
pub const REASON_UNAUTHORIZED_DATA_VOLUME_CREATE: &str = "UnauthorizedDataVolumeCreate";
/// Event reason: a DataVolume could not be filled.
pub const REASON_FAILED_DATA_VOLUME_IMPORT: &str = "FailedDataVolumeImport";
/// Reason of an instance that waits for a DataVolume.
pub const REASON_DATA_VOLUME_NOT_READY: &str = "DataVolumeNotReady";
/// Event reason: the claim that a template copies does not exist. KubeVirt's spelling.
pub const REASON_SOURCE_CLAIM_NOT_AVAILABLE: &str = "SourcePVCNotAvailabe";
/// Event reason: an object was created.
pub const REASON_SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
/// Reason of an instance that waits for the claim of a disk.
pub const REASON_PVC_NOT_FOUND: &str = "FailedPvcNotFound";
/// Reason of an instance whose pod has no node: the scheduler's word.
pub const REASON_UNSCHEDULABLE: &str = "Unschedulable";
/// Reason of a volume whose claim exists but whose attachment pod does not yet.
pub const REASON_PVC_NOT_READY: &str = "PVCNotReady";
/// Reason of a volume that cannot be plugged in, or that the guest does not release; written by the handler.
pub const REASON_HOTPLUG_FAILED: &str = "FailedHotplugSync";
/// Reason of a volume whose disk could not be made as large as its claim allows; written by the handler.
pub const REASON_DISK_NOT_GROWN: &str = "DiskNotGrown";
/// Reason of the event about a new disk that is a little smaller than was asked for; written by the handler.
pub const REASON_SMALLER_DISK: &str = "ToleratedSmallPV";
/// Reason of a volume whose attachment pod no longer runs.
pub const REASON_MISSING_ATTACHMENT_POD: &str = "MissingAttachmentPod";
/// Event reason: an object could not be created.
pub const REASON_FAILED_CREATE: &str = "FailedCreate";
/// Failure condition's reason: the instance type that a machine names does not exist.
pub const REASON_FAILED_FIND_INSTANCETYPE: &str = "FailedFindInstancetype";
/// Failure condition's reason: the preference that a machine names does not exist.
pub const REASON_FAILED_FIND_PREFERENCE: &str = "FailedFindPreference";
/// Event reason: an object was deleted.
pub const REASON_SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
/// Event reason: an object could not be deleted.
pub const REASON_FAILED_DELETE: &str = "FailedDelete";
/// Event reason: an object could not be changed.
pub const REASON_FAILED_UPDATE: &str = "FailedUpdate";
/// Event reason: an object was changed.
pub const REASON_SUCCESSFUL_UPDATE: &str = "SuccessfulUpdate";
/// Event reason: a replica set or a pool is paused.
pub const REASON_SUCCESSFUL_PAUSED: &str = "SuccessfulPaused";
/// Event reason: the machine of the guest was made. KubeVirt's, for libvirt's domain.
pub const REASON_CREATED: &str = "Created";
/// Event reason: the guest runs.
pub const REASON_STARTED: &str = "Started";
/// Reason of the Paused condition: a user paused the guest.
pub const REASON_PAUSED_BY_USER: &str = "PausedByUser";
/// Paused condition's reason: a disk could not be read or written.
pub const REASON_PAUSED_IO_ERROR: &str = "PausedIOError";
/// Event reason: the guest was stopped because a disk could not be read or written.
pub const REASON_IO_ERROR: &str = "IOerror";
/// Event reason: the guest's kernel panicked.
pub const REASON_GUEST_PANICKED: &str = "GuestPanicked";
/// Event reason: a probe by `guestAgentPing` failed.
pub const REASON_PING_FAILED: &str = "GuestAgentPingFailed";
/// Event reason: a migration that may use post-copy cannot use it.
pub const REASON_NO_POST_COPY: &str = "PostCopyUnavailable";
/// Event reason, and the condition's: the connection of a migration broke in post-copy.
pub const REASON_CONNECTION_BROKEN: &str = "MigrationConnectionBroken";
/// Event reason: a migration in post-copy continues over a new connection.
pub const REASON_CONNECTION_REPLACED: &str = "MigrationConnectionReplaced";
/// `MigrationSlow` condition's reason: the guest writes faster than the migration may send.
pub const REASON_BANDWIDTH: &str = "Bandwidth";
/// `MigrationSlow` condition's reason: the guest writes faster than the network takes.
pub const REASON_DIRTY_RATE: &str = "DirtyRate";
/// `MigrationSlow` condition's reason: the rest does not fit into the allowed downtime.
pub const REASON_DOWNTIME: &str = "Downtime";
/// Event reason: about a migration, including one that is impossible.
pub const REASON_MIGRATED: &str = "Migrated";
/// Event reason: the guest's CPUs are paused.
pub const REASON_PAUSED: &str = "Paused";
/// Event reason: the guest's CPUs run again.
pub const REASON_UNPAUSED: &str = "Unpaused";
/// Event reason: a user reset the guest.
pub const REASON_RESET: &str = "Reset";
/// Event reason: a user rebooted the guest.
pub const REASON_SOFT_REBOOTED: &str = "SoftRebooted";
/// Event reason: the guest's file systems could not be frozen.
pub const REASON_FREEZE_ERROR: &str = "FreezeError";
/// Event reason: keys and passwords are in effect in the guest.
pub const REASON_ACCESS_CREDENTIALS_SYNCED: &str = "AccessCredentialsSyncSuccess";
/// Event reason: keys and passwords are not in effect in the guest.
pub const REASON_ACCESS_CREDENTIALS_FAILED: &str = "AccessCredentialsSyncFailed";
/// Event reason: the guest is being shut down.
pub const REASON_SHUTTING_DOWN: &str = "ShuttingDown";
/// Event reason: the guest was ended because its instance is deleted.
pub const REASON_DELETED: &str = "Deleted";
/// Event reason: the guest ended unexpectedly.
pub const REASON_STOPPED: &str = "Stopped";
/// Event and condition reason: the wanted state could not be put into effect.
pub const REASON_SYNC_FAILED: &str = "SyncFailed";
/// Ready condition's reason: there is no pod.
pub const REASON_POD_NOT_EXISTS: &str = "PodNotExists";
/// Ready condition's reason: the launcher's pod is being deleted, and the guest still runs.
pub const REASON_POD_TERMINATING: &str = "PodTerminating";
/// Ready condition's reason: the guest does not run yet.
pub const REASON_GUEST_NOT_RUNNING: &str = "GuestNotRunning";
/// Ready condition's reason of a machine without an instance.
pub const REASON_VMI_NOT_EXISTS: &str = "VMINotExists";
/// Condition reason: another guest has a device that the instance needs, and one of the two writes to it.
pub const REASON_CLAIM_IN_USE: &str = "ClaimInUse";
/// Condition reason: the program that shared a directory with the guest ended before the guest.
pub const REASON_FILESYSTEM_ENDED: &str = "FilesystemEnded";
/// Condition reason: a directory of the pod that has to be shared does not exist. KubeVirt's name.
pub const REASON_MISSING_VIRTIOFS_CONTAINERS: &str = "MissingVirtiofsContainers";
/// Condition reason: passt, which joined the guest to the pod network, ended before the guest.
pub const REASON_PASST_ENDED: &str = "PasstEnded";
/// Condition reason: a network of the instance is not attached to its pod.
pub const REASON_NETWORK_NOT_ATTACHED: &str = "NetworkNotAttached";
/// Event reason: two cards on one network have the same hardware address.
pub const REASON_SAME_MAC_ADDRESS: &str = "SameMACAddress";
/// Condition reason: a change needs a migration, which the installation allows. KubeVirt's.
pub const REASON_MIGRATION_DUE: &str = "AutoMigrationDueToLiveUpdate";
/// Condition reason: a change will need a migration unless it is carried out in place soon. KubeVirt's.
pub const REASON_MIGRATION_PENDING: &str = "AutoMigrationPending";
/// Instance's reason: its pod was evicted.
pub const REASON_EVICTED: &str = "Evicted";
/// Instance's reason: its node does not answer.
pub const REASON_NODE_UNRESPONSIVE: &str = "NodeUnresponsive";
