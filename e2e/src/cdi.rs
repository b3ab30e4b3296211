//! A fake CDI, as far as tests need one: its kinds, with reduced schemas, while a test holds them, and its
//! controller for DataVolumes in the namespace of the test.
//!
//! ```text
//!   Absent --install--> Kinds --(dropped)--> Barevirt's own       one test at a time, in one program
//!   Absent, or Kinds --(dropped by the last)--> Barevirt's own    several at a time of the one or of the other
//!
//!   a DataVolume: its claim is made --> a pod mounts it --> the small guest's disk is written to it --> Succeeded
//!                               \-- or once another pod has bound it --/
//! ```
//!
//! Without CDI there is Barevirt's own definition of DataVolumes. The test's definition replaces it, where
//! CDI's operator puts its own into it; Barevirt makes its own again once the test's is deleted. A cluster with a real CDI is refused, and
//! nothing in it is replaced.

mod turns;

use self::turns::{Side, TURNS, Turn};
use crate::api_server;
use crate::changes;
use crate::command::{kubectl, object, repository, succeed, try_kubectl_with};
use crate::container::Container;
use crate::namespace::Namespace;
use crate::wait::{self, SOON};
use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// DataVolumes, for kubectl.
pub const DATA_VOLUMES: &str = "datavolumes.cdi.kubevirt.io";
/// DataSources, for kubectl.
pub const DATA_SOURCES: &str = "datasources.cdi.kubevirt.io";
/// The token that the kind of token requests fills in by default.
pub const TOKEN: &str = "token-of-the-test";

/// Label of objects outside a test's namespace.
const LABEL: &str = "e2e.barevirt.dev/cdi";
const GROUP: &str = "cdi.kubevirt.io";
/// Label of Barevirt's own definition, and its value.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "virt-operator");
/// Binding of Barevirt's policy for copies from other namespaces.
const BINDING: &str = "kubevirt-datavolume-sources-binding";
/// The kinds: plural, kind, group, scope.
const KINDS: [(&str, &str, &str, &str); 4] = [
    ("datavolumes", "DataVolume", GROUP, "Namespaced"),
    ("datasources", "DataSource", GROUP, "Namespaced"),
    ("cdiconfigs", "CDIConfig", GROUP, "Cluster"),
    ("uploadtokenrequests", "UploadTokenRequest", "upload.cdi.kubevirt.io", "Namespaced"),
];
/// Pause between two reads of the DataVolumes.
const PAUSE: Duration = Duration::from_millis(300);
/// Image with busybox that every node of the test cluster has.
const BUSYBOX: &str = "localhost/barevirt-cluster/busybox:devel";
/// The launcher's user and group.
const LAUNCHER: u32 = 107;

fn definition((plural, kind, group, scope): (&str, &str, &str, &str)) -> Value {
    let whatever = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let mut properties = json!({ "spec": whatever, "status": whatever });
    if plural == "uploadtokenrequests" {
        properties["status"]["properties"] = json!({ "token": { "type": "string" } });
        properties["status"]["default"] = json!({ "token": TOKEN });
    }
    // As in CDI, a user who makes a DataVolume cannot write its status.
    let subresources = if plural == "datavolumes" { json!({ "status": {} }) } else { json!({}) };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}"), "labels": { LABEL: "true" } },
        "spec": {
            "group": group, "scope": scope,
            "names": {
                "plural": plural, "kind": kind, "listKind": format!("{kind}List"), "singular": kind.to_lowercase(),
            },
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true, "subresources": subresources,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": properties } },
            }],
        },
    })
}

/// How many tests hold the kinds.
static HOLDERS: Mutex<usize> = Mutex::new(0);

/// Guarantees that there is no CDI, until this is dropped or a CDI is installed.
pub struct Absent {
    turn: Turn,
}

impl Absent {
    /// Waits for tests with a CDI, removes what a former run has left behind, and waits for Barevirt's own
    /// definition. Other tests without a CDI may run at the same time.
    pub fn prepare() -> Result<Self> {
        Self::within(Side::Absent)
    }

    /// The same, while no other test with or without CDI runs.
    pub fn alone() -> Result<Self> {
        Self::within(Side::Alone)
    }

    fn within(side: Side) -> Result<Self> {
        let turn = TURNS.take(side);
        clear()?;
        wait_for_own()?;
        Ok(Absent { turn })
    }

    /// Makes the kinds. Only for a test that runs alone.
    pub fn install(self) -> Result<Kinds> {
        Kinds::held(self.turn)
    }
}

/// CDI's kinds, until the last holder drops them.
pub struct Kinds {
    _turn: Turn,
}

impl Kinds {
    /// Makes the kinds, once no test without CDI runs.
    pub fn install() -> Result<Self> {
        Self::held(TURNS.take(Side::Kinds))
    }

    fn held(turn: Turn) -> Result<Self> {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if *holders == 0 {
            clear()?;
            make().inspect_err(|_| take_away())?;
        }
        *holders += 1;
        Ok(Kinds { _turn: turn })
    }

