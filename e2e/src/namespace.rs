//! A namespace for one test.

use crate::api_server;
use crate::changes;
use crate::command::{Output, kubectl, object, objects, try_kubectl};
use crate::diagnosis;
use crate::undisturbed;
use crate::wait::{self, SOON};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

mod guests;

/// Longest time of a test. The longest tests wait ten minutes for certificates to be renewed, or kill
/// components at random for as long.
const LONGEST: Duration = Duration::from_secs(20 * 60);

/// Time until a changed object is in a pod that mounts it.
const MOUNTED: Duration = Duration::from_secs(180);

/// Time until a namespace and all in it are gone.
const GONE: Duration = Duration::from_secs(120);

/// The longest grace period in a manifest of the tests. The guest of a test that failed may not react to its power button, and then
/// it runs for as long as this after its namespace was deleted.
const GRACE: Duration = Duration::from_secs(120);

/// Beginning of the names of all namespaces.
const PREFIX: &str = "e2e-";

/// Label of namespaces: the Pod Security level for their pods.
const ENFORCED: &str = "pod-security.kubernetes.io/enforce";

/// The test that waits for the namespaces of all other tests of its program; see [`wait_all_gone`].
const LAST: &str = "zz_namespaces::each_namespace_of_a_test_is_deleted_with_everything_in_it";

/// How many tests of this program are in a namespace now.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Counts a test, until it is dropped.
struct Counted;

impl Counted {
    fn begin() -> Self {
        BUSY.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A namespace with Pod Security `restricted`, which is deleted with its test.
#[derive(Clone)]
pub struct Namespace {
    name: String,
    /// Whether manifests are stored, or only admission is asked.
    stores: bool,
}

/// Runs a test that stores nothing. It only asks admission, by `--dry-run=server`, in a namespace that every cluster has. Making
/// and deleting a namespace needs more processor time than such a test.
#[expect(clippy::panic, reason = "this is how a test fails")]
pub fn in_no_namespace(test: impl FnOnce(&Namespace) -> Result<()> + Send + 'static) {
    let namespace = Namespace { name: "default".to_owned(), stores: false };
    match within_deadline(namespace, LONGEST, test) {
        Err(panic) => resume_unwind(panic),
        Ok(Err(error)) => panic!("{error:#}"),
        Ok(Ok(())) => {}
    }
}

/// Runs a test in its own namespace, and returns the test's result.
///
/// When the test fails, everything about the namespace is shown. When it succeeds, deleting the namespace
/// with everything in it has to succeed, or the test fails. If the program's last test waits for all namespaces,
/// the deletion is not waited for here. A test that hangs fails too, and the output shows where it hangs.
pub fn in_namespace<T: Send + 'static>(
    name: &str,
    test: impl FnOnce(&Namespace) -> Result<T> + Send + 'static,
) -> T {
    in_namespace_within(name, LONGEST, test)
}

/// The same, for what may take another time.
#[expect(clippy::panic, reason = "this is how a test fails")]
pub fn in_namespace_within<T: Send + 'static>(
    name: &str,
    longest: Duration,
    test: impl FnOnce(&Namespace) -> Result<T> + Send + 'static,
) -> T {
    let _counted = Counted::begin();
    let started = jiff::Timestamp::now();
    // A unique name, since the name of a namespace that is being deleted cannot be used.
    let name = format!("{PREFIX}{name}-{:x}", started.as_millisecond() & 0xff_ffff);
    let namespace = Namespace { name, stores: true };
    let result = within_deadline(namespace.clone(), longest, test);
    let failed = !matches!(result, Ok(Ok(_)));
    if failed {
        if let Ok(Err(error)) = &result {
            eprintln!("{}: {error:#}", namespace.name);
        }
        diagnosis::print(&namespace.name, &format!("{started:.0}"));
    }
    let removed = {
        let _undisturbed = undisturbed();
        namespace.remove(!failed && !last_test_waits())
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

/// Whether the program's last test is among those that run.
fn last_test_waits() -> bool {
    std::env::args().any(|argument| argument == LAST)
}

/// Waits until no other test of this program is in a namespace, and the namespaces of all tests are gone.
///
/// # Errors
/// When one is still there after the time that it may take, with the grace period of its guests.
pub fn wait_all_gone() -> Result<()> {
    loop {
        let busy = BUSY.load(Ordering::SeqCst) > 0;
        let mut left = 0;
        for namespace in objects(&["namespaces"])? {
            let metadata = &namespace["metadata"];
            let name = metadata["name"].as_str().unwrap_or_default();
            let Some(deleted) = metadata["deletionTimestamp"].as_str().filter(|_| name.starts_with(PREFIX))
            else {
                continue;
            };
            left += 1;
            let deleted: jiff::Timestamp = deleted.parse().context("when a namespace was deleted")?;
            let since = jiff::Timestamp::now().duration_since(deleted);
            if since > jiff::SignedDuration::try_from(GONE + GRACE)? {
                diagnosis::print(name, &format!("{deleted:.0}"));
                bail!(
                    "{name} was deleted {} s ago, and is not gone: {}",
                    since.as_secs(),
                    namespace["status"]
                );
            }
        }
        if !busy && left == 0 {
            return Ok(());
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// Runs a test on its own thread; `Err` is its panic.
fn within_deadline<T: Send + 'static>(
    namespace: Namespace,
    longest: Duration,
    test: impl FnOnce(&Namespace) -> Result<T> + Send + 'static,
) -> thread::Result<Result<T>> {
    let (alive, ended) = mpsc::channel::<()>();
    let run = thread::spawn(move || {
        // Dropped when the test ends, also by a panic.
        let _alive = alive;
        if namespace.stores {
            let _undisturbed = undisturbed();
            namespace.create()?;
        }
        test(&namespace)
    });
    if ended.recv_timeout(longest) == Err(RecvTimeoutError::Timeout) {
        let report = diagnosis::threads();
        return Ok(Err(anyhow!("it has not ended within {} s:\n{report}", longest.as_secs())));
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
        api_server::create("/api/v1/namespaces", &namespace)
    }

    /// Sets the level of Pod Security for pods made from now on.
    pub fn enforce(&self, level: &str) -> Result<()> {
        changes::merge(&["namespace", &self.name], &json!({ "metadata": { "labels": { ENFORCED: level } } }))
    }

    fn remove(&self, wait: bool) -> Result<()> {
        api_server::delete(&format!("/api/v1/namespaces/{}", self.name))?;
        if !wait {
            return Ok(());
        }
        api_server::watch(&["namespace", &self.name], GONE, |found| found.is_none().then_some(()))?
            .context("waited 120 s for the namespace and all in it to be gone")
    }

    /// As `kubectl apply` does; an error unless the manifest is accepted.
    pub fn apply(&self, manifest: &Value) -> Result<()> {
        let output = self.try_apply(manifest)?;
        ensure!(output.code == 0, "manifest was refused: {}", output.text().trim());
        Ok(())
    }

    /// The same, also if it is refused. Unknown fields are refused, as by default.
    pub fn try_apply(&self, manifest: &Value) -> Result<Output> {
        changes::apply(&self.name, manifest, self.stores)
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
            let note = json!({ "metadata": { "annotations": { "e2e/round": round.to_string() } } });
            self.merge("pod", &pod, &note)?;
            thread::sleep(Duration::from_secs(2));
            question()
        })
    }
}
