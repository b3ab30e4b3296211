//! Networks of an instance from its first pod to hotplugged cards.

use super::super::plan::plan as plan_of;
use super::super::tests::{observed, patch_of, running};
use super::definitions::{Definitions, definitions};
use super::required::PLUGS;
use super::*;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// Whether this version serves what these tests check.
const SERVED: bool = networks::SEVERAL_CARDS_SERVED;
/// The link of the network `red`.
const RED: &str = "podb1f51a511f1";

/// An instance with the pod network and the network `red`, whose definition is `shop/blue`.
fn vmi(status: Value, red: Value) -> VirtualMachineInstance {
    let mut vmi = super::super::tests::vmi(status);
    let mut card = json!({"name": "red", "bridge": {}});
    card.as_object_mut().unwrap().extend(red.as_object().unwrap().clone());
    let spec = json!({
        "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}, card]}},
        "networks": [{"name": "default", "pod": {}}, {"name": "red", "multus": {"networkName": "shop/blue"}}],
    });
    vmi.spec = serde_json::from_value(spec).unwrap();
    vmi
}

/// A running pod with such links beside the first.
fn pod(links: &[(&str, &str)]) -> Pod {
    let mut pod = running();
    let mut noted = vec![json!({"name": "cbr0", "interface": "eth0", "default": true})];
    noted.extend(links.iter().map(|(name, link)| json!({"name": name, "interface": link})));
    let annotations = [
        (NETWORK_STATUS.to_owned(), json!(noted).to_string()),
        (NETWORKS.to_owned(), json!([{"name": "blue", "namespace": "shop", "interface": RED}]).to_string()),
    ];
    pod.metadata.annotations = Some(annotations.into());
    pod
}

fn at(observed: &mut Observed, seconds: i64) {
    let now = observed.now.as_second() + seconds;
    observed.now = Timestamp::from_second(now).unwrap();
}

fn entry(name: &str, source: Value) -> Value {
    json!({"name": name, "infoSource": source})
}

#[test]
fn a_missing_network_definition_is_reported_before_the_pod_is_created() {
    if !SERVED {
        return;
    }
    let mut observed = observed(vmi(json!({"phase": "Pending"}), json!({})), None);
    observed.definitions = Definitions::of(&["shop/blue"], true);
    let told = plan_of(&observed);
    let condition = &patch_of(&told)["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Synchronized"), &json!("FailedCreate")));
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with("failed to render launch manifest: failed to locate network attachment definition shop/blue: the cluster has no kind"), "{message}");
    assert_eq!(told.again, Some(INTERVAL));
    observed.definitions = Definitions::default();
    observed.same_addresses = vec!["twins".to_owned()];
    let made = plan_of(&observed);
    assert!(matches!(made.actions.as_slice(), [Action::CreatePod(_)]), "{made:?}");
    assert_eq!(made.notes[1], same_address("twins"));
}

/// An instance with SR-IOV cards on two networks of one definition, and a bridge on a third.
fn with_functions() -> VirtualMachineInstance {
    let mut vmi = vmi(json!({"phase": "Pending"}), json!({}));
    let spec = json!({
        "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [
            {"name": "fast", "sriov": {}}, {"name": "faster", "sriov": {}}, {"name": "red", "bridge": {}}]}},
        "networks": [
            {"name": "fast", "multus": {"networkName": "vf"}}, {"name": "faster", "multus": {"networkName": "default/vf"}},
            {"name": "red", "multus": {"networkName": "shop/blue"}}],
    });
    vmi.spec = serde_json::from_value(spec).unwrap();
    vmi.metadata.namespace = Some("default".to_owned());
    vmi
}

/// The definitions of that instance; that of both cards names this resource.
fn found(resource: Option<&str>, injects: bool) -> Definitions {
    let mut found = Definitions::default();
    for (definition, uses) in definitions(&with_functions(), &Bindings::default()) {
        let resource = if definition.name == "vf" { resource } else { Some("a.b/bridge") };
        found.add(&definition.to_string(), &uses, resource, injects);
    }
    found
}

