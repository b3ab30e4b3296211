//! Keys, passwords and cloud-init's data in the guest. `debian` tests the part of the guest agent.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::{Value, json};
use std::time::Duration;

/// Time until the guest agent runs, and has put credentials into effect.
const CHANGE: Duration = Duration::from_secs(180);
const COMMAND: Duration = Duration::from_secs(60);

fn secret(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
}

fn keys(secret: &str, method: &Value) -> Value {
    json!({"sshPublicKey": {"source": {"secret": {"secretName": secret}}, "propagationMethod": method}})
}

/// guest-tiny with another disk, which it does not read by itself.
fn with_disk(mut manifest: Value, name: &str, source: &Value) -> Value {
    let spec = guest::spec_of(&mut manifest);
    guest::push(&mut spec["domain"]["devices"]["disks"], json!({"name": name, "disk": {"bus": "virtio"}}));
    let mut volume = source.clone();
    volume["name"] = json!(name);
    guest::push(&mut spec["volumes"], volume);
    manifest
}

/// All files of the disk with that label.
fn files(namespace: &Namespace, label: &str) -> Result<String> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(BOOT)?;
    console.ok("modprobe isofs", COMMAND)?;
    console.ok(&format!("mount -r -t iso9660 $(findfs LABEL={label}) /mnt"), COMMAND)?;
    let files =
        console.ok("cd /mnt; for f in $(find . -type f); do echo \"$f: $(cat $f)\"; done", COMMAND)?;
    console.leave()?;
    Ok(files)
}

#[test]
fn a_config_drive_has_what_its_secrets_and_the_manifest_say() {
    in_namespace("configdrive", |namespace| {
        namespace.apply(&secret("user", &json!({"userdata": "#user-of-secret"})))?;
        namespace
            .apply(&secret("keys", &json!({"one": "ssh-ed25519 FIRST", "two": "ssh-ed25519 SECOND"})))?;
        let source = json!({"cloudInitConfigDrive": {"secretRef": {"name": "user"}, "networkData": "{\"config\":\"net\"}"}});
        let mut manifest = with_disk(guest::instance("vm"), "drive", &source);
        guest::spec_of(&mut manifest)["accessCredentials"] =
            json!([keys("keys", &json!({"configDrive": {}}))]);
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let files = files(namespace, "config-2")?;
        let instance = format!("\"instance_id\":\"vm.{}\",\"hostname\":\"vm\",\"uuid\":\"", namespace.name());
        for wanted in [
            "./openstack/latest/user_data: #user-of-secret",
            "./openstack/latest/network_data.json: {\"config\":\"net\"}",
            "\"public_keys\":{\"0\":\"ssh-ed25519 FIRST\",\"1\":\"ssh-ed25519 SECOND\"}",
            &instance,
        ] {
            ensure!(files.contains(wanted), "{wanted} is not in {files}");
        }
        // The secret's contents are in no object.
        let vmi = namespace.need("vmi", "vm")?;
        ensure!(!vmi.to_string().contains("user-of-secret"));
        Ok(())
    });
}

#[test]
fn keys_of_a_secret_are_in_the_meta_data_of_a_nocloud_disk() {
    in_namespace("nocloudkeys", |namespace| {
        namespace.apply(&secret("keys", &json!({"one": "ssh-ed25519 FIRST"})))?;
        let mut manifest = guest::with_user_data(guest::instance("vm"), "#!/bin/sh\ntrue\n");
        guest::spec_of(&mut manifest)["accessCredentials"] = json!([keys("keys", &json!({"noCloud": {}}))]);
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let files = files(namespace, "cidata")?;
        ensure!(files.contains("\"public-keys\":{\"0\":\"ssh-ed25519 FIRST\"}"), "{files}");
        Ok(())
    });
}

#[test]
fn credentials_without_an_agent_are_named_as_not_in_effect() {
    in_namespace("nocredentials", |namespace| {
        namespace.apply(&secret("password", &json!({"root": "x"})))?;
        let mut manifest = guest::instance("vm");
        guest::spec_of(&mut manifest)["accessCredentials"] = json!([{"userPassword": {
            "source": {"secret": {"secretName": "password"}}, "propagationMethod": {"qemuGuestAgent": {}}}}]);
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        namespace.wait("vmi", "vm", "to say that its credentials are not in effect", RUNNING, |vmi| {
            condition(vmi)
                .is_some_and(|one| one["status"] == "False" && one["message"] == "Guest agent is offline")
        })?;
        let event = namespace.wait_event("vm", "AccessCredentialsSyncFailed")?;
        ensure!(event.contains("Access credentials sync failed: Guest agent is offline"), "{event}");
        Ok(())
    });
}

fn condition(vmi: &Value) -> Option<&Value> {
    let conditions = vmi["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == "AccessCredentialsSynchronized")
}

/// Adds credentials for the guest agent: keys of the user `debian`, and a password of root.
pub(super) fn by_agent(namespace: &Namespace, manifest: &mut Value) -> Result<()> {
    namespace.apply(&secret("keys", &json!({"one": "ssh-ed25519 FIRST"})))?;
    namespace.apply(&secret("password", &json!({"root": "imadethisup"})))?;
    guest::spec_of(manifest)["accessCredentials"] = json!([
        keys("keys", &json!({"qemuGuestAgent": {"users": ["debian"]}})),
        {"userPassword": {"source": {"secret": {"secretName": "password"}}, "propagationMethod": {"qemuGuestAgent": {}}}},
    ]);
    Ok(())
}

/// Checks that a guest has those credentials, and follows a change of the secret to `public`. `debian` is
/// logged in on the console.
pub(super) fn are_in_effect(namespace: &Namespace, console: &mut Console, public: &str) -> Result<()> {
    namespace.wait("vmi", "debian", "to have its credentials in effect", CHANGE, |vmi| {
        condition(vmi).is_some_and(|one| one["status"] == "True")
    })?;
    console.ok("echo imadethisup | su -c true root", COMMAND)?;
    ensure!(console.run("echo another | su -c true root", COMMAND)?.1 != 0, "any password is root's");
    // While the agent writes the file, it belongs to root for a moment.
    let mut has = |key: &str| -> Result<bool> {
        Ok(console.run("cat ~/.ssh/authorized_keys", COMMAND)?.0.contains(key))
    };
    wait::until_true("the first key", CHANGE, || has("ssh-ed25519 FIRST"))?;
    namespace.apply(&secret("keys", &json!({"one": public})))?;
    namespace.wait_mounted("the new key", "debian", || has(public))
}
