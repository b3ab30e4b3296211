//! Something dies while a guest moves with its volume: the guest is on one node, with every byte that it wrote. One of the
//! claims is a block device. Or something dies before a guest without a disk moves, or while its memory is sent. Or
//! virt-controller is stopped for a moment, and then finds two guests with the same new claim.
//!
//! Components serve all guests, so this is a program of its own.

mod before_the_start;
mod on_its_way;
mod one_claim;
mod stopped;

use anyhow::{Context, Result, ensure};
use barevirt_e2e::harm::component_is_ready;
use barevirt_e2e::moving_volume::{
    ask, begin, boot, claim_in_status, fill, has_written, machine, moves, name_claim, sum, wait_moved,
    write_on,
};
use barevirt_e2e::slow_moves::SlowMoves;
use barevirt_e2e::wait::{self, MOVED, RUNNING, SOON};
use barevirt_e2e::{Namespace, Node, alone, condition, in_namespace, installation, undisturbed};
use serde_json::{Value, json};

/// Size of the claims. At 4 MiB a second, a copy takes sixteen seconds.
const SIZE: &str = "64Mi";

/// A claim of one node; with a class, a block device.
fn claim(namespace: &Namespace, name: &str, class: Option<&str>) -> Result<()> {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": SIZE } } },
    });
    if let Some(class) = class {
        claim["spec"]["storageClassName"] = json!(class);
        claim["spec"]["volumeMode"] = json!("Block");
    }
    namespace.apply(&claim)
}

/// A guest with a disk on the claim `data`, that writes all the time.
struct Guest {
    vmi: Value,
    boot: String,
    sum: String,
}

impl Guest {
    fn start(namespace: &Namespace) -> Result<Self> {
        claim(namespace, "data", None)?;
        claim(namespace, "other", Some("block"))?;
        namespace.apply(&machine("data"))?;
        let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
        let (boot, sum) = (boot(namespace)?, fill(namespace)?);
        write_on(namespace)?;
        Ok(Self { vmi, boot, sum })
    }

    fn home(&self) -> &Value {
        &self.vmi["status"]["nodeName"]
    }

    /// It is the same boot, and has what it wrote.
    fn goes_on(&self, namespace: &Namespace) -> Result<()> {
        ensure!(namespace.need("vmi", "vm")?["metadata"]["uid"] == self.vmi["metadata"]["uid"]);
        ensure!(boot(namespace)? == self.boot, "it has booted again");
        has_written(namespace)?;
        ensure!(sum(namespace)? == self.sum, "the disk is another one");
        Ok(())
    }
}

/// A guest whose disk is being copied to the claim `other`, slowly until the policy is dropped.
fn on_its_way(namespace: &Namespace) -> Result<(Guest, SlowMoves)> {
    let guest = {
        let _undisturbed = undisturbed();
        Guest::start(namespace)?
    };
    let slow = SlowMoves::begin(namespace, "4Mi")?;
    name_claim(namespace, "other")?;
    begin(namespace, "other")?;
    wait_begun(namespace)?;
    Ok((guest, slow))
}

/// Waits until the disk is being copied.
fn wait_begun(namespace: &Namespace) -> Result<()> {
    let begun = |vmi: &Value| vmi["status"]["migrationState"]["startTimestamp"].is_string();
    let vmi = namespace.wait("vmi", "vm", "to be on its way", MOVED, begun)?;
    let state = &vmi["status"]["migrationState"];
    ensure!(state["completed"].is_null(), "it has moved already: {state}");
    Ok(())
}

/// Whether the handlers are killed at the same moment.
#[derive(Clone, Copy, PartialEq)]
enum Handlers {
    Run,
    Killed,
}

/// Kills a program of the pod that this field of the migration names.
fn kill(namespace: &Namespace, field: &str, program: &str, handlers: Handlers) -> Result<()> {
    let _alone = (handlers == Handlers::Killed).then(alone);
    let vmi = namespace.need("vmi", "vm")?;
    let pod = vmi["status"]["migrationState"][field].as_str().context("there is no such pod")?;
    let pod = namespace.need("pod", pod)?;
    if handlers == Handlers::Killed {
        installation::kill("virt-handler")?;
    }
    Node::of(&pod)?.kill(&pod, program, "KILL")?;
    if handlers == Handlers::Killed {
        component_is_ready("virt-handler")?;
    }
    Ok(())
}

