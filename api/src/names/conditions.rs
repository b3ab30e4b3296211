//! Conditions of instances, machines, replica sets and pools.

/// Condition: the guest runs and can be used.
pub const CONDITION_READY: &str = "Ready";
/// Condition: the wanted state could be put into effect.
pub const CONDITION_SYNCHRONIZED: &str = "Synchronized";
/// Condition: the guest is paused.
pub const CONDITION_PAUSED: &str = "Paused";
/// Condition: the guest agent answers.
pub const CONDITION_AGENT_CONNECTED: &str = "AgentConnected";
/// Condition: the guest agent lacks commands that are needed. KubeVirt's name.
pub const CONDITION_UNSUPPORTED_AGENT: &str = "AgentVersionNotSupported";
/// Condition: keys and passwords are in effect in the guest.
pub const CONDITION_ACCESS_CREDENTIALS: &str = "AccessCredentialsSynchronized";
/// Condition: the guest can move to another node while it runs.
pub const CONDITION_LIVE_MIGRATABLE: &str = "LiveMigratable";
/// Condition: the guest could move to another node if its disks moved to other claims at the same time.
pub const CONDITION_STORAGE_LIVE_MIGRATABLE: &str = "StorageLiveMigratable";
/// Condition: an eviction of the instance from its node was requested. KubeVirt's.
pub const CONDITION_EVICTION_REQUESTED: &str = "EvictionRequested";
/// Condition of machines: the running guest differs from the machine's specification.
pub const CONDITION_RESTART_REQUIRED: &str = "RestartRequired";
/// Condition: a change takes effect once the guest has moved to another pod. KubeVirt's.
pub const CONDITION_MIGRATION_REQUIRED: &str = "MigrationRequired";
/// Condition: volumes move to other claims with the next migration. KubeVirt's.
pub const CONDITION_VOLUMES_CHANGE: &str = "VolumesChange";
/// Condition: the connection of a migration broke in post-copy, and the guest waits for a new one.
pub const CONDITION_POST_COPY_RECOVERY: &str = "PostCopyRecovery";
/// Condition: a migration has used half of its time, and something keeps it from completing.
pub const CONDITION_MIGRATION_SLOW: &str = "MigrationSlow";
/// Condition of machines: volumes were moving to other claims when the guest ended, and a user must choose
/// the ones to keep. KubeVirt's.
pub const CONDITION_MANUAL_RECOVERY_REQUIRED: &str = "ManualRecoveryRequired";
/// The guest's sockets change while it runs.
pub const CONDITION_HOT_VCPU_CHANGE: &str = "HotVCPUChange";
/// The guest's memory changes while it runs.
pub const CONDITION_HOT_MEMORY_CHANGE: &str = "HotMemoryChange";
/// Condition of replica sets and pools: their objects could not be created or deleted.
pub const CONDITION_REPLICA_FAILURE: &str = "ReplicaFailure";
/// Condition of replica sets and pools: no objects are created or deleted.
pub const CONDITION_REPLICA_PAUSED: &str = "ReplicaPaused";
/// Condition of machines: the last action failed.
pub const CONDITION_FAILURE: &str = "Failure";
/// Condition of pods, copied to instances: scheduled or why not.
pub const CONDITION_POD_SCHEDULED: &str = "PodScheduled";
/// Condition: the storage of DataVolumes waits for its first consumer, and a pod is made for that.
pub const CONDITION_PROVISIONING: &str = "Provisioning";
/// Condition: whether the DataVolumes of the disks are filled.
pub const CONDITION_DATA_VOLUMES_READY: &str = "DataVolumesReady";
