//! Post-copy: if a policy allows it, a guest that writes faster than its memory can be sent runs on the target before
//! all of its memory has arrived.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::moving_guest::{Guest, machine, node};
use barevirt_e2e::slow_moves::SlowMoves;
use barevirt_e2e::wait::MOVED;
use barevirt_e2e::{Namespace, Node, handlers, in_namespace, pods};
use serde_json::{Value, json};

/// Starts a guest that writes too fast. Returns what it keeps, too.
fn start(namespace: &Namespace) -> Result<(Guest<'_>, String)> {
    let guest = Guest::start(namespace, &machine("vm"), "vm")?;
    let kept = guest.write_fast()?;
    Ok((guest, kept))
}

/// Checks that it counts on from there, and has all that it keeps.
fn goes_on(guest: &Guest<'_>, before: u64, kept: &str) -> Result<()> {
    guest.goes_on(before)?;
    let found = guest.kept()?;
    ensure!(found == kept, "found {found}, expected {kept}");
    Ok(())
}

#[test]
fn a_guest_that_writes_too_fast_moves_where_post_copy_is_allowed() {
    in_namespace("postcopy", |namespace| {
        let (guest, kept) = start(namespace)?;
        let (home, before) = (node(&guest.vmi()?), guest.count()?);
        let slow = SlowMoves::with_post_copy(namespace, "4Mi")?;
        let vmi = namespace.migrate("vm")?;
        drop(slow);
        let state = &vmi["status"]["migrationState"];
        ensure!(state["failed"] != true && node(&vmi) != home, "{state}");
        ensure!(state["mode"] == "PostCopy", "{state}");
        ensure!(state["migrationConfiguration"]["allowPostCopy"] == true, "{state}");
        ensure!(vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
        goes_on(&guest, before, &kept)?;
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
        guest.write_no_more()?;
        let before = guest.count()?;
        let vmi = namespace.migrate("vm")?;
        let state = &vmi["status"]["migrationState"];
        ensure!(state["failed"] != true && state["mode"] == "PreCopy", "{state}");
        goes_on(&guest, before, &kept)
    });
}

/// Resets the connections over which the guest of that pod leaves its node. Those of other guests stay.
fn cut(pod: &Value) -> Result<()> {
    let node = Node::of(pod)?;
    let process = handlers::process(&node)?;
    let qemu = node.processes(pod, "qemu-system-x86_64")?.first().copied().context("no QEMU")?;
    // The handler has connected, in its own network namespace, and QEMU has the socket.
    let ss = format!("nsenter -t {process} -n ss");
    let reset = node.sh(&format!(
        "for inode in $(ls -l /proc/{qemu}/fd | sed -n 's/.*socket:\\[\\([0-9]*\\)\\]/\\1/p'); do \
           port=$({ss} -Htne dport = :8187 | sed -n \"s/.*:\\([0-9]*\\) *[^ ]*:8187 .*ino:$inode .*/\\1/p\"); \
           [ -z \"$port\" ] || {ss} -HK sport = :$port dport = :8187; \
         done"
    ))?;
    ensure!(!reset.trim().is_empty(), "QEMU has no connection to another node");
    Ok(())
}

#[test]
fn a_guest_whose_connection_breaks_in_post_copy_goes_on_over_a_new_one() {
    in_namespace("postcopy-cut", |namespace| {
        let (guest, kept) = start(namespace)?;
        let (home, before) = (node(&guest.vmi()?), guest.count()?);
        let slow = SlowMoves::with_post_copy(namespace, "2Mi")?;
        let pod = namespace.launcher("vm")?;
        namespace.virtctl(&["migrate", "vm"])?;
        guest.wait_post_copy()?;
        drop(slow);
        cut(&pod)?;
        let vmi = namespace.wait("vmi", "vm", "to have moved", MOVED, |vmi| {
            vmi["status"]["migrationState"]["completed"] == true
        })?;
        let state = &vmi["status"]["migrationState"];
        ensure!(state["failed"] != true && node(&vmi) != home, "{state}");
        let events = namespace.list("events")?;
        for reason in ["MigrationConnectionBroken", "MigrationConnectionReplaced"] {
            ensure!(events.iter().any(|event| event["reason"] == reason), "no event {reason}");
        }
        let conditions = vmi["status"]["conditions"].as_array().context("no conditions")?;
        ensure!(conditions.iter().all(|one| one["type"] != "PostCopyRecovery"), "{conditions:?}");
        goes_on(&guest, before, &kept)
    });
}
