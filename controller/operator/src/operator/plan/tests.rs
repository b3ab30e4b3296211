use super::super::desired;
use super::super::target::{Own, Target};
use super::*;
use crate::Images;
use barevirt_api::v1::KubeVirtSpec;
use serde_json::{Value, json};
use std::sync::Mutex;

/// A model of the cluster: writes are done, pods become ready when the test says so.
struct World {
    wanted: Vec<Wanted>,
    seen: BTreeMap<Identity, ObservedObject>,
    left: BTreeMap<Identity, Left>,
    order: Order,
}

impl World {
    fn new(spec: Value) -> World {
        World { wanted: wanted(spec), seen: BTreeMap::new(), left: BTreeMap::new(), order: Order::ApiFirst }
    }

    /// Everything is installed and ready.
    fn installed() -> World {
        let mut world = World::new(json!({}));
        for _ in 0..4 {
            world.step();
            world.pods_ready();
        }
        assert_eq!(world.plan(), Plan { complete: true, ..Plan::default() });
        world
    }

    fn plan(&self) -> Plan {
        plan(&self.wanted, &self.seen, &self.left, self.order, true)
    }

    /// One pass; returns the names of the written objects.
    fn step(&mut self) -> Vec<String> {
        let plan = self.plan();
        plan.write
            .iter()
            .map(|write| {
                let wanted = self.wanted[write.place].clone();
                let hash = match &wanted.canary {
                    Some(canary) if write.canary => canary.hash.clone(),
                    _ => wanted.hash.clone(),
                };
                let old = self.seen.get(&wanted.identity);
                let generation = match old.map(|old| &old.mark) {
                    Some(Mark::Generation(old)) => *old + 1,
                    _ => 1,
                };
                let seen = ObservedObject {
                    uid: old.map_or_else(|| "1".to_owned(), |old| old.uid.clone()),
                    mark: Mark::Generation(generation),
                    hash: Some(hash.clone()),
                    generation: None,
                    terminating: false,
                    rollout: wanted.stage.has_pods().then(|| Rollout::Going {
                        why: "new".into(),
                        serves: false,
                        proven: false,
                    }),
                };
                let left = Left { uid: seen.uid.clone(), hash, mark: seen.mark.clone() };
                self.left.insert(wanted.identity.clone(), left);
                self.seen.insert(wanted.identity.clone(), seen);
                wanted.identity.to_string()
            })
            .collect()
    }

    fn pods_ready(&mut self) {
        for seen in self.seen.values_mut().filter(|seen| seen.rollout.is_some()) {
            seen.rollout = Some(Rollout::Done);
        }
    }

    fn find(&self, kind: Kind, name: &str) -> Identity {
        let found = self.seen.keys().find(|identity| identity.kind == kind && identity.name == name);
        found.unwrap_or_else(|| panic!("{kind:?} {name}")).clone()
    }
}

/// Definitions are large, so each installation is made once.
pub(super) fn wanted(spec: Value) -> Vec<Wanted> {
    static MADE: Mutex<BTreeMap<String, Vec<Wanted>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap();
    made.entry(spec.to_string()).or_insert_with(|| make(spec)).clone()
}

fn make(spec: Value) -> Vec<Wanted> {
    let spec: KubeVirtSpec = serde_json::from_value(spec).unwrap();
    let own = Own {
        namespace: "kubevirt".into(),
        images: Images::default(),
        digests: BTreeMap::new(),
        version: "v0".into(),
        architecture: "amd64".into(),
        runbooks: "https://r.example/%s".into(),
    };
    let target = Target::of(&spec, &own).unwrap();
    let inputs = desired::Inputs { deployment: target.deployment(&own), ..desired::Inputs::default() };
    desired::objects(&target, &inputs).unwrap()
}

fn workloads(names: &[String]) -> Vec<&str> {
    names
        .iter()
        .filter(|name| name.starts_with("Deployment") || name.starts_with("DaemonSet"))
        .map(String::as_str)
        .collect()
}

const API: &str = "Deployment kubevirt/virt-api";
const CONTROLLER: &str = "Deployment kubevirt/virt-controller";
const HANDLER: &str = "DaemonSet kubevirt/virt-handler";

