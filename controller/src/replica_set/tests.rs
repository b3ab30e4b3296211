//! Plans and statuses of replica sets: single cases, then random worlds.

use super::plan::{Action, Member, Observed, plan};
use super::status::{Failure, compute};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

const NOW: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn set(spec: Value) -> VirtualMachineInstanceReplicaSet {
    let mut set = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "s1", "resourceVersion": "5"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}},
            "spec": {"domain": {"devices": {}}}}},
    });
    for (name, value) in spec.as_object().unwrap() {
        set["spec"][name] = value.clone();
    }
    serde_json::from_value(set).unwrap()
}

fn vmi(name: &str, owner: Option<&str>, phase: &str) -> VirtualMachineInstance {
    let owners: Vec<Value> = owner
        .map(|uid| {
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
            "name": "web", "uid": uid, "controller": true})
        })
        .into_iter()
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "labels": {"app": "web"}, "ownerReferences": owners, "creationTimestamp": at(NOW).to_string()},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": phase, "conditions": [{"type": "Ready",
            "status": if phase == "Running" { "True" } else { "False" }}]},
    }))
    .unwrap()
}

fn member(name: &str, phase: &str) -> Member {
    Member::new(&vmi(name, Some("s1"), phase), false)
}

fn actions(set: VirtualMachineInstanceReplicaSet, members: Vec<Member>) -> Vec<Action> {
    plan(&Observed { set, members }).actions
}

fn created(actions: &[Action]) -> Vec<String> {
    let name = |action: &Action| match action {
        Action::Create(vmi) => vmi.metadata.name.clone(),
        _ => None,
    };
    actions.iter().filter_map(name).collect()
}

#[test]
fn missing_instances_are_created_from_the_template() {
    let made = actions(set(json!({"replicas": 3})), vec![member("a", "Running")]);
    let [Action::Create(first), Action::Create(second)] = made.as_slice() else { panic!("{made:?}") };
    let name = first.metadata.name.as_deref().unwrap();
    assert!(name.starts_with("web-") && name.len() == "web-".len() + 5, "{name}");
    assert_ne!(first.metadata.name, second.metadata.name);
    assert_eq!(first.metadata.labels.as_ref().unwrap()["app"], "web");
    assert_eq!(first.metadata.annotations.as_ref().unwrap()["a"], "b");
    let owner = &first.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (owner.uid.as_str(), owner.controller, owner.block_owner_deletion),
        ("s1", Some(true), Some(true))
    );
    // One is the default; names that are taken are skipped; a template's name is preferred to the set's.
    assert_eq!(created(&actions(set(json!({})), vec![])).len(), 1);
    let again = actions(set(json!({"replicas": 3})), vec![member(name, "Running"), member("a", "Running")]);
    assert_eq!(created(&again), [second.metadata.name.clone().unwrap()]);
    let mut named = set(json!({}));
    named.spec.template.metadata.as_mut().unwrap().generate_name = Some("worker-".to_owned());
    assert!(created(&actions(named, vec![]))[0].starts_with("worker-"));
}

