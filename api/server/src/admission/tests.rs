//! Reviews as the API server sends them.

mod kinds;

use super::*;
use barevirt_api::gates::Gates;
use barevirt_api::names;
use barevirt_api::settings::Settings;
use serde_json::{Value, json};

const NAMESPACE: &str = "kubevirt";

fn vmi(change: impl FnOnce(&mut Value)) -> Value {
    let mut vmi = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": "web", "namespace": "shop", "creationTimestamp": null },
        "spec": {
            "domain": {
                "memory": { "guest": "64Mi" },
                "devices": { "disks": [{ "name": "root", "disk": { "bus": "virtio" } }] },
            },
            "volumes": [{ "name": "root", "containerDisk": { "image": "guest" } }],
        },
    });
    change(&mut vmi);
    vmi
}

fn now() -> Time {
    serde_json::from_value(json!("2026-01-02T03:04:05Z")).unwrap()
}

fn ask(hook: Hook, operation: &str, user: &str, object: &Value, old: Option<&Value>) -> Value {
    ask_as(hook, operation, &json!({ "username": user }), object, old)
}

fn ask_as(hook: Hook, operation: &str, user: &Value, object: &Value, old: Option<&Value>) -> Value {
    ask_with(&Settings::default(), hook, operation, user, object, old)
}

fn reviewed(settings: &Settings, hook: Hook, body: &[u8]) -> Result<Value, Refusal> {
    let (facts, now) = (Facts::default(), now());
    let known = Known { namespace: NAMESPACE, settings, facts: &facts, now: &now };
    review(hook, &known, body).map(|answer| serde_json::to_value(answer).unwrap()["response"].clone())
}

fn ask_with(
    settings: &Settings,
    hook: Hook,
    operation: &str,
    user: &Value,
    object: &Value,
    old: Option<&Value>,
) -> Value {
    let kind = object["kind"].clone();
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": { "group": "kubevirt.io", "version": "v1", "kind": kind },
            "resource": { "group": "kubevirt.io", "version": "v1", "resource": "virtualmachineinstances" },
            "name": "web", "namespace": "shop", "operation": operation,
            "userInfo": user,
            "object": object, "oldObject": old, "dryRun": false,
        },
    });
    reviewed(settings, hook, body.to_string().as_bytes()).unwrap()
}

fn patched(answer: &Value, object: &Value) -> Value {
    let bytes: Vec<u8> = serde_json::from_value(answer["patch"].clone()).unwrap();
    let patch: Patch = serde_json::from_slice(&bytes).unwrap();
    let mut object = object.clone();
    json_patch::patch(&mut object, &patch).unwrap();
    object
}

#[test]
fn a_new_instance_gets_its_defaults_phase_and_finalizer() {
    let object = vmi(|_| {});
    let answer = ask(Hook::MutateInstance, "CREATE", "ann", &object, None);
    assert_eq!(answer["allowed"], true);
    let object = patched(&answer, &object);
    assert_eq!(object["status"]["phase"], "Pending");
    assert_eq!(object["metadata"]["finalizers"], json!([names::VMI_FINALIZER]));
    assert_eq!(object["spec"]["domain"]["machine"]["type"], "q35");
    assert_eq!(object["spec"]["networks"][0]["pod"], json!({}));
}

#[test]
fn a_new_migration_gets_its_label_and_its_finalizer() {
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": { "generateName": "kubevirt-migrate-vm-", "namespace": "shop" }, "spec": { "vmiName": "web" },
    });
    let made = patched(&ask(Hook::MutateMigration, "CREATE", "ann", &object, None), &object);
    assert_eq!(made["metadata"]["labels"], json!({ names::MIGRATION_SELECTOR_LABEL: "web" }));
    assert_eq!(made["metadata"]["finalizers"], json!([names::MIGRATION_FINALIZER]));
    assert_eq!(made["spec"], object["spec"]);
}

#[test]
fn a_launcher_is_completed_by_what_others_have_mounted_in_it() {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "virt-launcher-web", "namespace": "shop" },
        "spec": {
            "containers": [
                { "name": "compute", "volumeMounts": [{ "name": "cloud", "mountPath": "/cloud" }] },
                { "name": "virtiofs-token", "env": [{ "name": "CONTAINER_PATH", "value": "/cloud" }] },
            ],
            "volumes": [{ "name": "cloud", "secret": { "secretName": "cloud" } }],
            "from_the_future": { "a": 1 },
        },
    });
    let made = patched(&ask(Hook::MutateLauncher, "CREATE", "ann", &object, None), &object);
    let mount = json!({
        "name": "cloud", "mountPath": "/var/run/kubevirt-private/container-paths/token", "readOnly": true,
    });
    assert_eq!(made["spec"]["containers"][1]["volumeMounts"], json!([mount]));
    assert_eq!(
        (&made["spec"]["containers"][0], &made["spec"]["from_the_future"]["a"]),
        (&object["spec"]["containers"][0], &json!(1))
    );
}

