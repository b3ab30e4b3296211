//! Post-copy: if a policy allows it, a guest that writes faster than its memory can be sent runs on the target before
//! all of its memory has arrived.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::api_server;
use barevirt_e2e::command::{kubectl, objects};
use barevirt_e2e::installation::NAMESPACE;
use barevirt_e2e::wait::{self, BOOT, MOVED, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Node, guest, in_namespace, pods};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a command in the guest may take.
const COMMAND: Duration = Duration::from_secs(60);

/// Allows post-copy after ten seconds, only for guests of this namespace.
fn policy(namespace: &Namespace, bandwidth: &str) -> Value {
    json!({
        "apiVersion": "migrations.kubevirt.io/v1alpha1", "kind": "MigrationPolicy",
        "metadata": { "name": namespace.name() },
        "spec": {
            "allowPostCopy": true, "bandwidthPerMigration": bandwidth, "completionTimeoutPerGiB": 10,
            "selectors": { "namespaceSelector": { "kubernetes.io/metadata.name": namespace.name() } },
        },
    })
}

/// Returns a counter in the guest's memory, and the boot ID with the checksum of a file in memory.
fn look(namespace: &Namespace) -> Result<(u64, String)> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(SOON)?;
    let count = console.ok("cat /tmp/count", COMMAND)?;
    let sum = console.ok("cat /proc/sys/kernel/random/boot_id; md5sum /tmp/kept", COMMAND)?;
    console.leave()?;
    let count = count.trim().parse().with_context(|| format!("{count:?} is not a number"))?;
    Ok((count, sum))
}

/// Starts a guest that writes too fast. Returns its node and what is to be kept.
fn start(namespace: &Namespace) -> Result<(Value, u64, String)> {
    namespace.apply(&guest::movable(guest::machine("vm", "Always")))?;
    namespace.wait_phase("vm", "Running", RUNNING)?;
    let home = namespace.need("vmi", "vm")?["status"]["nodeName"].clone();
    let mut console = Console::open(namespace, "vm")?;
    console.login(BOOT)?;
    let count = "(n=0; while true; do n=$((n+1)); echo $n >/tmp/new; mv /tmp/new /tmp/count; sleep 0.2; done) \
                 >/dev/null 2>&1 &";
    console.ok(&format!("{{ {count} }}"), COMMAND)?;
    console.ok("dd if=/dev/urandom of=/tmp/kept bs=64k count=128 2>/dev/null", COMMAND)?;
    // The guest writes sixteen megabytes again and again. Copies of a file cost little of an emulated processor, and none of the
    // pages is empty.
    let copy = "dd if=/tmp/kept of=/tmp/hot bs=64k conv=notrunc";
    let write = format!("(while true; do {copy}; {copy} seek=128; sleep 0.1; done) >/dev/null 2>&1 &");
    console.ok(&format!("{{ {write} echo $! >/tmp/writer; }}"), COMMAND)?;
    console.leave()?;
    let (before, kept) = look(namespace)?;
    Ok((home, before, kept))
}