#[test]
fn the_pod_requests_a_function_for_each_card_and_the_launcher_gets_the_resource() {
    let mut observed = observed(with_functions(), None);
    observed.definitions = found(Some("a.b/vf"), false);
    let made = plan_of(&observed);
    let [Action::CreatePod(pod)] = made.actions.as_slice() else { panic!("{made:?}") };
    let compute = &json!(pod)["spec"]["containers"][0];
    for list in ["requests", "limits"] {
        let asked = &compute["resources"][list];
        assert_eq!((&asked["a.b/vf"], &asked["a.b/bridge"]), (&json!("2"), &json!("1")), "{list}");
    }
    let told = |compute: &Value| {
        let args = compute["args"].as_array().unwrap().clone();
        let args = args.into_iter().filter(|arg| arg.as_str().unwrap().starts_with("--network-resource"));
        args.collect::<Vec<_>>()
    };
    let both = ["--network-resource=fast=a.b/vf", "--network-resource=faster=a.b/vf"];
    assert_eq!(told(compute), both);
    // The request is another component's, and the launcher still has to know.
    let injected = found(Some("a.b/vf"), true).resources;
    assert_eq!((injected.asked.len(), injected.of_cards.len()), (0, 2));
}

/// Users write definitions: what they may not ask for, and the pod's size, does not come with one.
#[test]
fn no_definition_brings_userfaultfd_or_changes_the_size_of_the_pod() {
    for resource in ["devices.kubevirt.io/userfaultfd", "memory", "cpu"] {
        let mut observed = observed(with_functions(), None);
        for (definition, uses) in definitions(&with_functions(), &Bindings::default()) {
            let named = if definition.name == "vf" { "a.b/vf" } else { resource };
            observed.definitions.add(&definition.to_string(), &uses, Some(named), false);
        }
        assert!(!observed.definitions.resources.asked.iter().any(|asked| asked == resource), "{resource}");
        let told = plan_of(&observed);
        let condition = &patch_of(&told)["status"]["conditions"][0];
        assert_eq!(condition["reason"], json!("FailedCreate"));
        let expected = format!("of network attachment definition shop/blue names {resource:?}");
        assert!(condition["message"].as_str().unwrap().contains(&expected), "{condition}");
        assert_eq!(told.again, Some(INTERVAL));
    }
}

#[test]
fn a_network_definition_without_a_resource_is_reported_before_the_pod_is_created() {
    for resource in [None, Some(""), Some("no resource")] {
        let mut observed = observed(with_functions(), None);
        observed.definitions = found(resource, false);
        let told = plan_of(&observed);
        let condition = &patch_of(&told)["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["reason"]),
            (&json!("Synchronized"), &json!("FailedCreate"))
        );
        let message = condition["message"].as_str().unwrap();
        let expected = "network fast is for an SR-IOV card, and its network attachment definition default/vf has no annotation k8s.v1.cni.cncf.io/resourceName";
        assert!(message.contains(expected), "{message}");
        assert_eq!(told.again, Some(INTERVAL));
        // That pod runs already.
        assert_eq!(observed.definitions.trouble(), None);
    }
}

#[test]
fn a_pod_without_a_network_is_not_handed_over() {
    if !SERVED {
        return;
    }
    let scheduling = || vmi(json!({"phase": "Pending"}), json!({}));
    let whole = plan_of(&observed(scheduling(), Some(pod(&[("shop/blue", RED)]))));
    let status = &patch_of(&whole)["status"];
    assert_eq!(status["phase"], "Scheduled");
    let told = json!([{"name": "red", "infoSource": "multus-status", "podInterfaceName": RED}]);
    assert_eq!(status["interfaces"], told);
    let mut bare = running();
    for (pod, why) in
        [(pod(&[]), "no link podb1f51a511f1 in"), (std::mem::take(&mut bare), "nothing like Multus")]
    {
        let mut waits = observed(scheduling(), Some(pod));
        let early = plan_of(&waits);
        assert_eq!((early.actions.len(), early.again), (0, Some(ATTACHES)));
        at(&mut waits, 10);
        let late = plan_of(&waits);
        let status = &patch_of(&late)["status"];
        assert_eq!(status["phase"], "Scheduling");
        let conditions = status["conditions"].as_array().unwrap();
        let condition = conditions.iter().find(|one| one["type"] == "Synchronized").unwrap();
        assert_eq!(condition["reason"], "NetworkNotAttached");
        let message = condition["message"].as_str().unwrap();
        assert!(
            message.starts_with("network red (shop/blue) is not attached") && message.contains(why),
            "{message}"
        );
        assert_eq!(late.notes.len(), 1);
    }
}