#[test]
fn only_the_controller_says_what_an_instance_was_made_from() {
    let object =
        vmi(|vmi| vmi["status"] = json!({ "virtualMachineRevisionName": "r", "nodeName": "node02" }));
    for (user, kept) in
        [("system:serviceaccount:kubevirt:kubevirt-controller", json!("r")), ("ann", Value::Null)]
    {
        let made = patched(&ask(Hook::MutateInstance, "CREATE", user, &object, None), &object);
        assert_eq!(made["status"]["virtualMachineRevisionName"], kept, "{user}");
        assert_eq!(made["status"]["nodeName"], Value::Null);
    }
}

#[test]
fn unknown_fields_survive_admission() {
    let object = vmi(|vmi| vmi["spec"]["domain"]["devices"]["from_the_future"] = json!({ "a": 1 }));
    let answer = ask(Hook::MutateInstance, "CREATE", "ann", &object, None);
    let object = patched(&answer, &object);
    assert_eq!(object["spec"]["domain"]["devices"]["from_the_future"]["a"], 1);
    assert_eq!(object["metadata"]["creationTimestamp"], Value::Null);
}

#[test]
fn a_refusal_names_every_cause_with_its_field() {
    let object = vmi(|vmi| {
        vmi["spec"]["domain"]["devices"]["disks"] = json!([{ "name": "root", "disk": {} }, { "name": "root", "disk": {} }, { "name": "other", "disk": {} }]);
    });
    let answer = ask(Hook::InstanceCreate, "CREATE", "ann", &object, None);
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["status"]["code"], 422);
    assert_eq!(answer["status"]["reason"], "Invalid");
    let causes = answer["status"]["details"]["causes"].as_array().unwrap();
    let fields: Vec<&str> = causes.iter().map(|cause| cause["field"].as_str().unwrap()).collect();
    assert!(fields.contains(&"spec.domain.devices.disks[1].name"), "{fields:?}");
    assert!(fields.iter().any(|field| field.starts_with("spec.domain.devices.disks[2]")), "{fields:?}");
}

#[test]
fn a_refusal_says_what_to_use_instead() {
    let object = vmi(|vmi| {
        vmi["spec"]["domain"]["clock"] = json!({ "timer": { "hpet": { "tickPolicy": "delay" } } });
    });
    let answer = ask(Hook::InstanceCreate, "CREATE", "ann", &object, None);
    let message = "spec.domain.clock.timer.hpet.tickPolicy is not supported yet; \
                   leave it out, or switch the timer off with present: false (docs/machine.md#clock)";
    assert_eq!(answer["status"]["details"]["causes"][0]["message"], message, "{answer}");
    assert_eq!(answer["status"]["message"], message);
}

#[test]
fn the_installations_gates_decide() {
    let object = vmi(|vmi| {
        vmi["spec"]["volumes"][0] =
            json!({ "name": "root", "hostDisk": { "path": "/a.img", "type": "Disk" } });
    });
    let message = |gates: Gates| {
        let settings = Settings { gates, ..Settings::default() };
        let user = json!({ "username": "ann" });
        let answer = ask_with(&settings, Hook::InstanceCreate, "CREATE", &user, &object, None);
        answer["status"]["message"].as_str().unwrap_or_default().to_owned()
    };
    let off = message(Gates::default());
    let on = message(Gates::new(["HostDisk".to_owned()], []));
    assert!(off.contains("HostDisk feature gate is not enabled"), "{off}");
    assert_eq!(on, "");
}

#[test]
fn objects_of_an_older_api_version_are_validated_too() {
    let older = |bus: &str| {
        vmi(|vmi| {
            vmi["apiVersion"] = json!("kubevirt.io/v1alpha3");
            vmi["spec"]["domain"]["devices"]["disks"][0]["disk"]["bus"] = json!(bus);
        })
    };
    assert_eq!(ask(Hook::InstanceCreate, "CREATE", "ann", &older("virtio"), None)["allowed"], true);
    assert_eq!(ask(Hook::InstanceCreate, "CREATE", "ann", &older("tape"), None)["allowed"], false);
    let patched =
        patched(&ask(Hook::MutateInstance, "CREATE", "ann", &older("virtio"), None), &older("virtio"));
    assert_eq!(patched["apiVersion"], "kubevirt.io/v1alpha3");
}

