//! Something dies before a guest begins to move: while its migration waits for its turn, while the target pod is placed or
//! prepared, or when only the source has not begun. If the source lives, the guest counts on there. (`Scheduled` is no phase to
//! wait for: it passes at once.)

use crate::stopped::Stopped;
use anyhow::{Context, Result, ensure};
use barevirt_e2e::changes::merge;
use barevirt_e2e::harm::component_is_ready;
use barevirt_e2e::moving_guest::{Guest, machine, migration, node};
use barevirt_e2e::wait::{self, MOVED, RUNNING, SOON};
use barevirt_e2e::{
    Namespace, Node, alone, condition, handlers, in_namespace, installation, pods, undisturbed,
};
use serde_json::{Value, json};

/// Annotation of instances: their targets do not become ready. KubeVirt's.
const BLOCKED: &str = "kubevirt.io/func-test-block-migration-target-preparation";
/// Label of nodes: migrations of this namespace may go there.
const ADMITS: &str = "e2e-admits";
/// Label of target pods: the UID of their migration.
const JOB: &str = "kubevirt.io/migrationJobUID";
pub(crate) const LAUNCHER: &str = "virt-launcher";
pub(crate) const QEMU: &str = "qemu-system-x86_64";
pub(crate) const COMPONENTS: [&str; 2] = ["virt-controller", "virt-handler"];

/// A guest that counts and can move, of the machine `vm`.
pub(crate) fn start(namespace: &Namespace) -> Result<Guest<'_>> {
    let _undisturbed = undisturbed();
    Guest::start(namespace, &machine("vm"), "vm")
}

/// Keeps the targets of the guest's migrations from getting ready.
pub(crate) fn block(namespace: &Namespace) -> Result<()> {
    namespace.merge("vmi", "vm", &json!({ "metadata": { "annotations": { BLOCKED: "true" } } }))
}

/// Ends that.
pub(crate) fn unblock(namespace: &Namespace) -> Result<()> {
    namespace.merge("vmi", "vm", &json!({ "metadata": { "annotations": { BLOCKED: null } } }))
}

/// A migration whose target pod waits until a node [admits](Admitted) it.
fn held(namespace: &Namespace, name: &str) -> Value {
    let mut held = migration(name, "vm");
    held["spec"]["addedNodeSelector"] = json!({ ADMITS: namespace.name() });
    held
}

/// A node to which held migrations may go, until this is dropped.
struct Admitted(String);

impl Admitted {
    fn other_than(namespace: &Namespace, home: &str) -> Result<Self> {
        let all = handlers::pods()?;
        let (other, _) = all.into_iter().find(|(node, _)| node != home).context("there is one node only")?;
        merge(&["node", &other], &json!({ "metadata": { "labels": { ADMITS: namespace.name() } } }))?;
        Ok(Self(other))
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Err(error) = merge(&["node", &self.0], &json!({ "metadata": { "labels": { ADMITS: null } } }))
        {
            eprintln!("node {} keeps its label: {error:#}", self.0);
        }
    }
}

/// Waits until the migration has that phase.
pub(crate) fn reaches(namespace: &Namespace, name: &str, phase: &str) -> Result<Value> {
    let is_there = |one: &Value| one["status"]["phase"] == phase;
    namespace.wait("vmim", name, &format!("to be {phase}"), MOVED, is_there)
}

/// The target pod of a migration.
fn target(namespace: &Namespace, name: &str) -> Result<Value> {
    let uid = namespace.need("vmim", name)?["metadata"]["uid"].clone();
    let all = namespace.list("pod")?;
    let found = all.into_iter().find(|pod| pod["metadata"]["labels"][JOB] == uid);
    found.with_context(|| format!("{name} has no target pod"))
}

/// Kills a program of a pod, once it runs there.
pub(crate) fn kill(pod: &Value, program: &str) -> Result<()> {
    let node = Node::of(pod)?;
    wait::until_true(&format!("{program} to run"), SOON, || Ok(!node.processes(pod, program)?.is_empty()))?;
    node.kill(pod, program, "KILL")
}

/// Kills virt-controller and virt-handler in that phase of the migration, which goes on with what was there.
fn components_die(namespace: &Namespace, guest: &Guest<'_>, phase: &str) -> Result<()> {
    reaches(namespace, "away", phase)?;
    let before = guest.count()?;
    {
        let _alone = alone();
        for component in COMPONENTS {
            installation::kill(component)?;
        }
        for component in COMPONENTS {
            component_is_ready(component)?;
        }
    }
    guest.goes_on(before)?;
    let now = namespace.need("vmim", "away")?;
    ensure!(now["status"]["phase"] == phase, "{}", now["status"]);
    Ok(())
}

/// Waits until the migration has failed, and says why. The guest counts on where it was.
pub(crate) fn fails(namespace: &Namespace, guest: &Guest<'_>, name: &str, home: &str) -> Result<()> {
    let failed = reaches(namespace, name, "Failed")?;
    ensure!(!namespace.wait_event(name, "FailedMigration")?.is_empty(), "the event does not say why");
    let state = &failed["status"]["migrationState"];
    let says = state["failureReason"].as_str().is_some_and(|why| !why.is_empty());
    ensure!(state["completed"] != true || says, "the record does not say why: {state}");
    let before = guest.count()?;
    let vmi = guest.vmi()?;
    ensure!(node(&vmi) == home && vmi["status"]["phase"] == "Running", "{}", vmi["status"]);
    namespace.delete("vmim", name)?;
    guest.goes_on(before)
}

