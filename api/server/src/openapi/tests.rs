//! Both documents are complete and contain only words that their readers know.

use super::*;
use std::collections::BTreeSet;

fn operations(document: &Value) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            all.push((path.clone(), operation.clone()));
        }
    }
    all
}

#[test]
fn every_call_is_described_in_both() {
    let v2 = v2();
    for version in VERSIONS {
        let v3 = v3(version);
        for endpoint in ENDPOINTS {
            let method = endpoint.verb.method().as_str().to_lowercase();
            let path = path(endpoint, version);
            for document in [&v2, &v3] {
                let operation = &document["paths"][&path][&method];
                assert_eq!(operation["operationId"], format!("{version}{}", endpoint.operation), "{path}");
                let refused = &operation["responses"]["501"];
                assert_eq!(refused.is_object(), endpoint.call == Call::NotYet, "{path}");
            }
        }
        assert_eq!(operations(&v3).len(), ENDPOINTS.len() + 1);
    }
    assert_eq!(operations(&v2).len(), VERSIONS.len() * (ENDPOINTS.len() + 1));
}

#[test]
fn no_operation_has_the_name_of_another() {
    let documents = [v2(), v3("v1"), v3("v1alpha3")];
    for document in &documents {
        let mut names = BTreeSet::new();
        for (path, operation) in operations(document) {
            let name = operation["operationId"].as_str().unwrap().to_owned();
            assert!(names.insert(name), "{path}: {}", operation["operationId"]);
        }
    }
}

#[test]
fn the_parameters_of_a_path_are_the_words_in_braces() {
    for document in [v2(), v3("v1")] {
        for (path, operation) in operations(&document) {
            let in_path: Vec<&str> = operation["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            let braces: Vec<&str> =
                path.split('/').filter_map(|word| word.strip_prefix('{')?.strip_suffix('}')).collect();
            assert_eq!(in_path, braces, "{path}");
        }
    }
}

#[test]
fn every_reference_leads_to_a_schema() {
    fn follow(value: &Value, document: &Value, count: &mut usize) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    let target = document.pointer(reference.strip_prefix('#').unwrap());
                    assert!(target.is_some(), "{reference}");
                    *count += 1;
                }
                members.values().for_each(|member| follow(member, document, count));
            }
            Value::Array(items) => items.iter().for_each(|item| follow(item, document, count)),
            _ => {}
        }
    }
    for document in [v2(), v3("v1")] {
        let mut count = 0;
        follow(&document, &document, &mut count);
        assert!(count > 20, "{count}");
    }
}

/// Words that one of the two versions does not know, or that the API machinery interprets differently.
#[test]
fn schemas_are_plain() {
    for document in [v2(), v3("v1")] {
        let text = document.to_string();
        for word in ["\"nullable\"", "\"$schema\"", "\"$defs\"", "\"anyOf\"", "\"const\"", "\"uint"] {
            let at = text.find(word);
            assert!(at.is_none(), "{word}: {}", &text[at.unwrap().saturating_sub(200)..at.unwrap() + 50]);
        }
    }
}

#[test]
fn a_body_is_required_where_it_has_to_say_something() {
    let v3 = v3("v1");
    let required = |path: &str| {
        let path = format!("/apis/{GROUP}/v1/namespaces/{{namespace}}/{path}");
        v3["paths"][&path]["put"]["requestBody"]["required"].as_bool()
    };
    assert_eq!(required("virtualmachines/{name}/start"), Some(false));
    assert_eq!(required("virtualmachines/{name}/addvolume"), Some(true));
    assert_eq!(required("expand-vm-spec"), Some(true));
    assert_eq!(required("virtualmachineinstances/{name}/reset"), None);
}
