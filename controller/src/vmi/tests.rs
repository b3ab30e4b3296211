//! Plans for instances: single cases, then random worlds.

use super::action::{Action, Plan};
use super::claims::Claims;
use super::consumer::Consumer;
use super::hotplug::attachments::Attachments;
use super::networks::definitions::Definitions;
use super::observed::Observed;
use super::others::{Other, Target};
use super::plan::plan;
use super::refusal;
use crate::config::Config;
use crate::node::NodeState;
use crate::pod;
use barevirt_api::names::{CREATED_BY_LABEL, REFUSED_PODS_ANNOTATION, VMI_FINALIZER};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_plan::pod::reach::Reach;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;

const NOW: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn text(second: i64) -> String {
    at(second).to_string()
}

fn config() -> Config {
    Config {
        launcher_image: "launcher".to_owned(),
        image_pull_policy: None,
        settings: barevirt_api::settings::Settings::default(),
    }
}

pub(super) fn vmi(status: Value) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "ns", "uid": "u1", "resourceVersion": "7",
            "finalizers": [VMI_FINALIZER]},
        "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}, "terminationGracePeriodSeconds": 30},
        "status": status,
    }))
    .unwrap()
}

fn pod_with(status: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": pod::name("a", "u1"), "namespace": "ns", "uid": "p1",
            "creationTimestamp": text(NOW), "labels": {CREATED_BY_LABEL: "u1"}},
        "spec": {"nodeName": "node01", "containers": [{"name": "compute", "image": "launcher"}]},
        "status": status,
    }))
    .unwrap()
}

fn container(state: Value) -> Value {
    json!([{"name": "compute", "image": "launcher", "imageID": "", "ready": true, "restartCount": 0,
        "state": state}])
}

pub(super) fn running() -> Pod {
    pod_with(json!({"phase": "Running", "podIP": "10.0.0.1", "qosClass": "Burstable",
        "containerStatuses": container(json!({"running": {}}))}))
}

pub(super) fn observed(vmi: VirtualMachineInstance, pod: Option<Pod>) -> Observed {
    Observed {
        vmi,
        node: pod.as_ref().map(|_| NodeState::Ready),
        pod,
        is_created_here: true,
        strays: vec![],
        others: vec![],
        target: Target::Lives,
        is_asked_to_move: false,
        state: None,
        claims: Claims::default(),
        consumer: Consumer::default(),
        reaches: vec![],
        grown: vec![],
        attachments: Attachments::default(),
        goes_first: None,
        definitions: Definitions::default(),
        same_addresses: vec![],
        context_id: None,
        config: config(),
        now: at(NOW),
    }
}

/// A pod beside the launcher, on a living node.
pub(super) fn other(pod: Pod) -> Other {
    Other { pod, node: Some(NodeState::Ready), wanted: false }
}

pub(super) fn patch_of(plan: &Plan) -> &Value {
    match plan.actions.as_slice() {
        [Action::Patch(body)] => body,
        other => panic!("{other:?}"),
    }
}

pub(super) fn deleting(mut vmi: VirtualMachineInstance) -> VirtualMachineInstance {
    vmi.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(NOW)));
    vmi
}

#[test]
fn a_pending_instance_gets_its_pod() {
    let plan = plan(&observed(vmi(json!({"phase": "Pending"})), None));
    let [Action::CreatePod(pod)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(pod.metadata.name.as_deref(), Some(pod::name("a", "u1").as_str()));
    assert_eq!(plan.notes[0].reason, "SuccessfulCreate");
}

#[test]
fn a_receiver_gets_no_pod() {
    let mut receiver = vmi(json!({"phase": "Pending"}));
    let annotation = ("kubevirt.io/create-migration-target".to_owned(), "true".to_owned());
    receiver.metadata.annotations = Some([annotation].into());
    let plan_of = |vmi: &VirtualMachineInstance| plan(&observed(vmi.clone(), None));
    assert_eq!(patch_of(&plan_of(&receiver))["status"]["phase"], "WaitingForSync");
    receiver.status = vmi(json!({"phase": "WaitingForSync"})).status;
    assert_eq!(plan_of(&receiver), Plan::default());
    let gone = plan_of(&deleting(receiver));
    assert_eq!(patch_of(&gone)["metadata"]["finalizers"], json!([]));
}

#[test]
fn the_pod_goes_where_its_volumes_are() {
    let reach = |volume: &str, node: &str| {
        let list = json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]);
        let terms = serde_json::from_value(json!([{"matchExpressions": list}])).unwrap();
        Reach { volume: volume.to_owned(), comes_later: true, terms }
    };
    let mut observed = observed(vmi(json!({"phase": "Pending"})), None);
    observed.reaches = vec![reach("data", "node01")];
    let here = plan(&observed);
    let [Action::CreatePod(pod)] = here.actions.as_slice() else { panic!("{here:?}") };
    let pod = serde_json::to_value(pod).unwrap();
    let required =
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    // In addition to what every guest requires of its node.
    let terms = pod.pointer(required).and_then(Value::as_array).unwrap();
    let asked = terms[0]["matchExpressions"].as_array().unwrap();
    assert_eq!((terms.len(), asked.len(), &asked[1]["values"]), (1, 2, &json!(["node01"])));
    assert_eq!(here.notes.len(), 1);

    observed.reaches.push(reach("logs", "node02"));
    let told = plan(&observed);
    assert_eq!(told.actions, here.actions);
    assert_eq!((told.notes.len(), told.notes[1].reason.as_str()), (2, "VolumeOutOfReach"));
    assert!(told.notes[1].warning && told.notes[1].message.contains("volume logs: no node"), "{told:?}");
}

