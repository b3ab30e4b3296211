//! Selects outdated instances, and those that migrate or are evicted now; also others that have to migrate. Pure.

use crate::vmi::others::is_moving;
use barevirt_api::names::{
    CONDITION_LIVE_MIGRATABLE, CONDITION_MIGRATION_REQUIRED, CONDITION_STORAGE_LIVE_MIGRATABLE,
    CONDITION_VOLUMES_CHANGE, OUTDATED_LAUNCHER_LABEL, PHASE_RUNNING, is_final_phase,
};
use barevirt_api::v1::{Condition, VirtualMachineInstance};
use barevirt_api::workload_updates::WorkloadUpdates;
use barevirt_plan::pod::target::launcher_name;
use barevirt_plan::volume_migration::turn::gives_way;
use kube::ResourceExt;
use std::time::Duration;

/// The part of an instance that matters here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instance {
    /// Its namespace.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
    /// Its UID.
    pub(super) uid: String,
    /// Whether its guest runs, and is not being shut down.
    pub(super) runs: bool,
    /// Image of its launcher, once it has one.
    pub(super) image: Option<String>,
    /// Whether it is labelled as outdated.
    pub(super) labelled: bool,
    /// Its launcher pod.
    pub(super) launcher: String,
    /// Whether it can migrate to another node.
    pub(super) movable: bool,
    /// Whether it is migrating already.
    pub(super) moves: bool,
    /// Whether a change of it waits for a migration, according to its condition.
    pub(super) has_to_move: bool,
    /// Whether volumes move to other claims with it.
    pub(super) moves_volumes: bool,
}

impl Instance {
    /// Reads an instance; `None` where it has ended or is being deleted. `wanted`: it has an unfinished migration.
    pub(super) fn of(vmi: &VirtualMachineInstance, wanted: bool) -> Option<Instance> {
        let status = vmi.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        if vmi.metadata.deletion_timestamp.is_some() || is_final_phase(phase) {
            return None;
        }
        let image = status.and_then(|status| status.launcher_container_image_version.clone());
        let is_set =
            |condition: &str| status.is_some_and(|status| Condition::is_set(&status.conditions, condition));
        let moves_volumes = is_set(CONDITION_VOLUMES_CHANGE) && gives_way(vmi).is_none();
        // Only its disks keep it on its node, and those move to claims of the other node.
        let moved = status.is_some_and(|status| {
            let storage = Condition::find(&status.conditions, CONDITION_STORAGE_LIVE_MIGRATABLE);
            !status.migrated_volumes.is_empty() && storage.is_none_or(|told| told.status != "False")
        });
        Some(Instance {
            namespace: vmi.namespace().unwrap_or_default(),
            name: vmi.name_any(),
            uid: vmi.uid().unwrap_or_default(),
            runs: phase == PHASE_RUNNING,
            image: image.filter(|image| !image.is_empty()),
            labelled: vmi.labels().contains_key(OUTDATED_LAUNCHER_LABEL),
            launcher: launcher_name(vmi),
            movable: is_set(CONDITION_LIVE_MIGRATABLE) || moved,
            moves: wanted || is_moving(vmi),
            has_to_move: is_set(CONDITION_MIGRATION_REQUIRED) || moves_volumes,
            moves_volumes,
        })
    }

    fn is_outdated(&self, wanted: &str) -> bool {
        self.image.as_deref().is_some_and(|image| image != wanted)
    }
}

/// The observation.
#[derive(Clone, Debug)]
pub(super) struct Observed<'a> {
    /// Image of new launchers.
    pub(super) image: &'a str,
    /// What is to happen to outdated instances.
    pub(super) updates: WorkloadUpdates,
    /// Whether the installation is complete and of one version: until then nothing is counted or evicted.
    pub(super) settled: bool,
    /// Time since the last batch of this process.
    pub(super) since_batch: Option<Duration>,
    /// Batches of this process so far.
    pub(super) batches: usize,
    /// Looks of this process so far.
    pub(super) looks: usize,
    /// How many more may migrate now; `None` where migration is not a method.
    pub(super) room: Option<usize>,
    /// All instances that have not ended.
    pub(super) instances: &'a [Instance],
}

/// The plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Instances to label as outdated, or to unlabel.
    pub(super) label: Vec<(Instance, bool)>,
    /// The number of outdated running instances; `None` where that is not known.
    pub(super) outdated: Option<usize>,
    /// Instances that are to migrate to a new launcher: outdated ones, and those whose own change needs it.
    pub(super) migrate: Vec<Instance>,
    /// Instances whose pods are to be evicted.
    pub(super) evict: Vec<Instance>,
}

