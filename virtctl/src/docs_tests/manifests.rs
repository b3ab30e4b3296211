//! Manifests: admission accepts what the docs show.
//!
//! A block of YAML is a whole object, or the info string of its fence says where it belongs:
//! `yaml vmi.spec.domain` is put there in an object that is valid without it. `yaml other` is any other YAML,
//! which only has to parse.

use serde_json::{Value, json};

use super::nothing_is_wrong;
use super::pages;
use crate::explain::{self, Manifests};
use barevirt_api::gates::Gates;
use barevirt_api::settings::Settings;
use barevirt_api::unknown;
use barevirt_api::v1::{KubeVirt, VirtualMachineInstanceMigration};
use barevirt_api::validate::{Requester, kinds};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// An object of a kind that is valid as it is.
fn base(kind: &str) -> Option<Value> {
    let spec = json!({"domain": {"devices": {}}});
    let object = |kind: &str, spec: Value| json!({"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
    match kind {
        "vmi" => Some(object("VirtualMachineInstance", spec)),
        "vm" => Some(object("VirtualMachine", json!({"runStrategy": "Halted", "template": {"spec": spec}}))),
        "kubevirt" => {
            let mut kubevirt = object("KubeVirt", json!({}));
            kubevirt["metadata"]["namespace"] = "kubevirt".into();
            Some(kubevirt)
        }
        _ => None,
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Gives each disk a volume and each network an interface, and adds values that a fragment leaves to the
/// cluster.
fn complete(object: &mut Value) {
    let is_machine = object["kind"] == "VirtualMachine";
    for field in ["instancetype", "preference"] {
        // Admission infers this from a volume in the cluster.
        if let Some(matcher) = object["spec"][field].as_object_mut()
            && matcher.remove("inferFromVolume").is_some()
        {
            matcher.insert("name".to_owned(), "inferred".into());
        }
    }
    let has_type = object["spec"]["instancetype"].is_object();
    let spec = if is_machine { &mut object["spec"]["template"]["spec"] } else { &mut object["spec"] };
    if !has_type && spec["domain"]["memory"].is_null() && spec["domain"]["resources"].is_null() {
        spec["domain"]["memory"] = json!({"guest": "1Gi"});
    }
    let disks: Vec<Value> = spec["domain"]["devices"]["disks"].as_array().cloned().unwrap_or_default();
    let there = spec["volumes"].as_array().cloned().unwrap_or_default();
    let missing = disks.iter().filter(|disk| !there.iter().any(|volume| volume["name"] == disk["name"]));
    let volumes: Vec<Value> = missing
        .map(|disk| json!({"name": disk["name"], "persistentVolumeClaim": {"claimName": "some"}}))
        .collect();
    spec["volumes"] = there.into_iter().chain(volumes).collect();
}

/// Instance types and preferences that a machine names; their contents do not matter here.
fn named(object: &Value) -> Vec<Value> {
    let one = |field: &str, kind: &str, spec: Value| {
        let matcher = &object["spec"][field];
        let kind = matcher["kind"].as_str().unwrap_or(kind);
        let name = matcher["name"].as_str()?;
        let metadata = json!({"name": name, "namespace": object["metadata"]["namespace"]});
        Some(
            json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}),
        )
    };
    let size = json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}});
    let instancetype = one("instancetype", "VirtualMachineClusterInstancetype", size);
    let preference = one("preference", "VirtualMachineClusterPreference", json!({}));
    [instancetype, preference].into_iter().flatten().collect()
}

/// An object as its type, and the fields that the type does not have.
fn typed<T: DeserializeOwned + Serialize>(object: &Value) -> Result<T, String> {
    let read: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let lost = unknown::fields(object, &serde_json::to_value(&read).unwrap());
    if lost.is_empty() { Ok(read) } else { Err(format!("unknown fields {}", lost.join(", "))) }
}

