//! A guest that counts in its memory and can move: the count shows that it is still the same boot. It has no disk, its system
//! is the initial file system.

use crate::api_server;
use crate::condition;
use crate::console::Console;
use crate::guest;
use crate::namespace::Namespace;
use crate::wait::{self, BOOT, MOVED, RUNNING, SOON};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a command of the guest may take.
pub const COMMAND: Duration = Duration::from_secs(60);

/// A machine whose guest can move.
pub fn machine(name: &str) -> Value {
    guest::movable(guest::machine(name, "Always"))
}

/// A migration of that instance.
pub fn migration(name: &str, vmi: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": { "name": name }, "spec": { "vmiName": vmi },
    })
}

/// The node of an instance.
pub fn node(vmi: &Value) -> String {
    vmi["status"]["nodeName"].as_str().unwrap_or_default().to_owned()
}

/// A guest with a process that counts in memory, so the count shows that it is still the same boot.
pub struct Guest<'a> {
    namespace: &'a Namespace,
    name: &'a str,
    boot: String,
    uid: Value,
}

impl<'a> Guest<'a> {
    /// Starts the machine, waits until it can move, and starts the counter.
    pub fn start(namespace: &'a Namespace, manifest: &Value, name: &'a str) -> Result<Self> {
        namespace.apply(manifest)?;
        namespace.wait_phase(name, "Running", RUNNING)?;
        let vmi = namespace.wait("vmi", name, "to be migratable", SOON, |vmi| {
            condition(vmi, "LiveMigratable")["status"] == "True"
        })?;
        let mut console = Console::open(namespace, name)?;
        console.login(BOOT)?;
        let count = "(n=0; while true; do n=$((n+1)); echo $n >/tmp/new; mv /tmp/new /tmp/count; sleep 0.2; done) \
                     >/dev/null 2>&1 &";
        console.ok(&format!("{{ {count} }}"), COMMAND)?;
        let boot = console.ok("cat /proc/sys/kernel/random/boot_id", COMMAND)?;
        console.leave()?;
        Ok(Self { namespace, name, boot, uid: vmi["metadata"]["uid"].clone() })
    }

    /// Its instance.
    pub fn vmi(&self) -> Result<Value> {
        self.namespace.need("vmi", self.name)
    }

    /// The current count; an error if it is no longer the same boot of the same instance.
    pub fn count(&self) -> Result<u64> {
        let vmi = self.vmi()?;
        ensure!(vmi["metadata"]["uid"] == self.uid, "it is another instance");
        let mut console = Console::open(self.namespace, self.name)?;
        console.login(SOON)?;
        let boot = console.ok("cat /proc/sys/kernel/random/boot_id", COMMAND)?;
        ensure!(boot == self.boot, "it has booted again: {boot}, before {}", self.boot);
        let count = console.ok("cat /tmp/count", COMMAND)?;
        console.leave()?;
        count.trim().parse().with_context(|| format!("{count:?} is not a number"))
    }

    /// Checks that it counts on from there.
    pub fn goes_on(&self, from: u64) -> Result<()> {
        wait::until_true("the guest to count on", COMMAND, || Ok(self.count()? > from))
    }

    /// Makes it write faster than its memory can be sent where [migrations are slow](crate::slow_moves). Returns what it
    /// [keeps](Self::kept).
    pub fn write_fast(&self) -> Result<String> {
        let mut console = Console::open(self.namespace, self.name)?;
        console.login(SOON)?;
        console.ok("dd if=/dev/urandom of=/tmp/kept bs=64k count=128 2>/dev/null", COMMAND)?;
        // The guest writes sixteen megabytes again and again. Copies of a file cost little of an emulated processor, and none of
        // the pages is empty.
        let copy = "dd if=/tmp/kept of=/tmp/hot bs=64k conv=notrunc";
        let write = format!("(while true; do {copy}; {copy} seek=128; sleep 0.1; done) >/dev/null 2>&1 &");
        console.ok(&format!("{{ {write} echo $! >/tmp/writer; }}"), COMMAND)?;
        console.leave()?;
        self.kept()
    }

    /// Ends that.
    pub fn write_no_more(&self) -> Result<()> {
        let mut console = Console::open(self.namespace, self.name)?;
        console.login(SOON)?;
        console.ok("kill $(cat /tmp/writer)", COMMAND)?;
        console.leave().map(drop)
    }

    /// The checksum of a file in its memory, which [`Self::write_fast`] has made.
    pub fn kept(&self) -> Result<String> {
        let mut console = Console::open(self.namespace, self.name)?;
        console.login(SOON)?;
        let sum = console.ok("md5sum /tmp/kept", COMMAND)?;
        console.leave()?;
        Ok(sum)
    }

    /// Waits until it runs on the target without all of its memory. Returns its instance.
    pub fn wait_post_copy(&self) -> Result<Value> {
        let vmi = self.namespace.wait("vmi", self.name, "to be in post-copy", MOVED, |vmi| {
            vmi["status"]["migrationState"]["mode"] == "PostCopy"
        })?;
        // What breaks before it runs there ends the migration, and the source goes on.
        let target = vmi["status"]["migrationState"]["targetPod"].as_str().context("no target")?;
        let pod = api_server::path(&["pod", target, "-n", self.namespace.name()])?;
        wait::until_true("the guest to run on the target", MOVED, || {
            Ok(api_server::text(&format!("{pod}/log?container=compute"))?.contains("the guest runs"))
        })?;
        Ok(vmi)
    }

    /// Its pods that have not ended, each with its node.
    pub fn pods(&self) -> Result<Vec<(String, String)>> {
        let pods = self.namespace.list("pod")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(pods
            .iter()
            .filter(|pod| pod["metadata"]["labels"]["kubevirt.io/created-by"] == self.uid)
            .filter(|pod| !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
            .map(|pod| (text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"])))
            .collect())
    }

    /// Waits until the only migration has that phase. The instance must be Running all the time.
    pub fn wait_migration(&self, phase: &str) -> Result<Value> {
        let what = format!("the migration of {} to be {phase}", self.name);
        wait::until(&what, MOVED, || {
            let vmi = self.vmi()?;
            ensure!(vmi["status"]["phase"] == "Running", "it does not run: {}", vmi["status"]);
            ensure!(vmi["metadata"]["uid"] == self.uid, "it is another instance");
            let migrations = self.namespace.list("vmim")?;
            let Some(migration) = migrations.first() else { return Ok(None) };
            let now = &migration["status"]["phase"];
            ensure!(now != "Failed" || phase == "Failed", "{}\n{}", migration["status"], vmi["status"]);
            Ok((now == phase).then(|| migration.clone()))
        })
    }

    /// Waits until it has only one pod, on that node.
    pub fn wait_alone_on(&self, node: &str) -> Result<()> {
        wait::until_true("one pod to be left", SOON, || {
            let pods = self.pods()?;
            Ok(pods.len() == 1 && pods[0].1 == node)
        })
    }
}

/// Checks that it is where it was, with one pod, counts on, and is not moved.
pub fn stays(guest: &Guest<'_>, home: &str, before: u64) -> Result<()> {
    wait::until_true("no migration to be left", SOON, || Ok(guest.namespace.list("vmim")?.is_empty()))?;
    guest.wait_alone_on(home)?;
    let vmi = guest.vmi()?;
    ensure!(node(&vmi) == home && vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
    guest.goes_on(before)
}
