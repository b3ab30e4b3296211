//! Keys, passwords and cloud-init's data in the guest. `debian` tests the part of the guest agent.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING};
use barevirt_e2e::{Console, Namespace, Node, guest, in_namespace};
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
fn files(console: &mut Console, label: &str) -> Result<String> {
    console.ok(&format!("mount -r -t iso9660 $(findfs LABEL={label}) /mnt"), COMMAND)?;
    let list = "cd /mnt; for f in $(find . -type f); do echo \"$f: $(cat $f)\"; done; cd /; umount /mnt";
    console.ok(list, COMMAND)
}

#[test]
fn a_config_drive_and_a_nocloud_disk_have_what_their_secrets_and_the_manifest_say() {
    in_namespace("clouddisks", |namespace| {
        namespace.apply(&secret("user", &json!({"userdata": "#user-of-secret"})))?;
        namespace
            .apply(&secret("keys", &json!({"one": "ssh-ed25519 FIRST", "two": "ssh-ed25519 SECOND"})))?;
        namespace.apply(&secret("other", &json!({"one": "ssh-ed25519 THIRD"})))?;
        let source = json!({"cloudInitConfigDrive": {"secretRef": {"name": "user"}, "networkData": "{\"config\":\"net\"}"}});
        namespace.apply(&secret("seed", &json!({"userdata": "#!/bin/sh\necho 'the secret is' out\n"})))?;
        let mut manifest = guest::with_user_data(guest::instance("vm"), "");
        manifest["spec"]["volumes"][1] =
            json!({"name": "seed", "cloudInitNoCloud": {"secretRef": {"name": "seed"}}});
        let mut manifest = with_disk(manifest, "drive", &source);
        guest::spec_of(&mut manifest)["accessCredentials"] =
            json!([keys("keys", &json!({"configDrive": {}})), keys("other", &json!({"noCloud": {}}))]);
        let card = &mut guest::spec_of(&mut manifest)["domain"]["devices"]["interfaces"][0];
        (card["tag"], card["macAddress"]) = (json!("front"), json!("02:00:00:77:00:31"));
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let launcher = namespace.launcher("vm")?;
        Node::of(&launcher)?.wait_printed(&launcher, "the secret is out", COMMAND)?;
        console.ok("modprobe isofs", COMMAND)?;
        let drive = files(&mut console, "config-2")?;
        let instance = format!("\"instance_id\":\"vm.{}\",\"hostname\":\"vm\",\"uuid\":\"", namespace.name());
        for wanted in [
            "./openstack/latest/user_data: #user-of-secret",
            "./openstack/latest/network_data.json: {\"config\":\"net\"}",
            "\"public_keys\":{\"0\":\"ssh-ed25519 FIRST\",\"1\":\"ssh-ed25519 SECOND\"}",
            &instance,
        ] {
            ensure!(drive.contains(wanted), "{wanted} is not in {drive}");
        }
        let address = console.ok("basename $(readlink -f /sys/class/net/eth0/device/..)", COMMAND)?;
        let device = format!(
            "{{\"type\":\"nic\",\"bus\":\"pci\",\"address\":\"{}\",\"mac\":\"02:00:00:77:00:31\",\"tags\":[\"front\"]}}",
            address.trim()
        );
        ensure!(drive.contains(&device), "{device} is not in {drive}");
        let nocloud = files(&mut console, "cidata")?;
        ensure!(nocloud.contains("\"public-keys\":{\"0\":\"ssh-ed25519 THIRD\"}"), "{nocloud}");
        console.leave()?;
        // The secret's contents are in no object.
        let vmi = namespace.need("vmi", "vm")?;
        ensure!(!vmi.to_string().contains("user-of-secret"));
        Ok(())
    });
}

#[test]
fn credentials_without_an_agent_are_named_as_not_in_effect() {
    in_namespace("nocredentials", |namespace| {
        namespace.apply(&secret("password", &json!({"root": "x"})))?;
        let mut manifest = guest::without_system(guest::instance("vm"));
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
