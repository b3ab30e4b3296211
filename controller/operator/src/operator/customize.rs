//! `customizeComponents`: the user's changes of the installed objects.
//!
//! KubeVirt's rules: a patch applies to all objects whose kind and name match (`*` for any; case does not matter), and only
//! deployments, daemon sets, services, webhook configurations and API services can be patched. A patch that matches nothing
//! is refused, so that it is not ignored silently.

use super::kind::{Identity, Kind};
use super::strategic;
use super::target::Refused;
use barevirt_api::v1::{CustomizeComponents, CustomizeComponentsPatch};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const PATH: &str = "spec.customizeComponents";
/// Parts of an object to which we add something, so that they must be objects if they are there.
const OBJECTS: [&str; 7] = [
    "/metadata/labels",
    "/metadata/annotations",
    "/spec",
    "/spec/template",
    "/spec/template/metadata",
    "/spec/template/metadata/labels",
    "/spec/template/metadata/annotations",
];

/// Whether objects of that kind can be patched.
fn is_open(kind: Kind) -> bool {
    match kind {
        Kind::Deployment
        | Kind::DaemonSet
        | Kind::Service
        | Kind::MutatingWebhookConfiguration
        | Kind::ValidatingWebhookConfiguration
        | Kind::ApiService => true,
        Kind::CustomResourceDefinition
        | Kind::ServiceAccount
        | Kind::ClusterRole
        | Kind::ClusterRoleBinding
        | Kind::Role
        | Kind::RoleBinding
        | Kind::ValidatingAdmissionPolicy
        | Kind::ValidatingAdmissionPolicyBinding
        | Kind::PodDisruptionBudget
        | Kind::NetworkPolicy
        | Kind::ClusterInstancetype
        | Kind::ClusterPreference
        | Kind::ServiceMonitor
        | Kind::PrometheusRule => false,
    }
}

