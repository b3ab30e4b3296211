//! Requests of the API server to a webhook, with objects from a tenant: each is answered, or is a bad request.
//! The first three bytes choose the webhook, the operation and the account.
#![no_main]

use barevirt_api::settings::Settings;
use barevirt_api::webhooks::{Hook, WEBHOOKS};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use virt_api::admission::{Facts, Known, review};

fuzz_target!(|input: &[u8]| {
    let [which, creating, ours, bytes @ ..] = input else { return };
    let hook = WEBHOOKS[usize::from(*which) % WEBHOOKS.len()].hook;
    ask(hook, bytes);
    // Bytes that are an object reach the rules directly.
    let Ok(object) = serde_json::from_slice::<Value>(bytes) else { return };
    let account = if ours & 1 == 1 { "system:serviceaccount:kubevirt:kubevirt-controller" } else { "ann" };
    let kind = json!({ "group": "kubevirt.io", "version": "v1", "kind": "VirtualMachineInstance" });
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": kind, "name": "web", "namespace": "shop",
            "resource": { "group": "kubevirt.io", "version": "v1", "resource": "virtualmachineinstances" },
            "operation": if creating & 1 == 1 { "CREATE" } else { "UPDATE" },
            "userInfo": { "username": account }, "object": object, "oldObject": object, "dryRun": false,
        },
    });
    ask(hook, body.to_string().as_bytes());
});

fn ask(hook: Hook, body: &[u8]) {
    let (settings, facts, now) = (Settings::default(), Facts::default(), Time(Timestamp::UNIX_EPOCH));
    let known = Known { namespace: "kubevirt", settings: &settings, facts: &facts, now: &now };
    match review(hook, &known, body) {
        Ok(answer) => {
            let answer = answer.response.expect("an answer");
            assert!(answer.allowed || answer.result.code == 422);
        }
        Err(refusal) => assert_eq!(refusal.code, 400),
    }
}
