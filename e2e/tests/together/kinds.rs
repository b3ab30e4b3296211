//! Every kind: its manifest is accepted or refused with the reason, and `kubectl` explains it, lists it and
//! knows its short names.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{Output, kubectl, repository, try_kubectl, try_kubectl_with};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Namespace, guest, in_namespace, installation};
use serde_json::{Value, json};

/// The text before the reason in an example that is refused.
const REFUSED: &str = "# Refused for now: ";

/// Resource and group, short names, and whether it belongs to a namespace.
const KINDS: [(&str, &str, bool); 19] = [
    ("virtualmachines.kubevirt.io", "vm,vms", true),
    ("virtualmachineinstances.kubevirt.io", "vmi,vmis", true),
    ("virtualmachineinstancereplicasets.kubevirt.io", "vmirs,vmirss", true),
    ("virtualmachineinstancemigrations.kubevirt.io", "vmim,vmims", true),
    ("virtualmachineinstancepresets.kubevirt.io", "vmipreset,vmipresets", true),
    ("kubevirts.kubevirt.io", "kv,kvs", true),
    ("virtualmachinepools.pool.kubevirt.io", "vmpool,vmpools", true),
    ("virtualmachinesnapshots.snapshot.kubevirt.io", "vmsnapshot,vmsnapshots", true),
    ("virtualmachinesnapshotcontents.snapshot.kubevirt.io", "vmsnapshotcontent,vmsnapshotcontents", true),
    ("virtualmachinerestores.snapshot.kubevirt.io", "vmrestore,vmrestores", true),
    ("virtualmachineexports.export.kubevirt.io", "vmexport,vmexports", true),
    ("virtualmachineclones.clone.kubevirt.io", "vmclone,vmclones", true),
    ("virtualmachinebackups.backup.kubevirt.io", "vmbackup,vmbackups", true),
    ("virtualmachinebackuptrackers.backup.kubevirt.io", "vmbackuptracker,vmbackuptrackers", true),
    ("virtualmachineinstancetypes.instancetype.kubevirt.io", "vminstancetype,vminstancetypes,vmf,vmfs", true),
    (
        "virtualmachineclusterinstancetypes.instancetype.kubevirt.io",
        "vmclusterinstancetype,vmclusterinstancetypes,vmcf,vmcfs",
        false,
    ),
    ("virtualmachinepreferences.instancetype.kubevirt.io", "vmpref,vmprefs,vmp,vmps", true),
    ("virtualmachineclusterpreferences.instancetype.kubevirt.io", "vmcp,vmcps", false),
    ("migrationpolicies.migrations.kubevirt.io", "", false),
];

/// `kubectl apply` as a dry run. An object that names a namespace keeps it.
fn dry_run(namespace: &Namespace, manifest: &Value) -> Result<Output> {
    let own = manifest["metadata"]["namespace"].as_str().unwrap_or(namespace.name());
    try_kubectl_with(&["apply", "--dry-run=server", "-n", own, "-f", "-"], &manifest.to_string())
}

/// The KubeVirt object.
fn kubevirt() -> Result<Value> {
    installation::kubevirt()?.context("there is no KubeVirt object")
}

#[test]
fn every_example_is_taken_or_refused_with_the_reason() {
    in_namespace("kinds", |namespace| {
        let mut seen = 0;
        for entry in std::fs::read_dir(repository().join("examples/kinds"))? {
            let path = entry?.path();
            let text = std::fs::read_to_string(&path)?;
            let reason = text.lines().find_map(|line| line.strip_prefix(REFUSED));
            let manifest: Value =
                serde_saphyr::from_str(&text).with_context(|| format!("read {}", path.display()))?;
            let output = dry_run(namespace, &manifest)?;
            match reason {
                None => {
                    ensure!(output.code == 0, "{} was refused: {}", path.display(), output.text().trim());
                }
                Some(reason) => {
                    ensure!(output.code != 0, "{} was taken: {}", path.display(), output.text().trim());
                    ensure!(
                        output.text().contains(reason),
                        "{} does not say {reason:?}: {}",
                        path.display(),
                        output.text()
                    );
                }
            }
            seen += 1;
        }
        ensure!(seen == KINDS.len(), "{seen} examples for {} kinds", KINDS.len());
        Ok(())
    });
}

#[test]
fn every_kind_is_explained() {
    for (resource, ..) in KINDS {
        let text = kubectl(&["explain", resource]).unwrap();
        let (_, description) = text.split_once("DESCRIPTION:").unwrap();
        let (description, fields) = description.split_once("FIELDS:").unwrap();
        assert!(description.trim().len() > 10, "{resource} has no text: {text}");
        assert!(!description.contains("<empty>"), "{resource} has no text: {text}");
        assert!(fields.contains("spec"), "{resource} has no fields: {text}");
    }
    let devices = kubectl(&["explain", "vmi.spec.domain.devices"]).unwrap();
    assert!(devices.contains("interfaces") && devices.contains("disks"), "{devices}");
}

#[test]
fn every_kind_has_its_short_names() {
    let text = kubectl(&["api-resources", "--no-headers"]).unwrap();
    for (resource, short, namespaced) in KINDS {
        let (plural, group) = resource.split_once('.').unwrap();
        let line = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|words| {
            words[0] == plural && words.iter().any(|word| word.starts_with(&format!("{group}/")))
        });
        let words = line.unwrap_or_else(|| panic!("{resource} is not listed"));
        assert_eq!(if short.is_empty() { "" } else { words[1] }, short, "{words:?}");
        assert!(words.contains(&namespaced.to_string().as_str()), "{words:?}");
    }
}

