//! Arbitrary requests to the webhooks: reviews of every kind with any change, and any bytes. Each is answered
//! or refused as a bad request; nothing panics, and a patch of defaults fits its object.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking, helpers of tests too.

use barevirt_api::crd;
use barevirt_api::settings::Settings;
use barevirt_api::webhooks::{Hook, WEBHOOKS, Webhook};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DynamicObject;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use virt_api::admission::{Facts, Known, review};

const HANDLER: &str = "system:serviceaccount:kubevirt:kubevirt-handler";

/// Group, plural and kind of every definition. Computed once, because definitions take time and there are
/// many cases.
static KINDS: LazyLock<Vec<[String; 3]>> = LazyLock::new(|| {
    let names = |crd: CustomResourceDefinition| [crd.spec.group, crd.spec.names.plural, crd.spec.names.kind];
    crd::all().into_iter().map(names).collect()
});

/// The kind of a webhook's objects.
fn kind(webhook: &Webhook) -> String {
    if webhook.resources == ["pods"] {
        return "Pod".to_owned();
    }
    let plural = webhook.resources[0].split('/').next().unwrap();
    let names = KINDS.iter().find(|[group, of, _]| group == webhook.api.0 && of == plural);
    names.map_or_else(|| "Eviction".to_owned(), |[_, _, kind]| kind.clone())
}

fn instance() -> Value {
    json!({
        "domain": {
            "cpu": { "cores": 1, "features": [{ "name": "vmx", "policy": "require" }] },
            "memory": { "guest": "64Mi" },
            "devices": {
                "disks": [{ "name": "root", "disk": { "bus": "virtio" } }, { "name": "seed", "cdrom": {} }],
                "interfaces": [{ "name": "default", "masquerade": {}, "ports": [{ "port": 80 }] }],
            },
        },
        "networks": [{ "name": "default", "pod": {} }],
        "volumes": [
            { "name": "root", "containerDisk": { "image": "guest" } },
            { "name": "seed", "cloudInitNoCloud": { "userData": "x" } },
        ],
    })
}

/// A non-empty specification, for kinds that have rules about it.
fn specification(kind: &str) -> Value {
    let template = json!({ "metadata": { "labels": { "a": "b" } }, "spec": instance() });
    let machine = json!({
        "runStrategy": "Halted", "template": template, "instancetype": { "name": "u1.small" },
        "dataVolumeTemplates": [{ "metadata": { "name": "dv" }, "spec": { "pvc": {}, "source": { "blank": {} } } }],
    });
    let selector = json!({ "matchLabels": { "a": "b" } });
    let source = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "web" });
    match kind {
        "VirtualMachine" => machine,
        "VirtualMachineInstance" => instance(),
        "VirtualMachineInstanceReplicaSet" => {
            json!({ "replicas": 1, "selector": selector, "template": template })
        }
        "VirtualMachinePool" => json!({
            "replicas": 1, "selector": selector, "maxUnavailable": "50%",
            "virtualMachineTemplate": { "metadata": { "labels": { "a": "b" } }, "spec": machine },
        }),
        "VirtualMachineInstanceMigration" => json!({ "vmiName": "web" }),
        "VirtualMachineInstancetype" | "VirtualMachineClusterInstancetype" => {
            json!({ "cpu": { "guest": 1 }, "memory": { "guest": "1Gi", "overcommitPercent": 10 } })
        }
        "VirtualMachinePreference" | "VirtualMachineClusterPreference" => {
            json!({ "cpu": { "preferredCPUTopology": "spread", "spreadOptions": { "ratio": 2 } } })
        }
        "VirtualMachineRestore" => json!({ "target": source, "virtualMachineSnapshotName": "s" }),
        "KubeVirt" => json!({ "configuration": {
            "developerConfiguration": { "featureGates": ["HostDisk"], "cpuAllocationRatio": 10 },
            "machineType": "q35", "tlsConfiguration": { "minTLSVersion": "VersionTLS12" },
        } }),
        "Pod" => json!({
            "containers": [
                { "name": "compute", "volumeMounts": [{ "name": "a", "mountPath": "/a", "subPath": "b" }] },
                { "name": "virtiofs-a", "env": [{ "name": "CONTAINER_PATH", "value": "/a/b" }], "volumeMounts": [] },
                { "name": "virtiofs-b", "env": [{ "name": "CONTAINER_PATH", "value": "/a" }] },
            ],
            "volumes": [{ "name": "a", "emptyDir": {} }],
        }),
        "MigrationPolicy" => {
            json!({ "selectors": { "namespaceSelector": { "a": "b" } }, "bandwidthPerMigration": "1Mi" })
        }
        _ => json!({ "source": source, "selector": selector }),
    }
}

