//! Disks made of the cluster's objects: the guest reads the contents of the objects.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::try_kubectl_with;
use barevirt_e2e::wait::{RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::{Value, json};

/// guest-tiny with a volume of that source on a virtio disk or in a CD drive, which it does not mount by
/// itself.
fn with_object(mut manifest: Value, name: &str, source: &Value, target: &str) -> Value {
    let spec = guest::spec_of(&mut manifest);
    let bus = if target == "cdrom" { "sata" } else { "virtio" };
    guest::push(&mut spec["domain"]["devices"]["disks"], json!({ "name": name, target: { "bus": bus } }));
    let mut volume = source.clone();
    volume["name"] = json!(name);
    guest::push(&mut spec["volumes"], volume);
    manifest
}

/// Starts it, opens its console, and loads the drivers to mount such disks.
fn boot(namespace: &Namespace, manifest: &Value) -> Result<Console> {
    let mut console = Console::boot(namespace, manifest)?;
    console.ok("modprobe -a isofs ahci sr_mod", SOON)?;
    Ok(console)
}

/// Each file of the disk with that label, as a line of its name and contents.
fn files(console: &mut Console, label: &str) -> Result<String> {
    // Drives appear after some time.
    let find =
        format!("for try in $(seq 50); do findfs LABEL={label} >/disk 2>/dev/null && break; sleep 0.2; done");
    console.ok(&format!("{find}; mount -r -t iso9660 $(cat /disk) /mnt"), SOON)?;
    let files = "cd /mnt; for f in $(find . -type f | sort); do echo \"$f: $(cat $f)\"; done; cd /";
    let files = console.ok(files, SOON)?;
    console.ok("umount /mnt", SOON)?;
    Ok(files)
}

#[test]
fn keys_of_a_config_map_and_of_a_secret_are_files() {
    in_namespace("objects", |namespace| {
        namespace.kubectl(&[
            "create",
            "configmap",
            "settings",
            "--from-literal=color=blue",
            "--from-literal=a.b=c",
        ])?;
        namespace.kubectl(&["create", "secret", "generic", "key", "--from-literal=password=sesame"])?;
        let settings = json!({ "configMap": { "name": "settings" } });
        let key = json!({ "secret": { "secretName": "key", "volumeLabel": "SECRETS" } });
        let manifest = with_object(guest::instance("vm"), "settings", &settings, "disk");
        let mut console = boot(namespace, &with_object(manifest, "key", &key, "cdrom"))?;
        let found = files(&mut console, "cfgdata")?;
        ensure!(found == "./a.b: c\n./color: blue", "{found:?}");
        let found = files(&mut console, "SECRETS")?;
        ensure!(found == "./password: sesame", "{found:?}");
        // The secret's contents must not be in the instance.
        ensure!(!namespace.need("vmi", "vm")?.to_string().contains("sesame"));
        console.leave().map(drop)
    });
}

#[test]
fn a_config_map_that_need_not_be_there_is_an_empty_disk() {
    in_namespace("objectgone", |namespace| {
        let source =
            json!({ "configMap": { "name": "nowhere", "optional": true, "volumeLabel": "NOTHING" } });
        let manifest = with_object(guest::instance("vm"), "settings", &source, "disk");
        let mut console = boot(namespace, &manifest)?;
        let found = files(&mut console, "NOTHING")?;
        ensure!(found.is_empty(), "{found:?}");
        console.leave().map(drop)
    });
}

#[test]
fn a_guest_reads_its_pods_labels_and_resources() {
    in_namespace("downwardapi", |namespace| {
        let source = json!({ "downwardAPI": { "volumeLabel": "POD", "fields": [
            { "path": "team", "fieldRef": { "fieldPath": "metadata.labels['team']" } },
            { "path": "pod/namespace", "fieldRef": { "fieldPath": "metadata.namespace" } },
            { "path": "pod/memory", "resourceFieldRef":
                { "containerName": "compute", "resource": "requests.memory", "divisor": "1Mi" } },
        ] } });
        let mut manifest = with_object(guest::instance("vm"), "me", &source, "disk");
        manifest["metadata"]["labels"]["team"] = json!("green");
        let mut console = boot(namespace, &manifest)?;
        let found = files(&mut console, "POD")?;
        let own = format!("./pod/namespace: {}", namespace.name());
        for wanted in ["./team: green", &own] {
            ensure!(found.contains(wanted), "{wanted} is not in {found}");
        }
        let memory = found.lines().find_map(|line| line.trim().strip_prefix("./pod/memory: "));
        let memory: u32 = memory.with_context(|| format!("no memory in {found}"))?.parse()?;
        ensure!(memory > 128, "the pod's memory is the guest's and more, not {memory} MiB");
        console.leave().map(drop)
    });
}

#[test]
fn the_token_of_an_account_is_on_its_disk_and_in_no_other_container() {
    in_namespace("accounttoken", |namespace| {
        namespace.kubectl(&["create", "serviceaccount", "robot"])?;
        let source = json!({ "serviceAccount": { "serviceAccountName": "robot" } });
        let manifest = with_object(guest::instance("vm"), "account", &source, "disk");
        let mut console = boot(namespace, &manifest)?;
        let found = files(&mut console, "cfgdata")?;
        ensure!(found.contains("-----BEGIN CERTIFICATE-----"), "{found}");
        ensure!(found.contains(&format!("./namespace: {}", namespace.name())), "{found}");
        let token = found.lines().find_map(|line| line.trim().strip_prefix("./token: "));
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": { "token": token.with_context(|| format!("no token in {found}"))? },
        });
        let answer = try_kubectl_with(&["create", "-o", "json", "-f", "-"], &review.to_string())?;
        let answer: Value = serde_json::from_str(&answer.stdout).with_context(|| answer.text())?;
        let user = format!("system:serviceaccount:{}:robot", namespace.name());
        ensure!(answer["status"]["user"]["username"] == user, "{}", answer["status"]);
        let pod = namespace.launcher("vm")?;
        ensure!(
            pod["spec"]["serviceAccountName"] == "robot"
                && pod["spec"]["automountServiceAccountToken"] == false
        );
        let others = pod["spec"]["containers"].as_array().into_iter().flatten();
        for container in others.filter(|container| container["name"] != "compute") {
            ensure!(!container["volumeMounts"].to_string().contains("object-"), "{container}");
        }
        console.leave().map(drop)
    });
}

#[test]
fn answers_for_windows_are_on_a_cd_that_has_to_have_them() {
    in_namespace("sysprep", |namespace| {
        namespace.kubectl(&[
            "create",
            "configmap",
            "answers",
            "--from-literal=Autounattend.xml=<unattend/>",
        ])?;
        namespace.kubectl(&["create", "secret", "generic", "questions", "--from-literal=ask.xml=<ask/>"])?;
        let answers = json!({ "sysprep": { "configMap": { "name": "answers" } } });
        let manifest = with_object(guest::instance("vm"), "sysprep", &answers, "cdrom");
        let mut console = boot(namespace, &manifest)?;
        let found = files(&mut console, "unattendCD")?;
        ensure!(found == "./Autounattend.xml: <unattend/>", "{found:?}");
        console.leave()?;

        let questions = json!({ "sysprep": { "secret": { "name": "questions" } } });
        namespace.apply(&with_object(guest::instance("none"), "sysprep", &questions, "cdrom"))?;
        let vmi = namespace.wait_phase("none", "Failed", RUNNING)?;
        let why = "a sysprep disk should contain autounattend.xml or unattend.xml, but neither was found";
        ensure!(vmi["status"].to_string().contains(why), "{}", vmi["status"]);
        Ok(())
    });
}
