//! Finds the fields of a manifest that need a cluster, because there is none here. A disk on a claim can be
//! given as a file instead.

use serde_json::{Value, json};

/// Sources of volumes that are disks in a cluster, and can be files here.
const DISKS: [&str; 4] = ["persistentVolumeClaim", "dataVolume", "ephemeral", "hostDisk"];
/// Sources of volumes that are objects of the cluster.
const OBJECTS: [&str; 6] =
    ["configMap", "secret", "serviceAccount", "downwardAPI", "downwardMetrics", "sysprep"];
/// The same in a cloud-init volume.
const SECRETS: [&str; 2] = ["secretRef", "networkDataSecretRef"];

/// Replaces disks by local files, and names the remaining fields that need a cluster. `local` are the volumes
/// whose images are given here.
pub(super) fn settle(manifest: &mut Value, local: &[&str]) -> Vec<String> {
    let mut fields = Vec::new();
    let machine = manifest["kind"] == "VirtualMachine";
    if machine {
        for field in ["instancetype", "preference"] {
            if !manifest["spec"][field].is_null() {
                fields.push(format!("spec.{field}"));
            }
        }
        // Volumes that use a DataVolume are named below, unless a file is given for them.
        if let Some(spec) = manifest.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove("dataVolumeTemplates");
        }
    }
    let (pointer, path) =
        if machine { ("/spec/template/spec", "spec.template.spec") } else { ("/spec", "spec") };
    let Some(spec) = manifest.pointer_mut(pointer) else { return fields };
    let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut);
    for (index, volume) in volumes.into_iter().flatten().enumerate() {
        settle_volume(volume, &format!("{path}.volumes[{index}]"), local, &mut fields);
    }
    if spec["accessCredentials"].as_array().is_some_and(|list| !list.is_empty()) {
        fields.push(format!("{path}.accessCredentials"));
    }
    for (index, network) in spec["networks"].as_array().into_iter().flatten().enumerate() {
        if !network["multus"].is_null() {
            fields.push(format!("{path}.networks[{index}].multus"));
        }
    }
    for field in ["devices.filesystems", "devices.gpus", "devices.hostDevices", "devices.downwardMetrics"] {
        let found = &spec["domain"]["devices"][field.trim_start_matches("devices.")];
        if !found.is_null() && found.as_array().is_none_or(|list| !list.is_empty()) {
            fields.push(format!("{path}.domain.{field}"));
        }
    }
    if spec["domain"]["cpu"]["dedicatedCpuPlacement"] == true {
        fields.push(format!("{path}.domain.cpu.dedicatedCpuPlacement"));
    }
    fields
}

fn settle_volume(volume: &mut Value, path: &str, local: &[&str], fields: &mut Vec<String>) {
    let name = volume["name"].as_str().unwrap_or_default().to_owned();
    let Some(members) = volume.as_object_mut() else { return };
    for source in DISKS.into_iter().filter(|source| members.contains_key(*source)).collect::<Vec<_>>() {
        if local.contains(&name.as_str()) {
            members.remove(source);
            members.insert("containerDisk".to_owned(), json!({ "image": "local" }));
        } else {
            fields.push(format!("{path}.{source} (give its image with --disk {name}=PATH)"));
        }
    }
    fields.extend(
        OBJECTS.iter().filter(|source| members.contains_key(**source)).map(|one| format!("{path}.{one}")),
    );
    for source in ["cloudInitNoCloud", "cloudInitConfigDrive"] {
        for secret in SECRETS {
            if members.get(source).is_some_and(|given| !given[secret].is_null()) {
                fields.push(format!("{path}.{source}.{secret}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_files_and_the_rest_is_named() {
        let mut manifest = json!({"kind": "VirtualMachine", "spec": {
        "preference": {"name": "p"}, "dataVolumeTemplates": [{}],
        "template": {"spec": {
            "domain": {"cpu": {"dedicatedCpuPlacement": true}, "devices": {
                "filesystems": [{"name": "conf", "virtiofs": {}}], "gpus": [{"name": "g"}], "hostDevices": []}},
            "networks": [{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "n"}}],
            "volumes": [
                {"name": "root", "dataVolume": {"name": "d"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "seed", "cloudInitNoCloud": {"userData": "x", "networkDataSecretRef": {"name": "s"}}},
                {"name": "conf", "configMap": {"name": "m"}},
                {"name": "key", "secret": {"secretName": "s"}},
                {"name": "account", "serviceAccount": {"serviceAccountName": "a"}},
                {"name": "me", "downwardAPI": {}},
                {"name": "answers", "sysprep": {"secret": {"name": "s"}}},
            ]}}}});
        let fields = settle(&mut manifest, &["root"]);
        assert_eq!(
            fields,
            [
                "spec.preference",
                "spec.template.spec.volumes[1].persistentVolumeClaim (give its image with --disk data=PATH)",
                "spec.template.spec.volumes[2].cloudInitNoCloud.networkDataSecretRef",
                "spec.template.spec.volumes[3].configMap",
                "spec.template.spec.volumes[4].secret",
                "spec.template.spec.volumes[5].serviceAccount",
                "spec.template.spec.volumes[6].downwardAPI",
                "spec.template.spec.volumes[7].sysprep",
                "spec.template.spec.networks[1].multus",
                "spec.template.spec.domain.devices.filesystems",
                "spec.template.spec.domain.devices.gpus",
                "spec.template.spec.domain.cpu.dedicatedCpuPlacement",
            ]
        );
        assert_eq!(
            manifest["spec"]["template"]["spec"]["volumes"][0],
            json!({"name": "root", "containerDisk": {"image": "local"}})
        );
        let mut plain = json!({"kind": "VirtualMachineInstance", "spec": {"domain": {}}});
        assert_eq!(settle(&mut plain, &[]), Vec::<String>::new());
        assert_eq!(plain, json!({"kind": "VirtualMachineInstance", "spec": {"domain": {}}}));
    }
}