#[test]
fn from_nothing_virt_api_is_ready_before_anything_else_runs() {
    let mut world = World::new(json!({}));
    let first = world.step();
    assert_eq!(workloads(&first), [API]);
    // The operator already answers about its own object.
    let asked: Vec<&String> =
        first.iter().filter(|name| name.contains("Webhook") || name.contains("APIService")).collect();
    assert_eq!(asked, ["ValidatingWebhookConfiguration virt-operator-validator"]);
    let place = |kind: &str| first.iter().position(|name| name.starts_with(kind)).unwrap();
    assert!(place("CustomResourceDefinition") < place("ServiceAccount"));
    assert!(place("ClusterRole ") < place("Service "));
    // Nothing more happens while it is not ready.
    assert!(world.step().is_empty());
    assert!(!world.plan().complete);
    world.pods_ready();
    let second = world.step();
    assert_eq!(workloads(&second), [CONTROLLER, HANDLER]);
    assert!(second.iter().any(|name| name.starts_with("ValidatingWebhookConfiguration")));
    assert!(second.iter().any(|name| name.starts_with("APIService")));
    assert!(!world.plan().is_ready() && world.plan().complete);
    world.pods_ready();
    assert!(world.plan().is_ready());
}

#[test]
fn an_update_goes_from_the_handler_to_the_api_and_waits_in_between() {
    let mut world = World::installed();
    world.wanted = wanted(json!({"imageTag": "next"}));
    world.order = Order::HandlerFirst;
    // The handler twice: one pod, then the others.
    for expected in [HANDLER, HANDLER, CONTROLLER, API] {
        assert_eq!(workloads(&world.step()), [expected]);
        assert_eq!(workloads(&world.step()), [""; 0]);
        assert!(!world.plan().is_ready());
        world.pods_ready();
    }
    assert!(world.plan().is_ready());
}

#[test]
fn a_canary_that_does_not_become_ready_stops_the_update_and_the_old_version_frees_it() {
    let mut world = World::installed();
    world.wanted = wanted(json!({"imageTag": "next"}));
    world.order = Order::HandlerFirst;
    world.step();
    let handler = world.find(Kind::DaemonSet, "virt-handler");
    for serves in [false, true] {
        let rollout = Rollout::Going { why: "1 of 5 pods are new".into(), serves, proven: false };
        world.seen.get_mut(&handler).unwrap().rollout = Some(rollout);
        assert!(world.step().is_empty());
        let plan = world.plan();
        assert_eq!(plan.unready, std::slice::from_ref(&handler));
        assert_eq!(plan.waiting[0], "DaemonSet kubevirt/virt-handler: one pod first: 1 of 5 pods are new");
    }
    world.wanted = wanted(json!({}));
    world.order = Order::ApiFirst;
    assert_eq!(workloads(&world.step()), [HANDLER]);
    world.pods_ready();
    assert_eq!(workloads(&world.step()), [HANDLER]);
    world.pods_ready();
    assert!(world.plan().is_ready());
}

#[test]
fn the_others_follow_when_one_pod_is_proven() {
    let mut world = World::installed();
    world.wanted = wanted(json!({"imageTag": "next"}));
    world.order = Order::HandlerFirst;
    world.step();
    let handler = world.find(Kind::DaemonSet, "virt-handler");
    let canary = world.seen[&handler].hash.clone();
    let proven = Rollout::Going { why: "1 of 5 pods are new".into(), serves: true, proven: true };
    world.seen.get_mut(&handler).unwrap().rollout = Some(proven.clone());
    assert_eq!(workloads(&world.step()), [HANDLER]);
    assert_ne!(world.seen[&handler].hash, canary);
    // From then on it is no longer a canary, whatever its pods do.
    let failing = Rollout::Going { why: "3 of 5 pods are new".into(), serves: true, proven: false };
    world.seen.get_mut(&handler).unwrap().rollout = Some(failing);
    assert!(world.step().is_empty() && !world.plan().is_ready());
}

#[test]
fn the_kubevirt_object_has_its_webhook_when_the_operator_can_answer_and_not_before() {
    let mut world = World::installed();
    let own = world.find(Kind::ValidatingWebhookConfiguration, "virt-operator-validator");
    let api = world.find(Kind::Deployment, "virt-api");
    world.seen.remove(&own);
    // It does not matter that virt-api is not ready.
    world.seen.get_mut(&api).unwrap().rollout =
        Some(Rollout::Going { why: "none is ready".into(), serves: false, proven: false });
    let later = plan(&world.wanted, &world.seen, &world.left, world.order, false);
    assert!(later.write.is_empty() && !later.complete);
    assert_eq!(world.step(), [own.to_string()]);
}

