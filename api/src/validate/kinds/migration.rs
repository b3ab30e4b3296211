//! `VirtualMachineInstanceMigration`.

use super::not_there;
use crate::gates::Gates;
use crate::migratable::{REASON_DISKS, SERVED};
use crate::names;
use crate::syntax::{is_label_key, is_label_value, quoted};
use crate::v1::{Condition, VirtualMachineInstance, VirtualMachineInstanceMigration};
use crate::validate::{Cause, CauseKind, Path, Requester};

/// Label on migrations: the instance they move.
pub const SELECTOR_LABEL: &str = names::MIGRATION_SELECTOR_LABEL;
/// Gate of migrations to another namespace or cluster.
const DECENTRALIZED: &str = "DecentralizedLiveMigration";
/// Annotation by which KubeVirt's tests give a migration's target another image.
const IMAGE_ANNOTATION: &str = "kubevirt.io/func-test-migration-target-image-override";

/// Fills in the defaults of a new migration: the label with its instance, and the finalizer that keeps it
/// until virt-controller has ended the migration.
pub fn complete(migration: &mut VirtualMachineInstanceMigration) {
    let metadata = &mut migration.metadata;
    if let Some(name) = migration.spec.vmi_name.as_deref().filter(|name| !name.is_empty()) {
        let labels = metadata.labels.get_or_insert_default();
        labels.insert(SELECTOR_LABEL.to_owned(), names::vmi_id(name));
    }
    let finalizers = metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == names::MIGRATION_FINALIZER) {
        finalizers.push(names::MIGRATION_FINALIZER.to_owned());
    }
}

/// Everything wrong with a new migration. `instance` is the instance that it names; `others` are the
/// migrations of its namespace.
pub fn create(
    migration: &VirtualMachineInstanceMigration,
    instance: Option<&VirtualMachineInstance>,
    others: &[VirtualMachineInstanceMigration],
    requester: Requester,
    gates: &Gates,
) -> Vec<Cause> {
    let mut causes = rules(migration, instance, others, requester, gates);
    if !SERVED {
        causes.push(not_there(
            "VirtualMachineInstanceMigration",
            "an instance cannot move to another node while it runs",
        ));
    }
    causes
}

/// The rules for a new migration, whether this version serves migrations or not.
pub(super) fn rules(
    migration: &VirtualMachineInstanceMigration,
    instance: Option<&VirtualMachineInstance>,
    others: &[VirtualMachineInstanceMigration],
    requester: Requester,
    gates: &Gates,
) -> Vec<Cause> {
    let spec = &migration.spec;
    let field = Path::new("spec.vmiName");
    // The instance's state is no fault of a field.
    let state = Path::new("");
    let mut causes = Vec::new();
    if spec.priority.is_some() && requester == Requester::User {
        causes.push(Cause::new(
            CauseKind::Forbidden,
            &Path::new("spec.priority"),
            "Migration priority queue, only virt-controller is allowed to set priority field",
        ));
    }
    if migration.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(IMAGE_ANNOTATION)) {
        causes.push(Cause::not_supported_yet(&Path::new("metadata.annotations"), IMAGE_ANNOTATION));
    }
    match spec.vmi_name.as_deref().filter(|name| !name.is_empty()) {
        None => causes.push(Cause::required(&field, "vmiName is missing")),
        Some(name) => {
            let namespace = migration.metadata.namespace.as_deref().unwrap_or_default();
            match instance {
                None => causes
                    .push(Cause::invalid(&field, format!("the VMI \"{namespace}/{name}\" does not exist"))),
                Some(instance) => movable(&state, migration, instance, &mut causes),
            }
            let active = others.iter().find(|other| {
                other.spec.vmi_name.as_deref() == Some(name) && !is_final(other) && !is_same(other, migration)
            });
            if let Some(active) = active {
                let uid = active.metadata.uid.as_deref().unwrap_or_default();
                causes.push(Cause::invalid(
                    &state,
                    format!(
                        "in-flight migration detected. Active migration job ({uid}) is currently already in progress \
                         for VMI {name}."
                    ),
                ));
            }
        }
    }
    selector(migration, &mut causes);
    decentralized(migration, gates, &mut causes);
    causes
}

