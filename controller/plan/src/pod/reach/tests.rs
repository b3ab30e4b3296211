use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn is_in(key: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": "In", "values": values})
}

fn on(nodes: &[&str]) -> Value {
    json!([{"matchExpressions": [is_in("kubernetes.io/hostname", nodes)]}])
}

fn reach(volume: &str, comes_later: bool, terms: Value) -> Reach {
    Reach { volume: volume.to_owned(), comes_later, terms: serde_json::from_value(terms).unwrap() }
}

fn later(volume: &str, terms: Value) -> Reach {
    reach(volume, true, terms)
}

fn pod(spec: Value) -> Pod {
    let mut pod = json!({"spec": {"containers": []}});
    pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(pod).unwrap()
}

fn asks(terms: &Value) -> Value {
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
}

/// The pod's terms and the ignored volumes.
fn placed(mut pod: Pod, reaches: &[Reach]) -> (Value, Vec<(&str, IgnoreReason)>) {
    let ignored = add(&mut pod, reaches);
    let pod = serde_json::to_value(pod).unwrap();
    let nodes = &pod["spec"]["affinity"]["nodeAffinity"];
    (nodes["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone(), ignored)
}

#[test]
fn a_volume_of_one_node_brings_the_pod_there() {
    let data = [later("data", on(&["node01"]))];
    assert_eq!(placed(pod(json!({})), &data), (on(&["node01"]), vec![]));
    assert_eq!(placed(pod(json!({})), &[]), (Value::Null, vec![]));
    // The scheduler knows the pod's own volumes.
    assert_eq!(placed(pod(json!({})), &[reach("root", false, on(&["node01"]))]), (Value::Null, vec![]));
}

#[test]
fn the_pods_own_affinity_is_kept() {
    let [a, b] = ["a", "b"].map(|zone| is_in("zone", &[zone]));
    let [fast, metadata] = [is_in("fast", &["true"]), is_in("metadata.name", &["node01"])];
    let own = json!([{"matchExpressions": [fast]}, {"matchFields": [metadata]}, {}]);
    let preferred = json!([{"weight": 1, "preference": {"matchExpressions": [fast]}}]);
    let mut affinity = asks(&own);
    affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = preferred.clone();
    affinity["podAntiAffinity"] =
        json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]});
    let mut pod = pod(json!({"affinity": affinity}));
    let zones = json!([{"matchExpressions": [a]}, {"matchExpressions": [b]}]);
    assert_eq!(add(&mut pod, &[later("data", zones)]), []);
    affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] = json!([
        {"matchExpressions": [fast, a]}, {"matchExpressions": [fast, b]},
        {"matchFields": [metadata], "matchExpressions": [a]}, {"matchFields": [metadata], "matchExpressions": [b]},
    ]);
    assert_eq!(serde_json::to_value(pod).unwrap()["spec"]["affinity"], affinity);
}

#[test]
fn volumes_of_the_same_storage_say_it_once() {
    let zones =
        json!([{"matchExpressions": [is_in("zone", &["a"])]}, {"matchExpressions": [is_in("zone", &["b"])]}]);
    let volumes = ["one", "two", "three"].map(|name| later(name, zones.clone()));
    assert_eq!(placed(pod(json!({})), &volumes), (zones, vec![]));
    let racks = json!([{"matchExpressions": [is_in("rack", &["a", "b"])]}, {"matchExpressions": [is_in("row", &["c"])]}]);
    let volumes = ["one", "two", "three"].map(|name| later(name, racks.clone()));
    assert_eq!(placed(pod(json!({})), &volumes), (racks, vec![]));
}

#[test]
fn an_unreachable_volume_is_ignored_for_placement() {
    let there = IgnoreReason::Contradicts;
    let (here, other) = (on(&["node01"]), on(&["node02"]));
    let volumes = [later("one", here.clone()), later("two", other.clone()), later("three", here.clone())];
    assert_eq!(placed(pod(json!({})), &volumes), (here.clone(), vec![("two", there)]));
    // The pod's own volumes come first, at any place in the list.
    let volumes = [later("data", other.clone()), reach("root", false, here.clone())];
    assert_eq!(placed(pod(json!({})), &volumes), (Value::Null, vec![("data", there)]));
    let data = [later("data", other.clone())];
    let selected = json!({"nodeSelector": {"kubernetes.io/hostname": "node01"}});
    assert_eq!(placed(pod(selected), &data), (Value::Null, vec![("data", there)]));
    assert_eq!(placed(pod(json!({"affinity": asks(&here)})), &data), (here.clone(), vec![("data", there)]));
    let not = json!([{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node02"]},
    ]}]);
    assert_eq!(placed(pod(json!({"affinity": asks(&not)})), &data), (not, vec![("data", there)]));
    // A term without requirements matches no node, alone or with others.
    let none = json!([{}]);
    assert_eq!(placed(pod(json!({"affinity": asks(&none)})), &data), (none.clone(), vec![("data", there)]));
    assert_eq!(placed(pod(json!({})), &[later("data", none)]), (Value::Null, vec![("data", there)]));
}