#[test]
fn the_finalizer_comes_before_the_pod() {
    let mut vmi = vmi(json!({}));
    vmi.metadata.finalizers = None;
    let plan = plan(&observed(vmi, None));
    assert_eq!(patch_of(&plan)["metadata"], json!({"finalizers": [VMI_FINALIZER], "resourceVersion": "7"}));
}

#[test]
fn an_invalid_instance_reports_the_causes() {
    let mut vmi = vmi(json!({"phase": "Pending"}));
    vmi.spec.domain.memory = None;
    let plan = plan(&observed(vmi, None));
    let condition = &patch_of(&plan)["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("Synchronized"), &json!("False")));
    assert!(condition["message"].as_str().unwrap().contains("spec.domain"), "{condition}");
}

#[test]
fn a_running_pod_is_handed_over_in_one_write() {
    let mut pod = running();
    pod.metadata.annotations =
        Some([("kubevirt.io/memory-overhead-bytes".to_owned(), "104857600".to_owned())].into());
    let plan = plan(&observed(vmi(json!({"phase": "Pending", "runtimeUser": 107})), Some(pod)));
    let body = patch_of(&plan);
    assert_eq!(
        body["metadata"],
        json!({"labels": {"kubevirt.io/nodeName": "node01"}, "resourceVersion": "7"})
    );
    let status = &body["status"];
    assert_eq!(status["phase"], "Scheduled");
    assert_eq!(status["nodeName"], "node01");
    assert_eq!(status["activePods"], json!({"p1": "node01"}));
    assert_eq!(status["memory"], json!({"memoryOverhead": "100Mi"}));
    assert_eq!(status["runtimeUser"], Value::Null);
    assert!(plan.notes.is_empty());
}

#[test]
fn a_guest_with_cpus_of_its_own_waits_for_a_guaranteed_pod() {
    let dedicated = |qos: &str| {
        let mut vmi = vmi(json!({"phase": "Scheduling"}));
        vmi.spec.domain.cpu =
            Some(serde_json::from_value(json!({"cores": 1, "dedicatedCpuPlacement": true})).unwrap());
        let pod = pod_with(json!({"phase": "Running", "podIP": "10.0.0.1", "qosClass": qos,
            "containerStatuses": container(json!({"running": {}}))}));
        plan(&observed(vmi, Some(pod)))
    };
    let held = dedicated("Burstable");
    let condition = &patch_of(&held)["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("Synchronized"), &json!("False")));
    assert_eq!(condition["reason"], "FailedGuaranteePodResources");
    assert_eq!(
        held.notes,
        [barevirt_component::notes::Note::warning(
            "FailedGuaranteePodResources",
            "failed to guarantee pod resources"
        )]
    );
    assert_eq!(patch_of(&dedicated("Guaranteed"))["status"]["phase"], "Scheduled");
}

#[test]
fn a_helper_that_ended_does_not_hold_the_pod_back() {
    let mut pod = running();
    pod.spec
        .as_mut()
        .unwrap()
        .containers
        .push(serde_json::from_value(json!({"name": "volumeroot"})).unwrap());
    let observed_waiting = observed(vmi(json!({"phase": "Pending"})), Some(pod.clone()));
    assert!(plan(&observed_waiting).actions.is_empty());
    let ended = json!({"name": "volumeroot", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 1}}});
    let statuses = pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
    statuses.push(serde_json::from_value(ended).unwrap());
    let plan = plan(&observed(vmi(json!({"phase": "Pending"})), Some(pod)));
    assert_eq!(patch_of(&plan)["status"]["phase"], "Scheduled");
}

