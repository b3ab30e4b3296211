//! Metrics of a machine.

use super::claims::DiskRow;
use super::labels;
use super::resources::Resources;
use super::row::{Described, Labels, Vnic, kept};
use super::vendors::{Named, Vended};
use barevirt_api::instancetype::matcher::Family;
use barevirt_api::v1::VirtualMachine;
use barevirt_component::metrics::names::{
    Metric, VM_ERROR, VM_MIGRATING, VM_NON_RUNNING, VM_RUNNING, VM_STARTING,
};

/// Metrics with the time when a machine of a group last changed.
pub(super) const CHANGED: [(&Metric, &str); 5] = [
    (&VM_STARTING, "starting"),
    (&VM_RUNNING, "running"),
    (&VM_MIGRATING, "migrating"),
    (&VM_NON_RUNNING, "non_running"),
    (&VM_ERROR, "error"),
];

/// What metrics need of a machine.
#[derive(Debug)]
pub(super) struct MachineRow {
    described: Described,
    machine_type: Box<str>,
    instancetype: Option<Named>,
    preference: Option<Named>,
    status: (&'static str, &'static str),
    changed: f64,
    /// Seconds since 1970.
    pub(super) created: Option<f64>,
    /// `None` for a machine with an instance type: its template does not show them, but its instance does.
    pub(super) resources: Option<Resources>,
    pub(super) vnics: Box<[Vnic]>,
    pub(super) disks: Box<[DiskRow]>,
    /// Labels that users set.
    pub(super) own: labels::Labels,
}

impl MachineRow {
    pub(super) fn of(machine: &VirtualMachine) -> Self {
        let template = &machine.spec.template;
        let domain = &template.spec.domain;
        let status = machine.status.as_ref();
        // The groups of printable statuses depend on these conditions.
        let conditions = status.iter().flat_map(|status| &status.conditions);
        let changed = conditions
            .filter(|condition| matches!(condition.type_.as_str(), "Ready" | "Failure" | "Paused"))
            .filter_map(|condition| condition.last_transition_time.as_ref())
            .map(|time| time.0.as_second())
            .max();
        let created = machine.metadata.creation_timestamp.as_ref();
        MachineRow {
            described: Described::of(template.metadata.as_ref().and_then(|meta| meta.annotations.as_ref())),
            machine_type: kept(domain.machine.as_ref().and_then(|machine| machine.type_.as_deref())),
            instancetype: Named::by_machine(Family::Instancetype, machine),
            preference: Named::by_machine(Family::Preference, machine),
            status: status_words(
                status.and_then(|status| status.printable_status.as_deref()).unwrap_or_default(),
            ),
            changed: changed.map_or(-1.0, seconds),
            created: created.map(|time| seconds(time.0.as_second())),
            resources: machine.spec.instancetype.is_none().then(|| Resources::of(&template.spec)),
            vnics: Vnic::all(&domain.devices.interfaces, &template.spec.networks),
            disks: DiskRow::all(machine),
            own: labels::Labels::of([
                machine.metadata.labels.as_ref(),
                template.metadata.as_ref().and_then(|meta| meta.labels.as_ref()),
            ]),
        }
    }

    /// `namespace` is the machine's.
    pub(super) fn labels(&self, namespace: &str, vended: &Vended) -> Labels<'_> {
        let mut labels = Labels::from(self.described.labels());
        labels.extend([
            ("machine_type", &*self.machine_type),
            ("instance_type", vended.label(namespace, self.instancetype.as_ref())),
            ("preference", vended.label(namespace, self.preference.as_ref())),
            ("status", self.status.0),
            ("status_group", self.status.1),
        ]);
        labels
    }

    /// When it last changed, if it is in that group. An unknown status is an error, as in KubeVirt.
    pub(super) fn changed(&self, group: &str) -> f64 {
        let own = if self.status.0.is_empty() { "error" } else { self.status.1 };
        if own == group { self.changed } else { 0.0 }
    }
}

/// Exact as a float: times are far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn seconds(seconds: i64) -> f64 {
    seconds as f64
}

/// A printable status in lower case, and KubeVirt's group of it.
fn status_words(status: &str) -> (&'static str, &'static str) {
    match status {
        "Provisioning" => ("provisioning", "starting"),
        "Starting" => ("starting", "starting"),
        "WaitingForVolumeBinding" => ("waitingforvolumebinding", "starting"),
        "Running" => ("running", "running"),
        "Migrating" => ("migrating", "migrating"),
        "Stopped" => ("stopped", "non_running"),
        "Paused" => ("paused", "non_running"),
        "Stopping" => ("stopping", "non_running"),
        "Terminating" => ("terminating", "non_running"),
        "CrashLoopBackOff" => ("crashloopbackoff", "error"),
        "Unknown" => ("unknown", "error"),
        "ErrorUnschedulable" => ("errorunschedulable", "error"),
        "ErrImagePull" => ("errimagepull", "error"),
        "ImagePullBackOff" => ("imagepullbackoff", "error"),
        "ErrorPvcNotFound" => ("errorpvcnotfound", "error"),
        "DataVolumeError" => ("datavolumeerror", "error"),
        _ => ("", "<unknown>"),
    }
}