/// Why an object is refused.
fn why(object: &Value) -> Option<String> {
    let told = |causes: Vec<barevirt_api::validate::Cause>| {
        let all: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        (!all.is_empty()).then(|| all.join("\n"))
    };
    match object["kind"].as_str()? {
        "VirtualMachine" | "VirtualMachineInstance" => {
            let mut manifests = Manifests::default();
            for object in named(object).into_iter().chain([object.clone()]) {
                manifests.take(object).unwrap();
            }
            let settings = Settings { gates: Gates::all(), use_emulation: false, ..Settings::default() };
            let (words, taken) = explain::in_words(&manifests, settings, "shop");
            (!taken).then_some(words)
        }
        "KubeVirt" => match typed::<KubeVirt>(object) {
            Ok(kubevirt) => told(kinds::kubevirt::create(&kubevirt, false, "kubevirt")),
            Err(why) => Some(why),
        },
        "VirtualMachineInstanceMigration" => match typed::<VirtualMachineInstanceMigration>(object) {
            Ok(migration) => {
                let vmi = base("vmi").map(|vmi| serde_json::from_value(vmi).unwrap());
                told(kinds::migration::create(&migration, vmi.as_ref(), &[], Requester::User, &Gates::all()))
            }
            Err(why) => Some(why),
        },
        _ => None,
    }
}

/// Why an object with this in the given place is refused. A place is `vm`, `vmi` or `kubevirt`, and fields with dots.
pub(super) fn refused(place: &str, fragment: Value) -> Option<String> {
    let mut fields = place.split('.');
    let Some(mut object) = fields.next().and_then(base) else {
        return Some(format!("{place} begins with none of vm, vmi and kubevirt"));
    };
    let fields: Vec<&str> = fields.collect();
    let nested = fields.into_iter().rev().fold(fragment, |inner, field| json!({ field: inner }));
    merge(&mut object, nested);
    if object["kind"] != "KubeVirt" {
        complete(&mut object);
    }
    why(&object)
}

/// What is wrong with a block of YAML.
fn wrong(info: &str, text: &str) -> Option<String> {
    let documents: Vec<Value> = match serde_saphyr::from_multiple(text) {
        Ok(documents) => documents,
        Err(error) => return Some(format!("is not YAML: {error}")),
    };
    match info.split_once(' ').map(|(_, place)| place.trim()) {
        Some("other") => None,
        Some(place) => documents.into_iter().find_map(|fragment| refused(place, fragment)),
        None => documents.iter().find_map(|object| {
            if object["apiVersion"].is_string() && object["kind"].is_string() {
                why(object)
            } else {
                Some("is not an object; say in the fence where it belongs, as in `yaml vmi.spec`".to_owned())
            }
        }),
    }
}

#[test]
fn manifests_are_taken_by_admission() {
    let (mut all, mut seen) = (Vec::new(), 0);
    for page in pages::all() {
        for block in pages::split(&page.text).1 {
            let is_yaml = block.info.split([' ', ',']).next() == Some("yaml");
            if is_yaml {
                seen += 1;
                let found = wrong(&block.info, &block.text);
                all.extend(found.map(|wrong| format!("{}:{}: {wrong}", page.path, block.line)));
            } else if block.info.is_empty() && looks_like_yaml(&block.text) {
                all.push(format!("{}:{}: YAML has a fence", page.path, block.line));
            }
        }
    }
    nothing_is_wrong(&all);
    assert!(seen >= 20, "only {seen} blocks of YAML were found");
}

fn looks_like_yaml(text: &str) -> bool {
    let key = text
        .lines()
        .next()
        .and_then(|line| line.split_once(':'))
        .filter(|(_, rest)| rest.is_empty() || rest.starts_with(' '));
    key.is_some_and(|(key, _)| !key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphabetic()))
}

#[test]
fn a_wrong_manifest_is_reported() {
    assert_eq!(wrong("yaml vmi.spec.domain.devices", "disks: [{name: a, lun: {bus: scsi}}]"), None);
    assert_eq!(wrong("yaml other", "{a: 1}"), None);
    let told = |info: &str, text: &str| wrong(info, text).unwrap_or_default();
    assert!(told("yaml", "a: 1").contains("not an object"));
    assert!(told("yaml", "a: [").contains("not YAML"));
    assert!(told("yaml pod.spec", "a: 1").contains("begins with none of"));
    assert!(told("yaml vmi.spec.domain", "colour: red").contains("spec.domain.colour"));
    assert!(told("yaml kubevirt.spec", "configuration: {ovmfPath: /a}").contains("ovmfPath"));
    assert!(told("yaml vm", "spec: {runStrategy: Never}").contains("Never"));
    assert!(looks_like_yaml("domain:\n  a: 1") && !looks_like_yaml("virtctl start web"));
}