fn object(webhook: &Webhook) -> Value {
    let kind = kind(webhook);
    let (group, version) = webhook.api;
    let spec = specification(&kind);
    json!({
        "apiVersion": format!("{group}/{version}"), "kind": kind,
        "metadata": { "name": "web", "namespace": "shop", "uid": "u-2", "labels": { "a": "b" }, "annotations": { "a": "b" } },
        "spec": spec,
        "status": { "phase": "Running", "nodeName": "node01", "conditions": [] },
    })
}

fn asked(webhook: &Webhook, operation: &str, user: &str, object: &Value, old: &Value) -> Value {
    let (group, version) = webhook.api;
    let (resource, subresource) = webhook.resources[0].split_once('/').unwrap_or((webhook.resources[0], ""));
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": { "group": group, "version": version, "kind": object["kind"] },
            "resource": { "group": group, "version": version, "resource": resource },
            "subResource": subresource, "name": "web", "namespace": "shop", "operation": operation,
            "userInfo": { "username": user, "extra": { "authentication.kubernetes.io/node-name": ["node01"] } },
            "object": object, "oldObject": old, "dryRun": false,
        },
    })
}

/// Sends a review and checks the answer.
fn answered(hook: Hook, body: &[u8]) {
    let now: Time = serde_json::from_value(json!("2026-01-02T03:04:05Z")).unwrap();
    let (settings, facts) = (Settings::default(), Facts::default());
    let known = Known { namespace: "kubevirt", settings: &settings, facts: &facts, now: &now };
    let answer = match review(hook, &known, body) {
        Ok(answer) => serde_json::to_value(answer).unwrap()["response"].clone(),
        Err(refusal) => {
            assert_eq!(refusal.code, 400, "{hook:?}: {refusal:?}");
            return;
        }
    };
    let request: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(answer["uid"], request["request"]["uid"]);
    if answer["allowed"] == json!(false) {
        assert_eq!(answer["status"]["code"], 422, "{hook:?}: {answer}");
        assert!(!answer["status"]["message"].as_str().unwrap().is_empty());
        assert!(!answer["status"]["details"]["causes"].as_array().unwrap().is_empty());
        assert_eq!(answer["patch"], Value::Null);
    } else if !answer["patch"].is_null() {
        let bytes: Vec<u8> = serde_json::from_value(answer["patch"].clone()).unwrap();
        let patch: json_patch::Patch = serde_json::from_slice(&bytes).unwrap();
        // The object has metadata, as every object from the API server does.
        let object: DynamicObject = serde_json::from_value(request["request"]["object"].clone()).unwrap();
        json_patch::patch(&mut serde_json::to_value(object).unwrap(), &patch).unwrap();
    }
}

/// A change of a value somewhere in a document.
#[derive(Clone, Debug)]
enum Change {
    Replace(Value),
    Remove,
    Repeat(usize),
    Rename(String),
}