/// Applies patches, then flags; returns everything that cannot be applied at once.
pub fn apply(objects: &mut [(Identity, Value)], customize: &CustomizeComponents) -> Result<(), Vec<Refused>> {
    let mut refused = vec![];
    for (index, patch) in customize.patches.iter().enumerate() {
        let field = format!("{PATH}.patches[{index}]");
        let mut matched = false;
        for (identity, object) in objects.iter_mut().filter(|(identity, _)| concerns(patch, identity)) {
            matched = true;
            if let Err(why) = patch_one(identity, object, patch) {
                refused.push(Refused::new(
                    format!("{field}.patch"),
                    format!("cannot be applied to {identity}: {why}"),
                ));
            }
        }
        if !matched {
            let CustomizeComponentsPatch { resource_type, resource_name, .. } = patch;
            refused.push(Refused::new(
                field,
                format!("there is no {resource_type} {resource_name} that could be patched"),
            ));
        }
    }
    if let Some(flags) = &customize.flags {
        for (kind, name, flags) in [
            (Kind::Deployment, "virt-api", &flags.api),
            (Kind::Deployment, "virt-controller", &flags.controller),
            (Kind::DaemonSet, "virt-handler", &flags.handler),
        ] {
            let component = objects.iter_mut().find(|(id, _)| id.kind == kind && id.name == name);
            if let Some((_, object)) = component {
                add_flags(object, flags);
            }
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(refused) }
}

fn concerns(patch: &CustomizeComponentsPatch, identity: &Identity) -> bool {
    let matches = |pattern: &str, word: &str| pattern == "*" || pattern.eq_ignore_ascii_case(word);
    is_open(identity.kind)
        && matches(&patch.resource_type, identity.kind.name())
        && matches(&patch.resource_name, &identity.name)
}

fn patch_one(
    identity: &Identity,
    object: &mut Value,
    patch: &CustomizeComponentsPatch,
) -> Result<(), String> {
    let read =
        || serde_json::from_str::<Value>(&patch.patch).map_err(|error| format!("it is not JSON: {error}"));
    match patch.type_.as_str() {
        "json" => {
            let operations: json_patch::Patch = serde_json::from_str(&patch.patch)
                .map_err(|error| format!("it is not a JSON patch: {error}"))?;
            json_patch::patch(object, &operations).map_err(|error| error.to_string())?;
        }
        "merge" => json_patch::merge(object, &read()?),
        "strategic" => strategic::merge(object, &read()?)?,
        other => return Err(format!("the type {other} is not known, it must be json, merge or strategic")),
    }
    if Identity::of(object).as_ref() != Some(identity) {
        return Err("kind, name and namespace must stay".to_owned());
    }
    let other = |path: &&str| object.pointer(path).is_some_and(|part| !part.is_object() && !part.is_null());
    OBJECTS.into_iter().find(other).map_or(Ok(()), |path| Err(format!("{path} must be an object")))
}

/// Flags replace those of the same name. As in KubeVirt they are in lower case, and a flag without a value is a switch.
fn add_flags(workload: &mut Value, flags: &BTreeMap<String, String>) {
    if flags.is_empty() {
        return;
    }
    // The API server refuses a component whose containers a patch has taken away.
    let container = workload.pointer_mut("/spec/template/spec/containers/0").filter(|one| one.is_object());
    let Some(container) = container else { return };
    let args = &mut container["args"];
    let mut words: Vec<String> =
        args.as_array().into_iter().flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect();
    for (name, value) in flags {
        let flag = format!("--{}", name.to_lowercase());
        let with_value = format!("{flag}=");
        words.retain(|word| *word != flag && !word.starts_with(&with_value));
        words.push(if value.is_empty() { flag } else { format!("{with_value}{}", value.to_lowercase()) });
    }
    *args = json!(words);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects() -> Vec<(Identity, Value)> {
        [
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "virt-api", "namespace": "k"},
                "spec": {"replicas": 2, "template": {"spec": {"containers": [{
                    "name": "virt-api", "args": ["--listen=[::]:8443", "--namespace=k"],
                }]}}},
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "virt-api"},
                "rules": [],
            }),
        ]
        .into_iter()
        .map(|object| (Identity::of(&object).unwrap(), object))
        .collect()
    }

    fn customize(kind: &str, name: &str, type_: &str, patch: &str) -> CustomizeComponents {
        CustomizeComponents {
            patches: vec![CustomizeComponentsPatch {
                resource_type: kind.into(),
                resource_name: name.into(),
                type_: type_.into(),
                patch: patch.into(),
            }],
            flags: None,
        }
    }

    #[test]
    fn each_kind_of_patch_is_applied() {
        for (type_, patch) in [
            ("json", r#"[{"op": "replace", "path": "/spec/replicas", "value": 5}]"#),
            ("merge", r#"{"spec": {"replicas": 5}}"#),
            ("strategic", r#"{"spec": {"replicas": 5}}"#),
        ] {
            let mut objects = objects();
            apply(&mut objects, &customize("deployment", "VIRT-API", type_, patch)).unwrap();
            assert_eq!(objects[0].1["spec"]["replicas"], 5, "{type_}");
            assert_eq!(objects[0].1["spec"]["template"]["spec"]["containers"][0]["name"], "virt-api");
        }
    }

    #[test]
    fn a_patch_that_cannot_be_applied_is_named() {
        for (kind, name, type_, patch, words) in [
            (
                "Deployment",
                "virt-exportproxy",
                "merge",
                "{}",
                "patches[0]: there is no Deployment virt-exportproxy",
            ),
            ("ClusterRole", "virt-api", "merge", "{}", "there is no ClusterRole"),
            ("Deployment", "virt-api", "other", "{}", "the type other"),
            ("Deployment", "*", "json", "{}", "not a JSON patch"),
            ("*", "*", "merge", "{", "not JSON"),
            ("Deployment", "*", "json", r#"[{"op": "remove", "path": "/spec/x"}]"#, "Deployment k/virt-api"),
            ("Deployment", "*", "merge", r#"{"metadata": {"name": "x"}}"#, "must stay"),
            ("Deployment", "*", "strategic", r#"{"$retainKeys": []}"#, "$retainKeys"),
            ("Deployment", "*", "merge", r#"{"spec": "x"}"#, "/spec must be an object"),
            (
                "Deployment",
                "*",
                "merge",
                r#"{"spec": {"template": {"metadata": {"annotations": ["a"]}}}}"#,
                "/spec/template/metadata/annotations must be an object",
            ),
        ] {
            let refused = apply(&mut objects(), &customize(kind, name, type_, patch)).unwrap_err();
            assert!(refused[0].to_string().contains(words), "{}", refused[0]);
            assert!(refused[0].field.starts_with("spec.customizeComponents.patches[0]"));
        }
    }

    #[test]
    fn a_flag_replaces_the_one_of_its_name() {
        let flags = serde_json::from_value(json!({"api": {"Listen": "[::]:1", "verbose": ""}})).unwrap();
        let mut objects = objects();
        apply(&mut objects, &CustomizeComponents { patches: vec![], flags: Some(flags) }).unwrap();
        let args = &objects[0].1["spec"]["template"]["spec"]["containers"][0]["args"];
        assert_eq!(args, &json!(["--namespace=k", "--listen=[::]:1", "--verbose"]));
    }
}