#[test]
fn a_link_with_the_ordinal_name_of_older_pods_is_attached_if_it_is_of_the_definition() {
    let scheduling = || vmi(json!({"phase": "Pending"}), json!({}));
    let whole = plan_of(&observed(scheduling(), Some(pod(&[("shop/blue", "net1")]))));
    let status = &patch_of(&whole)["status"];
    assert_eq!(status["phase"], "Scheduled");
    let told = json!([{"name": "red", "infoSource": "multus-status", "podInterfaceName": "net1"}]);
    assert_eq!(status["interfaces"], told);
    // Multus gives such a name to a plugin's own network.
    let waits = plan_of(&observed(scheduling(), Some(pod(&[("shop/mine", "net1")]))));
    assert_eq!((waits.actions.len(), waits.again), (0, Some(ATTACHES)));
    let both: &[(&str, &str)] = &[("shop/blue", "net1"), ("shop/blue", RED)];
    assert_eq!(noted_as(json!([]), json!({}), both)[0]["podInterfaceName"], RED);
}

#[test]
fn a_link_keeps_its_ordinal_name_when_a_card_before_it_has_left() {
    let red = |source: &str| json!({"name": "red", "infoSource": source, "podInterfaceName": "net2"});
    let both = "domain, multus-status";
    assert_eq!(noted_as(json!([red(both)]), json!({}), &[("shop/blue", "net2")]), json!([red(both)]));
    assert_eq!(noted_as(json!([red(both)]), json!({}), &[]), json!([red("domain")]));
    // Its name in the next pod.
    let moved = noted_as(json!([red(both)]), json!({}), &[("shop/mine", "net2"), ("shop/blue", RED)]);
    assert_eq!(moved[0]["podInterfaceName"], RED);
    let other = pod(&[("shop/green", "net2")]);
    let vmi = vmi(json!({"phase": "Running", "interfaces": [red(both)]}), json!({}));
    let plan = plan(&observed(vmi, Some(other.clone())), &other);
    assert_eq!(patch_of(&plan)["status"]["conditions"][0]["status"], "True");
}

/// A running instance's status, given the links of its pod.
fn noted_as(told: Value, red: Value, links: &[(&str, &str)]) -> Value {
    let vmi = vmi(json!({"phase": "Running", "interfaces": told}), red);
    let mut interfaces = vmi.status.clone().unwrap().interfaces;
    note(&vmi, &pod(links), &mut interfaces);
    json!(interfaces)
}

#[test]
fn multus_status_is_merged_with_the_handlers_report() {
    let red = |source: &str| json!({"name": "red", "infoSource": source, "podInterfaceName": RED});
    let first = json!({"name": "default", "infoSource": "domain", "ipAddress": "10.0.0.1"});
    let there: &[(&str, &str)] = &[("shop/blue", RED)];
    assert_eq!(noted_as(json!([first]), json!({}), there), json!([first, red("multus-status")]));
    assert_eq!(
        noted_as(json!([red("domain"), first]), json!({}), there),
        json!([red("domain, multus-status"), first])
    );
    assert_eq!(noted_as(json!([red("domain, multus-status")]), json!({}), &[]), json!([red("domain")]));
    // It has left the guest and the pod.
    assert_eq!(
        noted_as(json!([first, red("multus-status")]), json!({"state": "absent"}), &[]),
        json!([first])
    );
    // What only the guest knows stays.
    let inner = json!({"interfaceName": "docker0", "infoSource": "guest-agent"});
    assert_eq!(noted_as(json!([inner]), json!({}), &[]), json!([inner]));
}

