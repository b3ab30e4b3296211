//! An operator that is killed after any write, any number of times, and restarted reaches the same state as an undisturbed
//! one; on the way the order is kept.

use super::super::target::{Deployment, hash};
use super::super::versions;
use super::tests::wanted;
use super::*;
use barevirt_api::v1::KubeVirtStatus;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// Nodes of the cluster.
const NODES: usize = 5;
/// Images of this tag do not work.
const BROKEN: &str = "v3.0.0";

/// A pod: the template that it was made of, and whether it is ready.
#[derive(Clone, Debug, PartialEq)]
struct Pod {
    template: String,
    broken: bool,
    ready: bool,
}

/// An object in the API server, and its pods.
#[derive(Clone, Debug, PartialEq)]
struct Object {
    body: Value,
    hash: Option<String>,
    generation: i64,
    /// The generation that its controller has seen.
    observed: i64,
    pods: Vec<Pod>,
}

impl Object {
    /// The template of its pods.
    fn template(&self) -> (String, bool) {
        let template = self.body["spec"]["template"].to_string();
        let broken = template.contains(&format!(":{BROKEN}"));
        (hash(&template), broken)
    }

    fn rollout(&self, kind: Kind) -> Option<Rollout> {
        if !kind.has_pods() {
            return None;
        }
        // Its controller's report is as old as what it has seen.
        let new = self.pods.iter().filter(|pod| pod.template == self.template().0).count();
        let ready = self.pods.iter().filter(|pod| pod.ready).count();
        let mut object = json!({
            "metadata": {"generation": self.generation},
            "spec": {"selector": {}, "template": {}, "replicas": self.body["spec"]["replicas"]},
        });
        object["status"] = match kind {
            Kind::DaemonSet => json!({
                "observedGeneration": self.observed, "desiredNumberScheduled": NODES,
                "currentNumberScheduled": NODES, "numberMisscheduled": 0, "updatedNumberScheduled": new,
                "numberReady": ready,
            }),
            _ => json!({
                "observedGeneration": self.observed, "replicas": self.pods.len(), "updatedReplicas": new,
                "availableReplicas": ready,
            }),
        };
        Some(match kind {
            Kind::DaemonSet => Rollout::of_daemon_set(&serde_json::from_value(object).unwrap()),
            _ => Rollout::of_deployment(&serde_json::from_value(object).unwrap()),
        })
    }

    /// One step of Kubernetes' own controllers and kubelets.
    fn tick(&mut self, kind: Kind) {
        if !kind.has_pods() {
            return;
        }
        if self.observed < self.generation {
            self.observed = self.generation;
            return;
        }
        let (template, broken) = self.template();
        // A pod that can become ready does.
        if let Some(pod) = self.pods.iter_mut().find(|pod| !pod.ready && !pod.broken) {
            pod.ready = true;
            return;
        }
        let fresh = Pod { template: template.clone(), broken, ready: false };
        let count = match kind {
            Kind::DaemonSet => NODES,
            _ => usize::try_from(self.body["spec"]["replicas"].as_u64().unwrap()).unwrap(),
        };
        self.pods.truncate(count);
        if self.pods.len() < count {
            self.pods.push(fresh);
            return;
        }
        let away = self.pods.iter().filter(|pod| !pod.ready).count();
        // Old pods that are not ready are replaced first; they are missing anyway.
        let old = |pod: &&mut Pod| pod.template != template;
        // More at a time than in reality, so that a missing canary is noticed.
        let allowed = match &self.body["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] {
            Value::Number(one) => usize::try_from(one.as_u64().unwrap()).unwrap(),
            _ => 2,
        };
        if let Some(pod) = self.pods.iter_mut().filter(old).find(|pod| !pod.ready) {
            *pod = fresh;
        } else if away < allowed
            && let Some(pod) = self.pods.iter_mut().find(old)
        {
            *pod = fresh;
        }
    }
}

