//! Tests of a supervisor whose watch events are simulated.

use kube::client::Body;
use kube::runtime::events::{Recorder, Reporter};
use serde_json::{Value, json};

use super::*;
use crate::launchers::pods_dir::PodsDir;
use crate::sync::Migration;
use crate::sync::panics::Panics;

/// A supervisor whose API server never answers.
fn supervisor() -> Supervisor {
    let silent = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, std::io::Error>>()
    });
    let client = Client::new(silent, "default");
    let pods = tempfile::tempdir().unwrap();
    let context = Context {
        installation: barevirt_component::installation::Installation::default(),
        recorder: Recorder::new(
            client.clone(),
            Reporter { controller: "virt-handler".to_owned(), instance: None },
        ),
        client,
        pods: Arc::new(PodsDir::open(pods.path()).unwrap()),
        kubelet: pods.path().to_owned(),
        node: "node01".to_owned(),
        panics: Panics::default(),
        migration: Migration::nowhere(),
    };
    Supervisor {
        context,
        launchers: Launchers::default(),
        vms: BTreeMap::new(),
        pods: BTreeMap::new(),
        seen: BTreeMap::new(),
        unseen_vms: BTreeMap::new(),
        unseen_pods: BTreeSet::new(),
    }
}

fn vmi(name: &str, uid: &str) -> DeserializeGuard<VirtualMachineInstance> {
    object(json!({"domain": {"devices": {}}}), name, uid)
}

fn object(spec: Value, name: &str, uid: &str) -> DeserializeGuard<VirtualMachineInstance> {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "shop", "uid": uid},
        "spec": spec,
        "status": {"phase": "Running", "nodeName": "node01", "activePods": {"pod-1": "node01"}},
    }))
    .unwrap()
}

fn pod(uid: &str, ip: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": "virt-launcher"},
        "spec": {"containers": [{"name": "compute"}]},
        "status": {"podIPs": [{"ip": ip}]},
    }))
    .unwrap()
}

fn addresses(supervisor: &Supervisor, name: &str) -> Option<Vec<String>> {
    let vm = &supervisor.vms[&("shop".to_owned(), name.to_owned())];
    let input = vm.input.borrow();
    input.pod.as_ref().map(|pod| pod.addresses.clone())
}

#[tokio::test]
async fn instances_missing_from_a_new_watch_are_forgotten() {
    let mut supervisor = supervisor();
    supervisor.vmi(Side::Here, Event::Apply(vmi("a", "1")));
    supervisor.vmi(Side::Here, Event::Apply(vmi("b", "2")));
    supervisor.vmi(Side::Here, Event::Init);
    supervisor.vmi(Side::Here, Event::InitApply(vmi("b", "2")));
    assert!(supervisor.launchers.knows("shop", "a"));
    supervisor.vmi(Side::Here, Event::InitDone);
    assert!(!supervisor.launchers.knows("shop", "a"));
    assert!(supervisor.launchers.knows("shop", "b"));
    supervisor.vmi(Side::Here, Event::Delete(vmi("b", "2")));
    assert!(supervisor.vms.is_empty());
}

#[tokio::test]
async fn an_object_that_cannot_be_read_leaves_its_task_and_the_others_alone() {
    let mut supervisor = supervisor();
    supervisor.vmi(Side::Here, Event::Apply(vmi("a", "1")));
    supervisor.vmi(Side::Here, Event::Init);
    supervisor.vmi(Side::Here, Event::InitApply(object(json!({"domain": 1}), "a", "1")));
    supervisor.vmi(Side::Here, Event::InitApply(object(json!({"domain": 1}), "never-read", "3")));
    supervisor.vmi(Side::Here, Event::InitDone);
    assert!(supervisor.launchers.knows("shop", "a"));
    assert!(!supervisor.launchers.knows("shop", "never-read"));
}

#[tokio::test]
async fn pods_and_instances_meet_in_any_order() {
    let mut supervisor = supervisor();
    supervisor.pod(Event::Apply(pod("pod-1", "10.0.0.1")));
    supervisor.vmi(Side::Here, Event::Apply(vmi("a", "1")));
    assert_eq!(addresses(&supervisor, "a"), Some(vec!["10.0.0.1".to_owned()]));
    supervisor.pod(Event::Apply(pod("pod-1", "10.0.0.2")));
    assert_eq!(addresses(&supervisor, "a"), Some(vec!["10.0.0.2".to_owned()]));
    // A pod that the controller did not record is ignored, whatever its labels are.
    supervisor.pod(Event::Apply(pod("pod-2", "10.0.0.3")));
    assert_eq!(addresses(&supervisor, "a"), Some(vec!["10.0.0.2".to_owned()]));
    supervisor.pod(Event::Delete(pod("pod-1", "10.0.0.2")));
    assert_eq!(addresses(&supervisor, "a"), None);
}

#[tokio::test]
async fn a_recreated_object_gets_its_own_task() {
    let mut supervisor = supervisor();
    supervisor.vmi(Side::Here, Event::Apply(vmi("a", "1")));
    let former = supervisor.vms.values().next().map(|vm| vm.input.subscribe()).unwrap();
    supervisor.vmi(Side::Here, Event::Apply(vmi("a", "1")));
    assert!(former.has_changed().is_ok());
    supervisor.vmi(Side::Here, Event::Apply(vmi("a", "2")));
    assert!(former.has_changed().is_err(), "the former task was told to end");
    assert_eq!(supervisor.vms.len(), 1);
}