#[test]
fn a_network_that_comes_is_asked_for_and_then_waits_for_another_pod() {
    let mut pod = pod(&[]);
    pod.metadata.annotations.as_mut().unwrap().remove(NETWORKS);
    let known = json!([entry("default", json!("domain"))]);
    let mut observed =
        observed(vmi(json!({"phase": "Running", "interfaces": known}), json!({})), Some(pod.clone()));
    observed.same_addresses = vec!["twins".to_owned()];
    let asks = plan(&observed, &pod);
    let [Action::AnnotatePod { value: Some(networks), uid, annotation: ANNOTATION, .. }, Action::Patch(body)] =
        asks.actions.as_slice()
    else {
        panic!("{asks:?}")
    };
    assert_eq!(uid, "p1");
    assert!(networks.contains(r#""name":"blue","namespace":"shop""#), "{networks}");
    let condition = &body["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("MigrationRequired"), &json!("False")));
    assert_eq!((&condition["reason"], asks.again), (&json!("AutoMigrationPending"), Some(PLUGS)));
    assert_eq!(asks.notes, [same_address("twins")]);
    // Asked for, and not attached in time.
    let conditions = serde_json::from_value(body["status"]["conditions"].clone()).unwrap();
    observed.vmi.status.as_mut().unwrap().conditions = conditions;
    let asking = super::tests::pod(&[]);
    assert_eq!(plan(&observed, &asking).actions, []);
    at(&mut observed, 15);
    let late = plan(&observed, &asking);
    let condition = &patch_of(&late)["status"]["conditions"][0];
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("AutoMigrationDueToLiveUpdate"))
    );
    assert!(condition["message"].as_str().unwrap().contains("network red (shop/blue)"));
    // Attached, to whichever pod.
    observed.vmi.status.as_mut().unwrap().conditions =
        serde_json::from_value(patch_of(&late)["status"]["conditions"].clone()).unwrap();
    let there = plan(&observed, &super::tests::pod(&[("shop/blue", RED)]));
    let status = &patch_of(&there)["status"];
    assert_eq!(status["interfaces"][1]["infoSource"], "multus-status");
    assert_eq!(status["conditions"], Value::Null);
}

#[test]
fn a_card_of_the_node_takes_another_pod_at_once_and_this_pod_is_left_alone() {
    let function = |told: Value| {
        let mut vmi = vmi(json!({"phase": "Running", "interfaces": told}), json!({}));
        let card = &mut vmi.spec.domain.devices.interfaces[1];
        (card.bridge, card.sriov) = (None, Some(Default::default()));
        vmi
    };
    let mut bare = pod(&[]);
    bare.metadata.annotations.as_mut().unwrap().remove(NETWORKS);
    let known = json!([entry("default", json!("domain"))]);
    let waits = plan(&observed(function(known.clone()), Some(bare.clone())), &bare);
    let condition = &patch_of(&waits)["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("MigrationRequired"), &json!("True")));
    assert_eq!(condition["reason"], "AutoMigrationDueToLiveUpdate");
    let message = "network red (shop/blue) is for an SR-IOV card, which comes with another launcher pod";
    assert_eq!(condition["message"], message);
    assert_eq!(waits.actions.len(), 1);
    // The pod that has it keeps it, whatever else comes, also before the status has been written.
    let mut arrived = function(known);
    let blue = json!({"name": "blue", "bridge": {}});
    arrived.spec.domain.devices.interfaces.push(serde_json::from_value(blue).unwrap());
    let blue = json!({"name": "blue", "multus": {"networkName": "shop/other"}});
    arrived.spec.networks.push(serde_json::from_value(blue).unwrap());
    let there = pod(&[("shop/blue", RED)]);
    let asks = plan(&observed(arrived, Some(there.clone())), &there);
    let [Action::AnnotatePod { value: Some(networks), .. }, Action::Patch(_)] = asks.actions.as_slice()
    else {
        panic!("{asks:?}")
    };
    assert!(networks.contains(RED) && networks.contains(r#""name":"other""#), "{networks}");
}

/// `MigrationRequired` of an instance, as its status has it.
fn required(observed: &Observed) -> Condition {
    let conditions = &observed.vmi.status.as_ref().unwrap().conditions;
    Condition::find(conditions, CONDITION_MIGRATION_REQUIRED).unwrap().clone()
}

#[test]
fn a_network_without_a_definition_is_named_once_another_pod_is_needed() {
    let asking = pod(&[]);
    let known = json!([entry("default", json!("domain"))]);
    let vmi = vmi(json!({"phase": "Running", "interfaces": known}), json!({}));
    let mut observed = observed(vmi, Some(asking.clone()));
    let mut look = |seconds: i64, missing: &[&str]| {
        at(&mut observed, seconds);
        let overdue = is_overdue(&observed.vmi, &asking, observed.now);
        observed.definitions = if overdue { Definitions::of(missing, false) } else { Definitions::default() };
        let plan = plan(&observed, &asking);
        if !plan.actions.is_empty() {
            let conditions = patch_of(&plan)["status"]["conditions"].clone();
            observed.vmi.status.as_mut().unwrap().conditions = serde_json::from_value(conditions).unwrap();
        }
        let told = required(&observed);
        (told.status, told.message.unwrap(), plan.again, plan.actions.len())
    };
    let attached = "network red (shop/blue) is not attached to the launcher pod".to_owned();
    let lacking = format!("{attached}: failed to locate network attachment definition shop/blue");
    let missing: &[&str] = &["shop/blue"];
    let (no, yes) = (|| "False".to_owned(), || "True".to_owned());
    // It may still be attached.
    assert_eq!(look(0, missing), (no(), attached.clone(), Some(PLUGS), 1));
    assert_eq!(look(15, missing), (yes(), lacking.clone(), Some(INTERVAL), 1));
    assert_eq!(look(10, missing), (yes(), lacking, Some(INTERVAL), 0));
    assert_eq!(look(10, &[]), (yes(), attached.clone(), None, 1));
    assert_eq!(look(10, &[]), (yes(), attached, None, 0));
}

#[test]
fn a_removed_network_is_requested_until_the_guest_has_released_it() {
    let absent = || json!({"state": "absent"});
    let told = |source: &str| {
        let entry = json!({"name": "red", "infoSource": source, "podInterfaceName": RED});
        vmi(json!({"phase": "Running", "interfaces": [entry]}), absent())
    };
    let there = pod(&[("shop/blue", RED)]);
    let plan_of = |source: &str| plan(&observed(told(source), Some(there.clone())), &there).actions;
    assert_eq!(plan_of("domain, multus-status"), []);
    let let_go = plan_of("multus-status");
    let [Action::AnnotatePod { value: Some(networks), annotation: ANNOTATION, .. }, Action::Patch(body)] =
        let_go.as_slice()
    else {
        panic!("{let_go:?}")
    };
    assert_eq!(networks, "[]");
    assert_eq!(body["status"]["conditions"][0]["status"], "False");
    // Nothing detaches it.
    let mut asked = there.clone();
    asked.metadata.annotations.as_mut().unwrap().insert(NETWORKS.to_owned(), "[]".to_owned());
    let lingers = plan(&observed(told("multus-status"), Some(asked.clone())), &asked);
    let condition = &patch_of(&lingers)["status"]["conditions"][0];
    assert_eq!(condition["message"], "network red is still attached to the launcher pod");
    let gone = pod(&[]);
    let mut gone = gone;
    gone.metadata.annotations.as_mut().unwrap().insert(NETWORKS.to_owned(), "[]".to_owned());
    let left = plan(&observed(told("multus-status"), Some(gone.clone())), &gone);
    assert_eq!(patch_of(&left)["status"]["interfaces"], Value::Null);
}

#[test]
fn another_definition_takes_another_pod_at_once() {
    let entry = json!({"name": "red", "infoSource": "domain, multus-status", "podInterfaceName": RED});
    let vmi = vmi(json!({"phase": "Running", "interfaces": [entry]}), json!({}));
    let other = pod(&[("shop/green", RED)]);
    let plan = plan(&observed(vmi, Some(other.clone())), &other);
    let condition = &patch_of(&plan)["status"]["conditions"][0];
    assert_eq!(condition["status"], "True");
    assert!(condition["message"].as_str().unwrap().ends_with("attached to shop/green"), "{condition}");
}

#[test]
fn a_card_that_comes_leaves_the_definition_of_another_one_to_the_next_pod() {
    let entry = json!({"name": "red", "infoSource": "domain, multus-status", "podInterfaceName": RED});
    let mut vmi = vmi(json!({"phase": "Running", "interfaces": [entry]}), json!({}));
    vmi.spec.networks[1].multus.as_mut().unwrap().network_name = "shop/green".to_owned();
    let (card, network) =
        (json!({"name": "new", "bridge": {}}), json!({"name": "new", "multus": {"networkName": "shop/new"}}));
    vmi.spec.domain.devices.interfaces.push(serde_json::from_value(card).unwrap());
    vmi.spec.networks.push(serde_json::from_value(network).unwrap());
    let there = pod(&[("shop/blue", RED)]);
    let plan = plan(&observed(vmi, Some(there.clone())), &there);
    let [Action::AnnotatePod { value: Some(networks), .. }, Action::Patch(body)] = plan.actions.as_slice()
    else {
        panic!("{plan:?}")
    };
    let asked: Value = serde_json::from_str(networks).unwrap();
    let names: Vec<&str> = asked.as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["blue", "new"]);
    let condition = &body["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("MigrationRequired"), &json!("True")));
    let message = "network red is shop/green now, and the launcher pod is attached to shop/blue";
    assert_eq!(condition["message"], message);
}

#[test]
fn an_instance_without_multus_networks_is_not_changed() {
    let alone = super::super::tests::vmi(json!({"phase": "Running"}));
    assert_eq!(plan(&observed(alone, Some(running())), &running()), Plan::default());
    // Whatever the pod asked for, no network is added or removed.
    let entry = json!({"name": "red", "infoSource": "domain, multus-status", "podInterfaceName": RED});
    let settled =
        vmi(json!({"phase": "Running", "interfaces": [entry]}), json!({"macAddress": "02:00:00:00:00:07"}));
    let there = pod(&[("shop/blue", RED)]);
    assert_eq!(plan(&observed(settled, Some(there.clone())), &there), Plan::default());
}
