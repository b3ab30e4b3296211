//! Deletion in every form: nothing is left behind or stuck, and objects that should stay do.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{self, RUNNING, SHUTDOWN, SOON};
use barevirt_e2e::{Namespace, Node, guest, in_namespace};
use serde_json::{Value, json};

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn run(namespace: &Namespace) -> Result<Value> {
    namespace.apply(&guest::without_system(guest::machine("vm", "Always")))?;
    namespace.wait_phase("vm", "Running", RUNNING)
}

/// The machine, its instance, its pod and its revisions.
fn nothing_is_left(namespace: &Namespace) -> Result<()> {
    namespace.wait_gone("vm", "vm", SHUTDOWN)?;
    namespace.wait_gone("vmi", "vm", SOON)?;
    wait::until_true("pods and revisions to be gone", SOON, || {
        Ok(namespace.list("pod")?.is_empty() && namespace.list("controllerrevision")?.is_empty())
    })
}

/// Deletes the machine in that way; the instance ends first, and everything is deleted.
fn deleted(label: &str, cascade: &'static str) {
    in_namespace(label, move |namespace| {
        run(namespace)?;
        let launcher = namespace.launcher("vm")?;
        namespace.kubectl(&["delete", "vm", "vm", "--wait=false", &format!("--cascade={cascade}")])?;
        let leaving = namespace.get("vm", "vm")?;
        ensure!(
            leaving.is_none_or(|vm| vm["metadata"]["deletionTimestamp"].is_string()),
            "the machine is not being deleted"
        );
        nothing_is_left(namespace)?;
        let processes = Node::of(&launcher)?.processes(&launcher, "qemu-system-x86_64")?;
        ensure!(processes.is_empty(), "QEMU still runs: {processes:?}");
        Ok(())
    });
}

#[test]
fn a_machine_deleted_in_the_background_leaves_nothing() {
    deleted("delback", "background");
}

#[test]
fn a_machine_deleted_in_the_foreground_leaves_nothing() {
    deleted("delfore", "foreground");
}

#[test]
fn a_machine_deleted_while_it_starts_leaves_nothing() {
    in_namespace("delstart", |namespace| {
        namespace.apply(&guest::without_system(guest::machine("vm", "Always")))?;
        wait::until_true("the instance to be there", SOON, || Ok(namespace.get("vmi", "vm")?.is_some()))?;
        namespace.kubectl(&["delete", "vm", "vm", "--wait=false"])?;
        nothing_is_left(namespace)
    });
}

#[test]
fn an_orphaned_instance_runs_on_and_the_machine_of_its_name_adopts_it() {
    in_namespace("delorphan", |namespace| {
        let first = uid(&run(namespace)?);
        namespace.kubectl(&["delete", "vm", "vm", "--cascade=orphan"])?;
        namespace.wait_gone("vm", "vm", SOON)?;
        namespace.wait("vmi", "vm", "to have no owner", SOON, |vmi| {
            vmi["metadata"]["ownerReferences"].is_null()
        })?;
        namespace.apply(&guest::without_system(guest::machine("vm", "Always")))?;
        let machine = uid(&namespace.need("vm", "vm")?);
        let vmi = namespace.wait("vmi", "vm", "to be adopted", SOON, |vmi| {
            vmi["metadata"]["ownerReferences"][0]["uid"] == machine.as_str()
        })?;
        ensure!(uid(&vmi) == first && vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
        namespace.wait_status("vm", "Running", SOON)?;
        // The revision is the former machine's, and is deleted at the next start.
        namespace.virtctl(&["restart", "vm"])?;
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING + SOON, |vmi| {
            uid(vmi) != first && vmi["status"]["phase"] == "Running"
        })?;
        let revisions = namespace.list("controllerrevision")?;
        ensure!(revisions.len() == 1 && name(&revisions[0]).contains(&machine), "{revisions:?}");
        namespace.kubectl(&["delete", "vm", "vm", "--wait=false"])?;
        nothing_is_left(namespace)
    });
}

#[test]
fn an_instance_deleted_by_force_is_made_again_and_leaves_no_pod() {
    in_namespace("delvmiforce", |namespace| {
        let first = uid(&run(namespace)?);
        let pod = name(&namespace.launcher("vm")?);
        namespace.kubectl(&["delete", "vmi", "vm", "--force", "--grace-period=0", "--wait=false"])?;
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING + SOON, |vmi| {
            uid(vmi) != first && vmi["status"]["phase"] == "Running"
        })?;
        namespace.wait_gone("pod", &pod, SOON)
    });
}

#[test]
fn a_pod_deleted_by_force_ends_its_instance_and_the_machine_starts_again() {
    in_namespace("delpodforce", |namespace| {
        let first = uid(&run(namespace)?);
        let launcher = namespace.launcher("vm")?;
        let pod = name(&launcher);
        namespace.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0", "--wait=false"])?;
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING + SOON, |vmi| {
            uid(vmi) != first && vmi["status"]["phase"] == "Running"
        })?;
        wait::until_true("the former QEMU to be gone", SOON, || {
            Ok(Node::of(&launcher)?.processes(&launcher, "qemu-system-x86_64")?.is_empty())
        })?;
        namespace.kubectl(&["delete", "vm", "vm", "--wait=false"])?;
        nothing_is_left(namespace)
    });
}

#[test]
fn a_foreign_finalizer_holds_a_machine_and_ours_is_removed() {
    in_namespace("delfinal", |namespace| {
        let mut manifest = guest::without_system(guest::machine("vm", "Always"));
        manifest["metadata"]["finalizers"] = json!(["example.com/wait"]);
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        namespace.kubectl(&["delete", "vm", "vm", "--wait=false"])?;
        namespace.wait_gone("vmi", "vm", SHUTDOWN)?;
        let vm = namespace.wait("vm", "vm", "to be let go by us", SOON, |vm| {
            vm["metadata"]["finalizers"] == json!(["example.com/wait"])
        })?;
        ensure!(vm["status"]["printableStatus"] == "Terminating", "{}", vm["status"]);
        namespace.kubectl(&[
            "patch",
            "vm",
            "vm",
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ])?;
        nothing_is_left(namespace)
    });
}
