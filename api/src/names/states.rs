//! Phases of instances, run strategies and printed states of machines, states of volumes.

/// Phase: admitted, no pod yet.
pub const PHASE_PENDING: &str = "Pending";
/// Phase: a pod exists but does not run yet.
pub const PHASE_SCHEDULING: &str = "Scheduling";
/// Phase: the pod runs; the node's handler takes over.
pub const PHASE_SCHEDULED: &str = "Scheduled";
/// Phase: the guest runs.
pub const PHASE_RUNNING: &str = "Running";
/// Phase: ended as intended.
pub const PHASE_SUCCEEDED: &str = "Succeeded";
/// Phase: ended unexpectedly.
pub const PHASE_FAILED: &str = "Failed";
/// Phase: no pod is made until a migration brings the guest.
pub const PHASE_WAITING_FOR_SYNC: &str = "WaitingForSync";
/// Phase: its node cannot be reached.
pub const PHASE_UNKNOWN: &str = "Unknown";

/// Whether the phase is a final one.
pub fn is_final_phase(phase: &str) -> bool {
    phase == PHASE_SUCCEEDED || phase == PHASE_FAILED
}

/// Run strategy: runs, and is started again whenever it ends.
pub const RUN_STRATEGY_ALWAYS: &str = "Always";
/// Run strategy: does not run.
pub const RUN_STRATEGY_HALTED: &str = "Halted";
/// Run strategy: only commands decide.
pub const RUN_STRATEGY_MANUAL: &str = "Manual";
/// Run strategy: started again only after a failure.
pub const RUN_STRATEGY_RERUN_ON_FAILURE: &str = "RerunOnFailure";
/// Run strategy: started once.
pub const RUN_STRATEGY_ONCE: &str = "Once";
/// Run strategy: waits for a migration that brings the guest.
pub const RUN_STRATEGY_WAIT_AS_RECEIVER: &str = "WaitAsReceiver";
/// Start strategy: the guest's CPUs are paused until a user unpauses it.
pub const START_STRATEGY_PAUSED: &str = "Paused";
/// Action of a state change request: start.
pub const ACTION_START: &str = "Start";
/// Action of a state change request: stop.
pub const ACTION_STOP: &str = "Stop";
/// Member of a start request's data: whether the guest starts with paused CPUs.
pub const START_PAUSED: &str = "paused";
/// Printable status: does not run.
pub const STATUS_STOPPED: &str = "Stopped";
/// Printable status: starting.
pub const STATUS_STARTING: &str = "Starting";
/// Printable status: runs.
pub const STATUS_RUNNING: &str = "Running";
/// Printable status: its guest moves to another node.
pub const STATUS_MIGRATING: &str = "Migrating";
/// Printable status: paused.
pub const STATUS_PAUSED: &str = "Paused";
/// Printable status: its instance is being ended.
pub const STATUS_STOPPING: &str = "Stopping";
/// Printable status: the machine itself is being deleted.
pub const STATUS_TERMINATING: &str = "Terminating";
/// Printable status: no node takes the pod.
pub const STATUS_UNSCHEDULABLE: &str = "ErrorUnschedulable";
/// Printable status: the claim of a disk does not exist.
pub const STATUS_PVC_NOT_FOUND: &str = "ErrorPvcNotFound";
/// Printable status: an image cannot be pulled.
pub const STATUS_ERR_IMAGE_PULL: &str = "ErrImagePull";
/// Printable status: an image cannot be pulled, and the next attempt is delayed.
pub const STATUS_IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
/// Printable status: failed repeatedly; the next start is delayed.
pub const STATUS_CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
/// Printable status: DataVolumes of its templates are being filled.
pub const STATUS_PROVISIONING: &str = "Provisioning";
/// Printable status: a claim is only bound when the pod that uses it has a node.
pub const STATUS_WAITING_FOR_VOLUME_BINDING: &str = "WaitingForVolumeBinding";
/// Printable status: a DataVolume cannot be filled.
pub const STATUS_DATA_VOLUME_ERROR: &str = "DataVolumeError";
/// Printable status: waits for a migration that brings the guest.
pub const STATUS_WAITING_FOR_RECEIVER: &str = "WaitingForReceiver";
/// Printable status: its node cannot be reached.
pub const STATUS_UNKNOWN: &str = "Unknown";
/// Phase of a hotplugged volume: its claim does not exist or is not bound.
pub const VOLUME_PENDING: &str = "Pending";
/// Phase of a volume: its claim is bound.
pub const VOLUME_BOUND: &str = "Bound";
/// Phase of a volume: its attachment pod offers the disk.
pub const VOLUME_ATTACHED: &str = "AttachedToNode";
/// Phase of a volume: the guest has the disk.
pub const VOLUME_READY: &str = "Ready";
/// Phase of a volume: the guest is to release the disk.
pub const VOLUME_DETACHING: &str = "Detaching";
/// Phase of a volume: the launcher has released the disk.
pub const VOLUME_UNMOUNTED: &str = "UnMountedFromPod";
