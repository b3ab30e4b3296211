//! Something dies once the target of a migration is ready, while memory is sent, or in post-copy. In the end the guest runs in
//! one pod at most, and no other QEMU is left:
//!
//! ```text
//!                      target ready, or memory is sent     post-copy
//!   components         the guest moves                     the guest moves
//!   target             the guest stays                     the guest is lost
//!   source             the guest is lost                   the guest is lost
//! ```
//!
//! The instance of a guest that is lost fails, and its machine starts it again.

use crate::before_the_start::{
    COMPONENTS, LAUNCHER, QEMU, block, fails, kill, moves_later, reaches, start, starts_again, unblock,
};
use crate::stopped::Stopped;
use anyhow::{Context, Result, ensure};
use barevirt_e2e::harm::component_is_ready;
use barevirt_e2e::moving_guest::{Guest, migration, node};
use barevirt_e2e::slow_moves::SlowMoves;
use barevirt_e2e::wait::{self, MOVED, SOON};
use barevirt_e2e::{Namespace, Node, alone, guest, in_namespace, installation, undisturbed};
use serde_json::Value;
use std::sync::RwLockWriteGuard;

/// Bytes a second. The memory of a guest takes half a minute and more.
const SLOWLY: &str = "1Mi";
const MIGRATION: &str = "away";

/// The pods of both sides.
struct Sides {
    source: Value,
    target: Value,
}

impl Sides {
    /// Those of the instance's migration, which has not ended.
    fn of(namespace: &Namespace, vmi: &Value) -> Result<Self> {
        let state = &vmi["status"]["migrationState"];
        ensure!(state["completed"].is_null(), "the migration has ended: {state}");
        let pod = |field: &str| {
            let name = state[field].as_str().with_context(|| format!("there is no {field}: {state}"))?;
            namespace.need("pod", name)
        };
        Ok(Self { source: pod("sourcePod")?, target: pod("targetPod")? })
    }
}

/// Begins a migration, and waits until memory is being sent.
fn sending(namespace: &Namespace, name: &str) -> Result<Sides> {
    namespace.apply(&migration(name, "vm"))?;
    let uid = namespace.need("vmim", name)?["metadata"]["uid"].clone();
    let vmi = namespace.wait("vmi", "vm", "to be on its way", MOVED, |vmi| {
        let state = &vmi["status"]["migrationState"];
        state["migrationUid"] == uid && state["startTimestamp"].is_string()
    })?;
    ensure!(vmi["status"]["migrationState"]["mode"] == "PreCopy", "{}", vmi["status"]);
    Sides::of(namespace, &vmi)
}

/// Begins a migration, and waits until the guest runs on the target without all of its memory.
fn in_post_copy(namespace: &Namespace, guest: &Guest<'_>) -> Result<Sides> {
    namespace.apply(&migration(MIGRATION, "vm"))?;
    Sides::of(namespace, &guest.wait_post_copy()?)
}

/// Kills all of virt-controller and virt-handler while the guest is on its way.
fn components_die(guest: &Guest<'_>) -> Result<()> {
    for component in COMPONENTS {
        installation::kill(component)?;
    }
    let state = &guest.vmi()?["status"]["migrationState"];
    ensure!(state["completed"].is_null(), "it has moved before the components died: {state}");
    COMPONENTS.into_iter().try_for_each(component_is_ready)
}

/// Waits until no QEMU runs in that pod.
fn has_no_qemu(pod: &Value) -> Result<()> {
    let node = Node::of(pod)?;
    let what = format!("no QEMU to be left in {}", pod["metadata"]["name"]);
    wait::until_true(&what, SOON, || Ok(node.processes(pod, QEMU)?.is_empty()))
}

/// Waits until the guest has moved, and checks that it counts on in the target's pod alone.
fn has_moved(guest: &Guest<'_>, sides: &Sides, before: u64) -> Result<()> {
    guest.wait_migration("Succeeded")?;
    let (home, away) = (Node::of(&sides.source)?, node(&guest.vmi()?));
    ensure!(home.name() != away && Node::of(&sides.target)?.name() == away, "it is on {away}");
    guest.goes_on(before)?;
    guest.wait_alone_on(&away)?;
    has_no_qemu(&sides.source)
}

/// Waits until one pod is left that runs or is about to, with whatever guest.
fn one_pod_is_left(namespace: &Namespace) -> Result<()> {
    wait::until_true("one pod to be left", SOON, || {
        let all = namespace.list("pod")?;
        let ended = |pod: &&Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        Ok(all.len() - all.iter().filter(ended).count() == 1)
    })
}

#[test]
fn a_guest_stays_when_its_target_dies_while_its_memory_is_sent_and_moves_later() {
    in_namespace("killarriving", |namespace| {
        let guest = start(namespace)?;
        let _undisturbed = undisturbed();
        let home = node(&guest.vmi()?);
        let slow = SlowMoves::begin(namespace, SLOWLY)?;
        for (name, program) in [("qemu", QEMU), ("launcher", LAUNCHER)] {
            let sides = sending(namespace, name)?;
            kill(&sides.target, program)?;
            fails(namespace, &guest, name, &home)?;
            guest.wait_alone_on(&home)?;
            has_no_qemu(&sides.target)?;
        }
        drop(slow);
        moves_later(namespace, &guest)
    });
}

