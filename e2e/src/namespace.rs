//! A namespace for one test.

use crate::api_server;
use crate::command::{
    Output, cluster_script, kubectl, object, objects, succeed, try_kubectl, try_kubectl_with,
};
use crate::diagnosis;
use crate::undisturbed;
use crate::wait::{self, MOVED, SOON};
use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use std::panic::resume_unwind;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Longest time of a test. The longest tests wait ten minutes for certificates to be renewed, or kill
/// components at random for as long.
const LONGEST: Duration = Duration::from_secs(20 * 60);

/// Time until a changed object is in a pod that mounts it.
const MOUNTED: Duration = Duration::from_secs(180);

/// Label of namespaces: the Pod Security level for their pods.
const ENFORCED: &str = "pod-security.kubernetes.io/enforce";

/// A namespace with Pod Security `restricted`, which is deleted with its test.
#[derive(Clone)]
pub struct Namespace {
    name: String,
}

/// Runs a test in its own namespace, and returns the test's result.
///
/// When the test fails, everything about the namespace is shown. When it succeeds, deleting the namespace
/// with everything in it has to succeed, or the test fails. A test that hangs fails too, and the output shows
/// where it hangs.
#[expect(clippy::panic, reason = "this is how a test fails")]
pub fn in_namespace<T: Send + 'static>(
    name: &str,
    test: impl FnOnce(&Namespace) -> Result<T> + Send + 'static,
) -> T {
    let started = jiff::Timestamp::now();
    // A unique name, since the name of a namespace that is being deleted cannot be used.
    let name = format!("e2e-{name}-{:x}", started.as_millisecond() & 0xff_ffff);
    let namespace = Namespace { name };
    let result = within_deadline(namespace.clone(), test);
    let failed = !matches!(result, Ok(Ok(_)));
    if failed {
        if let Ok(Err(error)) = &result {
            eprintln!("{}: {error:#}", namespace.name);
        }
        diagnosis::print(&namespace.name, &format!("{started:.0}"));
    }
    let removed = {
        let _undisturbed = undisturbed();
        namespace.remove(!failed)
    };
    match result {
        Err(panic) => resume_unwind(panic),
        Ok(Err(error)) => panic!("{error:#}"),
        Ok(Ok(result)) => {
            if let Err(error) = removed {
                diagnosis::print(&namespace.name, &format!("{started:.0}"));
                panic!("{error:#}");
            }
            result
        }
    }
}

/// Runs a test on its own thread; `Err` is its panic.
fn within_deadline<T: Send + 'static>(
    namespace: Namespace,
    test: impl FnOnce(&Namespace) -> Result<T> + Send + 'static,
) -> thread::Result<Result<T>> {
    let (alive, ended) = mpsc::channel::<()>();
    let run = thread::spawn(move || {
        // Dropped when the test ends, also by a panic.
        let _alive = alive;
        {
            let _undisturbed = undisturbed();
            namespace.create()?;
        }
        test(&namespace)
    });
    if ended.recv_timeout(LONGEST) == Err(RecvTimeoutError::Timeout) {
        let report = diagnosis::threads();
        return Ok(Err(anyhow!("it has not ended within {} s:\n{report}", LONGEST.as_secs())));
    }
    run.join()
}