#[test]
fn surplus_instances_are_deleted_unready_first_then_youngest() {
    let mut old = member("c", "Running");
    old.created = Some(at(NOW - 100));
    let members = vec![old, member("a", "Running"), member("b", "Running"), member("d", "Scheduling")];
    let gone: Vec<String> = actions(set(json!({"replicas": 1})), members.clone())
        .into_iter()
        .map(|action| match action {
            Action::Delete(member) => member.name,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(gone, ["d", "a", "b"]);
    assert_eq!(actions(set(json!({"replicas": 4})), members), []);
}

#[test]
fn ended_instances_are_deleted_and_replaced() {
    let made = actions(set(json!({})), vec![member("a", "Failed")]);
    assert_eq!(created(&made).len(), 1);
    assert_eq!(made[1], Action::Clear(member("a", "Failed")));
    // So is an instance whose pod is being deleted.
    let leaving = Member::new(&vmi("a", Some("s1"), "Running"), true);
    let made = actions(set(json!({})), vec![leaving.clone()]);
    assert_eq!(made[1], Action::Clear(leaving));
    let mut deleting = member("a", "Running");
    deleting.deleting = true;
    assert_eq!(created(&actions(set(json!({})), vec![deleting])).len(), 1);
}

#[test]
fn a_paused_set_creates_and_deletes_nothing() {
    let paused = || set(json!({"replicas": 2, "paused": true}));
    assert_eq!(actions(paused(), vec![]), []);
    assert_eq!(actions(paused(), vec![member("a", "Failed")]), []);
    let orphan = Member::new(&vmi("a", None, "Running"), false);
    assert_eq!(actions(paused(), vec![orphan.clone()]), [Action::Adopt(orphan)]);
}

#[test]
fn instances_are_adopted_and_released_by_their_labels_before_any_are_counted() {
    let orphan = Member::new(&vmi("a", None, "Running"), false);
    assert_eq!(actions(set(json!({})), vec![orphan.clone()]), [Action::Adopt(orphan.clone())]);
    let mut stranger = orphan.clone();
    stranger.labels.clear();
    assert_eq!(created(&actions(set(json!({})), vec![stranger])).len(), 1);
    let mut relabelled = member("a", "Running");
    relabelled.labels.clear();
    assert_eq!(actions(set(json!({})), vec![relabelled.clone()]), [Action::Release(relabelled.clone())]);
    relabelled.deleting = true;
    assert_eq!(created(&actions(set(json!({})), vec![relabelled])).len(), 1);
    let other = Member::new(&vmi("a", Some("s2"), "Running"), false);
    assert_eq!(created(&actions(set(json!({})), vec![other])).len(), 1);
}

#[test]
fn a_set_that_leaves_or_does_not_select_its_own_does_nothing() {
    let mut leaving = set(json!({"replicas": 2}));
    leaving.metadata.deletion_timestamp = serde_json::from_value(json!(at(NOW).to_string())).unwrap();
    let orphan = Member::new(&vmi("a", None, "Running"), false);
    assert_eq!(actions(leaving, vec![orphan, member("b", "Failed")]), []);
    assert_eq!(actions(set(json!({"selector": {"matchLabels": {"app": "db"}}})), vec![]), []);
    assert_eq!(
        actions(set(json!({"selector": {}, "template": {"spec": {"domain": {"devices": {}}}}})), vec![]),
        []
    );
}

#[test]
fn a_burst_has_its_limit() {
    assert_eq!(actions(set(json!({"replicas": 10_000})), vec![]).len(), super::plan::BURST);
    let many = (0..200).map(|number| member(&format!("m{number}"), "Running")).collect();
    assert_eq!(actions(set(json!({"replicas": 0})), many).len(), super::plan::BURST);
}

#[test]
fn the_status_counts_and_says_what_is_wrong() {
    let observed = Observed {
        set: set(json!({"replicas": 3, "paused": true})),
        members: vec![
            member("a", "Running"),
            member("b", "Scheduled"),
            member("c", "Failed"),
            Member::new(&vmi("d", Some("s2"), "Running"), false),
        ],
    };
    let failure = Failure { reason: "FailedCreate", message: "quota".to_owned() };
    let status = compute(&observed, Some(&failure), at(NOW));
    assert_eq!((status.replicas, status.ready_replicas), (Some(2), Some(1)));
    assert_eq!(status.label_selector.as_deref(), Some("app=web"));
    let told: Vec<_> =
        status.conditions.iter().map(|one| (one.type_.as_str(), one.reason.as_deref().unwrap())).collect();
    assert_eq!(told, [("ReplicaPaused", "Paused"), ("ReplicaFailure", "FailedCreate")]);
    let mut set = observed.set.clone();
    set.status = Some(status.clone());
    let again = Observed { set: set.clone(), ..observed.clone() };
    assert_eq!(compute(&again, Some(&failure), at(NOW + 9)), status);
    set.spec.paused = None;
    assert_eq!(compute(&Observed { set, ..observed }, None, at(NOW)).conditions, []);
}

mod world {
    //! A set under random guest ends, deletions, relabelling and scaling; observations may be old.

    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Event {
        Look,
        /// Like [`Event::Look`], but with the observation of the last look: caches may be old.
        LookAtOld,
        Scale(i32),
        Pause(bool),
        Runs(usize),
        Ends(usize),
        Gone(usize),
        Relabel(usize, bool),
        Orphan,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            5 => Just(Event::Look),
            2 => Just(Event::LookAtOld),
            2 => (0..6i32).prop_map(Event::Scale),
            1 => any::<bool>().prop_map(Event::Pause),
            3 => (0..8usize).prop_map(Event::Runs),
            2 => (0..8usize).prop_map(Event::Ends),
            2 => (0..8usize).prop_map(Event::Gone),
            1 => (0..8usize, any::<bool>()).prop_map(|(index, ours)| Event::Relabel(index, ours)),
            1 => Just(Event::Orphan),
        ];
        proptest::collection::vec(event, 1..60)
    }

    struct World {
        set: VirtualMachineInstanceReplicaSet,
        instances: Vec<VirtualMachineInstance>,
        seen: Vec<Member>,
        version: u32,
    }

    impl World {
        fn observed(&mut self, old: bool) -> Observed {
            if !old {
                self.seen = self.instances.iter().map(|vmi| Member::new(vmi, false)).collect();
            }
            Observed { set: self.set.clone(), members: self.seen.clone() }
        }

        fn touch(&mut self, index: usize, change: impl FnOnce(&mut VirtualMachineInstance)) {
            self.version += 1;
            let version = self.version.to_string();
            if let Some(vmi) = self.instances.get_mut(index) {
                change(vmi);
                vmi.metadata.resource_version = Some(version);
            }
        }

        /// The instance that an action names, unless it has changed since: then the API server refuses the action.
        fn find(&self, member: &Member) -> Option<usize> {
            self.instances.iter().position(|vmi| {
                vmi.metadata.uid.as_deref() == Some(member.uid.as_str())
                    && vmi.metadata.resource_version == member.resource_version
            })
        }

        fn look(&mut self, old: bool) -> bool {
            let actions = plan(&self.observed(old)).actions;
            let acted = !actions.is_empty();
            for action in actions {
                self.version += 1;
                match action {
                    Action::Create(vmi) => {
                        if self.instances.iter().any(|other| other.metadata.name == vmi.metadata.name) {
                            continue;
                        }
                        let mut vmi = *vmi;
                        vmi.metadata.uid = Some(format!("u{}", self.version));
                        vmi.metadata.resource_version = Some(self.version.to_string());
                        vmi.status = serde_json::from_value(json!({"phase": "Pending"})).unwrap();
                        self.instances.push(vmi);
                    }
                    Action::Delete(member) | Action::Clear(member) => {
                        assert_eq!(member.owners[0].uid, "s1", "deletes another's");
                        if let Some(index) = self.find(&member) {
                            let now = serde_json::from_value(json!(at(NOW).to_string())).unwrap();
                            self.touch(index, |vmi| vmi.metadata.deletion_timestamp = Some(now));
                        }
                    }
                    Action::Adopt(member) => {
                        if let Some(index) = self.find(&member) {
                            let owner = crate::ownership::owner(&self.set);
                            self.touch(index, |vmi| vmi.metadata.owner_references = Some(vec![owner]));
                        }
                    }
                    Action::Release(member) => {
                        if let Some(index) = self.find(&member) {
                            self.touch(index, |vmi| vmi.metadata.owner_references = None);
                        }
                    }
                }
            }
            acted
        }

        fn phase(&mut self, index: usize, phase: &str) {
            self.touch(index, |vmi| {
                let status = vmi.status.get_or_insert_default();
                if !barevirt_api::names::is_final_phase(status.phase.as_deref().unwrap_or_default()) {
                    status.phase = Some(phase.to_owned());
                    let ready =
                        json!([{"type": "Ready", "status": if phase == "Running" {"True"} else {"False"}}]);
                    status.conditions = serde_json::from_value(ready).unwrap();
                }
            });
        }

        fn step(&mut self, event: &Event) {
            match event {
                Event::Look => drop(self.look(false)),
                Event::LookAtOld => drop(self.look(true)),
                Event::Scale(replicas) => self.set.spec.replicas = Some(*replicas),
                Event::Pause(paused) => self.set.spec.paused = Some(*paused),
                Event::Runs(index) => self.phase(*index, "Running"),
                Event::Ends(index) => self.phase(*index, "Failed"),
                Event::Gone(index) => {
                    if self.instances.get(*index).is_some_and(|vmi| vmi.metadata.deletion_timestamp.is_some())
                    {
                        self.instances.remove(*index);
                    }
                }
                Event::Relabel(index, ours) => self.touch(*index, |vmi| {
                    let app = if *ours { "web" } else { "other" };
                    vmi.metadata.labels = Some([("app".to_owned(), app.to_owned())].into());
                }),
                Event::Orphan => {
                    self.version += 1;
                    let mut orphan = vmi(&format!("orphan{}", self.version), None, "Running");
                    orphan.metadata.resource_version = Some(self.version.to_string());
                    self.instances.push(orphan);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn a_set_reaches_the_wanted_number(events in events()) {
            let mut world = World { set: set(json!({"replicas": 2})), instances: vec![], seen: vec![], version: 7 };
            for event in &events {
                world.step(event);
            }
            world.set.spec.paused = None;
            let mut rounds = 0;
            world.instances.retain(|vmi| vmi.metadata.deletion_timestamp.is_none());
            while world.look(false) {
                world.instances.retain(|vmi| vmi.metadata.deletion_timestamp.is_none());
                rounds += 1;
                prop_assert!(rounds < 20, "does not settle: {:?}", world.observed(false));
            }
            let wanted = usize::try_from(world.set.spec.replicas.unwrap()).unwrap();
            let observed = world.observed(false);
            prop_assert_eq!(observed.active().len(), wanted);
            prop_assert_eq!(compute(&observed, None, at(NOW)).replicas, world.set.spec.replicas);
            for member in &observed.members {
                let ours = member.owners.first().is_some_and(|owner| owner.uid == "s1");
                prop_assert_eq!(ours, member.labels["app"] == "web");
            }
        }
    }
}