#[test]
fn deleted_and_edited_objects_are_restored() {
    for (kind, name) in [
        (Kind::DaemonSet, "virt-handler"),
        (Kind::ClusterRole, "kubevirt-controller"),
        (Kind::ValidatingWebhookConfiguration, "virt-api-validator"),
        (Kind::ApiService, "v1.subresources.kubevirt.io"),
        (Kind::CustomResourceDefinition, "virtualmachines.kubevirt.io"),
    ] {
        let mut world = World::installed();
        let identity = world.find(kind, name);
        world.seen.remove(&identity);
        assert_eq!(world.plan().write.first().map(|write| write.why), Some(Why::Missing));
        assert_eq!(world.step(), [identity.to_string()]);
        world.pods_ready();
        assert!(world.plan().is_ready());

        world.seen.get_mut(&identity).unwrap().mark = Mark::Generation(70);
        assert_eq!(world.plan().write.first().map(|write| write.why), Some(Why::Edited));
        assert_eq!(world.step(), [identity.to_string()]);
    }
}

#[test]
fn an_unready_component_delays_no_repair() {
    let mut world = World::installed();
    let api = world.find(Kind::Deployment, "virt-api");
    world.seen.get_mut(&api).unwrap().rollout =
        Some(Rollout::Going { why: "none is ready".into(), serves: false, proven: false });
    let webhook = world.find(Kind::ValidatingWebhookConfiguration, "virt-api-validator");
    world.seen.get_mut(&webhook).unwrap().mark = Mark::Generation(70);
    let role = world.find(Kind::ClusterRole, "kubevirt-handler");
    world.seen.remove(&role);
    assert_eq!(world.step(), [role.to_string(), webhook.to_string()]);
    // A missing webhook is not written while no server could answer it.
    world.seen.remove(&webhook);
    assert!(world.step().is_empty());
    world.pods_ready();
    assert_eq!(world.step(), [webhook.to_string()]);
}

#[test]
fn a_process_that_forgot_everything_writes_once_and_is_quiet() {
    let mut world = World::installed();
    world.left.clear();
    let plan = world.plan();
    assert_eq!(plan.write.len(), world.wanted.len());
    assert!(plan.write.iter().all(|write| write.why == Why::Unknown));
    world.step();
    world.pods_ready();
    assert!(world.plan().is_ready());
}

#[test]
fn an_object_that_is_going_away_is_waited_for() {
    let mut world = World::installed();
    let handler = world.find(Kind::DaemonSet, "virt-handler");
    world.seen.get_mut(&handler).unwrap().terminating = true;
    let plan = world.plan();
    assert!(plan.write.is_empty() && !plan.is_ready() && !plan.complete);
    assert!(plan.waiting[0].contains("virt-handler"));
}

#[test]
fn unwanted_objects_of_ours_are_removed_last() {
    let mut world = World::installed();
    world.wanted = wanted(json!({"infra": {"replicas": 1}}));
    let budget = world.find(Kind::PodDisruptionBudget, "virt-api-pdb");
    let mut foreign = world.seen[&budget].clone();
    foreign.hash = None;
    world.seen.insert(Identity { name: "of-somebody".into(), ..budget.clone() }, foreign);
    // The deployments are scaled first.
    assert!(world.plan().remove.is_empty());
    for _ in 0..4 {
        world.step();
        world.pods_ready();
    }
    let other = world.find(Kind::PodDisruptionBudget, "virt-controller-pdb");
    assert_eq!(world.plan().remove, [budget, other]);
    // The rule for copies goes as soon as there is CDI, also while a component is replaced.
    let mut world = World::installed();
    let policy = world.find(Kind::ValidatingAdmissionPolicy, "kubevirt-datavolume-sources-policy");
    let other = world.find(Kind::ValidatingAdmissionPolicy, "kubevirt-launcher-pods-policy");
    world.wanted.retain(|wanted| ![&policy, &other].contains(&&wanted.identity));
    let handler = world.find(Kind::DaemonSet, "virt-handler");
    world.seen.get_mut(&handler).unwrap().terminating = true;
    assert!(!world.plan().is_ready());
    assert_eq!(world.plan().remove, [policy]);
    // A definition of another version stays, with all objects that users made of it.
    let mut world = World::installed();
    let definition = world.find(Kind::CustomResourceDefinition, "virtualmachines.kubevirt.io");
    let newer = Identity { name: "virtualmachinethings.kubevirt.io".into(), ..definition.clone() };
    world.seen.insert(newer, world.seen[&definition].clone());
    assert!(world.plan().is_ready() && world.plan().remove.is_empty());
}
