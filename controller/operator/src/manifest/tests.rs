use super::*;
use crate::tests::rule_line;
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// Made once: definitions are large.
fn objects() -> Vec<Value> {
    static MADE: OnceLock<Vec<Value>> = OnceLock::new();
    MADE.get_or_init(|| manifest(&Images::default())).clone()
}

fn of_kind(kind: &str) -> Vec<Value> {
    objects().into_iter().filter(|object| object["kind"] == kind).collect()
}

/// A right: verb, group, resource, and the name if it is for one object only.
type Right = (String, String, String, Option<String>);

fn rights(role: &Value) -> BTreeSet<Right> {
    let words = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let names: Vec<Option<String>> = match rule.get("resourceNames") {
            Some(names) => words(names).into_iter().map(Some).collect(),
            None => vec![None],
        };
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                for verb in words(&rule["verbs"]) {
                    for name in &names {
                        rights.insert((verb.clone(), group.clone(), resource.clone(), name.clone()));
                    }
                }
            }
        }
    }
    rights
}

fn holds(own: &BTreeSet<Right>, right: &Right) -> bool {
    let (verb, group, resource, _) = right.clone();
    own.contains(right) || own.contains(&(verb, group, resource, None))
}

fn own(kind: &str, namespace: Option<&str>) -> BTreeSet<Right> {
    let roles = of_kind(kind).into_iter().filter(|role| {
        role["metadata"]["name"] == ACCOUNT && role["metadata"]["namespace"].as_str() == namespace
    });
    roles.flat_map(|role| rights(&role)).collect()
}

#[test]
fn the_operator_holds_what_it_grants() {
    let cluster = own("ClusterRole", None);
    let local: BTreeSet<Right> = own("Role", Some(INSTALL_NAMESPACE)).union(&cluster).cloned().collect();
    for role in strategy(&Images::default()) {
        let own = match role["kind"].as_str().unwrap() {
            "ClusterRole" => &cluster,
            "Role" => &local,
            _ => continue,
        };
        assert!(role["kind"] != "Role" || role["metadata"]["namespace"] == INSTALL_NAMESPACE);
        for right in rights(&role) {
            assert!(holds(own, &right), "{} grants {right:?}", role["metadata"]["name"]);
        }
        assert!(role["rules"].as_array().unwrap().iter().all(|rule| rule.get("nonResourceURLs").is_none()));
    }
}

#[test]
fn the_operator_may_write_all_that_it_installs() {
    for identity in strategy(&Images::default()).iter().filter_map(Identity::of) {
        let own = match identity.namespace.as_deref() {
            None => own("ClusterRole", None),
            namespace => own("Role", namespace),
        };
        for verb in ["create", "patch", "delete", "list", "watch"] {
            let name = (!matches!(verb, "list" | "watch")).then(|| identity.name.clone());
            let right =
                (verb.to_owned(), identity.kind.group().to_owned(), identity.kind.plural().to_owned(), name);
            assert!(holds(&own, &right), "{verb} {identity}");
        }
    }
}

#[test]
fn the_operator_may_not_do_everything() {
    for kind in ["ClusterRole", "Role"] {
        for role in of_kind(kind) {
            let text = role["rules"].to_string();
            for word in ["*", "escalate", "\"bind\"", "impersonate"] {
                assert!(!text.contains(word), "{word} in {}", role["metadata"]["name"]);
            }
        }
    }
    // Rights that could be used to gain more are only for its own objects.
    let risky = [
        "clusterroles",
        "clusterrolebindings",
        "roles",
        "rolebindings",
        "daemonsets",
        "deployments",
        "secrets",
    ];
    for kind in ["ClusterRole", "Role"] {
        for role in of_kind(kind).into_iter().filter(|role| role["metadata"]["name"] == ACCOUNT) {
            for (verb, _, resource, name) in rights(&role) {
                if risky.contains(&resource.as_str())
                    && ["create", "patch", "update"].contains(&verb.as_str())
                {
                    assert!(name.is_some(), "{verb} {resource}");
                }
            }
        }
    }
    for binding in of_kind("ClusterRoleBinding") {
        assert_eq!(binding["roleRef"]["name"], ACCOUNT);
    }
}

/// The rights of the operator; a change means that its token is worth more or less.
#[test]
fn rights_of_the_operator() {
    let mut text = String::new();
    for kind in ["ClusterRole", "Role"] {
        for role in of_kind(kind) {
            let metadata = &role["metadata"];
            let place = metadata["namespace"].as_str().map(|namespace| format!(" in {namespace}"));
            text.push_str(&format!(
                "{kind} {}{}\n",
                metadata["name"].as_str().unwrap(),
                place.unwrap_or_default()
            ));
            for rule in role["rules"].as_array().unwrap() {
                text.push_str(&format!("  {}\n", rule_line(rule)));
            }
        }
    }
    insta::assert_snapshot!("rights_of_the_operator", text);
}

#[test]
fn the_operator_is_unprivileged_and_has_its_image_in_a_variable() {
    let deployment = of_kind("Deployment").remove(0);
    assert_eq!(deployment["spec"]["replicas"], 2);
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], ACCOUNT);
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"], unprivileged());
    let image =
        container["env"].as_array().unwrap().iter().find(|item| item["name"] == "VIRT_OPERATOR_IMAGE");
    assert_eq!(image.unwrap()["value"], "localhost/barevirt/virt-operator:devel");
}

#[test]
fn nothing_is_in_both_lists() {
    let names = |objects: Vec<Value>| -> BTreeSet<String> {
        objects
            .iter()
            .map(|object| {
                format!(
                    "{} {}/{}",
                    object["kind"], object["metadata"]["namespace"], object["metadata"]["name"]
                )
            })
            .collect()
    };
    let (own, installed) = (names(objects()), names(strategy(&Images::default())));
    assert_eq!(own.intersection(&installed).collect::<Vec<_>>(), Vec::<&String>::new());
    // Otherwise the operator would remove itself.
    for object in objects() {
        assert!(object["metadata"]["labels"].get(crate::operator::MANAGED_BY_LABEL).is_none());
    }
}