#[test]
fn a_young_pod_is_waited_for_in_silence() {
    let mut observed =
        observed(vmi(json!({"phase": "Pending"})), Some(pod_with(json!({"phase": "Pending"}))));
    let young = plan(&observed);
    assert!(young.actions.is_empty() && young.again.is_some_and(|again| again <= Duration::from_secs(4)));
    observed.now = at(NOW + 5);
    let old = plan(&observed);
    assert_eq!(patch_of(&old)["status"]["phase"], "Scheduling");
}

#[test]
fn an_unschedulable_pod_is_reported_at_once() {
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/2 nodes are available"});
    let pod = pod_with(json!({"phase": "Pending", "conditions": [condition]}));
    let plan = plan(&observed(vmi(json!({"phase": "Pending"})), Some(pod)));
    let status = &patch_of(&plan)["status"];
    assert_eq!(status["phase"], "Scheduling");
    assert_eq!(status["conditions"][0]["type"], "PodScheduled");
    assert_eq!(status["conditions"][0]["reason"], "Unschedulable");
    assert_eq!(status["conditions"][0]["message"], "0/2 nodes are available");
    assert!(plan.notes.is_empty(), "the scheduler's own event is enough");
}

#[test]
fn an_image_that_does_not_exist_is_named() {
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}});
    let pod = pod_with(json!({"phase": "Pending", "containerStatuses": container(waiting)}));
    let plan = plan(&observed(vmi(json!({"phase": "Pending"})), Some(pod)));
    let condition = &patch_of(&plan)["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Synchronized"), &json!("ErrImagePull")));
    assert!(condition["message"].as_str().unwrap().contains("compute (launcher)"), "{condition}");
}

#[test]
fn resolved_conditions_are_removed() {
    let stored = json!({"phase": "Scheduling", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
        {"type": "Synchronized", "status": "False", "reason": "ErrImagePull"},
    ]});
    let plan = plan(&observed(vmi(stored), Some(running())));
    let conditions = patch_of(&plan)["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.iter().map(|c| c["type"].as_str().unwrap()).collect::<Vec<_>>(), ["Ready"]);
}

#[test]
fn the_end_of_the_pod_is_the_end_of_the_instance() {
    let word = json!({"phase": "Failed", "reason": "QemuKilled", "message": "qemu was ended by signal 9"});
    let state = json!({"terminated": {"exitCode": 1, "message": word.to_string()}});
    let pod = pod_with(json!({"phase": "Failed", "containerStatuses": container(state)}));
    let plan = plan(&observed(vmi(json!({"phase": "Running", "activePods": {"p1": "node01"}})), Some(pod)));
    let status = &patch_of(&plan)["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("QemuKilled")));
    assert_eq!(status["conditions"][0]["message"], "qemu was ended by signal 9");
    assert!(plan.notes[0].warning);
}

#[test]
fn a_pod_that_is_gone_is_the_end_too() {
    for phase in ["Scheduling", "Scheduled", "Running"] {
        let plan = plan(&observed(vmi(json!({"phase": phase})), None));
        assert_eq!(patch_of(&plan)["status"]["phase"], "Failed");
    }
}

#[test]
fn another_pod_is_never_taken_for_the_one_that_was_handed_over() {
    let plan = plan(&observed(vmi(json!({"phase": "Running", "activePods": {"p0": "n"}})), Some(running())));
    assert_eq!(patch_of(&plan)["status"]["phase"], "Failed");
}

#[test]
fn a_lost_node_fails_its_instances_but_frees_nothing() {
    let mut lost = observed(vmi(json!({"phase": "Running", "activePods": {"p1": "n"}})), Some(running()));
    lost.node = Some(NodeState::NotReady { left: Duration::from_secs(9) });
    assert_eq!(plan(&lost).again, Some(Duration::from_secs(9)));
    lost.node = Some(NodeState::Lost);
    let status = patch_of(&plan(&lost))["status"].clone();
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("NodeUnresponsive")));

    let ended = vmi(json!({"phase": "Failed", "reason": "NodeUnresponsive"}));
    let mut lost = observed(deleting(ended), Some(running()));
    lost.node = Some(NodeState::Lost);
    assert!(matches!(plan(&lost).actions[..], [Action::DeletePod { grace: 40, .. }]));
    // It is being deleted, and its kubelet does not answer: nothing more can be done.
    let going = lost.pod.as_mut().unwrap();
    going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(NOW)));
    going.metadata.deletion_grace_period_seconds = Some(40);
    assert_eq!(plan(&lost).actions, []);
    lost.node = Some(NodeState::OutOfService);
    assert!(matches!(plan(&lost).actions[..], [Action::DeletePod { grace: 0, .. }]));
}