#[test]
fn a_machine_whose_source_dies_while_its_memory_is_sent_starts_again_and_moves_later() {
    in_namespace("killsending", |namespace| {
        for program in [QEMU, LAUNCHER] {
            let guest = start(namespace)?;
            let _undisturbed = undisturbed();
            let _slow = SlowMoves::begin(namespace, SLOWLY)?;
            let vmi = guest.vmi()?;
            let sides = sending(namespace, MIGRATION)?;
            kill(&sides.source, program)?;
            starts_again(namespace, MIGRATION, &vmi)?;
            has_no_qemu(&sides.source)?;
            has_no_qemu(&sides.target)?;
            one_pod_is_left(namespace)?;
        }
        moves_later(namespace, &start(namespace)?)
    });
}

#[test]
fn a_guest_moves_though_controllers_and_handlers_die_once_its_target_is_ready() {
    in_namespace("killready", |namespace| {
        let guest = start(namespace)?;
        let (home, before) = (node(&guest.vmi()?), guest.count()?);
        block(namespace)?;
        namespace.apply(&migration(MIGRATION, "vm"))?;
        reaches(namespace, MIGRATION, "PreparingTarget")?;
        let disturbing = alone();
        // The target is ready, and the source's handler does not begin.
        let stopped = Stopped::begin("virt-handler", |pod| pod["spec"]["nodeName"] == *home)?;
        unblock(namespace)?;
        reaches(namespace, MIGRATION, "TargetReady")?;
        let sides = Sides::of(namespace, &guest.vmi()?)?;
        installation::kill("virt-controller")?;
        let now = namespace.need("vmim", MIGRATION)?;
        ensure!(now["status"]["phase"] == "TargetReady", "{}", now["status"]);
        // Also the one that does nothing.
        installation::kill("virt-handler")?;
        drop(stopped);
        COMPONENTS.into_iter().try_for_each(component_is_ready)?;
        // The other tests go on, but kill nothing until it has moved.
        let _undisturbed = RwLockWriteGuard::downgrade(disturbing);
        has_moved(&guest, &sides, before)
    });
}

#[test]
fn a_guest_moves_though_controllers_and_handlers_die_while_its_memory_is_sent() {
    in_namespace("killmemory", |namespace| {
        let guest = start(namespace)?;
        let before = guest.count()?;
        let _slow = SlowMoves::begin(namespace, SLOWLY)?;
        // Other tests are waited for before the move begins, or it would be over by then.
        let disturbing = alone();
        let sides = sending(namespace, MIGRATION)?;
        components_die(&guest)?;
        let _undisturbed = RwLockWriteGuard::downgrade(disturbing);
        has_moved(&guest, &sides, before)
    });
}

#[test]
fn a_guest_in_post_copy_moves_though_controllers_and_handlers_die() {
    in_namespace("killpostcopy", |namespace| {
        let guest = start(namespace)?;
        let (kept, before) = (guest.write_fast()?, guest.count()?);
        let _slow = SlowMoves::with_post_copy(namespace, SLOWLY)?;
        let disturbing = alone();
        let sides = in_post_copy(namespace, &guest)?;
        components_die(&guest)?;
        let _undisturbed = RwLockWriteGuard::downgrade(disturbing);
        has_moved(&guest, &sides, before)?;
        let found = guest.kept()?;
        ensure!(found == kept, "found {found}, expected {kept}");
        Ok(())
    });
}

/// What the instance says of a guest that is lost in post-copy.
const LOST: &str = "the guest was lost in post-copy migration";

/// Kills QEMU on one side, whose guest runs on the target without all of its memory. The guest has no machine, so it is not
/// started again.
fn is_lost(name: &str, pick: fn(&Sides) -> &Value) {
    in_namespace(name, move |namespace| {
        let _undisturbed = undisturbed();
        let guest = Guest::start(namespace, &guest::movable(guest::instance("vm")), "vm")?;
        guest.write_fast()?;
        let _slow = SlowMoves::with_post_copy(namespace, SLOWLY)?;
        let sides = in_post_copy(namespace, &guest)?;
        kill(pick(&sides), QEMU)?;
        reaches(namespace, MIGRATION, "Failed")?;
        let vmi = namespace.wait_phase("vm", "Failed", MOVED)?;
        let said = vmi["status"].to_string();
        ensure!(said.contains(LOST), "it does not say what became of the guest: {said}");
        has_no_qemu(&sides.source)?;
        has_no_qemu(&sides.target)?;
        wait::until_true("no pod to be left", SOON, || Ok(guest.pods()?.is_empty()))
    });
}

#[test]
fn a_guest_whose_source_dies_in_post_copy_is_lost() {
    is_lost("killpostsource", |sides| &sides.source);
}

#[test]
fn a_guest_whose_target_dies_in_post_copy_is_lost() {
    is_lost("killposttarget", |sides| &sides.target);
}

#[test]
fn a_machine_whose_target_dies_in_post_copy_starts_again_and_moves_later() {
    in_namespace("killpostagain", |namespace| {
        let guest = start(namespace)?;
        let undisturbed = undisturbed();
        guest.write_fast()?;
        let slow = SlowMoves::with_post_copy(namespace, SLOWLY)?;
        let vmi = guest.vmi()?;
        let sides = in_post_copy(namespace, &guest)?;
        kill(&sides.target, LAUNCHER)?;
        starts_again(namespace, MIGRATION, &vmi)?;
        has_no_qemu(&sides.source)?;
        has_no_qemu(&sides.target)?;
        one_pod_is_left(namespace)?;
        drop((slow, undisturbed));
        moves_later(namespace, &start(namespace)?)
    });
}