/// Plans the next actions.
pub(super) fn plan(observed: &Observed<'_>) -> Plan {
    let label = observed
        .instances
        .iter()
        .filter(|instance| instance.image.is_some())
        .map(|instance| (instance, instance.is_outdated(observed.image)))
        .filter(|(instance, outdated)| instance.labelled != *outdated)
        .map(|(instance, outdated)| (instance.clone(), outdated))
        .collect();
    if !observed.settled {
        return Plan { label, ..Plan::default() };
    }
    let outdated: Vec<&Instance> = observed
        .instances
        .iter()
        .filter(|instance| instance.runs && instance.is_outdated(observed.image))
        .collect();
    let count = outdated.len();
    let still = outdated.into_iter().filter(|instance| !instance.moves);
    let (mut movable, others): (Vec<_>, Vec<_>) =
        still.partition(|instance| observed.room.is_some() && instance.movable);
    // Only migrated: an eviction would end a guest for, say, one more network card.
    movable.extend(observed.instances.iter().filter(|instance| {
        let due = instance.has_to_move && !instance.moves && !instance.is_outdated(observed.image);
        due && instance.runs && instance.movable
    }));
    let migrate = batch(movable, observed.room.unwrap_or(0), observed.looks);
    let due = observed.since_batch.is_none_or(|since| since >= observed.updates.batch_interval);
    let evict = if observed.updates.evict && due {
        batch(others, observed.updates.batch_size, observed.batches)
    } else {
        vec![]
    };
    Plan { label, outdated: Some(count), migrate, evict }
}