#[test]
fn status_is_ours_alone() {
    let old = vmi(|vmi| vmi["status"] = json!({ "phase": "Running", "nodeName": "node01" }));
    let forged = vmi(|vmi| vmi["status"] = json!({ "phase": "Succeeded", "nodeName": "node02" }));
    let by_user = ask(Hook::MutateInstance, "UPDATE", "ann", &forged, Some(&old));
    let by_user = patched(&by_user, &forged);
    assert_eq!(by_user["status"]["phase"], "Running");
    assert_eq!(by_user["status"]["nodeName"], "node01");
    let handler = "system:serviceaccount:kubevirt:kubevirt-handler";
    let by_handler = ask(Hook::MutateInstance, "UPDATE", handler, &forged, Some(&old));
    assert_eq!((&by_handler["allowed"], &by_handler["patch"]), (&json!(true), &Value::Null));
}

#[test]
fn a_handler_changes_only_what_is_on_its_node() {
    let old = vmi(|vmi| vmi["status"] = json!({ "phase": "Scheduled", "nodeName": "node01" }));
    let new = vmi(|vmi| vmi["status"] = json!({ "phase": "Running", "nodeName": "node01" }));
    for (node, allowed) in [(json!(["node01"]), true), (json!(["node02"]), false), (json!([]), false)] {
        let user = json!({ "username": "system:serviceaccount:kubevirt:kubevirt-handler",
                           "extra": { "authentication.kubernetes.io/node-name": node } });
        let answer = ask_as(Hook::InstanceUpdate, "UPDATE", &user, &new, Some(&old));
        assert_eq!(answer["allowed"], allowed, "{node}: {answer}");
    }
}

#[test]
fn running_is_accepted_with_a_warning() {
    let vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "web" },
        "spec": { "running": false, "template": { "spec": vmi(|_| {})["spec"] } },
    });
    let answer = ask(Hook::Machine, "CREATE", "ann", &vm, None);
    assert_eq!(answer["allowed"], true, "{answer}");
    assert!(answer["warnings"][0].as_str().unwrap().contains("runStrategy"));
}

#[test]
fn a_service_account_of_another_namespace_is_a_user() {
    let old = vmi(|vmi| vmi["status"] = json!({ "phase": "Running" }));
    let forged = vmi(|vmi| vmi["status"] = json!({ "phase": "Succeeded" }));
    let answer = ask(
        Hook::MutateInstance,
        "UPDATE",
        "system:serviceaccount:shop:kubevirt-handler",
        &forged,
        Some(&old),
    );
    assert_eq!(patched(&answer, &forged)["status"]["phase"], "Running");
}

#[test]
fn a_body_that_is_no_review_is_a_bad_request() {
    for body in ["", "{}", "[]", r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#] {
        assert_eq!(
            reviewed(&Settings::default(), Hook::MutateMachine, body.as_bytes()).unwrap_err().code,
            400,
            "{body}"
        );
    }
}

proptest::proptest! {
    #[test]
    fn no_body_panics(body in ".{0,300}") {
        let _answer = reviewed(&Settings::default(), Hook::Machine, body.as_bytes());
    }
}

#[test]
fn a_machine_is_counted_when_it_is_made_in_earnest() {
    let asks = |hook, operation: &str, dry_run: bool| {
        let kind = json!({ "group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine" });
        let body = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u-1", "kind": kind, "name": "web", "namespace": "shop", "operation": operation,
                "resource": { "group": "kubevirt.io", "version": "v1", "resource": "virtualmachines" },
                "userInfo": { "username": "jdoe" }, "dryRun": dry_run,
                "object": { "metadata": { "name": "web" } }, "oldObject": null,
            },
        });
        creates_machine(hook, &request(body.to_string().as_bytes()).unwrap())
    };
    assert!(asks(Hook::Machine, "CREATE", false));
    assert!(!asks(Hook::Machine, "UPDATE", false));
    assert!(!asks(Hook::Machine, "CREATE", true));
    assert!(!asks(Hook::MutateMachine, "CREATE", false));
}
