//! The state of firmware and TPM moves with a guest.

use crate::firmware::{COMMAND, DEFINE, READ, shell, tpm, with_uefi, without_disks};
use anyhow::ensure;
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, guest, in_namespace};
use serde_json::json;

#[test]
fn variables_of_uefi_go_along() {
    in_namespace("moveuefi", |namespace| {
        const NAME: &str = "moved -guid 12345678-1234-1234-1234-123456789abc";
        let efi = json!({ "secureBoot": false });
        namespace.apply(&with_uefi(without_disks(guest::machine("vm", "Always")), efi))?;
        let mut console = shell(namespace, "vm")?;
        console.send(&format!("setvar {NAME} -nv -bs =42\r"))?;
        console.expect("Shell>", COMMAND)?;
        console.leave()?;
        namespace.migrate("vm")?;
        let mut console = shell(namespace, "vm")?;
        console.send(&format!("setvar {NAME}\r"))?;
        console.expect("moved - 0001 Bytes", COMMAND)?;
        // The firmware restarts, and reads the variables from the target's flash.
        console.send("reset -w\r")?;
        console.leave()?;
        let mut console = shell(namespace, "vm")?;
        console.send(&format!("setvar {NAME}\r"))?;
        console.expect("moved - 0001 Bytes", COMMAND)?;
        console.leave().map(drop)
    });
}

#[test]
fn tpm_state_moves_with_the_guest_unless_its_claim_is_on_one_node() {
    in_namespace("movetpm", |namespace| {
        let mut vm = guest::machine("vm", "Always");
        guest::spec_of(&mut vm)["domain"]["devices"]["tpm"] = json!({});
        namespace.apply(&vm)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        ensure!(!tpm(&mut console, READ)?, "a new TPM holds nothing");
        ensure!(tpm(&mut console, DEFINE)?, "the TPM does not take it");
        console.leave()?;
        namespace.migrate("vm")?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        ensure!(tpm(&mut console, READ)?, "the TPM has forgotten");
        console.leave()?;

        let mut kept = guest::machine("kept", "Always");
        guest::spec_of(&mut kept)["domain"]["devices"]["tpm"] = json!({ "persistent": true });
        namespace.apply(&kept)?;
        namespace.wait("vmi", "kept", "to say that it stays", RUNNING, |vmi| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| {
                condition["type"] == "LiveMigratable"
                    && condition["status"] == "False"
                    && condition["message"].as_str().unwrap_or_default().contains("(persistent)")
            })
        })?;
        Ok(())
    });
}

/// The claim exists before the machine, like a claim of a shared storage class.
#[test]
fn persistent_state_on_a_shared_claim_moves_and_outlives_the_machine() {
    in_namespace("movekept", |namespace| {
        const NAME: &str = "moved -guid 12345678-1234-1234-1234-123456789abc";
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
        console.send(&format!("setvar {NAME} -nv -bs =42\r"))?;
        console.expect("Shell>", COMMAND)?;
        console.leave()?;
        for _ in 0..2 {
            namespace.migrate("vm")?;
            let state = namespace.need("vmi", "vm")?["status"]["migrationState"].clone();
            for side in ["sourcePersistentStatePVCName", "targetPersistentStatePVCName"] {
                ensure!(state[side] == "kept", "{side}: {state}");
            }
            let mut console = shell(namespace, "vm")?;
            console.send(&format!("setvar {NAME}\r"))?;
            console.expect("moved - 0001 Bytes", COMMAND)?;
            console.leave()?;
            namespace.kubectl(&["delete", "vmim", "--all"])?;
        }
        let uid = namespace.need("vmi", "vm")?["metadata"]["uid"].clone();
        namespace.virtctl(&["restart", "vm"])?;
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING, |vmi| {
            vmi["metadata"]["uid"] != uid && vmi["status"]["phase"] == "Running"
        })?;
        let mut console = shell(namespace, "vm")?;
        console.send(&format!("setvar {NAME}\r"))?;
        console.expect("moved - 0001 Bytes", COMMAND)?;
        console.leave().map(drop)
    });
}
