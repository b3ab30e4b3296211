//! How long instances and migrations take from phase to phase.

use crate::migrations::row::{Phase, entered};
use barevirt_api::names::is_final_phase;
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_component::metrics::Metrics;
use barevirt_component::metrics::names::{
    PHASE_TIME, PHASE_TIME_FROM_CREATION, PHASE_TIME_FROM_DELETION, VMIM_PHASE_TIME,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// Buckets in seconds, as in KubeVirt.
const BUCKETS: [f64; 18] = [
    0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0, 1800.0,
    3600.0,
];

type Times = Family<Vec<(&'static str, String)>, Histogram, fn() -> Histogram>;

/// The times of all instances and migrations.
#[derive(Clone, Debug)]
pub(super) struct Phases {
    between: Times,
    from_creation: Times,
    from_deletion: Times,
    migrations: Times,
}

impl Default for Phases {
    fn default() -> Self {
        let times = || Times::new_with_constructor(|| Histogram::new(BUCKETS));
        Phases { between: times(), from_creation: times(), from_deletion: times(), migrations: times() }
    }
}

impl Phases {
    pub(super) fn export(&self, metrics: &mut Metrics) {
        metrics.register(&PHASE_TIME, self.between.clone());
        metrics.register(&PHASE_TIME_FROM_CREATION, self.from_creation.clone());
        metrics.register(&PHASE_TIME_FROM_DELETION, self.from_deletion.clone());
        metrics.register(&VMIM_PHASE_TIME, self.migrations.clone());
    }

    /// A migration was seen whose phase was `former`.
    pub(super) fn saw_migration(&self, former: Phase, migration: &VirtualMachineInstanceMigration) {
        let Some(phase) = Phase::of(migration).filter(|phase| *phase != former && *phase != Phase::Unset)
        else {
            return;
        };
        let created = migration.metadata.creation_timestamp.as_ref().map(seconds);
        let (Some(now), Some(created)) = (entered(migration, phase), created) else { return };
        let took = now.as_duration().as_secs_f64() - created;
        if took >= 0.0 {
            let labels: Vec<(&'static str, String)> = vec![("phase", phase.name().to_owned())];
            self.migrations.get_or_create(&labels).observe(took);
        }
    }

    /// An instance was seen whose phase was `former`.
    pub(super) fn saw(&self, former: &str, instance: &VirtualMachineInstance) {
        let Some(status) = &instance.status else { return };
        let phase = status.phase.as_deref().unwrap_or_default();
        if phase == former || phase.is_empty() {
            return;
        }
        let entered = |phase: &str| {
            let all = status.phase_transition_timestamps.iter();
            let one = all.rev().find(|one| one.phase.as_deref() == Some(phase))?;
            Some(seconds(one.phase_transition_timestamp.as_ref()?))
        };
        let Some(now) = entered(phase) else { return };
        let created = instance.metadata.creation_timestamp.as_ref().map(seconds);
        let note = |times: &Times, labels: &[(&'static str, &str)], since: Option<f64>| {
            // The times come from the clocks of two machines: negative durations are left out.
            let Some(took) = since.map(|since| now - since).filter(|took| *took >= 0.0) else { return };
            let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            times.get_or_create(&labels).observe(took);
        };
        let since = if former.is_empty() { created } else { entered(former) };
        note(&self.between, &[("phase", phase), ("last_phase", former)], since);
        note(&self.from_creation, &[("phase", phase)], created);
        if is_final_phase(phase) {
            let deleted = instance.metadata.deletion_timestamp.as_ref().map(seconds);
            note(&self.from_deletion, &[("phase", phase)], deleted);
        }
    }
}

/// Seconds since 1970.
fn seconds(time: &Time) -> f64 {
    time.0.as_duration().as_secs_f64()
}