#[test]
fn terms_without_end_are_not_put_into_a_pod() {
    let racks = |key: &str, count: usize| {
        let one = |n: usize| json!({"matchExpressions": [is_in(key, &[&format!("r{n}")])]});
        (0..count).map(one).collect::<Value>()
    };
    let (one, two) = (racks("one", 15), racks("two", 15));
    // 15 * 15 terms of two requirements with one value each.
    let volumes = [later("a", one.clone()), later("b", two), later("c", racks("three", 2))];
    let (terms, ignored) = placed(pod(json!({})), &volumes);
    assert_eq!((terms.as_array().unwrap().len(), ignored), (225, vec![("c", IgnoreReason::TooMany)]));
    let own = racks("own", MOST);
    let placed = placed(pod(json!({"affinity": asks(&own)})), &volumes[..1]);
    assert_eq!(placed, (own, vec![("a", IgnoreReason::TooMany)]));
}

/// A node: its labels and its name.
type Labels = BTreeMap<String, String>;

/// As Kubernetes decides it.
fn holds(requirement: &NodeSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(&requirement.key);
    let listed = || value.is_some_and(|value| requirement.values.iter().flatten().any(|one| one == value));
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        other => panic!("{other}"),
    }
}

fn fits(terms: &[NodeSelectorTerm], labels: &Labels) -> bool {
    let all = |term: &NodeSelectorTerm| {
        let mut all = term.match_expressions.iter().chain(&term.match_fields).flatten();
        size(term) > 0 && all.all(|requirement| holds(requirement, labels))
    };
    terms.iter().any(all)
}

fn takes(pod: &Pod, labels: &Labels) -> bool {
    let spec = pod.spec.as_ref().unwrap();
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref());
    spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|required| fits(&required.node_selector_terms, labels))
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![Just("a".to_owned()), Just("b".to_owned())]
}

fn requirement() -> impl Strategy<Value = NodeSelectorRequirement> {
    let list = proptest::sample::subsequence(vec!["x", "y", "z"], 1..=3);
    (key(), 0..6usize, list).prop_map(|(key, operator, values)| {
        let operator = ["In", "In", "In", "NotIn", "Exists", "DoesNotExist"][operator];
        let values =
            ["In", "NotIn"].contains(&operator).then(|| values.into_iter().map(str::to_owned).collect());
        NodeSelectorRequirement { key, operator: operator.to_owned(), values }
    })
}

fn terms() -> impl Strategy<Value = Vec<NodeSelectorTerm>> {
    let list = || proptest::option::of(proptest::collection::vec(requirement(), 0..3));
    let named = list().prop_map(|list| {
        list.map(|mut list| {
            list.iter_mut().for_each(|requirement| requirement.key = "metadata.name".to_owned());
            list
        })
    });
    let named = prop_oneof![3 => Just(None), 1 => named];
    let term = (list(), named)
        .prop_map(|(match_expressions, match_fields)| NodeSelectorTerm { match_expressions, match_fields });
    proptest::collection::vec(term, 1..4)
}

/// Every possible node.
fn nodes() -> Vec<Labels> {
    let mut nodes: Vec<Labels> = vec![Labels::new()];
    for key in ["a", "b", "metadata.name"] {
        nodes = nodes
            .iter()
            .flat_map(|node| {
                let with = |value: &str| {
                    let mut node = node.clone();
                    node.insert(key.to_owned(), value.to_owned());
                    node
                };
                let mut all = vec![with("x"), with("y"), with("z")];
                // A node may lack a label, but not its name.
                all.extend((key != "metadata.name").then(|| node.clone()));
                all
            })
            .collect();
    }
    nodes
}

proptest! {
    /// The remaining nodes are those that took the pod before and reach every volume that counts; an ignored volume could
    /// not have been reached from any of them.
    #[test]
    fn the_pod_goes_where_its_volumes_are(
        own in proptest::option::of(terms()),
        selector in proptest::option::of((key(), prop_oneof![Just("x"), Just("y")])),
        reaches in proptest::collection::vec((any::<bool>(), terms()), 0..5),
    ) {
        let mut pod = pod(json!({}));
        let spec = pod.spec.as_mut().unwrap();
        spec.node_selector = selector.map(|(key, value)| [(key, value.to_owned())].into());
        if let Some(node_selector_terms) = own {
            spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default()
                .required_during_scheduling_ignored_during_execution = Some(NodeSelector { node_selector_terms });
        }
        let before = pod.clone();
        let reaches: Vec<Reach> = reaches
            .into_iter()
            .enumerate()
            .map(|(index, (comes_later, terms))| Reach { volume: index.to_string(), comes_later, terms })
            .collect();
        let ignored = add(&mut pod, &reaches);
        prop_assert!(ignored.iter().all(|(_, why)| *why == IgnoreReason::Contradicts));
        let (dropped, kept): (Vec<&Reach>, Vec<&Reach>) = reaches
            .iter()
            .partition(|reach| ignored.iter().any(|(volume, _)| *volume == reach.volume));
        if kept.iter().all(|reach| !reach.comes_later) {
            prop_assert_eq!(&pod, &before);
        }
        for node in nodes() {
            let reached = |reach: &&&Reach| fits(&reach.terms, &node);
            let later = kept.iter().filter(|reach| reach.comes_later);
            if takes(&pod, &node) {
                prop_assert!(takes(&before, &node) && later.clone().all(|reach| reached(&reach)), "{node:?}");
            }
            if takes(&before, &node) && kept.iter().all(|reach| reached(&reach)) {
                prop_assert!(takes(&pod, &node), "{node:?}");
                prop_assert!(!dropped.iter().any(|reach| reached(&reach)), "{node:?}");
            }
        }
    }
}
