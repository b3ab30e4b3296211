//! Two guests whose disks are to move to one claim at the same moment.

use crate::stopped::Stopped;
use anyhow::{Result, bail, ensure};
use barevirt_e2e::harm::component_is_ready;
use barevirt_e2e::moving_guest::migration;
use barevirt_e2e::moving_volume::{
    Machine, begin, boot, claim_in_status, claim_of, fill, has_written, machine, moves, name_claim, sum,
    wait_moved, write_on,
};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, alone, condition, in_namespace, undisturbed};
use serde_json::{Value, json};

/// How often virt-controller is to learn of two changes at once.
const TRIES: usize = 10;

/// A guest that writes to its disk all the time, on a claim with the name of the machine.
struct Guest<'a> {
    machine: Machine<'a>,
    vmi: Value,
    boot: String,
    sum: String,
}

impl<'a> Guest<'a> {
    fn make(namespace: &Namespace, name: &str) -> Result<()> {
        namespace.claim(name)?;
        let mut manifest = machine(name);
        manifest["metadata"]["name"] = json!(name);
        namespace.apply(&manifest)
    }

    fn wait(namespace: &'a Namespace, name: &'a str) -> Result<Self> {
        let machine = Machine { namespace, name };
        let vmi = namespace.wait_phase(name, "Running", RUNNING)?;
        let (boot, sum) = (boot(machine)?, fill(machine)?);
        write_on(machine)?;
        Ok(Self { machine, vmi, boot, sum })
    }

    fn vmi(&self) -> Result<Value> {
        self.machine.namespace.need("vmi", self.machine.name)
    }

    /// By what the order of two instances is decided.
    fn seniority(&self) -> [String; 2] {
        let metadata = &self.vmi["metadata"];
        ["creationTimestamp", "uid"].map(|field| metadata[field].as_str().unwrap_or_default().to_owned())
    }

    /// It is the same boot, on that claim, and has what it wrote.
    fn goes_on(&self, claim: &str) -> Result<()> {
        let vmi = self.vmi()?;
        ensure!(vmi["metadata"]["uid"] == self.vmi["metadata"]["uid"], "it is another instance");
        ensure!(claim_in_status(&vmi) == claim, "{}", vmi["status"]);
        ensure!(boot(self.machine)? == self.boot, "it has booted again");
        has_written(self.machine)?;
        ensure!(sum(self.machine)? == self.sum, "the disk is another one");
        Ok(())
    }
}

/// Whether the instance says that it gives way to that one.
fn gives_way(vmi: &Value, to: &str) -> bool {
    let told = condition(vmi, "VolumesChange");
    let message = told["message"].as_str().unwrap_or_default();
    told["status"] == "True" && told["reason"] == "ClaimInUse" && message.contains(&format!("VMI {to} "))
}

/// Has both machines name a claim while virt-controller is stopped, until it learns of both changes at once. Where it has changed one
/// instance before it looks at the other machine, the change of that one is refused, since the claim is used; then both
/// are taken back.
fn both_want(one: Machine<'_>, two: Machine<'_>, claim: &str) -> Result<()> {
    let namespace = one.namespace;
    let moves = |machine: Machine<'_>| -> Result<bool> {
        Ok(claim_of(&namespace.need("vmi", machine.name)?["spec"]["volumes"]) == claim)
    };
    let is_refused = |vm: &Value| condition(vm, "RestartRequired")["status"] == "True";
    for _ in 0..TRIES {
        let stopped = Stopped::begin("virt-controller", |_| true)?;
        name_claim(one, claim)?;
        name_claim(two, claim)?;
        drop(stopped);
        let both_move = wait::until("both changes to be decided", SOON, || {
            if moves(one)? && moves(two)? {
                return Ok(Some(true));
            }
            let machines = [namespace.need("vm", one.name)?, namespace.need("vm", two.name)?];
            Ok(machines.iter().any(is_refused).then_some(false))
        })?;
        if both_move {
            return Ok(());
        }
        for machine in [one, two] {
            name_claim(machine, machine.name)?;
        }
        for machine in [one, two] {
            stays(machine)?;
            namespace.wait("vm", machine.name, "to need no restart", SOON, |vm| !is_refused(vm))?;
        }
    }
    bail!("of two changes at once, one was always refused")
}

/// Waits until the instance is to stay on the claim with its name.
fn stays(machine: Machine<'_>) -> Result<()> {
    let stays = |vmi: &Value| {
        claim_of(&vmi["spec"]["volumes"]) == machine.name && vmi["status"]["migratedVolumes"].is_null()
    };
    machine.namespace.wait("vmi", machine.name, "to stay on its claim", SOON, stays).map(drop)
}

#[test]
fn of_two_disks_that_are_to_move_to_one_claim_one_does_and_the_other_stays_and_moves_to_a_third() {
    in_namespace("killrival", |namespace| {
        let guests = {
            let _undisturbed = undisturbed();
            namespace.claim("wanted")?;
            namespace.claim("third")?;
            Guest::make(namespace, "one")?;
            Guest::make(namespace, "two")?;
            [Guest::wait(namespace, "one")?, Guest::wait(namespace, "two")?]
        };
        let [one, two] = guests;
        let (older, younger) = if one.seniority() < two.seniority() { (one, two) } else { (two, one) };
        let (first, second) = (older.machine.name, younger.machine.name);
        {
            let _alone = alone();
            component_is_ready("virt-controller")?;
            both_want(older.machine, younger.machine, "wanted")?;
            namespace.wait("vmi", second, "to give way", SOON, |vmi| {
                gives_way(vmi, first) && claim_of(&vmi["spec"]["volumes"]) == "wanted"
            })?;
        }

        namespace.apply(&migration("refused", second))?;
        namespace
            .wait("vmim", "refused", "to have failed", SOON, |one| one["status"]["phase"] == "Failed")?;
        let why = namespace.wait_event("refused", "FailedMigration")?;
        ensure!(why.contains("ClaimInUse") && why.contains(first), "{why}");
        begin(older.machine, "wanted")?;
        wait_moved(older.machine, &older.vmi["status"]["nodeName"], "wanted")?;
        older.goes_on("wanted")?;

        // The other guest has stayed, and stays, for the claim is used now.
        let vmi = younger.vmi()?;
        ensure!(gives_way(&vmi, first), "{}", vmi["status"]);
        ensure!(vmi["status"]["nodeName"] == younger.vmi["status"]["nodeName"], "{}", vmi["status"]);
        younger.goes_on(second)?;
        name_claim(younger.machine, second)?;
        stays(younger.machine)?;
        write_on(younger.machine)?;
        moves(younger.machine, "third")?;
        younger.goes_on("third")?;
        ensure!(sum(older.machine)? == older.sum, "the disk of {first} is another one");
        Ok(())
    });
}