    /// Sets the address to which images are sent.
    pub fn configure(&self, upload_proxy: &str) -> Result<()> {
        apply(&json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDIConfig", "metadata": { "name": "config" },
            "spec": {}, "status": { "uploadProxyURL": upload_proxy },
        }))
    }
}

impl Drop for Kinds {
    fn drop(&mut self) {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        *holders -= 1;
        if *holders == 0 {
            take_away();
        }
    }
}

/// Removes what a former run has left behind; objects of others are an error.
fn clear() -> Result<()> {
    for (plural, _, group, _) in KINDS {
        if let Some(found) = object(&["crd", &format!("{plural}.{group}")])? {
            let ours = found["metadata"]["labels"][LABEL] == "true";
            ensure!(
                ours || is_own(&found),
                "the cluster has a CDI: {plural}.{group} is not a test's to replace"
            );
        }
    }
    remove()
}

/// Whether a definition is Barevirt's own.
fn is_own(definition: &Value) -> bool {
    definition["metadata"]["labels"][MANAGED_BY.0] == MANAGED_BY.1
}

/// Waits until Barevirt's own definition of DataVolumes is served.
fn wait_for_own() -> Result<()> {
    wait::until_true("Barevirt's own definition of DataVolumes", SOON, || {
        let found = object(&["crd", DATA_VOLUMES])?.unwrap_or_default();
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let established =
            |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
        Ok(is_own(&found) && conditions.iter().any(established) && are_copies_checked()?)
    })
}

/// Whether virt-controller trusts the policy that checks copies from other namespaces, as it does after ten seconds.
fn are_copies_checked() -> Result<bool> {
    let Some(binding) = object(&["validatingadmissionpolicybinding", BINDING])? else { return Ok(false) };
    let made = binding["metadata"]["creationTimestamp"].as_str().unwrap_or_default();
    let made: jiff::Timestamp = made.parse().context("when a policy was made")?;
    Ok(jiff::Timestamp::now().duration_since(made).as_secs() > 11)
}

/// Makes the kinds, and waits until they are served.
fn make() -> Result<()> {
    for kind in KINDS {
        let wanted = definition(kind);
        let name = format!("{}.{}", kind.0, kind.2);
        match object(&["crd", &name])? {
            // Replaced completely, so that nothing of Barevirt's own definition stays.
            Some(_) => {
                let output = try_kubectl_with(&["replace", "-f", "-"], &wanted.to_string())?;
                ensure!(output.code == 0, "{}", output.text());
            }
            None => apply(&wanted)?,
        }
    }
    let label = format!("{LABEL}=true");
    kubectl(&["wait", "crd", "-l", &label, "--for=condition=Established", "--timeout=60s"])?;
    for (plural, _, group, _) in KINDS {
        wait::until_true(&format!("{plural} to be served"), SOON, || {
            let path = format!("/apis/{group}/v1beta1");
            // Until it is served there is no answer.
            let found = api_server::text(&path).unwrap_or_default();
            // Until Barevirt has noticed, its own API serves the group, with more resources.
            let own = found.contains("\"uploads/proxy\"");
            let served = !own && found.contains(&format!("\"{plural}\""));
            Ok(served && groups()?.iter().any(|name| name == group))
        })?;
    }
    let gone = || Ok(object(&["validatingadmissionpolicybinding", BINDING])?.is_none());
    wait::until_true("Barevirt's own rule for copies to go", SOON, gone)
}

fn take_away() {
    if let Err(error) = remove() {
        eprintln!("CDI's kinds are left behind: {error:#}");
    }
}

fn apply(manifest: &Value) -> Result<()> {
    let output = try_kubectl_with(&["apply", "-f", "-"], &manifest.to_string())?;
    ensure!(output.code == 0, "{}", output.text());
    Ok(())
}

fn remove() -> Result<()> {
    let label = format!("{LABEL}=true");
    kubectl(&["delete", "crd", "-l", &label, "--timeout=60s"]).map(drop)
}

/// API groups that the cluster serves.
fn groups() -> Result<Vec<String>> {
    let served: Value = serde_json::from_str(&api_server::text("/apis")?)?;
    let groups = served["groups"].as_array().context("no list of groups")?.iter();
    Ok(groups.filter_map(|group| group["name"].as_str().map(str::to_owned)).collect())
}

/// Writes the status of a DataVolume.
pub fn report(namespace: &Namespace, name: &str, phase: &str, is_bound: bool) -> Result<()> {
    let condition = |type_: &str, holds: bool| json!({ "type": type_, "status": if holds { "True" } else { "False" }, "reason": phase });
    let conditions = [condition("Bound", is_bound), condition("Ready", phase == "Succeeded")];
    let status = json!({ "phase": phase, "claimName": name, "conditions": conditions });
    changes::merge_status(&[DATA_VOLUMES, name, "-n", namespace.name()], &status)
}

