//! Pools: the wanted number of machines, each with its number, and a template that they follow.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{self, RUNNING, SHUTDOWN, SOON};
use barevirt_e2e::{Namespace, guest, in_namespace, in_no_namespace};
use serde_json::{Value, json};
use std::time::Duration;

const POOL: &str = "vmpool";
const FAIL_FAST: &str = "kubevirt.io/func-test-virt-launcher-fail-fast";

fn manifest(replicas: u32, run_strategy: &str) -> Value {
    let machine = guest::without_system(guest::machine("web", run_strategy));
    json!({
        "apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "guest": "web" } },
            "virtualMachineTemplate": { "metadata": { "labels": { "guest": "web" } }, "spec": machine["spec"] },
        },
    })
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// Names of the namespace's machines, in order.
fn machines(namespace: &Namespace) -> Result<Vec<String>> {
    let all = namespace.list("vm")?;
    let mut names: Vec<String> =
        all.iter().map(|vm| vm["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect();
    names.sort();
    Ok(names)
}

fn wait_for(namespace: &Namespace, wanted: &[&str], within: Duration) -> Result<()> {
    wait::until_true(&format!("the machines to be {wanted:?}"), within, || Ok(machines(namespace)? == wanted))
}

fn patch(namespace: &Namespace, patch: &Value) -> Result<()> {
    namespace.merge(POOL, "web", patch)
}

fn scale(namespace: &Namespace, replicas: u32) -> Result<()> {
    namespace.kubectl(&["scale", "vmpool/web", &format!("--replicas={replicas}")]).map(drop)
}

fn ready(namespace: &Namespace, count: u32) -> Result<()> {
    namespace
        .wait(POOL, "web", &format!("to have {count} ready"), RUNNING * 2, |pool| {
            pool["status"]["replicas"] == count && pool["status"]["readyReplicas"] == count
        })
        .map(drop)
}

#[test]
fn a_pool_numbers_its_machines_and_scales_in_by_its_policy() {
    in_namespace("poolscale", |namespace| {
        let mut pool = manifest(3, "Halted");
        pool["spec"]["scaleInStrategy"] =
            json!({"proactive": {"selectionPolicy": {"sortPolicy": "AscendingOrder"}}});
        namespace.apply(&pool)?;
        wait_for(namespace, &["web-0", "web-1", "web-2"], SOON)?;
        let pool = namespace.need(POOL, "web")?;
        let vm = namespace.need("vm", "web-1")?;
        ensure!(vm["metadata"]["ownerReferences"][0]["uid"] == uid(&pool).as_str());
        ensure!(
            vm["metadata"]["labels"]["kubevirt.io/vm-pool-revision-name"] == "web-1",
            "{}",
            vm["metadata"]
        );
        namespace.wait(POOL, "web", "to count", SOON, |pool| {
            pool["status"]["replicas"] == 3 && pool["status"]["labelSelector"] == "guest=web"
        })?;
        scale(namespace, 1)?;
        wait_for(namespace, &["web-2"], SOON)?;
        scale(namespace, 2)?;
        wait_for(namespace, &["web-0", "web-2"], SOON)?;
        // A machine that a user deletes is replaced by one with the first free number: here its own.
        let before = uid(&namespace.need("vm", "web-0")?);
        namespace.begin_delete("vm", "web-0")?;
        namespace.wait("vm", "web-0", "to be another", SOON, |vm| uid(vm) != before)?;
        namespace.begin_delete(POOL, "web")?;
        namespace.wait_gone(POOL, "web", SOON)?;
        wait::until_true("machines and generations to be gone", SOON, || {
            Ok(machines(namespace)?.is_empty() && namespace.list("controllerrevision")?.is_empty())
        })
    });
}

#[test]
fn an_opportunistic_pool_deletes_no_machine_to_scale_in() {
    in_namespace("poolcalm", |namespace| {
        let mut pool = manifest(2, "Halted");
        pool["spec"]["scaleInStrategy"] = json!({"opportunistic": {}});
        namespace.apply(&pool)?;
        wait_for(namespace, &["web-0", "web-1"], SOON)?;
        scale(namespace, 1)?;
        std::thread::sleep(Duration::from_secs(5));
        wait_for(namespace, &["web-0", "web-1"], SOON)?;
        namespace.delete("vm", "web-0")?;
        std::thread::sleep(Duration::from_secs(5));
        wait_for(namespace, &["web-1"], SOON)
    });
}

#[test]
fn a_detached_machine_is_replaced_and_left_alone() {
    in_namespace("pooldetach", |namespace| {
        namespace.apply(&manifest(1, "Halted"))?;
        wait_for(namespace, &["web-0"], SOON)?;
        namespace.kubectl(&["label", "vm", "web-0", "--overwrite", "guest=mine"])?;
        wait_for(namespace, &["web-0", "web-1"], SOON)?;
        namespace.wait("vm", "web-0", "to have no owner", SOON, |vm| {
            vm["metadata"]["ownerReferences"].is_null()
        })?;
        namespace.delete(POOL, "web")?;
        wait_for(namespace, &["web-0"], SOON)
    });
}

#[test]
fn a_changed_template_restarts_guests_within_max_unavailable() {
    in_namespace("poolroll", |namespace| {
        let mut pool = manifest(2, "Always");
        pool["spec"]["maxUnavailable"] = json!(1);
        namespace.apply(&pool)?;
        ready(namespace, 2)?;
        let before = ["web-0", "web-1"].map(|name| namespace.need("vmi", name).map(|vmi| uid(&vmi)));
        let before = before.into_iter().collect::<Result<Vec<_>>>()?;
        let template = json!({"spec": {"virtualMachineTemplate": {"spec": {"template": {"metadata": {
            "labels": {"version": "2"}}}}}}});
        patch(namespace, &template)?;
        wait::until_true("both guests to be new", RUNNING * 3, || {
            let mut done = 0;
            let mut away = 0;
            // One list, so that both are from the same moment.
            let now = namespace.list("vmi")?;
            for (name, before) in ["web-0", "web-1"].iter().zip(&before) {
                match now.iter().find(|vmi| vmi["metadata"]["name"] == *name) {
                    Some(vmi) if vmi["metadata"]["deletionTimestamp"].is_null() => {
                        let other = uid(vmi) != *before;
                        let runs = vmi["status"]["phase"] == "Running";
                        ensure!(!other || vmi["metadata"]["labels"]["version"] == "2", "{}", vmi["metadata"]);
                        done += u32::from(other && runs);
                        away += u32::from(other && !runs);
                    }
                    _ => away += 1,
                }
            }
            ensure!(away < 2, "both guests are away at the same time");
            Ok(done == 2)
        })?;
        wait::until_true("the older generation to be gone", SOON, || {
            let all = namespace.list("controllerrevision")?;
            Ok(!all.iter().any(|one| one["metadata"]["name"] == "web-1"))
        })
    });
}

#[test]
fn an_opportunistic_pool_changes_machines_and_leaves_guests() {
    in_namespace("poolopp", |namespace| {
        let mut pool = manifest(1, "Always");
        pool["spec"]["updateStrategy"] = json!({"opportunistic": {}});
        namespace.apply(&pool)?;
        ready(namespace, 1)?;
        let before = uid(&namespace.need("vmi", "web-0")?);
        let template = json!({"spec": {"virtualMachineTemplate": {"spec": {"template": {"spec": {"domain": {
            "cpu": {"cores": 2}}}}}}}});
        patch(namespace, &template)?;
        let vm = namespace.wait("vm", "web-0", "to follow the template", SOON, |vm| {
            vm["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] == 2
        })?;
        ensure!(
            vm["metadata"]["labels"]["kubevirt.io/vm-pool-revision-name"] == "web-2",
            "{}",
            vm["metadata"]
        );
        namespace.wait("vm", "web-0", "to ask for a restart", SOON, |vm| {
            let conditions = vm["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "RestartRequired" && one["status"] == "True")
        })?;
        std::thread::sleep(Duration::from_secs(5));
        ensure!(uid(&namespace.need("vmi", "web-0")?) == before, "the guest was restarted");
        namespace.virtctl(&["restart", "web-0"])?;
        let vmi = namespace.wait("vmi", "web-0", "to be another, and Running", RUNNING + SOON, |vmi| {
            uid(vmi) != before && vmi["status"]["phase"] == "Running"
        })?;
        ensure!(vmi["spec"]["domain"]["cpu"]["cores"] == 2);
        Ok(())
    });
}

#[test]
fn a_machine_that_does_not_come_up_is_replaced() {
    in_namespace("poolheal", |namespace| {
        let mut pool = manifest(1, "Always");
        pool["spec"]["autohealing"] = json!({"startUpFailureThreshold": 1});
        pool["spec"]["virtualMachineTemplate"]["spec"]["template"]["metadata"]["annotations"] =
            json!({ FAIL_FAST: "" });
        namespace.apply(&pool)?;
        let first = wait::until("a machine", SOON, || namespace.get("vm", "web-0"))?;
        namespace.wait("vm", "web-0", "to be another", RUNNING + SHUTDOWN, |vm| uid(vm) != uid(&first))?;
        let cured = json!({"spec": {"virtualMachineTemplate": {"spec": {"template": {"metadata": {"annotations": {
            FAIL_FAST: null}}}}}}});
        patch(namespace, &cured)?;
        ready(namespace, 1)
    });
}

#[test]
fn a_paused_pool_does_not_scale() {
    in_namespace("poolpause", |namespace| {
        namespace.apply(&manifest(0, "Halted"))?;
        patch(namespace, &json!({"spec": {"paused": true, "replicas": 1}}))?;
        let pool = namespace.wait(POOL, "web", "to say that it is paused", SOON, |pool| {
            pool["status"]["conditions"][0]["type"] == "ReplicaPaused"
        })?;
        ensure!(pool["status"]["conditions"][0]["reason"] == "SuccessfulPaused", "{}", pool["status"]);
        std::thread::sleep(Duration::from_secs(5));
        ensure!(machines(namespace)?.is_empty(), "a paused pool made a machine");
        patch(namespace, &json!({"spec": {"paused": false}}))?;
        wait_for(namespace, &["web-0"], SOON)
    });
}

#[test]
fn each_machine_has_its_own_secret_where_that_is_asked_for() {
    in_namespace("poolnames", |namespace| {
        let mut pool = manifest(2, "Halted");
        pool["spec"]["nameGeneration"] = json!({"appendIndexToSecretRefs": true});
        let spec = &mut pool["spec"]["virtualMachineTemplate"]["spec"]["template"]["spec"];
        guest::push(
            &mut spec["domain"]["devices"]["disks"],
            json!({ "name": "seed", "disk": { "bus": "virtio" } }),
        );
        guest::push(
            &mut spec["volumes"],
            json!({ "name": "seed", "cloudInitNoCloud": { "secretRef": { "name": "user" } } }),
        );
        namespace.apply(&pool)?;
        wait_for(namespace, &["web-0", "web-1"], SOON)?;
        let vm = namespace.need("vm", "web-1")?;
        let volumes = vm["spec"]["template"]["spec"]["volumes"].as_array().context("no volumes")?;
        let seed = volumes.iter().find(|volume| volume["name"] == "seed").context("no seed")?;
        ensure!(seed["cloudInitNoCloud"]["secretRef"]["name"] == "user-1", "{seed}");
        Ok(())
    });
}

#[test]
fn the_guest_reads_the_objects_of_its_machines_number() {
    in_namespace("poolobjects", |namespace| {
        let mut pool = manifest(1, "Always");
        pool["spec"]["nameGeneration"] =
            json!({"appendIndexToConfigMapRefs": true, "appendIndexToSecretRefs": true});
        let spec = &mut pool["spec"]["virtualMachineTemplate"]["spec"]["template"]["spec"];
        for (name, source) in [
            ("settings", json!({ "configMap": { "name": "settings" } })),
            ("key", json!({ "secret": { "secretName": "key" } })),
        ] {
            guest::push(
                &mut spec["domain"]["devices"]["disks"],
                json!({ "name": name, "disk": { "bus": "virtio" } }),
            );
            let mut volume = source;
            volume["name"] = json!(name);
            guest::push(&mut spec["volumes"], volume);
        }
        // Objects without a number do not exist, so the pod would wait for them.
        namespace.kubectl(&["create", "configmap", "settings-0", "--from-literal=color=blue"])?;
        namespace.kubectl(&["create", "secret", "generic", "key-0", "--from-literal=password=sesame"])?;
        namespace.apply(&pool)?;
        ready(namespace, 1)
    });
}

/// A pool of one stopped machine with a disk on the claim `data`, and that scale-in strategy.
fn with_claim(strategy: &Value) -> Value {
    let mut pool = manifest(1, "Halted");
    pool["spec"]["scaleInStrategy"] = strategy.clone();
    let spec = &mut pool["spec"]["virtualMachineTemplate"]["spec"]["template"]["spec"];
    let disk = json!({ "name": "data", "disk": { "bus": "virtio" } });
    guest::push(&mut spec["domain"]["devices"]["disks"], disk);
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    guest::push(&mut spec["volumes"], volume);
    pool
}

/// Makes such a pool, and makes its machine the owner of the claim. Returns the UID of the machine.
fn own_claim(namespace: &Namespace, strategy: &Value) -> Result<String> {
    namespace.claim("data")?;
    namespace.apply(&with_claim(strategy))?;
    let machine = wait::until("the machine", SOON, || namespace.get("vm", "web-0"))?;
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web-0",
        "uid": uid(&machine), "controller": true});
    let owned = json!({"metadata": {"ownerReferences": [owner]}});
    namespace.merge("pvc", "data", &owned)?;
    Ok(uid(&machine))
}

/// Checks that the claim exists and has no owner.
fn is_kept(namespace: &Namespace) -> Result<()> {
    let claim = namespace.need("pvc", "data")?;
    let metadata = &claim["metadata"];
    ensure!(metadata["deletionTimestamp"].is_null() && metadata["ownerReferences"].is_null(), "{metadata}");
    Ok(())
}

#[test]
fn a_machine_deleted_by_the_pool_leaves_its_claims_to_its_successor() {
    in_namespace("poolkeep", |namespace| {
        let before = own_claim(namespace, &json!({"proactive": {"statePreservation": "Offline"}}))?;
        scale(namespace, 0)?;
        wait_for(namespace, &[], SOON)?;
        is_kept(namespace)?;
        scale(namespace, 1)?;
        namespace.wait("vm", "web-0", "to be another", SOON, |vm| uid(vm) != before)?;
        is_kept(namespace)
    });
}

#[test]
fn a_machine_deleted_by_users_leaves_its_claims_with_the_opportunistic_strategy() {
    in_namespace("poolleave", |namespace| {
        let before = own_claim(namespace, &json!({"opportunistic": {"statePreservation": "Offline"}}))?;
        namespace.begin_delete("vm", "web-0")?;
        namespace.wait("vm", "web-0", "to be another", SOON, |vm| uid(vm) != before)?;
        is_kept(namespace)
    });
}

#[test]
fn a_pool_without_preservation_takes_claims_along_and_a_deleted_one_too() {
    in_namespace("poolspend", |namespace| {
        own_claim(namespace, &json!({"proactive": {"statePreservation": "Disabled"}}))?;
        scale(namespace, 0)?;
        namespace.wait_gone("pvc", "data", SOON)?;
        namespace.delete(POOL, "web")?;

        own_claim(namespace, &json!({"opportunistic": {"statePreservation": "Offline"}}))?;
        namespace.begin_delete(POOL, "web")?;
        namespace.wait_gone(POOL, "web", SOON)?;
        wait_for(namespace, &[], SOON)?;
        namespace.wait_gone("pvc", "data", SOON)
    });
}

#[test]
fn the_memory_of_guests_is_not_preserved_yet_and_that_is_said() {
    in_no_namespace(|namespace| {
        let mut pool = manifest(1, "Halted");
        pool["spec"]["scaleInStrategy"] = json!({"proactive": {"statePreservation": "Online"}});
        let message = namespace.refusal(&pool)?;
        let words = "spec.scaleInStrategy.proactive.statePreservation is not supported yet";
        ensure!(message.contains(words), "{message}");
        Ok(())
    });
}
