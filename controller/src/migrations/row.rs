//! A summary of a migration for others, kept also once it has ended.

use barevirt_api::names::MIGRATION_FINALIZER;
use barevirt_api::v1::{Condition, VirtualMachineInstanceMigration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

/// Annotation of migrations that a node's evacuation created: name of the node.
pub const EVACUATION_ANNOTATION: &str = "kubevirt.io/evacuationMigration";
/// Annotation of migrations that bring a guest to a launcher of the installed version.
pub const WORKLOAD_UPDATE_ANNOTATION: &str = "kubevirt.io/workloadUpdateMigration";
/// Annotation of migrations whose instance's failures do not delay them. KubeVirt's tests use it.
const IGNORE_BACK_OFF_ANNOTATION: &str = "kubevirt.io/func-test-ignore-migration-backoff";

/// Condition of migrations: no target pod can be made now. Other migrations do not wait for such a one.
pub const HELD: &str = "migrationTargetPodNotCreated";

/// The phases of a migration. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// It has not been reconciled yet.
    Unset,
    /// It waits for its turn.
    Pending,
    /// Its target pod exists.
    Scheduling,
    /// The target pod runs.
    Scheduled,
    /// The target's handler has to prepare.
    PreparingTarget,
    /// The target waits for the guest.
    TargetReady,
    /// The guest is being transferred.
    Running,
    /// The guest is on the target.
    Succeeded,
    /// The guest is not on the target.
    Failed,
}

impl Phase {
    /// All phases in order.
    pub const ALL: [Phase; 9] = [
        Phase::Unset,
        Phase::Pending,
        Phase::Scheduling,
        Phase::Scheduled,
        Phase::PreparingTarget,
        Phase::TargetReady,
        Phase::Running,
        Phase::Succeeded,
        Phase::Failed,
    ];

    /// The phase's name in the status.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Unset => "",
            Phase::Pending => "Pending",
            Phase::Scheduling => "Scheduling",
            Phase::Scheduled => "Scheduled",
            Phase::PreparingTarget => "PreparingTarget",
            Phase::TargetReady => "TargetReady",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
        }
    }

    /// The phase of a migration; `None` for phases of migrations between clusters, which are not served.
    #[must_use]
    pub fn of(migration: &VirtualMachineInstanceMigration) -> Option<Self> {
        let name = migration.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        Phase::ALL.into_iter().find(|phase| phase.name() == name)
    }

    /// Whether no phase follows.
    #[must_use]
    pub fn is_final(self) -> bool {
        self >= Phase::Succeeded
    }

    /// Whether a migration in this phase has had its turn and has not ended.
    #[must_use]
    pub fn is_under_way(self) -> bool {
        self >= Phase::Scheduling && !self.is_final()
    }
}

/// Priority in the queue; the first is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// `system-maintenance`.
    Maintenance,
    /// `user-triggered`, and migrations without a priority: only this program sets priorities.
    User,
    /// `system-critical`.
    Critical,
}

impl Priority {
    /// The priority of a migration.
    #[must_use]
    pub fn of(migration: &VirtualMachineInstanceMigration) -> Self {
        match migration.spec.priority.as_deref() {
            Some("system-critical") => Priority::Critical,
            Some("system-maintenance") => Priority::Maintenance,
            _ => Priority::User,
        }
    }
}

/// The summary of a migration.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its UID.
    pub uid: Box<str>,
    /// The instance that it moves.
    pub vmi: Box<str>,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// Its phase.
    pub phase: Phase,
    /// Its priority in the queue.
    pub priority: Priority,
    /// Whether this program created it and its failure delays the next one.
    pub backs_off: bool,
    /// When it failed, in seconds since 1970.
    pub failed_at: Option<i64>,
    /// Whether no target pod can be made for it now.
    pub held: bool,
    /// Whether it is being deleted.
    pub going: bool,
    /// Whether this program has nothing left to do for it.
    pub done: bool,
}

impl Row {
    /// The row of a migration. A migration in a phase that is not served counts as ended.
    #[must_use]
    pub fn of(migration: &VirtualMachineInstanceMigration) -> Self {
        let annotations = migration.annotations();
        let automatic = [EVACUATION_ANNOTATION, WORKLOAD_UPDATE_ANNOTATION]
            .into_iter()
            .any(|annotation| annotations.contains_key(annotation));
        let phase = Phase::of(migration);
        let seconds = |time: &Time| time.0.as_second();
        Row {
            uid: migration.metadata.uid.as_deref().unwrap_or_default().into(),
            vmi: migration.spec.vmi_name.as_deref().unwrap_or_default().into(),
            created: migration.metadata.creation_timestamp.as_ref().map_or(0, seconds),
            phase: phase.unwrap_or(Phase::Failed),
            priority: Priority::of(migration),
            backs_off: automatic && !annotations.contains_key(IGNORE_BACK_OFF_ANNOTATION),
            failed_at: entered(migration, Phase::Failed).map(Timestamp::as_second),
            held: is_held(migration),
            going: migration.metadata.deletion_timestamp.is_some(),
            done: phase.is_none_or(Phase::is_final)
                && !migration.finalizers().iter().any(|finalizer| finalizer == MIGRATION_FINALIZER),
        }
    }
}

/// Whether its status says that no target pod can be made now.
#[must_use]
pub fn is_held(migration: &VirtualMachineInstanceMigration) -> bool {
    migration.status.as_ref().is_some_and(|status| Condition::is_set(&status.conditions, HELD))
}

/// When a migration entered a phase.
#[must_use]
pub fn entered(migration: &VirtualMachineInstanceMigration, phase: Phase) -> Option<Timestamp> {
    let stamps = &migration.status.as_ref()?.phase_transition_timestamps;
    let stamp = stamps.iter().find(|stamp| stamp.phase.as_deref() == Some(phase.name()))?;
    stamp.phase_transition_timestamp.as_ref().map(|time| time.0)
}