impl Namespace {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn create(&self) -> Result<()> {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": self.name, "labels": { ENFORCED: "restricted" } },
        });
        succeed(cluster_script("kubectl.sh").args(["create", "-f", "-"]), Some(&namespace.to_string()))
            .map(drop)
    }

    /// Sets the level of Pod Security for pods made from now on.
    pub fn enforce(&self, level: &str) -> Result<()> {
        let label = format!("{ENFORCED}={level}");
        kubectl(&["label", "--overwrite", "namespace", &self.name, &label]).map(drop)
    }

    fn remove(&self, wait: bool) -> Result<()> {
        kubectl(&["delete", "namespace", &self.name, "--ignore-not-found", "--wait=false"])?;
        if !wait {
            return Ok(());
        }
        api_server::watch(&["namespace", &self.name], Duration::from_secs(120), |found| {
            found.is_none().then_some(())
        })?
        .context("waited 120 s for the namespace and all in it to be gone")
    }

    /// `kubectl apply`; an error unless the manifest is accepted.
    pub fn apply(&self, manifest: &Value) -> Result<()> {
        let output = self.try_apply(manifest)?;
        ensure!(output.code == 0, "manifest was refused: {}", output.text().trim());
        Ok(())
    }

    /// `kubectl apply`, also if it fails. Unknown fields are refused, as by default.
    pub fn try_apply(&self, manifest: &Value) -> Result<Output> {
        try_kubectl_with(&["apply", "-n", &self.name, "-f", "-"], &manifest.to_string())
    }

    /// The message of admission for a manifest that it refuses.
    pub fn refusal(&self, manifest: &Value) -> Result<String> {
        let output = self.try_apply(manifest)?;
        ensure!(output.code != 0, "the manifest was taken, it should have been refused: {}", output.text());
        Ok(output.text())
    }

    /// `kubectl VERB -n NAMESPACE ARGUMENTS`; an error unless it succeeds.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        kubectl(&self.within(arguments))
    }

    /// The same, whatever comes of it.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<Output> {
        try_kubectl(&self.within(arguments))
    }

    /// `virtctl VERB -n NAMESPACE ARGUMENTS`; an error unless it succeeds.
    pub fn virtctl(&self, arguments: &[&str]) -> Result<String> {
        crate::command::virtctl(&self.within(arguments))
    }

    /// The same, whatever comes of it.
    pub fn try_virtctl(&self, arguments: &[&str]) -> Result<Output> {
        crate::command::try_virtctl(&self.within(arguments))
    }

    fn within<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let (verb, rest) = arguments.split_first().unwrap_or((&"", &[]));
        [&[*verb, "-n", &self.name], rest].concat()
    }

    /// An object of the namespace, if it exists.
    pub fn get(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        object(&[kind, name, "-n", &self.name])
    }

    /// An object of the namespace that has to exist.
    pub fn need(&self, kind: &str, name: &str) -> Result<Value> {
        self.get(kind, name)?.with_context(|| format!("there is no {kind} {name}"))
    }

    /// Objects of a kind.
    pub fn list(&self, kind: &str) -> Result<Vec<Value>> {
        objects(&[kind, "-n", &self.name])
    }

    /// Waits until an object meets the condition.
    pub fn wait(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        within: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let look = |object: Option<Value>| object.filter(|object| wanted(object));
        api_server::watch(&[kind, name, "-n", &self.name], within, look)?
            .with_context(|| format!("waited {} s for {kind} {name} {what}", within.as_secs()))
    }

    /// Makes a claim of 16 MiB, of the cluster's default storage class.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn claim(&self, name: &str) -> Result<()> {
        self.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "16Mi" } } },
        }))
    }

    /// Waits until a VMI is in a phase.
    pub fn wait_phase(&self, name: &str, phase: &str, within: Duration) -> Result<Value> {
        self.wait("vmi", name, &format!("to be {phase}"), within, |vmi| vmi["status"]["phase"] == phase)
    }

    /// Waits until a VM has that printable status.
    pub fn wait_status(&self, name: &str, status: &str, within: Duration) -> Result<Value> {
        self.wait("vm", name, &format!("to be {status}"), within, |vm| {
            vm["status"]["printableStatus"] == status
        })
    }

    /// Waits until an object is gone.
    pub fn wait_gone(&self, kind: &str, name: &str, within: Duration) -> Result<()> {
        let look = |object: Option<Value>| object.is_none().then_some(());
        api_server::watch(&[kind, name, "-n", &self.name], within, look)?
            .with_context(|| format!("waited {} s for {kind} {name} to be gone", within.as_secs()))
    }

    /// Waits for an event with that reason about an object of that name, and returns its message.
    pub fn wait_event(&self, object: &str, reason: &str) -> Result<String> {
        wait::until(&format!("event {reason} about {object}"), SOON, || {
            let events = self.list("events")?;
            let found = events
                .iter()
                .find(|event| event["reason"] == reason && event["involvedObject"]["name"] == object);
            Ok(found.map(|event| event["message"].as_str().unwrap_or_default().to_owned()))
        })
    }

    /// The launcher pod of a VMI that has not ended.
    pub fn launcher(&self, vmi: &str) -> Result<Value> {
        let uid = self.need("vmi", vmi)?["metadata"]["uid"].clone();
        let pods = self.list("pod")?;
        let of_vmi = |pod: &&Value| {
            pod["metadata"]["labels"]["kubevirt.io/created-by"] == uid
                && !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        };
        pods.iter().find(of_vmi).cloned().with_context(|| format!("VMI {vmi} has no launcher pod"))
    }

    /// Asks something again and again until it is true after objects have changed that the launcher's pod mounts. The kubelet
    /// updates what it has mounted once in a minute or two, and whenever the pod changes; so each round changes an annotation.
    pub fn wait_mounted(
        &self,
        what: &str,
        vmi: &str,
        mut question: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let pod =
            self.launcher(vmi)?["metadata"]["name"].as_str().context("a pod without a name")?.to_owned();
        let mut round = 0;
        wait::until_true(what, MOUNTED, || {
            round += 1;
            self.kubectl(&["annotate", "pod", &pod, "--overwrite", &format!("e2e/round={round}")])?;
            thread::sleep(Duration::from_secs(2));
            question()
        })
    }

    /// The first address of a running VMI's first interface.
    pub fn address(&self, vmi: &str) -> Result<String> {
        let object = self.wait("vmi", vmi, "to have an address", SOON, |vmi| {
            vmi["status"]["interfaces"][0]["ipAddress"].is_string()
        })?;
        Ok(object["status"]["interfaces"][0]["ipAddress"].as_str().unwrap_or_default().to_owned())
    }

    /// Moves the guest of a machine to another node; returns its instance then. Records of former migrations are deleted.
    pub fn migrate(&self, name: &str) -> Result<Value> {
        self.kubectl(&["delete", "vmim", "--all"])?;
        self.wait("vmi", name, "to be migratable", SOON, |vmi| {
            let conditions = vmi["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|one| one["type"] == "LiveMigratable" && one["status"] == "True")
        })?;
        let home = self.need("vmi", name)?["status"]["nodeName"].clone();
        self.virtctl(&["migrate", name])?;
        let vmi = self.wait("vmi", name, "to have moved", MOVED, |vmi| {
            let state = &vmi["status"]["migrationState"];
            let ended = state["completed"] == true && state["endTimestamp"].is_string();
            ended && (state["failed"] == true || vmi["status"]["nodeName"] != home)
        })?;
        ensure!(vmi["status"]["nodeName"] != home, "{}", vmi["status"]["migrationState"]);
        Ok(vmi)
    }
}