/// Each batch begins where the last one ended, so that instances that cannot leave do not delay the others.
fn batch(mut all: Vec<&Instance>, size: usize, before: usize) -> Vec<Instance> {
    if all.is_empty() {
        return vec![];
    }
    all.sort();
    let count = all.len();
    all.rotate_left(before.wrapping_mul(size) % count);
    all.into_iter().take(size).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn instance(name: &str, image: &str) -> Instance {
        Instance {
            namespace: "n".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            runs: true,
            image: Some(image.into()),
            labelled: image == "old",
            launcher: format!("virt-launcher-{name}"),
            movable: false,
            moves: false,
            has_to_move: false,
            moves_volumes: false,
        }
    }

    fn updates(evict: bool) -> WorkloadUpdates {
        WorkloadUpdates { evict, batch_size: 2, batch_interval: Duration::from_secs(60) }
    }

    fn observed(instances: &[Instance], evict: bool) -> Observed<'_> {
        Observed {
            image: "new",
            updates: updates(evict),
            settled: true,
            since_batch: None,
            batches: 0,
            looks: 0,
            room: None,
            instances,
        }
    }

    fn names(instances: &[Instance]) -> Vec<&str> {
        instances.iter().map(|instance| instance.name.as_str()).collect()
    }

    #[test]
    fn instances_are_read() {
        let read = |change: serde_json::Value| {
            let mut vmi = json!({
                "metadata": {"name": "a", "namespace": "n", "uid": "u"}, "spec": {"domain": {"devices": {}}},
                "status": {"phase": "Running", "launcherContainerImageVersion": "old"},
            });
            json_merge(&mut vmi, &change);
            Instance::of(&serde_json::from_value(vmi).unwrap(), false)
        };
        let plain = read(json!({})).unwrap();
        assert!(!plain.movable && !plain.moves && plain.launcher.starts_with("virt-launcher-a-"));
        let can = json!({"status": {"conditions": [{"type": "LiveMigratable", "status": "True"}]}});
        assert!(read(can).unwrap().movable);
        let has_to = |status: &str| {
            let condition = json!([{"type": "MigrationRequired", "status": status}]);
            read(json!({"status": {"conditions": condition}})).unwrap().has_to_move
        };
        assert!(has_to("True") && !has_to("False") && !plain.has_to_move);
        let moved = |storage: &str| {
            let conditions = json!([{"type": "VolumesChange", "status": "True"}, {"type": "LiveMigratable", "status": "False"},
                {"type": "StorageLiveMigratable", "status": storage}]);
            let moved = json!([{"volumeName": "data"}]);
            read(json!({"status": {"conditions": conditions, "migratedVolumes": moved}})).unwrap()
        };
        assert!(moved("True").movable && moved("True").has_to_move && moved("True").moves_volumes);
        assert!(!moved("False").movable);
        let gives_way = json!([{"type": "VolumesChange", "status": "True", "reason": "ClaimInUse"}]);
        assert!(!read(json!({"status": {"conditions": gives_way}})).unwrap().has_to_move);
        let moving = json!({"status": {"migrationState": {"migrationUid": "m", "sourcePod": "s"}}});
        let moving = read(moving).unwrap();
        assert!(moving.moves && moving.launcher == "s");
        assert!(plain.runs && !plain.labelled && plain.is_outdated("new") && !plain.is_outdated("old"));
        let label = json!({"metadata": {"labels": {OUTDATED_LAUNCHER_LABEL: ""}}});
        assert!(read(label).unwrap().labelled);
        assert!(!read(json!({"status": {"phase": "Scheduled"}})).unwrap().runs);
        assert!(!read(json!({"status": {"launcherContainerImageVersion": ""}})).unwrap().is_outdated("new"));
        assert_eq!(read(json!({"status": {"phase": "Succeeded"}})), None);
        assert_eq!(read(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})), None);
    }

    fn json_merge(into: &mut serde_json::Value, change: &serde_json::Value) {
        crate::merge::apply(into, change);
    }

    #[test]
    fn labels_follow_images_and_only_those_that_differ_are_written() {
        let mut wrong =
            [instance("a", "old"), instance("b", "new"), instance("c", "old"), instance("d", "new")];
        wrong[0].labelled = false;
        wrong[1].labelled = true;
        let label = plan(&observed(&wrong, false)).label;
        let label: Vec<(&str, bool)> =
            label.iter().map(|(one, outdated)| (one.name.as_str(), *outdated)).collect();
        assert_eq!(label, [("a", true), ("b", false)]);
        // An instance without a launcher keeps its label.
        let none = [Instance { image: None, ..instance("a", "old") }];
        assert_eq!(plan(&observed(&none, true)), Plan { outdated: Some(0), ..Plan::default() });
    }

    #[test]
    fn only_running_ones_count_and_nothing_before_the_installation_is_whole() {
        let mut all = [instance("a", "old"), instance("b", "new"), instance("c", "old")];
        all[2].runs = false;
        assert_eq!(plan(&observed(&all, false)).outdated, Some(1));
        let going = Observed { settled: false, ..observed(&all, true) };
        assert_eq!(plan(&going), Plan::default());
    }

    #[test]
    fn movable_instances_migrate_and_are_not_evicted() {
        let mut all: Vec<Instance> = ["a", "b", "c", "d", "e"].map(|name| instance(name, "old")).into();
        all[0].movable = true;
        all[1].movable = true;
        all[2].movable = true;
        all[3].moves = true;
        let with =
            |room: Option<usize>, looks: usize| plan(&Observed { room, looks, ..observed(&all, true) });
        let both = with(Some(2), 0);
        assert_eq!((names(&both.migrate), names(&both.evict)), (vec!["a", "b"], vec!["e"]));
        assert_eq!(names(&with(Some(2), 1).migrate), ["c", "a"]);
        assert_eq!(both.outdated, Some(5));
        // The limit is reached: they wait, and are not evicted instead.
        let full = with(Some(0), 0);
        assert_eq!((names(&full.migrate), names(&full.evict)), (vec![], vec!["e"]));
        // If migration is not a method, all are evicted.
        assert_eq!(names(&with(None, 0).evict), ["a", "b"]);
        let alone = plan(&Observed { room: Some(9), ..observed(&all, false) });
        assert_eq!((names(&alone.migrate), names(&alone.evict)), (vec!["a", "b", "c"], vec![]));
    }

    #[test]
    fn instances_with_a_required_migration_are_never_evicted() {
        let due = Instance { has_to_move: true, movable: true, ..instance("a", "new") };
        let all = [
            due.clone(),
            Instance { name: "b".into(), movable: false, ..due.clone() },
            Instance { name: "c".into(), moves: true, ..due.clone() },
            Instance { name: "d".into(), runs: false, ..due.clone() },
            Instance { name: "e".into(), image: Some("old".into()), labelled: true, ..due },
        ];
        let planned = plan(&Observed { room: Some(9), ..observed(&all, true) });
        assert_eq!((names(&planned.migrate), names(&planned.evict)), (vec!["a", "e"], vec![]));
        assert_eq!(planned.outdated, Some(1));
        let nobody = plan(&observed(&all, true));
        assert_eq!((names(&nobody.migrate), names(&nobody.evict)), (vec![], vec!["e"]));
    }

    #[test]
    fn batches_are_small_apart_and_fair() {
        let all: Vec<Instance> = ["e", "d", "c", "b", "a"].map(|name| instance(name, "old")).into();
        assert!(plan(&observed(&all, false)).evict.is_empty());
        let at = |batches: usize, since: Option<u64>| {
            let since_batch = since.map(Duration::from_secs);
            plan(&Observed { batches, since_batch, ..observed(&all, true) }).evict
        };
        assert_eq!(names(&at(0, None)), ["a", "b"]);
        assert!(at(1, Some(59)).is_empty());
        assert_eq!(names(&at(1, Some(60))), ["c", "d"]);
        assert_eq!(names(&at(2, Some(60))), ["e", "a"]);
        let none =
            Observed { updates: WorkloadUpdates { batch_size: 0, ..updates(true) }, ..observed(&all, true) };
        assert!(plan(&none).evict.is_empty());
    }
}
