//! Bodies of `expand-vm-spec`, and reviews of machines with an instance type or a preference.

use super::*;
use crate::admission::{self, Facts, Known};
use barevirt_api::settings::Settings;
use barevirt_api::validate::{Cause, Path};
use barevirt_api::webhooks::Hook;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

fn refusal(body: &Value) -> String {
    let refusal = given("shop", body.to_string().as_bytes()).unwrap_err();
    assert_eq!(refusal.code, 400);
    refusal.message
}

fn machine(spec: Value) -> Value {
    let mut machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "web", "creationTimestamp": null},
        "spec": {"runStrategy": "Always", "template": {"metadata": {"labels": {}}, "spec": {"domain": {
            "devices": {"rng": {}}, "resources": {}}}}},
    });
    for (name, value) in spec.as_object().unwrap() {
        machine["spec"][name] = value.clone();
    }
    machine
}

#[test]
fn a_machine_of_the_body_belongs_to_the_namespace_of_the_path() {
    let vm = given("shop", machine(json!({})).to_string().as_bytes()).unwrap();
    assert_eq!(vm.metadata.namespace.as_deref(), Some("shop"));
    let mut other = machine(json!({}));
    other["metadata"]["namespace"] = json!("shop");
    assert!(given("shop", other.to_string().as_bytes()).is_ok());
    other["metadata"]["namespace"] = json!("bank");
    assert_eq!(refusal(&other), "VM namespace must be empty or shop");
}

#[test]
fn an_invalid_body_is_refused_with_the_reason() {
    assert_eq!(given("shop", b"").unwrap_err().message, "empty request body");
    let broken = given("shop", b"{").unwrap_err().message;
    assert!(broken.starts_with("Can not unmarshal Request body to struct, error: "), "{broken}");
    let message = refusal(&json!({"metadata": {}, "spec": {"template": 1}}));
    assert!(message.starts_with("Object is not a valid VirtualMachine: "), "{message}");
    assert_eq!(
        refusal(&machine(json!({"instancetypo": {"name": "a"}, "template": {"spec": {"domain": {
            "devices": {"disks": [{"name": "a", "turbo": true}]}}}}}))),
        "Object is not a valid VirtualMachine: unknown field spec.instancetypo, \
         spec.template.spec.domain.devices.disks[0].turbo"
    );
}

fn review(hook: Hook, spec: Value, named: Lookups) -> Value {
    review_with(hook, spec, &Facts { named, ..Facts::default() })
}

fn review_with(hook: Hook, spec: Value, facts: &Facts) -> Value {
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "operation": "CREATE", "name": "web", "namespace": "shop", "userInfo": {"username": "ann"},
            "kind": {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine"},
            "resource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachines"},
            "object": machine(spec),
        },
    });
    let settings = Settings::default();
    let now = Time(jiff::Timestamp::UNIX_EPOCH);
    let known = Known { namespace: "kubevirt", settings: &settings, facts, now: &now };
    let answer = admission::review(hook, &known, body.to_string().as_bytes()).unwrap();
    serde_json::to_value(answer).unwrap()["response"].clone()
}

fn small() -> Lookup<barevirt_api::instancetype::VirtualMachineInstancetypeSpec> {
    Lookup::Found(serde_json::from_value(json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}})).unwrap())
}

fn causes(response: &Value) -> Vec<String> {
    let causes = response["status"]["details"]["causes"].as_array().cloned().unwrap_or_default();
    let text = |cause: &Value, name: &str| cause[name].as_str().unwrap_or_default().to_owned();
    causes
        .iter()
        .map(|cause| {
            format!("{} {}: {}", text(cause, "reason"), text(cause, "field"), text(cause, "message"))
        })
        .collect()
}

#[test]
fn a_machine_is_validated_as_what_it_will_be() {
    let named = Lookups { instancetype: small(), preference: Lookup::None };
    let response = review(Hook::Machine, json!({"instancetype": {"name": "small"}}), named.clone());
    assert_eq!(response["allowed"], true, "{response}");
    // Only the mutating hook writes a patch, and it copies nothing of the instance type into the machine.
    assert!(response.get("patch").is_none());
    let own = json!({"instancetype": {"name": "small"}, "template": {"spec": {"domain": {
        "devices": {}, "memory": {"guest": "2Gi"}}}}});
    let response = review(Hook::Machine, own, named);
    let field = "spec.template.spec.domain.memory.guest";
    assert_eq!(
        causes(&response),
        [format!("FieldValueInvalid {field}: VM field(s) {field} conflicts with selected instance type")]
    );
    assert_eq!(response["status"]["code"], 422);
}

#[test]
fn an_instance_type_may_come_later() {
    let why = "virtualmachineclusterinstancetypes.instancetype.kubevirt.io \"small\" not found";
    let named = Lookups { instancetype: Lookup::Missing(why.to_owned()), preference: Lookup::None };
    assert_eq!(causes(&review(Hook::Machine, json!({"instancetype": {"name": "small"}}), named)), [""; 0]);
}

#[test]
fn inferred_names_are_written_into_the_machine() {
    use barevirt_api::instancetype::infer::{Choice, Named};
    use barevirt_api::instancetype::matcher::Family;
    let spec = json!({
        "instancetype": {"inferFromVolume": "disk", "inferFromVolumeFailurePolicy": "Ignore"},
        "preference": {"inferFromVolume": "disk", "inferFromVolumeFailurePolicy": "Ignore"},
        "template": {"spec": {"domain": {"devices": {}, "memory": {"guest": "512Mi"}}}},
    });
    let named = Named { name: "small".to_owned(), kind: None };
    let inferred = vec![
        (Family::Instancetype, Ok(Choice::Named(named, true))),
        (Family::Preference, Ok(Choice::Without)),
    ];
    let facts = Facts {
        named: Lookups { instancetype: small(), preference: Lookup::None },
        inferred,
        ..Facts::default()
    };
    let response = review_with(Hook::MutateMachine, spec.clone(), &facts);
    let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut machine = machine(spec.clone());
    json_patch::patch(&mut machine, &patch).unwrap();
    assert_eq!(machine["spec"]["instancetype"], json!({"name": "small"}));
    assert_eq!(machine["spec"].get("preference"), None);
    assert_eq!(machine["spec"]["template"]["spec"]["domain"].get("memory"), None);

    let field = Path::new("spec.instancetype.inferFromVolume");
    let inferred = vec![(Family::Instancetype, Err(Cause::not_found(&field, "no label")))];
    let facts = Facts { inferred, ..Facts::default() };
    let response = review_with(Hook::MutateMachine, spec, &facts);
    assert_eq!(causes(&response), ["FieldValueNotFound spec.instancetype.inferFromVolume: no label"]);
}

#[test]
fn the_machine_type_of_the_preference_comes_before_ours() {
    let preference =
        json!({"machine": {"preferredMachineType": "pc-q35-9.2"}, "preferredSubdomain": "later"});
    let named = Lookups {
        instancetype: Lookup::None,
        preference: Lookup::Found(serde_json::from_value(preference).unwrap()),
    };
    let types = |named: Lookups| {
        let response = review(Hook::MutateMachine, json!({"preference": {"name": "p"}}), named);
        let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
        let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
        let mut machine = machine(json!({"preference": {"name": "p"}}));
        json_patch::patch(&mut machine, &patch).unwrap();
        assert_eq!(machine["spec"]["template"]["spec"].get("subdomain"), None);
        machine["spec"]["template"]["spec"]["domain"]["machine"]["type"].clone()
    };
    assert_eq!(types(named), "pc-q35-9.2");
    assert_eq!(types(Lookups::default()), "q35");
}