/// Everything wrong with a change of a migration.
pub fn update(old: &VirtualMachineInstanceMigration, new: &VirtualMachineInstanceMigration) -> Vec<Cause> {
    if old.spec != new.spec {
        return vec![Cause::new(
            CauseKind::NotSupported,
            &Path::new("spec"),
            "update of Migration object's spec is restricted",
        )];
    }
    let label = |migration: &VirtualMachineInstanceMigration| {
        migration.metadata.labels.as_ref().and_then(|labels| labels.get(SELECTOR_LABEL)).cloned()
    };
    let (before, after) = (label(old), label(new));
    let message = match (&before, &after) {
        (Some(_), None) => "selector label can't be removed from an in-flight migration",
        (Some(before), Some(after)) if before != after => {
            "selector label can't be modified on an in-flight migration"
        }
        (None, _) | (Some(_), Some(_)) => return Vec::new(),
    };
    if is_final(new) {
        return Vec::new();
    }
    vec![Cause::new(CauseKind::NotSupported, &Path::new("metadata.labels"), message)]
}

fn is_final(migration: &VirtualMachineInstanceMigration) -> bool {
    let phase = migration.status.as_ref().and_then(|status| status.phase.as_deref());
    phase.is_some_and(names::is_final_phase)
}

fn is_same(a: &VirtualMachineInstanceMigration, b: &VirtualMachineInstanceMigration) -> bool {
    a.metadata.name.is_some() && a.metadata.name == b.metadata.name
}

fn movable(
    state: &Path,
    migration: &VirtualMachineInstanceMigration,
    instance: &VirtualMachineInstance,
    causes: &mut Vec<Cause>,
) {
    let status = instance.status.as_ref();
    if status.and_then(|status| status.phase.as_deref()).is_some_and(names::is_final_phase) {
        causes.push(Cause::invalid(state, "Cannot migrate VMI in finalized state."));
        return;
    }
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let Some(condition) = Condition::find(conditions, names::CONDITION_LIVE_MIGRATABLE) else { return };
    let (reason, message) = (condition.reason.as_deref(), condition.message.as_deref().unwrap_or_default());
    let elsewhere = migration.spec.send_to.is_some() || migration.spec.receive.is_some();
    let moves = status.is_some_and(|status| !status.migrated_volumes.is_empty());
    let copied = (elsewhere || moves) && reason == Some(REASON_DISKS);
    if condition.status == "False" && !copied {
        let reason = reason.unwrap_or_default();
        causes
            .push(Cause::invalid(state, format!("Cannot migrate VMI, Reason: {reason}, Message: {message}")));
    }
}

/// Labels that are added to the target pod's node selector. If one is invalid, the API server would refuse
/// the pod.
fn selector(migration: &VirtualMachineInstanceMigration, causes: &mut Vec<Cause>) {
    let field = Path::new("spec.addedNodeSelector");
    for (key, value) in &migration.spec.added_node_selector {
        if !is_label_key(key) {
            causes.push(Cause::invalid(&field, format!("{} is not the name of a label", quoted(key))));
        }
        if !is_label_value(value) {
            causes.push(Cause::invalid(&field, format!("{} is not the value of a label", quoted(value))));
        }
    }
}

/// Migrations to another namespace or cluster: KubeVirt's rules, and the refusal of the fields even if the
/// gate is on.
fn decentralized(migration: &VirtualMachineInstanceMigration, gates: &Gates, causes: &mut Vec<Cause>) {
    let (send, receive) = (&migration.spec.send_to, &migration.spec.receive);
    if send.is_none() && receive.is_none() {
        return;
    }
    let field = Path::new("spec");
    if gates.is_on(DECENTRALIZED) {
        let given = [("sendTo", send.is_some()), ("receive", receive.is_some())];
        for (name, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            causes.push(Cause::not_supported_yet(&field.child(name), ""));
        }
    } else {
        let message = format!("{DECENTRALIZED} feature gate is not enabled in kubevirt resource");
        causes.push(Cause::new(CauseKind::NotSupported, &field, message));
    }
    if let (Some(send), Some(receive)) = (send, receive)
        && send.migration_id != receive.migration_id
    {
        let message = format!(
            "sendTo migrationID {} does not match receive migrationID {}",
            send.migration_id, receive.migration_id
        );
        causes.push(Cause::invalid(&field, message));
    }
}
