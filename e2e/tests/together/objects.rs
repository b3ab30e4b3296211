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

/// One guest with a disk of each kind. Each step is a behaviour of its own.
#[test]
fn a_guest_reads_objects_its_pod_and_answers_for_windows_from_disks() {
    in_namespace("objects", |namespace| {
        let literal = |kind: &[&str], name: &str, data: &[&str]| {
            let all = [&["create"][..], kind, &[name], data].concat();
            namespace.kubectl(&all).map(drop)
        };
        literal(&["configmap"], "settings", &["--from-literal=color=blue", "--from-literal=a.b=c"])?;
        literal(&["secret", "generic"], "key", &["--from-literal=password=sesame"])?;
        literal(&["configmap"], "answers", &["--from-literal=Autounattend.xml=<unattend/>"])?;
        let settings = json!({ "configMap": { "name": "settings" } });
        let key = json!({ "secret": { "secretName": "key", "volumeLabel": "SECRETS" } });
        let optional =
            json!({ "configMap": { "name": "nowhere", "optional": true, "volumeLabel": "NOTHING" } });
        let pod = json!({ "downwardAPI": { "volumeLabel": "POD", "fields": [
            { "path": "team", "fieldRef": { "fieldPath": "metadata.labels['team']" } },
            { "path": "pod/namespace", "fieldRef": { "fieldPath": "metadata.namespace" } },
            { "path": "pod/memory", "resourceFieldRef":
                { "containerName": "compute", "resource": "requests.memory", "divisor": "1Mi" } },
        ] } });
        let answers = json!({ "sysprep": { "configMap": { "name": "answers" } } });
        let mut manifest = guest::instance("vm");
        manifest["metadata"]["labels"]["team"] = json!("green");
        for (name, source, target) in [
            ("settings", &settings, "disk"),
            ("key", &key, "cdrom"),
            ("optional", &optional, "disk"),
            ("me", &pod, "disk"),
            ("sysprep", &answers, "cdrom"),
        ] {
            manifest = with_object(manifest, name, source, target);
        }
        let mut console = boot(namespace, &manifest)?;
        keys_are_files(namespace, &mut console)?;
        let found = files(&mut console, "NOTHING")?;
        ensure!(found.is_empty(), "a config map that need not be there is an empty disk: {found:?}");
        labels_and_resources_are_files(namespace, &mut console)?;
        let found = files(&mut console, "unattendCD")?;
        ensure!(found == "./Autounattend.xml: <unattend/>", "{found:?}");
        console.leave().map(drop)
    });
}

fn keys_are_files(namespace: &Namespace, console: &mut Console) -> Result<()> {
    let found = files(console, "cfgdata")?;
    ensure!(found == "./a.b: c\n./color: blue", "{found:?}");
    let found = files(console, "SECRETS")?;
    ensure!(found == "./password: sesame", "{found:?}");
    // The secret's contents must not be in the instance.
    ensure!(!namespace.need("vmi", "vm")?.to_string().contains("sesame"));
    Ok(())
}

fn labels_and_resources_are_files(namespace: &Namespace, console: &mut Console) -> Result<()> {
    let found = files(console, "POD")?;
    let own = format!("./pod/namespace: {}", namespace.name());
    for wanted in ["./team: green", &own] {
        ensure!(found.contains(wanted), "{wanted} is not in {found}");
    }
    let memory = found.lines().find_map(|line| line.trim().strip_prefix("./pod/memory: "));
    let memory: u32 = memory.with_context(|| format!("no memory in {found}"))?.parse()?;
    ensure!(memory > 128, "the pod's memory is the guest's and more, not {memory} MiB");
    Ok(())
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
fn answers_for_windows_have_to_be_there() {
    in_namespace("sysprep", |namespace| {
        namespace.kubectl(&["create", "secret", "generic", "questions", "--from-literal=ask.xml=<ask/>"])?;
        let questions = json!({ "sysprep": { "secret": { "name": "questions" } } });
        namespace.apply(&with_object(guest::instance("none"), "sysprep", &questions, "cdrom"))?;
        let vmi = namespace.wait_phase("none", "Failed", RUNNING)?;
        let why = "a sysprep disk should contain autounattend.xml or unattend.xml, but neither was found";
        ensure!(vmi["status"].to_string().contains(why), "{}", vmi["status"]);
        Ok(())
    });
}