#[test]
fn a_guest_moves_to_a_block_claim_and_back_while_components_die() {
    in_namespace("killmove", |namespace| {
        let (guest, slow) = on_its_way(namespace)?;
        {
            let _alone = alone();
            for component in ["virt-handler", "virt-controller", "virt-api"] {
                installation::kill(component)?;
            }
            for component in ["virt-handler", "virt-controller", "virt-api"] {
                component_is_ready(component)?;
            }
        }
        wait_moved(namespace, guest.home(), "other")?;
        guest.goes_on(namespace)?;
        drop(slow);
        // From the block device to a file.
        let after = fill(namespace)?;
        write_on(namespace)?;
        moves(namespace, "data")?;
        has_written(namespace)?;
        ensure!(sum(namespace)? == after, "the disk is another one after the way back");
        ensure!(boot(namespace)? == guest.boot, "it has booted again");
        Ok(())
    });
}

#[test]
fn a_guest_stays_on_its_claim_when_the_target_dies_and_moves_later() {
    the_target_dies("killtarget", Handlers::Run);
}

#[test]
fn a_guest_stays_on_its_claim_when_the_target_dies_while_handlers_restart() {
    the_target_dies("killtargets", Handlers::Killed);
}

fn the_target_dies(name: &str, handlers: Handlers) {
    in_namespace(name, move |namespace| {
        let (guest, slow) = on_its_way(namespace)?;
        kill(namespace, "targetPod", "virt-launcher", handlers)?;
        let failed = namespace.wait("vmi", "vm", "to have stayed", MOVED, |vmi| {
            vmi["status"]["migrationState"]["failed"] == true
        })?;
        ensure!(failed["status"]["phase"] == "Running", "{}", failed["status"]);
        ensure!(failed["status"]["nodeName"] == *guest.home(), "{}", failed["status"]);
        ensure!(claim_in_status(&failed) == "data", "{}", failed["status"]);
        drop(slow);
        guest.goes_on(namespace)?;
        // The claim that was filled half is filled again from the start.
        write_on(namespace)?;
        wait::until_true("no migration to be under way", SOON, || {
            let all = namespace.list("vmim")?;
            Ok(all.iter().all(|one| matches!(one["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))))
        })?;
        // The installation may have asked for the next migration.
        if claim_in_status(&namespace.need("vmi", "vm")?) != "other" {
            ask(namespace)?;
        }
        let uid = |vmi: &Value| vmi["status"]["migrationState"]["migrationUid"].clone();
        namespace.wait("vmi", "vm", "to move again", MOVED, |vmi| uid(vmi) != uid(&failed))?;
        wait_moved(namespace, guest.home(), "other")?;
        guest.goes_on(namespace)
    });
}

#[test]
fn a_guest_whose_source_dies_while_its_disk_is_copied_starts_again_with_what_it_wrote() {
    the_source_dies("killsource", Handlers::Run);
}

#[test]
fn a_guest_whose_source_dies_while_handlers_restart_starts_again_with_what_it_wrote() {
    the_source_dies("killsources", Handlers::Killed);
}

fn the_source_dies(name: &str, handlers: Handlers) {
    in_namespace(name, move |namespace| {
        let (guest, _slow) = on_its_way(namespace)?;
        kill(namespace, "sourcePod", "qemu-system-x86_64", handlers)?;
        // The new claim has one part only, so the machine waits for a decision.
        namespace.wait("vm", "vm", "to need a decision", MOVED, |vm| {
            condition(vm, "ManualRecoveryRequired")["status"] == "True"
        })?;
        name_claim(namespace, "data")?;
        let before = &guest.vmi["metadata"]["uid"];
        namespace.wait("vmi", "vm", "to be another, and Running", MOVED, |vmi| {
            vmi["metadata"]["uid"] != *before && vmi["status"]["phase"] == "Running"
        })?;
        ensure!(sum(namespace)? == guest.sum, "the disk is another one");
        Ok(())
    });
}