/// The state that outlives an operator.
#[derive(Clone, Debug, PartialEq)]
struct Cluster {
    objects: BTreeMap<Identity, Object>,
    tag: &'static str,
    /// Tag in the status: the last version that was installed completely.
    observed: Option<&'static str>,
}

/// The wanted objects of a version, without most of the definitions and ready-made types, which are many, large and similar.
/// Versions that end in 1 have fewer replicas, and so fewer objects.
fn of_tag(tag: &'static str) -> Arc<Vec<Wanted>> {
    static MADE: Mutex<BTreeMap<&str, Arc<Vec<Wanted>>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap();
    let make = || {
        let replicas = if tag.ends_with('1') { 1 } else { 2 };
        let mut wanted = wanted(json!({"imageTag": tag, "infra": {"replicas": replicas}}));
        wanted.retain(|wanted| match wanted.identity.kind {
            Kind::CustomResourceDefinition => wanted.identity.name.starts_with("virtualmachines."),
            Kind::ClusterInstancetype | Kind::ClusterPreference => wanted.identity.name.ends_with("medium"),
            _ => true,
        });
        Arc::new(wanted)
    };
    made.entry(tag).or_insert_with(make).clone()
}

impl Cluster {
    fn empty(tag: &'static str) -> Cluster {
        Cluster { objects: BTreeMap::new(), tag, observed: None }
    }

    fn seen(&self) -> BTreeMap<Identity, ObservedObject> {
        self.objects
            .iter()
            .map(|(identity, object)| {
                let seen = ObservedObject {
                    uid: "1".into(),
                    mark: Mark::Generation(object.generation),
                    hash: object.hash.clone(),
                    generation: None,
                    terminating: false,
                    rollout: object.rollout(identity.kind),
                };
                (identity.clone(), seen)
            })
            .collect()
    }

    fn order(&self) -> Order {
        let status = KubeVirtStatus {
            observed_deployment_id: self.observed.map(str::to_owned),
            observed_kube_virt_version: self.observed.map(str::to_owned),
            ..KubeVirtStatus::default()
        };
        let (id, version) = (self.tag.to_owned(), self.tag.to_owned());
        versions::order(&status, &Deployment { id, config: String::new(), version, registry: String::new() })
    }

    fn apply(&mut self, identity: &Identity, hash: &str, body: &Value) {
        let object = self.objects.entry(identity.clone()).or_insert_with(|| Object {
            body: Value::Null,
            hash: None,
            generation: 0,
            observed: 0,
            pods: vec![],
        });
        if object.body["spec"] != body["spec"] || object.generation == 0 {
            object.generation += 1;
        }
        object.body = body.clone();
        object.hash = Some(hash.to_owned());
    }

    fn tick(&mut self) {
        for (identity, object) in &mut self.objects {
            object.tick(identity.kind);
        }
    }

    /// The final state, which must not depend on the way.
    fn end(&self) -> BTreeMap<&Identity, (&Value, &[Pod])> {
        self.objects.iter().map(|(identity, object)| (identity, (&object.body, &*object.pods))).collect()
    }

    fn pods(&self, name: &str) -> &[Pod] {
        self.objects
            .iter()
            .find(|(identity, _)| identity.kind.has_pods() && identity.name == name)
            .map_or(&[], |(_, object)| &object.pods)
    }

    /// Invariants at every moment.
    fn check(&self) {
        let handlers = self.pods("virt-handler");
        // A broken version reaches only one node.
        assert!(handlers.iter().filter(|pod| pod.broken).count() <= 1, "{handlers:?}");
        assert!(self.pods("virt-api").iter().chain(self.pods("virt-controller")).all(|pod| !pod.broken));
    }
}