#[test]
fn deletion_takes_pods_first_and_the_finalizer_last() {
    let first = observed(deleting(vmi(json!({"phase": "Running"}))), Some(running()));
    let planned = plan(&first);
    assert!(matches!(planned.actions[..], [Action::DeletePod { grace: 40, .. }]));
    assert_eq!(planned.notes[0].reason, "SuccessfulDelete");
    let last = observed(deleting(vmi(json!({"phase": "Running"}))), None);
    assert_eq!(patch_of(&plan(&last))["metadata"]["finalizers"], json!([]));
}

#[test]
fn a_shorter_grace_hurries_a_pod_that_is_on_its_way() {
    let mut vmi = deleting(vmi(json!({"phase": "Running"})));
    vmi.spec.termination_grace_period_seconds = Some(0);
    let mut pod = running();
    pod.metadata.deletion_timestamp = vmi.metadata.deletion_timestamp.clone();
    pod.metadata.deletion_grace_period_seconds = Some(40);
    let mut observed = observed(vmi, Some(pod));
    let planned = plan(&observed);
    assert!(matches!(planned.actions[..], [Action::DeletePod { grace: 1, .. }]) && planned.notes.is_empty());
    observed.pod.as_mut().unwrap().metadata.deletion_grace_period_seconds = Some(1);
    assert_eq!(plan(&observed), Plan::default());
}

#[test]
fn pods_of_orphaned_instances_are_still_theirs() {
    let mut pod = running();
    pod.metadata.owner_references = None;
    let mut observed = observed(deleting(vmi(json!({"phase": "Running"}))), None);
    observed.strays = vec![other(pod)];
    assert!(matches!(plan(&observed).actions[..], [Action::DeletePod { .. }]));
}

#[test]
fn an_ended_instance_gives_its_launcher_time_to_end() {
    let stored = json!({"phase": "Succeeded", "phaseTransitionTimestamps":
        [{"phase": "Succeeded", "phaseTransitionTimestamp": text(NOW)}]});
    let mut observed = observed(vmi(stored), Some(running()));
    assert_eq!(plan(&observed).again, Some(Duration::from_secs(10)));
    observed.now = at(NOW + 11);
    assert!(matches!(plan(&observed).actions[..], [Action::DeletePod { .. }]));
}

#[test]
fn a_squatter_is_reported_and_left_alone() {
    let mut pod = running();
    pod.metadata.labels = None;
    let plan = plan(&observed(vmi(json!({"phase": "Pending"})), Some(pod)));
    assert_eq!(patch_of(&plan)["status"]["conditions"][0]["type"], "Synchronized");
    assert!(plan.again.is_some());
}

/// Any client that may create pods can have made one before us, with any name and any label.
#[test]
fn a_pod_with_an_unknown_uid_is_no_launcher() {
    let not_ours = |vmi: VirtualMachineInstance| {
        let mut observed = observed(vmi, Some(running()));
        observed.is_created_here = false;
        observed
    };
    let pending = plan(&not_ours(vmi(json!({"phase": "Pending"}))));
    let [Action::DeletePod { uid, grace: 1, .. }] = pending.actions.as_slice() else { panic!("{pending:?}") };
    assert_eq!(uid, "p1");
    // Its end is not the instance's end.
    let scheduling = plan(&not_ours(vmi(json!({"phase": "Scheduling", "activePods": {"p0": ""}}))));
    let [Action::Patch(body), Action::DeletePod { .. }] = scheduling.actions.as_slice() else {
        panic!("{scheduling:?}")
    };
    assert_eq!(body["status"]["phase"], "Pending");
    // Where a guest may have run, no other pod is made.
    for phase in ["Scheduling", "Scheduled", "Running"] {
        let stored = json!({"phase": phase, "activePods": {"p0": "node01"}});
        assert_eq!(patch_of(&plan(&not_ours(vmi(stored))))["status"]["phase"], "Failed", "{phase}");
    }
    assert_eq!(patch_of(&plan(&not_ours(vmi(json!({"phase": "Running"})))))["status"]["phase"], "Failed");
}