#[test]
fn every_kind_is_listed_in_every_version() {
    for (resource, ..) in KINDS {
        let definition = barevirt_e2e::command::object(&["crd", resource]).unwrap().unwrap();
        let spec = &definition["spec"];
        let (group, plural) = (spec["group"].as_str().unwrap(), spec["names"]["plural"].as_str().unwrap());
        let served: Vec<&Value> =
            spec["versions"].as_array().unwrap().iter().filter(|version| version["served"] == true).collect();
        assert!(!served.is_empty(), "{resource}");
        for version in served {
            let version = version["name"].as_str().unwrap();
            let text = kubectl(&["get", "--raw", &format!("/apis/{group}/{version}/{plural}")]).unwrap();
            let list: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(list["apiVersion"], format!("{group}/{version}"));
            assert!(list["items"].is_array(), "{resource} {version}: {text}");
        }
    }
}

#[test]
fn an_unknown_field_of_any_kind_is_named() {
    in_namespace("kinds-field", |namespace| {
        for entry in std::fs::read_dir(repository().join("examples/kinds"))? {
            let mut manifest: Value = serde_saphyr::from_str(&std::fs::read_to_string(entry?.path())?)?;
            manifest["spec"]["turbo"] = json!(true);
            let output = dry_run(namespace, &manifest)?;
            let text = output.text();
            ensure!(output.code != 0, "{} was taken: {text}", manifest["kind"]);
            ensure!(text.contains("unknown field \"spec.turbo\""), "{}: {text}", manifest["kind"]);
        }
        Ok(())
    });
}

#[test]
fn objects_of_an_older_api_version_are_validated_too() {
    in_namespace("kinds-older", |namespace| {
        for mut manifest in [guest::instance("old"), guest::machine("old", "Halted")] {
            manifest["apiVersion"] = json!("kubevirt.io/v1alpha3");
            let output = dry_run(namespace, &manifest)?;
            ensure!(output.code == 0, "{}", output.text());
            guest::spec_of(&mut manifest)["domain"]["devices"]["disks"][0]["disk"]["bus"] = json!("tape");
            let output = dry_run(namespace, &manifest)?;
            ensure!(output.code != 0 && output.text().contains("tape"), "{}", output.text());
        }
        Ok(())
    });
}

#[test]
fn a_dry_run_shows_the_defaults() {
    in_namespace("kinds-defaults", |namespace| {
        let mut manifest = guest::instance("vm");
        manifest["spec"]["networks"] = json!([]);
        manifest["spec"]["domain"]["devices"]["interfaces"] = json!([]);
        let arguments = ["apply", "--dry-run=server", "-n", namespace.name(), "-o", "json", "-f", "-"];
        let output = try_kubectl_with(&arguments, &manifest.to_string())?;
        ensure!(output.code == 0, "{}", output.text());
        let shown: Value = serde_json::from_str(&output.stdout)?;
        ensure!(shown["spec"]["networks"][0]["pod"] == json!({}), "{shown}");
        ensure!(shown["spec"]["domain"]["machine"]["type"].is_string(), "{shown}");
        ensure!(namespace.get("vmi", "vm")?.is_none(), "a dry run leaves nothing behind");
        Ok(())
    });
}

#[test]
fn a_second_kubevirt_object_is_refused() {
    in_namespace("kinds-second", |namespace| {
        let mut second = kubevirt()?;
        second["metadata"] = json!({ "name": "second", "namespace": second["metadata"]["namespace"] });
        let output = dry_run(namespace, &second)?;
        ensure!(output.code != 0, "it was taken: {}", output.text());
        ensure!(output.text().contains("already created"), "{}", output.text());
        Ok(())
    });
}

/// A disk of the node's own, behind the gate HostDisk.
fn host_disk() -> Value {
    let mut manifest = guest::instance("gated");
    manifest["spec"]["volumes"][0] =
        json!({ "name": "root", "hostDisk": { "path": "/data/disk.img", "type": "Disk" } });
    manifest
}

fn set_gates(object: &Value, gates: &Value) -> Result<()> {
    let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
    let patch =
        json!({ "spec": { "configuration": { "developerConfiguration": { "featureGates": gates } } } });
    let arguments = [
        "patch",
        "kubevirt",
        name.as_str().unwrap_or_default(),
        "-n",
        namespace.as_str().unwrap_or_default(),
        "--type=merge",
        "-p",
        &patch.to_string(),
    ];
    let output = try_kubectl(&arguments)?;
    ensure!(output.code == 0, "the KubeVirt object does not change: {}", output.text());
    Ok(())
}

#[test]
fn a_gated_field_names_its_gate_until_it_is_on() {
    const GATE: &str = "HostDisk feature gate is not enabled";
    in_namespace("kinds-gate", |namespace| {
        let before = kubevirt()?;
        let gates = before["spec"]["configuration"]["developerConfiguration"]["featureGates"].clone();
        let output = dry_run(namespace, &host_disk())?;
        ensure!(output.code != 0 && output.text().contains(GATE), "{}", output.text());
        let mut more = gates.as_array().cloned().unwrap_or_default();
        more.push(json!("HostDisk"));
        set_gates(&before, &json!(more))?;
        // Without a restart, since virt-api watches the object.
        let seen = wait::until_true("the gate to count", SOON, || {
            Ok(!dry_run(namespace, &host_disk())?.text().contains(GATE))
        });
        set_gates(&before, &gates)?;
        seen?;
        wait::until_true("the gate not to count any more", SOON, || {
            Ok(dry_run(namespace, &host_disk())?.text().contains(GATE))
        })
    });
}
