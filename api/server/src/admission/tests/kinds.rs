//! All kinds except machines and instances, with the manifests of `examples/kinds`.

use super::*;
use barevirt_api::webhooks::{Configuration, WEBHOOKS, Webhook};

/// The text in an example before the reason for its refusal.
const REFUSED: &str = "# Refused for now: ";

/// An example, and the reason of its refusal, if it is refused.
struct Example {
    object: Value,
    refusal: Option<String>,
}

fn examples() -> Vec<Example> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kinds");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            let refusal = text.lines().find_map(|line| line.strip_prefix(REFUSED)).map(str::to_owned);
            let mut object: Value = serde_saphyr::from_str(&text).unwrap();
            object["metadata"]["namespace"] = json!(NAMESPACE);
            Example { object, refusal }
        })
        .collect()
}

/// The validating webhook for an operation on an object.
fn webhook(object: &Value, operation: &str) -> &'static Webhook {
    let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap();
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let plural = [format!("{kind}s"), kind.replace("policy", "policies")];
    let asked = WEBHOOKS.iter().find(|webhook| {
        webhook.configuration != Configuration::Mutator
            && webhook.api == (group, version)
            && webhook.resources.iter().any(|resource| plural.iter().any(|plural| plural == resource))
            && webhook.operations.contains(&operation)
    });
    asked.unwrap_or_else(|| panic!("{operation} of {object}"))
}

fn on(operation: &str, object: &Value, old: Option<&Value>) -> Value {
    ask(webhook(object, operation).hook, operation, "ann", object, old)
}

#[test]
fn there_is_an_example_of_every_kind() {
    let mut kinds: Vec<String> =
        examples().iter().map(|example| example.object["kind"].as_str().unwrap().to_owned()).collect();
    let mut defined: Vec<String> =
        barevirt_api::crd::all().into_iter().map(|crd| crd.spec.names.kind).collect();
    kinds.sort();
    defined.sort();
    assert_eq!(kinds, defined);
}

/// A new object is accepted, or refused with the reason in the example: no object is accepted and then
/// ignored.
#[test]
fn new_objects_are_taken_or_refused_with_the_reason() {
    for Example { object, refusal } in examples() {
        let answer = on("CREATE", &object, None);
        let message = answer["status"]["message"].as_str().unwrap_or_default();
        match refusal {
            None => assert_eq!(answer["allowed"], true, "{object}: {answer}"),
            Some(reason) => {
                assert_eq!(answer["allowed"], false, "{object}");
                assert_eq!(answer["status"]["code"], 422, "{answer}");
                assert!(message.contains(&reason), "{message}");
                assert!(!answer["status"]["details"]["causes"].as_array().unwrap().is_empty());
            }
        }
    }
}

/// An existing object can be labelled, and loses its finalizers when it is deleted.
#[test]
fn existing_objects_can_be_updated_and_deleted() {
    for Example { object, .. } in examples() {
        let mut old = object.clone();
        old["metadata"]["finalizers"] = json!(["example.com/wait"]);
        let answer = on("UPDATE", &object, Some(&old));
        assert_eq!(answer["allowed"], true, "{object}: {answer}");
        assert_eq!(answer["warnings"], Value::Null, "{answer}");
    }
}