#[test]
fn a_guest_that_writes_too_fast_moves_where_post_copy_is_allowed() {
    in_namespace("postcopy", |namespace| {
        let (home, before, kept) = start(namespace)?;

        namespace.apply(&policy(namespace, "4Mi"))?;
        let moved = namespace.migrate("vm");
        kubectl(&["delete", "migrationpolicy", namespace.name()])?;
        let vmi = moved?;
        let state = &vmi["status"]["migrationState"];
        ensure!(state["failed"] != true && vmi["status"]["nodeName"] != home, "{state}");
        ensure!(state["mode"] == "PostCopy", "{state}");
        ensure!(state["migrationConfiguration"]["allowPostCopy"] == true, "{state}");
        ensure!(vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
        wait::until_true("the guest to continue to count", COMMAND, || {
            let (now, found) = look(namespace)?;
            ensure!(found == kept, "found {found}, expected {kept}");
            Ok(now > before)
        })?;
        // The target's pod has asked for userfaultfd.
        let pods = namespace.list("pods")?;
        let resource = |pod: &Value| {
            pod["spec"]["containers"][0]["resources"]["limits"]["devices.kubevirt.io/userfaultfd"].clone()
        };
        ensure!(pods.iter().any(|pod| resource(pod) == "1"), "no pod asked for userfaultfd");

        // Other users cannot make pods that ask for it.
        let mut pod = pods::pod("other", &["true"]);
        pod["spec"]["containers"][0]["resources"] =
            json!({ "limits": { "devices.kubevirt.io/userfaultfd": "1" } });
        let refusal = namespace.refusal(&pod)?;
        ensure!(refusal.contains("only virt-controller makes pods that ask for"), "{refusal}");

        // The next migration goes without post-copy, and may fail while the guest writes like that.
        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        console.ok("kill $(cat /tmp/writer)", COMMAND)?;
        console.leave()?;
        let vmi = namespace.migrate("vm")?;
        let state = &vmi["status"]["migrationState"];
        ensure!(state["failed"] != true && state["mode"] == "PreCopy", "{state}");
        let (_, found) = look(namespace)?;
        ensure!(found == kept, "found {found}, expected {kept}");
        Ok(())
    });
}

/// Resets the connections over which guests leave the node.
fn cut(node: &str) -> Result<()> {
    let handlers = objects(&["pod", "-n", NAMESPACE, "-l", "kubevirt.io=virt-handler"])?;
    let handler = handlers.iter().find(|pod| pod["spec"]["nodeName"] == node).context("no virt-handler")?;
    let node = Node::named(node);
    let process = node.processes(handler, "virt-handler")?.first().copied().context("no virt-handler")?;
    node.sh(&format!("nsenter -t {process} -n ss -K dport = :8187")).map(drop)
}

#[test]
fn a_guest_whose_connection_breaks_in_post_copy_goes_on_over_a_new_one() {
    in_namespace("postcopy-cut", |namespace| {
        let (home, before, kept) = start(namespace)?;
        let home = home.as_str().context("it is on no node")?;
        namespace.apply(&policy(namespace, "2Mi"))?;
        namespace.virtctl(&["migrate", "vm"])?;
        let handed_over = namespace.wait("vmi", "vm", "to be in post-copy", MOVED, |vmi| {
            vmi["status"]["migrationState"]["mode"] == "PostCopy"
        });
        // A connection that breaks before the guest runs on the target ends the migration, and the source goes on.
        let runs = handed_over.and_then(|vmi| {
            let target =
                vmi["status"]["migrationState"]["targetPod"].as_str().context("no target")?.to_owned();
            wait::until_true("the guest to run on the target", MOVED, || {
                let pod = api_server::path(&["pod", &target, "-n", namespace.name()])?;
                Ok(api_server::text(&format!("{pod}/log?container=compute"))?.contains("the guest runs"))
            })
        });
        kubectl(&["delete", "migrationpolicy", namespace.name()])?;
        runs?;
        cut(home)?;
        let vmi = namespace.wait("vmi", "vm", "to have moved", MOVED, |vmi| {
            vmi["status"]["migrationState"]["completed"] == true
        })?;
        let state = &vmi["status"]["migrationState"];
        ensure!(state["failed"] != true && vmi["status"]["nodeName"] != home, "{state}");
        let events = namespace.list("events")?;
        for reason in ["MigrationConnectionBroken", "MigrationConnectionReplaced"] {
            ensure!(events.iter().any(|event| event["reason"] == reason), "no event {reason}");
        }
        let conditions = vmi["status"]["conditions"].as_array().context("no conditions")?;
        ensure!(conditions.iter().all(|one| one["type"] != "PostCopyRecovery"), "{conditions:?}");
        wait::until_true("the guest to continue to count", COMMAND, || {
            let (now, found) = look(namespace)?;
            ensure!(found == kept, "found {found}, expected {kept}");
            Ok(now > before)
        })
    });
}