/// One life of an operator: passes until nothing is left to be done, until it is killed after `writes` writes, or until
/// nothing changes.
fn live(cluster: &mut Cluster, mut writes: Option<usize>) -> bool {
    let mut left: BTreeMap<Identity, Left> = BTreeMap::new();
    let mut quiet = 0;
    for _ in 0..400 {
        let wanted = of_tag(cluster.tag);
        let plan = plan(&wanted, &cluster.seen(), &left, cluster.order(), true);
        let before = cluster.clone();
        for write in &plan.write {
            let wanted = &wanted[write.place];
            let (hash, body) = match &wanted.canary {
                Some(canary) if write.canary => (&canary.hash, &canary.body),
                _ => (&wanted.hash, &wanted.body),
            };
            cluster.apply(&wanted.identity, hash, body);
            cluster.check();
            if killed(&mut writes) {
                return false;
            }
            let mark = Mark::Generation(cluster.objects[&wanted.identity].generation);
            left.insert(wanted.identity.clone(), Left { uid: "1".into(), hash: hash.clone(), mark });
        }
        for identity in &plan.remove {
            cluster.objects.remove(identity);
            if killed(&mut writes) {
                return false;
            }
        }
        if plan.is_ready() {
            cluster.observed = Some(cluster.tag);
        }
        cluster.tick();
        cluster.check();
        quiet = if *cluster == before { quiet + 1 } else { 0 };
        if quiet > 2 {
            return plan.is_ready();
        }
    }
    panic!("it does not come to an end");
}

fn killed(writes: &mut Option<usize>) -> bool {
    match writes {
        None => false,
        Some(0) => true,
        Some(left) => {
            *left -= 1;
            false
        }
    }
}

/// A cluster with that version, installed by an undisturbed operator.
fn installed(tag: &'static str) -> Cluster {
    static MADE: Mutex<BTreeMap<&str, Cluster>> = Mutex::new(BTreeMap::new());
    let make = || {
        let mut cluster = Cluster::empty(tag);
        assert!(live(&mut cluster, None));
        cluster
    };
    MADE.lock().unwrap().entry(tag).or_insert_with(make).clone()
}

#[test]
fn each_change_comes_to_the_end_of_a_fresh_installation() {
    for (from, to) in [("v1.0.0", "v2.0.0"), ("v2.0.0", "v1.0.0"), ("v1.0.1", "devel"), ("devel", "v1.0.1")] {
        let mut cluster = installed(from);
        cluster.tag = to;
        assert!(live(&mut cluster, None), "{from} to {to}");
        assert_eq!(cluster.end(), installed(to).end(), "{from} to {to}");
        assert_eq!(cluster.observed, Some(to));
    }
}

#[test]
fn a_broken_version_stays_on_one_node_and_can_be_rolled_back() {
    let mut cluster = installed("v2.0.0");
    cluster.tag = BROKEN;
    assert!(!live(&mut cluster, None));
    assert_eq!(cluster.pods("virt-handler").iter().filter(|pod| pod.broken).count(), 1);
    assert_eq!(cluster.observed, Some("v2.0.0"));
    cluster.tag = "v2.0.0";
    assert!(live(&mut cluster, None));
    assert_eq!(cluster.end(), installed("v2.0.0").end());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]
    #[test]
    fn killed_after_any_write_and_asked_for_another_version_at_any_time(
        lives in proptest::collection::vec(
            (0..200usize, prop::sample::select(&["v1.0.0", "v1.0.1", "v2.0.0", BROKEN, "devel"][..])), 1..6,
        ),
        last in prop::sample::select(&["v1.0.0", "v1.0.1", "v2.0.0", "devel"][..]),
    ) {
        let mut cluster = installed("v1.0.0");
        for (writes, tag) in lives {
            cluster.tag = tag;
            live(&mut cluster, Some(writes));
        }
        cluster.tag = last;
        prop_assert!(live(&mut cluster, None));
        let fresh = installed(last);
        prop_assert_eq!(cluster.end(), fresh.end());
    }
}