/// Another process continues with what the status says.
#[test]
fn a_pod_that_the_status_names_is_the_launcher() {
    let mut slow = observed(vmi(json!({"phase": "Pending"})), Some(pod_with(json!({"phase": "Pending"}))));
    slow.now = at(NOW + 5);
    let noted = plan(&slow);
    assert_eq!(patch_of(&noted)["status"]["activePods"], json!({"p1": ""}));
    let stored = vmi(json!({"phase": "Scheduling", "activePods": {"p1": ""}}));
    let mut later = observed(stored, Some(running()));
    later.is_created_here = false;
    let status = &patch_of(&plan(&later))["status"].clone();
    assert_eq!((&status["phase"], &status["activePods"]), (&json!("Scheduled"), &json!({"p1": "node01"})));
}

fn refused() -> Pod {
    let message = "Pod was rejected: Predicate NodeAffinity failed";
    pod_with(json!({"phase": "Failed", "reason": "NodeAffinity", "message": message}))
}

fn with_refused(mut vmi: VirtualMachineInstance, uids: &str) -> VirtualMachineInstance {
    vmi.metadata.annotations = Some([(REFUSED_PODS_ANNOTATION.to_owned(), uids.to_owned())].into());
    vmi
}

#[test]
fn a_refused_pod_is_noted_then_deleted_and_the_next_one_made() {
    let first = plan(&observed(vmi(json!({"phase": "Scheduling"})), Some(refused())));
    let body = patch_of(&first);
    assert_eq!(body["metadata"]["annotations"], json!({REFUSED_PODS_ANNOTATION: "p1"}));
    assert_eq!(body["metadata"]["resourceVersion"], "7");
    assert_eq!(body["status"]["phase"], "Pending");
    let condition = &body["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Synchronized"), &json!("FailedCreate")));
    let [note] = first.notes.as_slice() else { panic!("{first:?}") };
    assert!(note.warning && note.reason == "FailedCreate");
    assert!(note.message.contains("node01") && note.message.contains("NodeAffinity"), "{note:?}");

    let mut noted = observed(with_refused(vmi(json!({"phase": "Pending"})), "p1"), Some(refused()));
    let waits = plan(&noted);
    assert_eq!((waits.actions.len(), waits.again), (0, Some(Duration::from_secs(1))));
    noted.now = at(NOW + 1);
    let deletes = plan(&noted);
    let [Action::DeletePod { uid, grace: 0, .. }] = deletes.actions.as_slice() else { panic!("{deletes:?}") };
    assert_eq!((uid.as_str(), deletes.notes[0].reason.as_str()), ("p1", "SuccessfulDelete"));

    (noted.pod, noted.node) = (None, None);
    assert!(matches!(plan(&noted).actions.as_slice(), [Action::CreatePod(_)]));
}

#[test]
fn each_refusal_is_noted_even_if_it_reads_like_the_one_before() {
    let mut vmi = vmi(json!({"phase": "Pending"}));
    let again = plan(&observed(vmi.clone(), Some(refused())));
    vmi.status = serde_json::from_value(patch_of(&again)["status"].clone()).unwrap();
    let again = plan(&observed(with_refused(vmi, "p0"), Some(refused())));
    assert_eq!(patch_of(&again)["metadata"]["annotations"], json!({REFUSED_PODS_ANNOTATION: "p0,p1"}));
    assert_eq!(again.notes.len(), 1);
}

#[test]
fn an_instance_whose_pods_are_refused_too_often_fails() {
    let noted: Vec<String> = (0..refusal::MOST).map(|number| format!("q{number}")).collect();
    let vmi = with_refused(vmi(json!({"phase": "Pending"})), &noted.join(","));
    let plan = plan(&observed(vmi, Some(refused())));
    let status = &patch_of(&plan)["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("NodeAffinity")));
}

#[test]
fn a_deleted_instance_with_a_refused_pod_is_removed() {
    let plan = plan(&observed(deleting(vmi(json!({"phase": "Scheduling"}))), Some(refused())));
    assert!(matches!(plan.actions.as_slice(), [Action::DeletePod { .. }]), "{plan:?}");
}

mod moving;
mod steps;
mod world;

pub(crate) use steps::{Look, Step, steps};