fn change() -> impl Strategy<Value = Change> {
    let word = prop::sample::select(vec![
        "",
        "a",
        "default",
        "root",
        "virtio",
        "1Gi",
        "-1",
        "99Ei",
        "Always",
        "UPDATE",
        "DELETE",
        "kubevirt.io/v1",
        "é\u{1b}",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(|on| json!(on)),
        any::<i64>().prop_map(|number| json!(number)),
        prop::sample::select(vec![
            json!(0),
            json!(1),
            json!(-1),
            json!(65_536),
            json!({}),
            json!([]),
            json!(1.5)
        ]),
        word.clone().prop_map(|text| json!(text)),
        "\\PC{0,100}".prop_map(|text| json!(text)),
    ];
    prop_oneof![
        4 => leaf.prop_map(Change::Replace),
        2 => Just(Change::Remove),
        1 => (1_usize..300).prop_map(Change::Repeat),
        1 => word.prop_map(|name| Change::Rename(name.to_owned())),
    ]
}

/// Pointers to all values in a document.
fn places(value: &Value, pointer: &str, found: &mut Vec<String>) {
    let members: Vec<(String, &Value)> = match value {
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| (name.replace('~', "~0").replace('/', "~1"), member))
            .collect(),
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        _ => Vec::new(),
    };
    for (name, member) in members {
        let pointer = format!("{pointer}/{name}");
        places(member, &pointer, found);
        found.push(pointer);
    }
}

fn apply(document: &mut Value, place: prop::sample::Index, change: Change) {
    let mut found = Vec::new();
    places(document, "", &mut found);
    if found.is_empty() {
        return;
    }
    let pointer = place.get(&found);
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let name = last.replace("~1", "/").replace("~0", "~");
    match (document.pointer_mut(parent), change) {
        (Some(Value::Object(members)), Change::Remove) => drop(members.remove(&name)),
        (Some(Value::Object(members)), Change::Rename(to)) => {
            if let Some(member) = members.remove(&name) {
                members.insert(to, member);
            }
        }
        (Some(Value::Object(members)), Change::Repeat(count)) => {
            if let Some(Value::Array(items)) = members.get_mut(&name)
                && let Some(first) = items.first().cloned()
            {
                items.resize(count, first);
            }
        }
        (Some(Value::Object(members)), Change::Replace(value)) => drop(members.insert(name, value)),
        (Some(Value::Array(items)), change) => {
            let index: usize = name.parse().unwrap();
            match change {
                Change::Remove => drop(items.remove(index)),
                Change::Replace(value) => items[index] = value,
                Change::Repeat(_) => items.push(items[index].clone()),
                Change::Rename(name) => {
                    let item = items[index].take();
                    items[index] = Value::Object(Map::from_iter([(name, item)]));
                }
            }
        }
        (None | Some(_), _) => {}
    }
}

#[test]
fn every_webhook_is_asked_about_an_object_of_its_kind() {
    for webhook in WEBHOOKS {
        for operation in webhook.operations {
            let object = object(webhook);
            let review = asked(webhook, operation, "ann", &object, &object);
            answered(webhook.hook, review.to_string().as_bytes());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_review_is_answered(
        which in any::<prop::sample::Index>(),
        create in any::<bool>(),
        handler in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), change()), 0..6),
    ) {
        let webhook = which.get(WEBHOOKS);
        let (operation, user) =
            (if create { "CREATE" } else { "UPDATE" }, if handler { HANDLER } else { "ann" });
        let object = object(webhook);
        let mut review = asked(webhook, operation, user, &object, &object);
        for (place, inside, change) in changes {
            // Half of the changes are inside the object, which the rules check.
            let document = match review.pointer_mut("/request/object") {
                Some(object) if inside => object,
                _ => &mut review,
            };
            apply(document, place, change);
        }
        answered(webhook.hook, review.to_string().as_bytes());
    }

    #[test]
    fn any_bytes_are_answered_or_refused(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let webhook = which.get(WEBHOOKS);
        let object = object(webhook);
        let mut body = asked(webhook, "CREATE", "ann", &object, &Value::Null).to_string().into_bytes();
        let at = at.index(body.len());
        let end = body.len().min(at + bytes.len());
        body.splice(at..end, bytes);
        answered(webhook.hook, &body);
    }
}
