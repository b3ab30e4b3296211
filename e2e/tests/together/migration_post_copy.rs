//! Post-copy: if a policy allows it, a guest that writes faster than its memory can be sent runs on the target before
//! all of its memory has arrived.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a command in the guest may take.
const COMMAND: Duration = Duration::from_secs(60);

/// Allows post-copy after ten seconds, only for guests of this namespace.
fn policy(namespace: &Namespace) -> Value {
    json!({
        "apiVersion": "migrations.kubevirt.io/v1alpha1", "kind": "MigrationPolicy",
        "metadata": { "name": namespace.name() },
        "spec": {
            "allowPostCopy": true, "bandwidthPerMigration": "4Mi", "completionTimeoutPerGiB": 10,
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

#[test]
fn a_guest_that_writes_too_fast_moves_where_post_copy_is_allowed() {
    in_namespace("postcopy", |namespace| {
        namespace.apply(&guest::movable(guest::machine("vm", "Always")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let home = namespace.need("vmi", "vm")?["status"]["nodeName"].clone();
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let count = "(n=0; while true; do n=$((n+1)); echo $n >/tmp/new; mv /tmp/new /tmp/count; sleep 0.2; done) \
                     >/dev/null 2>&1 &";
        console.ok(&format!("{{ {count} }}"), COMMAND)?;
        console.ok("dd if=/dev/urandom of=/tmp/kept bs=64k count=128 2>/dev/null", COMMAND)?;
        // The guest writes sixteen megabytes again and again.
        let write = "(while true; do tr '\\0' x </dev/zero | dd of=/tmp/hot bs=64k count=256 conv=notrunc; done) \
                     >/dev/null 2>&1 &";
        console.ok(&format!("{{ {write} }}"), COMMAND)?;
        console.leave()?;
        let (before, kept) = look(namespace)?;

        namespace.apply(&policy(namespace))?;
        let moved = namespace.migrate("vm");
        barevirt_e2e::command::kubectl(&["delete", "migrationpolicy", namespace.name()])?;
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

        // The next migration goes without post-copy.
        let vmi = namespace.migrate("vm")?;
        let state = &vmi["status"]["migrationState"];
        ensure!(state["failed"] != true && state["mode"] == "PreCopy", "{state}");
        let (_, found) = look(namespace)?;
        ensure!(found == kept, "found {found}, expected {kept}");
        Ok(())
    });
}
