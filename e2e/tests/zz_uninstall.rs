//! Removal and a new installation. Cargo runs this file last, because other tests need the installation.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, object, objects, repository, virtctl};
use barevirt_e2e::installation::{self, Changed, NAMESPACE, ROLLOUT, condition, kubevirt, made};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{alone, guest, in_namespace};
use serde_json::{Value, json};

/// Installs again, however the test ends, and waits for these objects: the next test takes what there is then for all of them.
struct Reinstalled(Vec<String>);

impl Drop for Reinstalled {
    fn drop(&mut self) {
        if let Err(error) = installation::install().and_then(|_| wait_installed(&self.0)) {
            eprintln!("the installation is not back: {error:#}");
        }
    }
}

fn delete() -> Result<()> {
    kubectl(&["delete", "--wait=false", "kubevirt", "kubevirt", "-n", NAMESPACE]).map(drop)
}

/// Definitions of CDI's kinds come last, once those of the former installation are gone.
fn wait_installed(before: &[String]) -> Result<()> {
    wait::until_true("the same objects to be installed", ROLLOUT, || Ok(made()? == before))
        .with_context(|| format!("before {before:?}, after {:?}", made()))
}

fn wait_removed() -> Result<()> {
    wait::until_true("the KubeVirt to be gone", ROLLOUT, || Ok(kubevirt()?.is_none()))
}

/// Everything is removed except the operator and its own objects.
fn only_the_operator_is_left() -> Result<()> {
    ensure!(made()? == Vec::<String>::new(), "left: {:?}", made()?);
    let definitions = objects(&["crd"])?;
    let ours: Vec<&str> = definitions
        .iter()
        .filter_map(|definition| definition["metadata"]["name"].as_str())
        .filter(|name| name.ends_with("kubevirt.io"))
        .collect();
    ensure!(ours == ["kubevirts.kubevirt.io"], "{ours:?}");
    for kind in ["secret", "configmap"] {
        for left in objects(&[kind, "-n", NAMESPACE])? {
            let name = left["metadata"]["name"].as_str().unwrap_or_default();
            ensure!(!name.starts_with("kubevirt"), "{kind} {name} is left");
        }
    }
    let pods = objects(&["pod", "-n", NAMESPACE])?;
    for pod in &pods {
        ensure!(pod["metadata"]["labels"]["kubevirt.io"] == "virt-operator", "{}", pod["metadata"]["name"]);
    }
    ensure!(object(&["deployment", "virt-operator", "-n", NAMESPACE])?.is_some());
    Ok(())
}

#[test]
fn everything_is_removed_with_the_machines_and_installed_again() {
    in_namespace("uninstall", |namespace| {
        let _alone = alone();
        let before = made()?;
        // Another user's object, which has the label for another reason.
        let bystander = ["clusterrole", namespace.name()];
        let label = "app.kubernetes.io/managed-by=virt-operator";
        kubectl(&["create", "clusterrole", namespace.name(), "--verb=get", "--resource=pods"])?;
        kubectl(&["label", "clusterrole", namespace.name(), label])?;
        namespace.apply(&guest::machine("vm", "Always"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        {
            let _again = Reinstalled(before.clone());
            delete()?;
            wait_removed()?;
            let stayed = object(&bystander)?;
            kubectl(&["delete", "clusterrole", namespace.name(), "--ignore-not-found"])?;
            ensure!(stayed.is_some(), "what was somebody's is gone");
            let pods = namespace.list("pod")?;
            ensure!(pods.iter().all(|pod| pod["metadata"]["labels"]["kubevirt.io"] != "virt-launcher"));
            only_the_operator_is_left()?;
        }
        wait_installed(&before)?;
        // The new installation works.
        namespace.apply(&guest::instance("again"))?;
        namespace.wait_phase("again", "Running", RUNNING).map(drop)
    });
}

#[test]
fn machines_block_the_removal_where_the_strategy_says_so() {
    in_namespace("blocked", |namespace| {
        let _alone = alone();
        let before = made()?;
        let strategy = json!({"uninstallStrategy": "BlockUninstallIfWorkloadsExist"});
        let changed = Changed::begin(&strategy)?;
        installation::wait_available()?;
        namespace.apply(&guest::machine("vm", "Halted"))?;
        // KubeVirt refuses at admission; a deletion that was accepted waits.
        if delete().is_err() {
            drop(changed);
            ensure!(made()? == before);
            return Ok(());
        }
        // There is nothing to restore.
        std::mem::forget(changed);
        let _again = Reinstalled(before.clone());
        let told = wait::until("the condition", SOON, || {
            let reason = |object: &Value| condition(object, "Synchronized").map(|(_, reason)| reason);
            Ok(kubevirt()?.filter(|object| reason(object).as_deref() == Some("DeletionFailed")))
        })?;
        let status = told["status"].to_string();
        ensure!(status.contains("BlockUninstallIfWorkloadsExist") && status.contains("/vm"), "{status}");
        ensure!(made()? == before, "something is gone");
        namespace.delete("vm", "vm")?;
        wait_removed()?;
        only_the_operator_is_left()
    });
}

#[test]
fn an_operator_that_is_killed_while_it_removes_goes_on() {
    in_namespace("killremoval", |_| {
        let _alone = alone();
        {
            let _again = Reinstalled(made()?);
            delete()?;
            wait::until_true("the removal to begin", SOON, || {
                Ok(kubevirt()?.is_none_or(|object| object["status"]["phase"] == "Deleting"))
            })?;
            installation::kill("virt-operator")?;
            wait_removed()?;
            only_the_operator_is_left()?;
        }
        kubevirt()?.context("there is no KubeVirt").map(drop)
    });
}

/// The operator of the repository's manifest, and the installation, however the test ends.
struct OperatorIsBack {
    manifest: String,
    _installed: Reinstalled,
}

impl Drop for OperatorIsBack {
    fn drop(&mut self) {
        let owner =
            ["apply", "--server-side", "--force-conflicts", "--field-manager=virtctl", "-f", &self.manifest];
        if let Err(error) = kubectl(&owner) {
            eprintln!("virt-operator is not back: {error:#}");
        }
    }
}

#[test]
fn virtctl_installs_where_nothing_is_installed() {
    in_namespace("virtctl-fresh", |namespace| {
        let _alone = alone();
        let before = made()?;
        let folder = repository().join("manifests");
        let folder = folder.to_str().context("the path is text")?;
        {
            let _back = OperatorIsBack {
                manifest: format!("{folder}/barevirt-operator.yaml"),
                _installed: Reinstalled(before.clone()),
            };
            delete()?;
            wait_removed()?;
            kubectl(&["delete", "deployment", "virt-operator", "-n", NAMESPACE])?;
            let told = virtctl(&["install", "--from", folder, "--use-emulation", "--timeout", "5m"])?;
            ensure!(told.contains("is available"), "{told}");
            wait_installed(&before)?;
            ensure!(virtctl(&["status"])?.contains("kubevirt/kubevirt: Deployed"));
        }
        namespace.apply(&guest::instance("vm"))?;
        namespace.wait_phase("vm", "Running", RUNNING).map(drop)
    });
}
