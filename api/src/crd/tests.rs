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
            // What the API machinery says about its own types is not ours to judge, nor the wrapper of a list or map.
            let own = path.matches('.').count() > 0 && !path.ends_with("[]") && !path.ends_with("{}");
            if own && !path.contains("metadata") {
                assert!(schema["description"].is_string(), "{path}");
            }
        });
    }
}

#[test]
fn versions_names_and_subresources_are_those_of_kubevirt() {
    let seen: Vec<Value> = values()
        .iter()
        .map(|crd| {
            let versions = crd["spec"]["versions"].as_array().unwrap();
            json!([
                crd["metadata"]["name"],
                crd["spec"]["names"]["shortNames"],
                crd["spec"]["names"]["categories"],
                versions
                    .iter()
                    .map(|v| json!([v["name"], v["served"], v["storage"], v["deprecated"]]))
                    .collect::<Vec<_>>(),
                versions[0]["subresources"],
                versions[0]["additionalPrinterColumns"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|column| column["name"].clone())
                    .collect::<Vec<_>>(),
            ])
        })
        .collect();
    let versions = json!([["v1", true, true, null], ["v1alpha3", true, false, true]]);
    assert_eq!(
        json!(seen),
        json!([
            ["virtualmachines.kubevirt.io", ["vm", "vms"], ["all"], versions, {"status": {}}, ["Age", "Status", "Ready"]],
            [
                "virtualmachineinstances.kubevirt.io", ["vmi", "vmis"], ["all"], versions, null,
                ["Age", "Phase", "IP", "NodeName", "Ready", "Live-Migratable", "Paused"]
            ],
            ["kubevirts.kubevirt.io", ["kv", "kvs"], ["all"], versions, {"status": {}}, ["Age", "Phase"]],
        ])
    );
}

#[test]
fn both_versions_have_one_schema() {
    for crd in values() {
        let versions = &crd["spec"]["versions"];
        assert_eq!(versions[0]["schema"], versions[1]["schema"]);
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
        // Types of Kubernetes itself are named, not spelt out.
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
