use super::*;
use serde_json::{Value, json};
use std::fmt::Write;

fn values() -> Vec<Value> {
    all().iter().map(|definition| serde_json::to_value(definition).unwrap()).collect()
}

/// Every schema of every version, with its path.
fn walk(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), visit);
    }
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{path}[]"), visit);
    }
    if schema["additionalProperties"].is_object() {
        walk(&schema["additionalProperties"], &format!("{path}{{}}"), visit);
    }
}

#[test]
fn schemas_are_structural() {
    for crd in values() {
        for version in crd["spec"]["versions"].as_array().unwrap() {
            let root = &version["schema"]["openAPIV3Schema"];
            walk(root, "", &mut |path, schema| {
                let typed = schema["type"].is_string()
                    || schema["x-kubernetes-int-or-string"] == true
                    || schema["x-kubernetes-preserve-unknown-fields"] == true;
                assert!(typed, "{path} has no type: {schema}");
                for keyword in ["$ref", "definitions", "uniqueItems"] {
                    assert!(schema.get(keyword).is_none(), "{path} has {keyword}");
                }
                if schema["type"] == "object" {
                    assert!(
                        schema.get("properties").is_none() || schema.get("additionalProperties").is_none(),
                        "{path} has both properties and additionalProperties"
                    );
                }
            });
        }
    }
}

#[test]
fn every_property_of_ours_is_described() {
    for crd in values() {
        walk(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut |path, schema| {
            // Descriptions of the API machinery's own types are not checked, nor the wrapper of a list or
            // map.
            let own = path.matches('.').count() > 0 && !path.ends_with("[]") && !path.ends_with("{}");
            if own && !path.contains("metadata") {
                assert!(schema["description"].is_string(), "{path}");
            }
        });
    }
}

/// Kind, plural and group, short names, versions (`*` stored, `-` deprecated), scope, subresources, printer columns.
const KINDS: [&str; 19] = [
    "VirtualMachine virtualmachines.kubevirt.io vm,vms v1*,v1alpha3- Namespaced status Age,Status,Ready",
    "VirtualMachineInstance virtualmachineinstances.kubevirt.io vmi,vmis v1*,v1alpha3- Namespaced none \
     Age,Phase,IP,NodeName,Ready,Live-Migratable,Paused",
    "VirtualMachineInstanceReplicaSet virtualmachineinstancereplicasets.kubevirt.io vmirs,vmirss v1*,v1alpha3- \
     Namespaced scale,status Desired,Current,Ready,Age",
    "VirtualMachineInstanceMigration virtualmachineinstancemigrations.kubevirt.io vmim,vmims v1*,v1alpha3- Namespaced \
     status Phase,VMI",
    "VirtualMachineInstancePreset virtualmachineinstancepresets.kubevirt.io vmipreset,vmipresets v1-,v1alpha3*- \
     Namespaced none none",
    "KubeVirt kubevirts.kubevirt.io kv,kvs v1*,v1alpha3- Namespaced status Age,Phase",
    "VirtualMachinePool virtualmachinepools.pool.kubevirt.io vmpool,vmpools v1beta1*,v1alpha1 Namespaced scale,status \
     Desired,Current,Ready,Age",
    "VirtualMachineSnapshot virtualmachinesnapshots.snapshot.kubevirt.io vmsnapshot,vmsnapshots v1beta1*,v1alpha1 \
     Namespaced status SourceKind,SourceName,Phase,ReadyToUse,CreationTime,Error",
    "VirtualMachineSnapshotContent virtualmachinesnapshotcontents.snapshot.kubevirt.io \
     vmsnapshotcontent,vmsnapshotcontents v1beta1*,v1alpha1 Namespaced status ReadyToUse,CreationTime,Error",
    "VirtualMachineRestore virtualmachinerestores.snapshot.kubevirt.io vmrestore,vmrestores v1beta1*,v1alpha1 \
     Namespaced status TargetKind,TargetName,Complete,RestoreTime",
    "VirtualMachineExport virtualmachineexports.export.kubevirt.io vmexport,vmexports v1*,v1beta1- Namespaced status \
     SourceKind,SourceName,Phase",
    "VirtualMachineClone virtualmachineclones.clone.kubevirt.io vmclone,vmclones v1beta1*,v1alpha1 Namespaced status \
     Phase,SourceVirtualMachine,TargetVirtualMachine",
    "VirtualMachineBackup virtualmachinebackups.backup.kubevirt.io vmbackup,vmbackups v1alpha1* Namespaced status \
     SourceKind,SourceName,Type,CheckpointName",
    "VirtualMachineBackupTracker virtualmachinebackuptrackers.backup.kubevirt.io vmbackuptracker,vmbackuptrackers \
     v1alpha1* Namespaced status SourceKind,SourceName,LatestCheckpoint,CheckpointTime",
    "VirtualMachineInstancetype virtualmachineinstancetypes.instancetype.kubevirt.io \
     vminstancetype,vminstancetypes,vmf,vmfs v1beta1* Namespaced none none",
    "VirtualMachineClusterInstancetype virtualmachineclusterinstancetypes.instancetype.kubevirt.io \
     vmclusterinstancetype,vmclusterinstancetypes,vmcf,vmcfs v1beta1* Cluster none none",
    "VirtualMachinePreference virtualmachinepreferences.instancetype.kubevirt.io vmpref,vmprefs,vmp,vmps v1beta1* \
     Namespaced none none",
    "VirtualMachineClusterPreference virtualmachineclusterpreferences.instancetype.kubevirt.io vmcp,vmcps v1beta1* \
     Cluster none none",
    "MigrationPolicy migrationpolicies.migrations.kubevirt.io none v1alpha1* Cluster status none",
];

