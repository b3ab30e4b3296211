//! The state of firmware and TPM moves with a guest.

use crate::firmware::{has_variable, restart_firmware, shell, store_variable, with_uefi, without_disks};
use anyhow::{Context as _, Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Namespace, guest, in_namespace, tpm};
use serde_json::json;

/// The variable.
const NAME: &str = "moved";

#[test]
fn uefi_variables_move_with_the_guest() {
    in_namespace("moveuefi", |namespace| {
        let efi = json!({ "secureBoot": false });
        namespace.apply(&with_uefi(without_disks(guest::machine("vm", "Always")), efi))?;
        let mut console = shell(namespace, "vm")?;
        store_variable(&mut console, NAME)?;
        console.leave()?;
        namespace.migrate("vm")?;
        let mut console = shell(namespace, "vm")?;
        has_variable(&mut console, NAME)?;
        // The firmware reads the variables from the target's flash.
        restart_firmware(&mut console)?;
        has_variable(&mut console, NAME)?;
        console.leave().map(drop)
    });
}

#[test]
fn tpm_state_moves_with_the_guest() {
    in_namespace("movetpm", |namespace| {
        tpm::start_machine(namespace, json!({}))?;
        namespace.migrate("vm")?;
        tpm::ensure_kept(namespace, SOON)
    });
}

/// The claim exists before the machine, like a claim of a shared storage class.
#[test]
fn persistent_state_on_a_shared_claim_moves_and_outlives_the_machine() {
    in_namespace("movekept", |namespace| {
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": "kept", "labels": { "persistent-state-for": "vm" } },
            "spec": {
                "storageClassName": "rwx", "accessModes": ["ReadWriteMany"],
                "resources": { "requests": { "storage": "10Mi" } },
            },
        }))?;
        let efi = json!({ "secureBoot": false, "persistent": true });
        let mut vm = with_uefi(without_disks(guest::machine("vm", "Always")), efi);
        guest::spec_of(&mut vm)["domain"]["devices"]["tpm"] = json!({ "persistent": true });
        namespace.apply(&vm)?;
        let mut console = shell(namespace, "vm")?;
        store_variable(&mut console, NAME)?;
        console.leave()?;
        for _ in 0..2 {
            namespace.migrate("vm")?;
            let state = namespace.need("vmi", "vm")?["status"]["migrationState"].clone();
            for side in ["sourcePersistentStatePVCName", "targetPersistentStatePVCName"] {
                ensure!(state[side] == "kept", "{side}: {state}");
            }
            let mut console = shell(namespace, "vm")?;
            has_variable(&mut console, NAME)?;
            console.leave()?;
            namespace.delete_all("vmim")?;
        }
        let uid = namespace.need("vmi", "vm")?["metadata"]["uid"].clone();
        namespace.virtctl(&["restart", "vm"])?;
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING, |vmi| {
            vmi["metadata"]["uid"] != uid && vmi["status"]["phase"] == "Running"
        })?;
        let mut console = shell(namespace, "vm")?;
        has_variable(&mut console, NAME)?;
        console.leave().map(drop)
    });
}

/// The claims that begin with the name of those for state.
fn claims(namespace: &Namespace) -> Result<Vec<String>> {
    let claims = namespace.list("persistentvolumeclaims")?;
    let names = claims.iter().filter_map(|claim| claim["metadata"]["name"].as_str());
    Ok(names.filter(|name| name.starts_with("persistent-state-for-vm-")).map(str::to_owned).collect())
}

/// Waits until there is one claim for state, and returns its name.
fn one_claim(namespace: &Namespace) -> Result<String> {
    wait::until("one claim for state to be left", SOON, || {
        let claims = claims(namespace)?;
        Ok(if let [one] = &claims[..] { Some(one.clone()) } else { None })
    })
}

#[test]
fn persistent_state_on_a_claim_of_one_node_moves_to_another_claim() {
    in_namespace("movekeptlocal", |namespace| {
        tpm::start_machine(namespace, json!({ "persistent": true }))?;
        for _ in 0..2 {
            let former = one_claim(namespace)?;
            let vmi = namespace.migrate("vm")?;
            let state = &vmi["status"]["migrationState"];
            let target = &state["targetPersistentStatePVCName"];
            ensure!(state["sourcePersistentStatePVCName"] == former && *target != former, "{state}");
            let volumes = vmi["status"]["volumeStatus"].as_array().cloned().unwrap_or_default();
            let named = volumes.iter().any(|volume| {
                volume["name"] == "persistent-state-for-this-vm"
                    && volume["persistentVolumeClaimInfo"]["claimName"] == *target
            });
            ensure!(named, "{volumes:?}");
            namespace.wait_gone("persistentvolumeclaims", &former, SOON)?;
            ensure!(*target == one_claim(namespace)?, "{state}");
            tpm::ensure_kept(namespace, SOON)?;
        }
        // A migration that is cancelled leaves no claim.
        namespace.delete_all("vmim")?;
        namespace.virtctl(&["migrate", "vm", "--addedNodeSelector=is=nowhere"])?;
        wait::until_true("a claim for the target", SOON, || Ok(claims(namespace)?.len() == 2))?;
        namespace.virtctl(&["migrate-cancel", "vm"])?;
        let last = one_claim(namespace)?;
        let uid = namespace.need("vmi", "vm")?["metadata"]["uid"].clone();
        namespace.virtctl(&["restart", "vm"])?;
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING, |vmi| {
            vmi["metadata"]["uid"] != uid && vmi["status"]["phase"] == "Running"
        })?;
        tpm::ensure_kept(namespace, BOOT).context("after the restart")?;
        ensure!(one_claim(namespace)? == last, "the restart made another claim");
        namespace.delete("vm", "vm")?;
        namespace.wait_gone("persistentvolumeclaims", &last, RUNNING)
    });
}