/// Waits until the migration of that instance, whose QEMU was killed, has failed and says why, and its machine runs again.
pub(crate) fn starts_again(namespace: &Namespace, name: &str, vmi: &Value) -> Result<()> {
    reaches(namespace, name, "Failed")?;
    ensure!(!namespace.wait_event(name, "FailedMigration")?.is_empty(), "the event does not say why");
    namespace.delete("vmim", name)?;
    // After a crash there is a pause.
    namespace
        .wait("vmi", "vm", "to be another, and Running", RUNNING + SOON, |again| {
            again["metadata"]["uid"] != vmi["metadata"]["uid"] && again["status"]["phase"] == "Running"
        })
        .map(drop)
}

/// Moves the guest by another migration.
pub(crate) fn moves_later(namespace: &Namespace, guest: &Guest<'_>) -> Result<()> {
    let (home, before) = (node(&guest.vmi()?), guest.count()?);
    namespace.apply(&migration("later", "vm"))?;
    guest.wait_migration("Succeeded")?;
    ensure!(node(&guest.vmi()?) != home, "it is still on {home}");
    guest.goes_on(before)
}

#[test]
fn a_guest_moves_though_controllers_and_handlers_die_in_each_phase_before_it_begins() {
    in_namespace("killbefore", |namespace| {
        let guest = start(namespace)?;
        let home = node(&guest.vmi()?);
        block(namespace)?;
        pods::limit(namespace, "1")?;
        namespace.apply(&held(namespace, "away"))?;
        namespace.wait("vmim", "away", "to be refused by the quota", SOON, |one| {
            !condition(one, "migrationRejectedByResourceQuota").is_null()
        })?;
        components_die(namespace, &guest, "Pending")?;

        pods::limit(namespace, "4")?;
        reaches(namespace, "away", "Scheduling")?;
        // Before that, another virt-controller would not know the pod.
        namespace.wait("vmi", "vm", "to name the target pod", SOON, |vmi| {
            vmi["status"]["activePods"].as_object().is_some_and(|pods| pods.len() == 2)
        })?;
        let pod = target(namespace, "away")?;
        components_die(namespace, &guest, "Scheduling")?;

        let _admitted = Admitted::other_than(namespace, &home)?;
        components_die(namespace, &guest, "PreparingTarget")?;
        ensure!(target(namespace, "away")?["metadata"]["uid"] == pod["metadata"]["uid"], "it is another pod");

        let before = guest.count()?;
        unblock(namespace)?;
        guest.wait_migration("Succeeded")?;
        ensure!(node(&guest.vmi()?) != home, "it is still on {home}");
        guest.goes_on(before)
    });
}

#[test]
fn a_guest_stays_when_its_target_dies_before_it_begins_and_moves_later() {
    in_namespace("killwaiting", |namespace| {
        let guest = start(namespace)?;
        let home = node(&guest.vmi()?);
        namespace.apply(&held(namespace, "placed"))?;
        reaches(namespace, "placed", "Scheduling")?;
        let pod = target(namespace, "placed")?;
        let pod = pod["metadata"]["name"].as_str().context("a pod without a name")?;
        namespace.kubectl(&["delete", "pod", pod, "--force", "--grace-period=0"])?;
        fails(namespace, &guest, "placed", &home)?;

        for (name, program) in [("launcher", LAUNCHER), ("qemu", QEMU)] {
            block(namespace)?;
            namespace.apply(&migration(name, "vm"))?;
            reaches(namespace, name, "PreparingTarget")?;
            kill(&target(namespace, name)?, program)?;
            fails(namespace, &guest, name, &home)?;
            unblock(namespace)?;
        }

        // The target is ready, and the source's handler does not begin.
        block(namespace)?;
        namespace.apply(&migration("ready", "vm"))?;
        reaches(namespace, "ready", "PreparingTarget")?;
        {
            let _alone = alone();
            let stopped = Stopped::begin("virt-handler", |pod| pod["spec"]["nodeName"] == *home)?;
            unblock(namespace)?;
            reaches(namespace, "ready", "TargetReady")?;
            kill(&target(namespace, "ready")?, LAUNCHER)?;
            reaches(namespace, "ready", "Failed")?;
            drop(stopped);
            component_is_ready("virt-handler")?;
        }
        fails(namespace, &guest, "ready", &home)?;
        moves_later(namespace, &guest)
    });
}

#[test]
fn a_machine_whose_source_dies_before_it_begins_starts_again_and_moves_later() {
    in_namespace("killleaving", |namespace| {
        for (phase, program) in [("Scheduling", QEMU), ("PreparingTarget", LAUNCHER)] {
            let guest = start(namespace)?;
            let vmi = guest.vmi()?;
            let home = node(&vmi);
            let pods = guest.pods()?;
            let (source, _) = pods.first().context("it has no pod")?;
            let source = namespace.need("pod", source)?;
            if phase == "Scheduling" {
                namespace.apply(&held(namespace, "away"))?;
            } else {
                block(namespace)?;
                namespace.apply(&migration("away", "vm"))?;
            }
            reaches(namespace, "away", phase)?;
            ensure!(Node::of(&source)?.name() == home);
            kill(&source, program)?;
            starts_again(namespace, "away", &vmi)?;
        }
        moves_later(namespace, &start(namespace)?)
    });
}
