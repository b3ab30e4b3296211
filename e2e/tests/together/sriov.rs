//! SR-IOV cards: no node of the tests has one. What is missing is named, from admission to the start of the guest.
//! The test bed's own delegate attaches the network in place of Multus, and reports no PCI function on it. A card that is added
//! to a running machine waits for a migration, whose pod asks for it.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, condition, guest, in_namespace, networks};
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
    let field = "spec.domain.devices.interfaces[1].state";
    let message = namespace.refusal(&with_card(&json!({ "state": "down" }))?)?;
    ensure!(message.contains(field), "the message does not name {field}: {message}");
    Ok(())
}

#[test]
fn an_instance_names_the_sriov_card_that_no_node_has() {
    in_namespace("sriov", |namespace| {
        admission(namespace)?;
        networks::define(namespace, "fast", &json!({}))?;
        // Model and tag have no effect, and are accepted with a warning.
        namespace.apply(&with_card(&json!({ "model": "virtio", "tag": "a" }))?)?;
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

/// Changes the template of the machine `vm` by operations of a JSON patch.
fn change(namespace: &Namespace, operations: &Value) -> Result<()> {
    namespace.change("vm", "vm", operations)
}

/// Names of the interfaces of an instance or of a machine's template.
fn cards(spec: &Value) -> Vec<Value> {
    let all = spec["domain"]["devices"]["interfaces"].as_array().cloned().unwrap_or_default();
    all.into_iter().map(|card| card["name"].clone()).collect()
}

/// The networks that a pod asks for.
fn asked(pod: &Value) -> &str {
    pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str().unwrap_or_default()
}

/// The pod that a guest is to move to has what the card takes.
fn target_asks(namespace: &Namespace) -> Result<()> {
    let here = namespace.launcher("vm")?["metadata"]["name"].clone();
    ensure!(asked(&namespace.launcher("vm")?).is_empty(), "the running pod asks for the network");
    namespace.virtctl(&["migrate", "vm"])?;
    let told = json!(format!("--network-resource=fast={RESOURCE}"));
    wait::until_true("a pod that asks for the card", SOON, || {
        let pods = namespace.list("pod")?;
        let mut others = pods.iter().filter(|pod| pod["metadata"]["name"] != here);
        Ok(others.any(|pod| {
            let arguments = pod["spec"]["containers"][0]["args"].as_array().cloned().unwrap_or_default();
            asked(pod).contains(r#""name":"fast""#) && arguments.contains(&told)
        }))
    })?;
    // No node has the card, so this migration ends without a move, at the latest now.
    namespace.delete_all("vmim")?;
    Ok(())
}

#[test]
fn a_card_that_is_added_waits_for_a_migration_whose_pod_asks_for_it_and_can_be_taken_back() {
    in_namespace("sriov-plugged", |namespace| {
        networks::define(namespace, "fast", &json!({}))?;
        let annotation = format!("k8s.v1.cni.cncf.io/resourceName={RESOURCE}");
        namespace.kubectl(&["annotate", "network-attachment-definition", "fast", &annotation])?;
        namespace.apply(&guest::without_system(guest::machine("vm", "Always")))?;
        let uid = namespace.wait_phase("vm", "Running", RUNNING)?["metadata"]["uid"].clone();
        namespace.wait("vmi", "vm", "to be migratable", SOON, |vmi| {
            condition(vmi, "LiveMigratable")["status"] == "True"
        })?;
        let template = "/spec/template/spec";
        change(
            namespace,
            &json!([
                { "op": "add", "path": format!("{template}/networks/-"),
                  "value": { "name": "fast", "multus": { "networkName": "fast" } } },
                { "op": "add", "path": format!("{template}/domain/devices/interfaces/-"),
                  "value": { "name": "fast", "sriov": {} } },
            ]),
        )?;
        let vmi = namespace.wait("vmi", "vm", "to ask for a migration", SOON, |vmi| {
            condition(vmi, "MigrationRequired")["status"] == "True"
        })?;
        let required = condition(&vmi, "MigrationRequired");
        ensure!(required["reason"] == "AutoMigrationDueToLiveUpdate", "{required}");
        ensure!(cards(&vmi["spec"]) == ["default", "fast"], "{}", vmi["spec"]);
        let machine = namespace.need("vm", "vm")?;
        ensure!(condition(&machine, "RestartRequired").is_null(), "{}", machine["status"]);
        let card = &machine["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][1];
        card["macAddress"].as_str().with_context(|| format!("no address is in the template: {card}"))?;
        target_asks(namespace)?;

        let state = format!("{template}/domain/devices/interfaces/1/state");
        change(namespace, &json!([{ "op": "add", "path": state, "value": "absent" }]))?;
        namespace.wait("vm", "vm", "to have one card", SOON, |vm| {
            cards(&vm["spec"]["template"]["spec"]) == ["default"]
        })?;
        namespace.wait("vmi", "vm", "to ask for nothing", SOON, |vmi| {
            cards(&vmi["spec"]) == ["default"] && condition(vmi, "MigrationRequired").is_null()
        })?;
        ensure!(namespace.need("vmi", "vm")?["metadata"]["uid"] == uid, "another instance");
        Ok(())
    });
}
