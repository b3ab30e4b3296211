//! Migration of a guest: its duration, writes, and memory of the launcher; and the time to drain a node of
//! idle guests.

use super::launch::{PSS_BUDGET, pss_of};
use super::start::{audit_log, writes};
use super::{Figure, Figures, Rounds, median};
use crate::command::kubectl;
use crate::guest;
use crate::namespace::Namespace;
use crate::node::{self, Node};
use crate::wait::{self, MOVED, RUNNING};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

const WRITES: f64 = 12.0;
const MORE_MIB: f64 = 2.0;
/// Marks the guests of this measurement, and with them their pods.
const LABEL: &str = "moves";
const DRAINED: Duration = Duration::from_secs(900);

/// Measures `migration_s`, `migration_writes`, `migration_launcher_mib` and its peak, `launcher_pod_mib` and `drain_s`.
pub fn measure(namespace: &Namespace, rounds: Rounds, figures: &mut Figures) -> Result<()> {
    // Most guests belong to a machine, whose status is written as well.
    namespace.apply(&movable(guest::machine("moves", "Always")))?;
    namespace.wait_phase("moves", "Running", RUNNING)?;
    let log = audit_log()?;
    let (mut seconds, mut counts) = (Vec::new(), Vec::new());
    let (mut idles, mut more, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds.moves {
        let name = format!("move-{round}");
        let launcher = namespace.launcher("moves")?;
        let node = Node::of(&launcher)?;
        let pid = node.processes(&launcher, "virt-launcher")?.first().copied().context("no launcher")?;
        let idle = pss_mib(&node, pid)?;
        let before = writes(&log, namespace.name())?;
        let begun = Instant::now();
        namespace.apply(&migration(&name))?;
        let mut sending = Vec::new();
        wait::until_true("the guest to have moved", MOVED, || {
            // The launcher ends when the guest is gone.
            sending.extend(pss_mib(&node, pid).ok());
            let migration = namespace.need("vmim", &name)?;
            ensure!(migration["status"]["phase"] != "Failed", "{}", migration["status"]);
            Ok(migration["status"]["phase"] == "Succeeded")
        })?;
        seconds.push(begun.elapsed().as_secs_f64());
        idles.push(idle);
        ensure!(!sending.is_empty(), "the launcher ended before its memory was read");
        more.push(median(&sending) - idle);
        peaks.push(sending.iter().copied().fold(idle, f64::max) - idle);
        // The clean-up right after the migration counts as well.
        namespace.wait("vmi", "moves", "to have one pod", MOVED, |vmi| {
            vmi["status"]["activePods"].as_object().is_some_and(|pods| pods.len() == 1)
        })?;
        thread::sleep(Duration::from_secs(3));
        counts.push(writes(&log, namespace.name())? - before);
    }
    figures.insert("migration_s".to_owned(), Figure::plain(median(&seconds), "s", rounds.moves));
    let figure = Figure::plain(median(&counts), "writes", rounds.moves);
    figures.insert("migration_writes".to_owned(), figure.within("at most 12", |f| f.value <= WRITES));
    let figure = Figure::plain(median(&idles), "MiB", rounds.moves);
    figures.insert("launcher_pod_mib".to_owned(), figure.within("at most 6 MiB", |f| f.value <= PSS_BUDGET));
    let figure = Figure::plain(median(&more), "MiB", rounds.moves);
    figures.insert(
        "migration_launcher_mib".to_owned(),
        figure.within("at most 2 more", |f| f.value <= MORE_MIB),
    );
    let figure = Figure::plain(median(&peaks), "MiB", rounds.moves);
    figures.insert("migration_launcher_peak_mib".to_owned(), figure);
    namespace.kubectl(&["delete", "vm", "moves"])?;
    drain_idle(namespace, rounds, figures)
}

/// Drains one node with `kubectl drain`, limited to the guests of this namespace.
fn drain_idle(namespace: &Namespace, rounds: Rounds, figures: &mut Figures) -> Result<()> {
    let nodes = kubectl(&["get", "nodes", "-o", "name"])?;
    let node = nodes.lines().last().context("no node")?.trim_start_matches("node/").to_owned();
    let names: Vec<String> = (0..rounds.drained).map(|number| format!("drained-{number}")).collect();
    for name in &names {
        let mut manifest = instance(name);
        guest::spec_of(&mut manifest)["affinity"] = json!({"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {
                "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}],
            }}],
        }});
        namespace.apply(&manifest)?;
    }
    for name in &names {
        namespace.wait_phase(name, "Running", MOVED)?;
        namespace.wait("vmi", name, "to be migratable", MOVED, |vmi| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|c| c["type"] == "LiveMigratable" && c["status"] == "True")
        })?;
    }
    let begun = Instant::now();
    node::drain(&node, &format!("kubevirt.io=virt-launcher,bench={LABEL}"), DRAINED)?;
    let seconds = begun.elapsed().as_secs_f64();
    for name in &names {
        let vmi = namespace.need("vmi", name)?;
        ensure!(vmi["status"]["phase"] == "Running" && vmi["status"]["nodeName"] != node.as_str(), "{vmi}");
    }
    figures.insert("drain_s".to_owned(), Figure::plain(seconds, "s", rounds.drained));
    Ok(())
}

/// A guest with Debian's kernel, as when this was measured first: what is sent depends on the kernel.
fn movable(manifest: Value) -> Value {
    let mut manifest = guest::with_debians_kernel(manifest);
    guest::spec_of(&mut manifest)["evictionStrategy"] = json!("LiveMigrate");
    manifest
}

/// An idle guest without a disk.
fn instance(name: &str) -> Value {
    let mut manifest = movable(guest::instance(name));
    manifest["metadata"]["labels"] = json!({"bench": LABEL});
    manifest
}

fn migration(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": name}, "spec": {"vmiName": "moves"},
    })
}

fn pss_mib(node: &Node, pid: u32) -> Result<f64> {
    pss_of(&node.sh(&format!("cat /proc/{pid}/smaps_rollup"))?)
}