/// How the namespace's DataVolumes are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillMode {
    /// They are filled at once.
    AtOnce,
    /// They are filled once another pod than CDI's has bound the claim.
    FirstConsumer,
    /// They cannot be filled.
    Never,
}

/// Runs the fake controller of CDI while `test` runs.
pub fn play<T>(namespace: &Namespace, mode: FillMode, test: impl FnOnce() -> Result<T>) -> Result<T> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let controller = scope.spawn(|| -> Result<()> {
            while !ended.load(Ordering::Relaxed) {
                for volume in namespace.list(DATA_VOLUMES)? {
                    let played = step(namespace, mode, &volume);
                    // An error for a DataVolume that was deleted meanwhile does not matter.
                    if played.is_err() && is_there(namespace, &volume)? {
                        played?;
                    }
                }
                thread::sleep(PAUSE);
            }
            Ok(())
        });
        let result = test();
        ended.store(true, Ordering::Relaxed);
        let played = controller.join().map_err(|_| anyhow!("CDI's part panicked"))?;
        // If the test failed, the fake controller may be the reason.
        match (result, played) {
            (Ok(result), Ok(())) => Ok(result),
            (Ok(_), Err(error)) => Err(error.context("CDI's part")),
            (Err(error), Ok(())) => Err(error),
            (Err(error), Err(played)) => Err(error.context(format!("CDI's part: {played:#}"))),
        }
    })
}

/// Whether it is still the same object.
fn is_there(namespace: &Namespace, volume: &Value) -> Result<bool> {
    let name = volume["metadata"]["name"].as_str().unwrap_or_default();
    let found = namespace.get(DATA_VOLUMES, name)?.unwrap_or_default();
    Ok(found["metadata"]["uid"] == volume["metadata"]["uid"]
        && found["metadata"]["deletionTimestamp"].is_null())
}

/// Moves one DataVolume one step forward.
fn step(namespace: &Namespace, mode: FillMode, volume: &Value) -> Result<()> {
    if !volume["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let name = volume["metadata"]["name"].as_str().context("a DataVolume without a name")?;
    let importer = format!("importer-{name}");
    match (volume["status"]["phase"].as_str().unwrap_or_default(), mode) {
        ("", FillMode::Never) => report(namespace, name, "Failed", false),
        ("", FillMode::AtOnce) => {
            claim(namespace, volume, name)?;
            report(namespace, name, "ImportScheduled", false)
        }
        ("", FillMode::FirstConsumer) => {
            claim(namespace, volume, name)?;
            report(namespace, name, "WaitForFirstConsumer", false)
        }
        ("WaitForFirstConsumer", _) => {
            let claim = namespace.get("pvc", name)?.unwrap_or_default();
            if claim["status"]["phase"] == "Bound" {
                report(namespace, name, "ImportScheduled", true)?;
            }
            Ok(())
        }
        ("ImportScheduled", _) => {
            namespace.apply(&pod(&importer, name))?;
            report(namespace, name, "ImportInProgress", mode == FillMode::FirstConsumer)
        }
        ("ImportInProgress", _) => {
            let pod = namespace.get("pod", &importer)?.unwrap_or_default();
            if pod["status"]["phase"] == "Running" {
                fill(namespace, &importer)?;
                namespace.kubectl(&["delete", "pod", &importer, "--now"])?;
                report(namespace, name, "Succeeded", true)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The claim of a DataVolume, which owns it.
fn claim(namespace: &Namespace, volume: &Value, name: &str) -> Result<()> {
    let owner = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": name, "uid": volume["metadata"]["uid"],
        "controller": true,
    });
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "ownerReferences": [owner] },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": volume["spec"]["storage"]["resources"] },
    }))
}

/// A pod that mounts a claim so that files can be written to it, as the launcher's user.
fn pod(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsUser": LAUNCHER, "runAsGroup": LAUNCHER, "fsGroup": LAUNCHER, "runAsNonRoot": true,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "main", "image": BUSYBOX, "command": ["sleep", "3600"],
                "securityContext": {
                    "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                },
                "volumeMounts": [{ "name": "claim", "mountPath": "/data" }],
            }],
            "volumes": [{ "name": "claim", "persistentVolumeClaim": { "claimName": claim } }],
        },
    })
}

/// Writes the small guest's disk to the claim of a pod.
fn fill(namespace: &Namespace, pod: &str) -> Result<()> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
    let work = tempfile::tempdir()?;
    let raw = work.path().join("disk.raw");
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-O", "raw"]).arg(target.join("images/guest-tiny.qcow2")).arg(&raw);
    succeed(&mut convert, None)?;
    let container = Container::of(&namespace.need("pod", pod)?)?;
    container.put(&raw, "/data/disk.img")?;
    let written = container.sh(&format!("chown {LAUNCHER}:{LAUNCHER} /data/disk.img"))?;
    ensure!(written.code == 0, "the disk cannot be written: {}", written.text());
    Ok(())
}
