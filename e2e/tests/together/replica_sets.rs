//! Replica sets: the wanted number of instances, whatever happens to each.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{self, RUNNING, SHUTDOWN, SOON};
use barevirt_e2e::{Namespace, guest, in_namespace};
use serde_json::{Value, json};
use std::time::Duration;

const SET: &str = "vmirs";

fn manifest(replicas: u32) -> Value {
    let instance = guest::without_system(guest::instance("web"));
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "guest": "web" } },
            "template": { "metadata": { "labels": { "guest": "web" } }, "spec": instance["spec"] },
        },
    })
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The set's instances that have not ended and are not being deleted.
fn living(namespace: &Namespace) -> Result<Vec<Value>> {
    let all = namespace.list("vmi")?;
    let lives = |vmi: &Value| {
        vmi["metadata"]["deletionTimestamp"].is_null()
            && !matches!(vmi["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
    };
    Ok(all.into_iter().filter(lives).collect())
}

fn ready(namespace: &Namespace, count: u32) -> Result<()> {
    namespace
        .wait(SET, "web", &format!("to have {count} ready"), RUNNING * 2, |set| {
            set["status"]["replicas"] == count && set["status"]["readyReplicas"] == count
        })
        .map(drop)
}

fn scale(namespace: &Namespace, replicas: u32) -> Result<()> {
    namespace.kubectl(&["scale", "vmirs/web", &format!("--replicas={replicas}")]).map(drop)
}

#[test]
fn a_set_scales_up_and_down_and_takes_its_instances_with_it() {
    in_namespace("rsscale", |namespace| {
        namespace.apply(&manifest(1))?;
        ready(namespace, 1)?;
        let set = namespace.need(SET, "web")?;
        ensure!(set["status"]["labelSelector"] == "guest=web", "{}", set["status"]);
        let first = namespace.list("vmi")?;
        ensure!(name(&first[0]).starts_with("web-"), "{}", name(&first[0]));
        ensure!(first[0]["metadata"]["ownerReferences"][0]["uid"] == uid(&set).as_str());
        scale(namespace, 3)?;
        ready(namespace, 3)?;
        scale(namespace, 1)?;
        wait::until_true("two to be gone", SHUTDOWN, || Ok(namespace.list("vmi")?.len() == 1))?;
        ready(namespace, 1)?;
        namespace.wait_event("web", "SuccessfulDelete")?;
        namespace.begin_delete(SET, "web")?;
        namespace.wait_gone(SET, "web", SHUTDOWN)?;
        wait::until_true("all to be gone", SHUTDOWN, || {
            Ok(namespace.list("vmi")?.is_empty() && namespace.list("pod")?.is_empty())
        })
    });
}

#[test]
fn ended_and_deleted_instances_are_replaced() {
    in_namespace("rsreplace", |namespace| {
        namespace.apply(&manifest(1))?;
        ready(namespace, 1)?;
        let first = namespace.list("vmi")?.remove(0);
        namespace.begin_delete("vmi", &name(&first))?;
        let other = |before: &str| {
            wait::until("another instance", RUNNING, || {
                Ok(living(namespace)?.into_iter().find(|vmi| uid(vmi) != before))
            })
        };
        let second = other(&uid(&first))?;
        namespace.wait_phase(&name(&second), "Running", RUNNING)?;
        // A deleted pod is enough: the set does not wait for the guest to end.
        let pod = name(&namespace.launcher(&name(&second))?);
        namespace.begin_delete("pod", &pod)?;
        other(&uid(&second))?;
        namespace.wait_gone("vmi", &name(&second), SHUTDOWN)?;
        ready(namespace, 1)
    });
}

#[test]
fn a_paused_set_stands_still_until_it_goes_on() {
    in_namespace("rspause", |namespace| {
        let pause = |paused: bool| {
            let patch = json!({ "spec": { "paused": paused } });
            namespace.merge(SET, "web", &patch)
        };
        namespace.apply(&manifest(0))?;
        pause(true)?;
        let set = namespace.wait(SET, "web", "to say that it is paused", SOON, |set| {
            set["status"]["conditions"][0]["type"] == "ReplicaPaused"
        })?;
        ensure!(set["status"]["conditions"][0]["reason"] == "Paused", "{}", set["status"]);
        scale(namespace, 1)?;
        std::thread::sleep(Duration::from_secs(5));
        ensure!(namespace.list("vmi")?.is_empty(), "a paused set made an instance");
        pause(false)?;
        ready(namespace, 1)?;
        namespace.wait(SET, "web", "to say so no more", SOON, |set| set["status"]["conditions"].is_null())?;
        Ok(())
    });
}

#[test]
fn instances_are_adopted_and_released_by_their_labels() {
    in_namespace("rsadopt", |namespace| {
        let mut orphan = guest::without_system(guest::instance("mine"));
        orphan["metadata"]["labels"] = json!({ "guest": "web" });
        namespace.apply(&orphan)?;
        namespace.apply(&manifest(1))?;
        let set = uid(&namespace.need(SET, "web")?);
        namespace.wait("vmi", "mine", "to be adopted", SOON, |vmi| {
            vmi["metadata"]["ownerReferences"][0]["uid"] == set.as_str()
        })?;
        ready(namespace, 1)?;
        ensure!(living(namespace)?.len() == 1, "the adopted one counts");
        namespace.kubectl(&["label", "vmi", "mine", "--overwrite", "guest=other"])?;
        namespace.wait("vmi", "mine", "to be released", SOON, |vmi| {
            vmi["metadata"]["ownerReferences"].is_null()
        })?;
        wait::until_true("another to take its place", SOON, || Ok(living(namespace)?.len() == 2))?;
        namespace.kubectl(&["delete", SET, "web", "--cascade=orphan"])?;
        namespace.wait_gone(SET, "web", SOON)?;
        wait::until_true("the instances to have no owner", SOON, || {
            let all = living(namespace)?;
            Ok(all.len() == 2 && all.iter().all(|vmi| vmi["metadata"]["ownerReferences"].is_null()))
        })
    });
}

#[test]
fn a_failed_creation_is_reported_on_the_set() {
    in_namespace("rsquota", |namespace| {
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none" },
            "spec": { "hard": { "count/virtualmachineinstances.kubevirt.io": "0" } },
        }))?;
        wait::until_true("the quota to count", SOON, || {
            let quota = namespace.need("resourcequota", "none")?;
            Ok(quota["status"]["hard"].is_object())
        })?;
        namespace.apply(&manifest(1))?;
        let set = namespace.wait(SET, "web", "to say what fails", SOON, |set| {
            set["status"]["conditions"][0]["type"] == "ReplicaFailure"
        })?;
        let condition = &set["status"]["conditions"][0];
        ensure!(condition["reason"] == "FailedCreate", "{condition}");
        ensure!(
            condition["message"].as_str().is_some_and(|text| text.contains("exceeded quota")),
            "{condition}"
        );
        Ok(())
    });
}

#[test]
fn a_template_may_not_do_what_an_instance_may_not() {
    in_namespace("rsrefuse", |namespace| {
        let mut wrong = manifest(1);
        wrong["spec"]["template"]["metadata"]["labels"]["kubevirt.io/nodeName"] = json!("node01");
        let message = namespace.refusal(&wrong)?;
        ensure!(message.contains("reserved kubevirt.io/ labels"), "{message}");
        let mut wrong = manifest(1);
        wrong["spec"]["template"]["spec"]["domain"]["clock"] =
            json!({"timer": {"hpet": {"tickPolicy": "delay"}}});
        let message = namespace.refusal(&wrong)?;
        ensure!(message.contains("spec.template.spec.domain.clock.timer.hpet.tickPolicy"), "{message}");
        namespace.apply(&manifest(0))?;
        let patch = r#"{"spec":{"selector":{"matchLabels":{"guest":"other"}}}}"#;
        let output = namespace.try_kubectl(&["patch", SET, "web", "--type=merge", "-p", patch])?;
        ensure!(
            output.code != 0 && output.text().contains("selector does not match labels"),
            "{}",
            output.text()
        );
        Ok(())
    });
}
