//! SR-IOV cards: no node of the tests has one. What is missing is named, from admission to the start of the guest.
//! The test bed's own delegate attaches the network in place of Multus, and reports no PCI function on it.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{RUNNING, SOON};
use barevirt_e2e::{Namespace, guest, in_namespace, networks};
use serde_json::{Value, json};

/// The resource of cards that nobody has.
const RESOURCE: &str = "sriov.e2e.test/vf";
/// A guest whose second card is SR-IOV, with these fields beside.
fn with_card(more: &Value) -> Result<Value> {
    let mut manifest = guest::instance("vm");
    let spec = guest::spec_of(&mut manifest);
    let mut card = json!({ "name": "fast", "sriov": {} });
    if let (Some(card), Some(more)) = (card.as_object_mut(), more.as_object()) {
        card.extend(more.clone());
    }
    guest::push(&mut spec["domain"]["devices"]["interfaces"], card);
    guest::push(&mut spec["networks"], json!({ "name": "fast", "multus": { "networkName": "fast" } }));
    Ok(manifest)
}

/// Whether a condition of the instance, with that reason if one is given, says this.
fn says(vmi: &Value, reason: &str, words: &str) -> bool {
    let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| {
        (reason.is_empty() || condition["reason"] == reason)
            && condition["message"].as_str().is_some_and(|message| message.contains(words))
    })
}

/// A node whose root may not raise limits cannot serve guests with devices: the start stops before the card is looked for.
fn lacks_memory_lock(vmi: &Value) -> bool {
    vmi["status"]["phase"] != "Running" && says(vmi, "", "raise the limit of locked memory")
}

fn admission(namespace: &Namespace) -> Result<()> {
    for (more, field) in [
        (json!({ "model": "virtio" }), "spec.domain.devices.interfaces[1].model"),
        (json!({ "state": "down" }), "spec.domain.devices.interfaces[1].state"),
        (json!({ "tag": "a" }), "spec.domain.devices.interfaces[1].tag"),
    ] {
        let message = namespace.refusal(&with_card(&more)?)?;
        ensure!(message.contains(field), "the message does not name {field}: {message}");
    }
    Ok(())
}

#[test]
fn a_card_that_no_node_has_is_missed_by_name() {
    in_namespace("sriov", |namespace| {
        admission(namespace)?;
        networks::define(namespace, "fast", &json!({}))?;
        namespace.apply(&with_card(&json!({}))?)?;
        let nothing = format!(
            "network attachment definition {}/fast has no annotation k8s.v1.cni.cncf.io/resourceName",
            namespace.name()
        );
        namespace.wait("vmi", "vm", "to say that the definition names no resource", SOON, |vmi| {
            says(vmi, "FailedCreate", &nothing)
        })?;

        let annotation = format!("k8s.v1.cni.cncf.io/resourceName={RESOURCE}");
        namespace.kubectl(&["annotate", "network-attachment-definition", "fast", &annotation])?;
        // By default another component adds the resource to pods, and this cluster has none. So the pod gets no device.
        let vmi = namespace.wait("vmi", "vm", "to say what is missing on its node", RUNNING, |vmi| {
            vmi["status"]["phase"] == "Failed" || lacks_memory_lock(vmi)
        })?;
        if lacks_memory_lock(&vmi) {
            let arguments = namespace.launcher("vm")?["spec"]["containers"][0]["args"].clone();
            let told = json!(format!("--network-resource=fast={RESOURCE}"));
            ensure!(arguments.as_array().is_some_and(|all| all.contains(&told)), "{arguments}");
            return Ok(());
        }
        ensure!(vmi["status"]["reason"] == "HostDeviceMissing", "{}", vmi["status"]);
        let event = namespace.wait_event("vm", "Stopped")?;
        for words in ["network fast", RESOURCE, "PCIDEVICE_SRIOV_E2E_TEST_VF"] {
            ensure!(event.contains(words), "the event does not name {words}: {event}");
        }
        Ok(())
    });
}