/// A changed specification of a kind without a controller is refused, or accepted with a warning that the
/// change has no effect.
#[test]
fn a_change_without_effect_causes_a_warning() {
    for Example { object, .. } in examples().into_iter().filter(|example| example.refusal.is_some()) {
        let mut new = object.clone();
        let kind = object["kind"].as_str().unwrap();
        let (field, value) = match kind {
            "VirtualMachineInstanceMigration" => ("vmiName", json!("other")),
            "VirtualMachineInstancePreset" => ("selector", json!({})),
            "VirtualMachineSnapshotContent" => ("virtualMachineSnapshotName", json!("other")),
            "VirtualMachineClone" => ("labelFilters", json!(["*"])),
            "MigrationPolicy" => ("allowPostCopy", json!(true)),
            _ => ("source", json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "other" })),
        };
        if kind == "VirtualMachineRestore" {
            new["spec"]["target"]["name"] = json!("other");
        } else {
            new["spec"][field] = value;
        }
        let answer = on("UPDATE", &new, Some(&object));
        let words = format!("{}{}", answer["warnings"], answer["status"]["message"]);
        let told = ["has no effect", "immutable after creation", "spec is restricted"];
        assert!(told.iter().any(|told| words.contains(told)), "{kind}: {answer}");
        assert_eq!(answer["allowed"] == true, words.contains("has no effect"), "{kind}: {answer}");
    }
}

#[test]
fn a_deprecated_value_is_accepted_with_a_warning() {
    let mut preference = json!({
        "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterPreference",
        "metadata": { "name": "a" }, "spec": { "cpu": { "preferredCPUTopology": "preferCores" } },
    });
    let answer = on("CREATE", &preference, None);
    assert_eq!(answer["allowed"], true, "{answer}");
    assert!(answer["warnings"][0].as_str().unwrap().contains("preferCores is deprecated"), "{answer}");
    preference["spec"]["cpu"]["preferredCPUTopology"] = json!("round");
    assert_eq!(on("CREATE", &preference, None)["allowed"], false);
}

/// The console of OpenShift and templates write a model for every card.
#[test]
fn a_model_of_a_card_of_the_node_is_accepted_with_a_warning() {
    let spec = json!({
        "domain": {
            "memory": { "guest": "128Mi" },
            "devices": { "interfaces": [
                { "name": "default", "masquerade": {} },
                { "name": "fast", "sriov": {}, "model": "virtio" },
            ] },
        },
        "networks": [{ "name": "default", "pod": {} }, { "name": "fast", "multus": { "networkName": "fast" } }],
    });
    let machine = json!({ "runStrategy": "Always", "template": { "spec": spec } });
    let labels = json!({ "labels": { "app": "a" } });
    let selector = json!({ "matchLabels": { "app": "a" } });
    for (api, kind, object, path) in [
        ("kubevirt.io/v1", "VirtualMachineInstance", spec.clone(), "spec"),
        ("kubevirt.io/v1", "VirtualMachine", machine.clone(), "spec.template.spec"),
        (
            "kubevirt.io/v1",
            "VirtualMachineInstanceReplicaSet",
            json!({ "selector": selector, "template": { "metadata": labels, "spec": spec } }),
            "spec.template.spec",
        ),
        (
            "pool.kubevirt.io/v1beta1",
            "VirtualMachinePool",
            json!({ "selector": selector, "virtualMachineTemplate": { "metadata": labels, "spec": machine } }),
            "spec.virtualMachineTemplate.spec.template.spec",
        ),
    ] {
        let object = json!({ "apiVersion": api, "kind": kind, "metadata": { "name": "a" }, "spec": object });
        let answer = on("CREATE", &object, None);
        assert_eq!(answer["allowed"], true, "{answer}");
        let warning = answer["warnings"][0].as_str().unwrap();
        assert!(
            warning.starts_with(&format!("{path}.domain.devices.interfaces[1].model has no")),
            "{warning}"
        );
    }
}

#[test]
fn an_instance_type_is_looked_at_in_both_scopes() {
    for kind in ["VirtualMachineInstancetype", "VirtualMachineClusterInstancetype"] {
        let object = json!({
            "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": kind, "metadata": { "name": "a" },
            "spec": { "cpu": { "guest": 1 }, "memory": { "guest": "1Gi", "overcommitPercent": 101 } },
        });
        let answer = on("CREATE", &object, None);
        assert_eq!(
            answer["status"]["details"]["causes"][0]["field"], "spec.memory.overcommitPercent",
            "{answer}"
        );
    }
}