#[test]
fn versions_names_and_subresources_are_those_of_kubevirt() {
    let words = |value: &Value, word: &dyn Fn(&Value) -> String| {
        let words: Vec<String> = value.as_array().into_iter().flatten().map(word).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let seen: Vec<String> = values()
        .iter()
        .map(|crd| {
            let spec = &crd["spec"];
            let versions = words(&spec["versions"], &|version| {
                let mark = |field: &str, mark| if version[field] == true { mark } else { "" };
                format!("{}{}{}", text(&version["name"]), mark("storage", "*"), mark("deprecated", "-"))
            });
            let newest = &spec["versions"][0];
            let subresources: Vec<String> = newest["subresources"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, _)| name.clone())
                .collect();
            let category = json!(["all"]);
            let cluster = spec["scope"] == "Cluster";
            assert_eq!(spec["names"]["categories"] == category, !cluster, "{}", spec["names"]["kind"]);
            format!(
                "{} {} {} {versions} {} {} {}",
                text(&spec["names"]["kind"]),
                text(&crd["metadata"]["name"]),
                words(&spec["names"]["shortNames"], &text),
                text(&spec["scope"]),
                words(&json!(subresources), &text),
                words(&newest["additionalPrinterColumns"], &|column| text(&column["name"])),
            )
        })
        .collect();
    assert_eq!(seen, KINDS);
}

/// A schema without its descriptions.
fn bare(schema: &Value) -> Value {
    match schema {
        Value::Object(object) => {
            let kept = object.iter().filter(|(name, value)| *name != "description" || !value.is_string());
            kept.map(|(name, value)| (name.clone(), bare(value))).collect()
        }
        Value::Array(items) => items.iter().map(bare).collect(),
        other => other.clone(),
    }
}

#[test]
fn all_versions_of_a_kind_have_one_schema() {
    for crd in values() {
        let versions = crd["spec"]["versions"].as_array().unwrap();
        for version in versions {
            assert_eq!(bare(&versions[0]["schema"]), bare(&version["schema"]));
        }
    }
}

#[test]
fn definitions_stay_small() {
    for crd in values() {
        let size = crd.to_string().len();
        assert!(size < 700_000, "{} has {size} bytes", crd["metadata"]["name"]);
    }
    // Client-side apply keeps a copy of it in an annotation, which Kubernetes limits.
    assert!(serde_json::to_string(&kubevirt()).unwrap().len() < 256 * 1024);
}

#[test]
fn numbers_have_the_formats_of_the_api() {
    for crd in values() {
        walk(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut |path, schema| {
            if schema["type"] == "integer" {
                assert!(
                    ["int32", "int64"].map(|format| json!(format)).contains(&schema["format"]),
                    "{path}: {schema}"
                );
            }
        });
    }
}

/// The inventory of our fields: name, type, required mark. A change of it is a change of the API.
#[test]
fn the_inventory_of_fields() {
    let mut text = String::new();
    for crd in values() {
        writeln!(text, "{}", crd["spec"]["names"]["kind"].as_str().unwrap()).unwrap();
        inventory(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], 1, &mut text);
    }
    insta::assert_snapshot!("fields", text);
}

fn inventory(schema: &Value, depth: usize, text: &mut String) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let mark = if required.contains(&name.as_str()) { " required" } else { "" };
        let (kind, inner) = described(property);
        writeln!(text, "{}{name}: {kind}{mark}", "  ".repeat(depth)).unwrap();
        // Types of Kubernetes itself are named without their fields.
        if !matches!(name.as_str(), "affinity" | "tolerations" | "topologySpreadConstraints" | "dnsConfig") {
            inventory(inner, depth + 1, text);
        }
    }
}

fn described(schema: &Value) -> (String, &Value) {
    if schema["x-kubernetes-int-or-string"] == true {
        return ("quantity".to_owned(), schema);
    }
    match schema["type"].as_str().unwrap_or("any") {
        "array" => {
            let (kind, inner) = described(&schema["items"]);
            (format!("array of {kind}"), inner)
        }
        "object" if schema["additionalProperties"].is_object() => {
            let (kind, inner) = described(&schema["additionalProperties"]);
            (format!("map of {kind}"), inner)
        }
        kind => match schema["format"].as_str() {
            Some(format) => (format!("{kind}:{format}"), schema),
            None => (kind.to_owned(), schema),
        },
    }
}