#[test]
fn there_is_one_kubevirt_object() {
    let object = examples().into_iter().find(|example| example.object["kind"] == "KubeVirt").unwrap().object;
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": { "group": "kubevirt.io", "version": "v1", "kind": "KubeVirt" },
            "resource": { "group": "kubevirt.io", "version": "v1", "resource": "kubevirts" },
            "name": "second", "namespace": NAMESPACE, "operation": "CREATE", "userInfo": {}, "object": object,
        },
    });
    let (settings, now) = (Settings::default(), now());
    for (installed, allowed) in [(false, true), (true, false)] {
        let facts = Facts { installed, ..Facts::default() };
        let known = Known { namespace: NAMESPACE, settings: &settings, facts: &facts, now: &now };
        let answer = review(Hook::KubeVirtCreate, &known, body.to_string().as_bytes()).unwrap();
        assert_eq!(answer.response.unwrap().allowed, allowed);
    }
}

#[test]
fn a_setting_without_effect_is_named() {
    let object = examples().into_iter().find(|example| example.object["kind"] == "KubeVirt").unwrap().object;
    let mut new = object.clone();
    new["spec"]["configuration"]["ovmfPath"] = json!("/firmware");
    let answer = on("UPDATE", &new, Some(&object));
    assert_eq!(answer["status"]["message"], "spec.configuration.ovmfPath is not supported yet", "{answer}");
}

#[test]
fn a_machine_keeps_its_disks_while_it_is_snapshotted() {
    let machine = |strategy: &str| {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "web" },
            "spec": { "runStrategy": strategy, "template": { "spec": vmi(|_| {})["spec"] } },
            "status": { "snapshotInProgress": "monday" },
        })
    };
    let answer = on("UPDATE", &machine("Halted"), Some(&machine("Always")));
    let message = answer["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("Cannot update vm running state until snapshot \"monday\" completes"),
        "{message}"
    );
    assert_eq!(on("UPDATE", &machine("Always"), Some(&machine("Always")))["allowed"], true);
}

#[test]
fn a_status_that_nothing_acts_on_is_refused() {
    let machine = |status: Value| {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "web" },
            "spec": { "runStrategy": "Always", "template": { "spec": vmi(|_| {})["spec"] } }, "status": status,
        })
    };
    let ask = |status: Value| {
        let body = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u-1", "kind": { "group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine" },
                "resource": { "group": "kubevirt.io", "version": "v1", "resource": "virtualmachines" },
                "subResource": "status", "name": "web", "namespace": "shop", "operation": "UPDATE",
                "userInfo": { "username": "ann" }, "object": machine(status), "oldObject": machine(json!({})),
            },
        });
        reviewed(&Settings::default(), Hook::Status, body.to_string().as_bytes()).unwrap()
    };
    assert_eq!(ask(json!({ "ready": true }))["allowed"], true);
    let answer = ask(json!({ "volumeRequests": [{ "removeVolumeOptions": { "name": "a" } }] }));
    assert_eq!(answer["status"]["details"]["causes"][0]["field"], "status.volumeRequests", "{answer}");
    assert_eq!(ask(json!({ "ready": "yes" }))["allowed"], false);
}

proptest::proptest! {
    /// Any object of any kind gets an answer.
    #[test]
    fn no_object_panics(index in 0..WEBHOOKS.len(), creating: bool, spec in ".{0,60}", name in "[a-z]{1,9}") {
        let hook = WEBHOOKS[index].hook;
        let spec = serde_json::from_str(&spec).unwrap_or_else(|_| json!({ name.as_str(): spec, "source": { "kind": name } }));
        let object = json!({ "apiVersion": "a/v1", "kind": "A", "metadata": { "name": "a" }, "spec": spec });
        let operation = if creating { "CREATE" } else { "UPDATE" };
        let _answer = ask(hook, operation, "ann", &object, Some(&object));
    }
}
