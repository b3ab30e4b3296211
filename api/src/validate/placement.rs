//! Rules about the place of the launcher pod: affinity and topology spread. They are the API server's rules for pods, in its
//! words. Without them the instance would be accepted, and its pod refused again and again.

use super::{Cause, Path};
use crate::syntax::{is_dns_label, is_dns_subdomain, is_label_key, is_label_value, quoted};
use crate::v1::VirtualMachineInstanceSpec;
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
/// The only field of nodes that a term can name.
const NODE_NAME: &str = "metadata.name";
/// Values of `whenUnsatisfiable`.
const UNSATISFIABLE: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let mut faults = Faults(causes);
    if let Some(affinity) = &spec.affinity {
        of_affinity(&path.child("affinity"), affinity, &mut faults);
    }
    of_spread(&path.child("topologySpreadConstraints"), &spec.topology_spread_constraints, &mut faults);
}

/// The rules about an affinity, for other pods too.
pub(super) fn affinity(path: &Path, affinity: &Affinity, causes: &mut Vec<Cause>) {
    of_affinity(path, affinity, &mut Faults(causes));
}

/// Collects faults in the API server's form.
struct Faults<'a>(&'a mut Vec<Cause>);

impl Faults<'_> {
    fn tell(&mut self, field: &Path, what: &str) {
        self.0.push(Cause::invalid(field, format!("{field}: {what}")));
    }

    fn required(&mut self, field: &Path, why: &str) {
        self.tell(field, &format!("Required value: {why}"));
    }

    fn text(&mut self, field: &Path, text: &str, why: &str) {
        self.tell(field, &format!("Invalid value: \"{}\": {why}", quoted(text)));
    }

    fn number(&mut self, field: &Path, number: i32, why: &str) {
        self.tell(field, &format!("Invalid value: {number}: {why}"));
    }
}

fn of_affinity(path: &Path, affinity: &Affinity, faults: &mut Faults<'_>) {
    if let Some(nodes) = &affinity.node_affinity {
        of_nodes(&path.child("nodeAffinity"), nodes, faults);
    }
    if let Some(pods) = &affinity.pod_affinity {
        let required = pods.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.as_deref();
        of_pods(&path.child("podAffinity"), required, preferred, faults);
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let required = pods.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.as_deref();
        of_pods(&path.child("podAntiAffinity"), required, preferred, faults);
    }
}

fn of_nodes(path: &Path, nodes: &NodeAffinity, faults: &mut Faults<'_>) {
    if let Some(selector) = &nodes.required_during_scheduling_ignored_during_execution {
        let terms = path.child(REQUIRED).child("nodeSelectorTerms");
        if selector.node_selector_terms.is_empty() {
            faults.required(&terms, "must have at least one node selector term");
        }
        for (index, term) in selector.node_selector_terms.iter().enumerate() {
            node_term(&terms.index(index), term, faults);
        }
    }
    let preferred = nodes.preferred_during_scheduling_ignored_during_execution.iter().flatten();
    for (index, term) in preferred.enumerate() {
        let field = path.child(PREFERRED).index(index);
        weight(&field, term.weight, faults);
        node_term(&field.child("preference"), &term.preference, faults);
    }
}

fn node_term(path: &Path, term: &NodeSelectorTerm, faults: &mut Faults<'_>) {
    for (index, rule) in term.match_expressions.iter().flatten().enumerate() {
        let field = path.child("matchExpressions").index(index);
        let values = rule.values.as_deref().unwrap_or_default();
        match rule.operator.as_str() {
            "Gt" | "Lt" if values.len() == 1 => {}
            "Gt" | "Lt" => faults.required(
                &field.child("values"),
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            ),
            operator => set_rule(&field, operator, values, faults),
        }
        label_key(&field.child("key"), &rule.key, faults);
    }
    for (index, rule) in term.match_fields.iter().flatten().enumerate() {
        node_field(&path.child("matchFields").index(index), rule, faults);
    }
}

fn node_field(path: &Path, rule: &NodeSelectorRequirement, faults: &mut Faults<'_>) {
    let values = rule.values.as_deref().unwrap_or_default();
    match rule.operator.as_str() {
        "In" | "NotIn" if values.len() == 1 => {}
        "In" | "NotIn" => faults.required(
            &path.child("values"),
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        ),
        other => faults.text(&path.child("operator"), other, "not a valid selector operator"),
    }
    if rule.key != NODE_NAME {
        faults.text(&path.child("key"), &rule.key, "not a valid field selector key");
        return;
    }
    for (index, name) in values.iter().enumerate() {
        if !is_dns_subdomain(name) {
            faults.text(&path.child("values").index(index), name, "not the name of a node");
        }
    }
}

fn of_pods(
    path: &Path,
    required: Option<&[PodAffinityTerm]>,
    preferred: Option<&[WeightedPodAffinityTerm]>,
    faults: &mut Faults<'_>,
) {
    for (index, term) in required.unwrap_or_default().iter().enumerate() {
        pod_term(&path.child(REQUIRED).index(index), term, faults);
    }
    for (index, term) in preferred.unwrap_or_default().iter().enumerate() {
        let field = path.child(PREFERRED).index(index);
        weight(&field, term.weight, faults);
        pod_term(&field.child("podAffinityTerm"), &term.pod_affinity_term, faults);
    }
}

fn pod_term(path: &Path, term: &PodAffinityTerm, faults: &mut Faults<'_>) {
    selector(&path.child("labelSelector"), term.label_selector.as_ref(), faults);
    selector(&path.child("namespaceSelector"), term.namespace_selector.as_ref(), faults);
    for (index, name) in term.namespaces.iter().flatten().enumerate() {
        if !is_dns_label(name) {
            faults.text(&path.child("namespaces").index(index), name, "not the name of a namespace");
        }
    }
    topology_key(&path.child("topologyKey"), &term.topology_key, faults);
}

fn of_spread(path: &Path, constraints: &[TopologySpreadConstraint], faults: &mut Faults<'_>) {
    for (index, constraint) in constraints.iter().enumerate() {
        let field = path.index(index);
        let TopologySpreadConstraint { max_skew, topology_key: key, when_unsatisfiable: action, .. } =
            constraint;
        if *max_skew <= 0 {
            faults.number(&field.child("maxSkew"), *max_skew, "must be greater than zero");
        }
        topology_key(&field.child("topologyKey"), key, faults);
        if !UNSATISFIABLE.contains(&action.as_str()) {
            let [first, second] = UNSATISFIABLE;
            let what = format!(
                "Unsupported value: \"{}\": supported values: \"{first}\", \"{second}\"",
                quoted(action)
            );
            faults.tell(&field.child("whenUnsatisfiable"), &what);
        }
        selector(&field.child("labelSelector"), constraint.label_selector.as_ref(), faults);
        let mut later = constraints.iter().skip(index + 1);
        if later.any(|other| other.topology_key == *key && other.when_unsatisfiable == *action) {
            let what = format!("Duplicate value: \"{{{}, {}}}\"", quoted(key), quoted(action));
            faults.tell(&field, &what);
        }
    }
}

fn selector(path: &Path, selector: Option<&LabelSelector>, faults: &mut Faults<'_>) {
    let Some(selector) = selector else { return };
    let labels = path.child("matchLabels");
    for (key, value) in selector.match_labels.iter().flatten() {
        label_key(&labels, key, faults);
        label_value(&labels, value, faults);
    }
    for (index, rule) in selector.match_expressions.iter().flatten().enumerate() {
        let field = path.child("matchExpressions").index(index);
        let values = rule.values.as_deref().unwrap_or_default();
        set_rule(&field, &rule.operator, values, faults);
        label_key(&field.child("key"), &rule.key, faults);
        for (index, value) in values.iter().enumerate() {
            label_value(&field.child("values").index(index), value, faults);
        }
    }
}

/// An operator of label selectors, and whether it has values.
fn set_rule(path: &Path, operator: &str, values: &[String], faults: &mut Faults<'_>) {
    let field = path.child("values");
    match (operator, values.is_empty()) {
        ("In" | "NotIn", false) | ("Exists" | "DoesNotExist", true) => {}
        ("In" | "NotIn", true) => {
            faults.required(&field, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        ("Exists" | "DoesNotExist", false) => faults
            .tell(&field, "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
        (other, _) => faults.text(&path.child("operator"), other, "not a valid selector operator"),
    }
}

fn weight(path: &Path, weight: i32, faults: &mut Faults<'_>) {
    if !(1..=100).contains(&weight) {
        faults.number(&path.child("weight"), weight, "must be in the range 1-100");
    }
}

fn topology_key(field: &Path, key: &str, faults: &mut Faults<'_>) {
    if key.is_empty() {
        faults.required(field, "can not be empty");
    } else {
        label_key(field, key, faults);
    }
}

fn label_key(field: &Path, key: &str, faults: &mut Faults<'_>) {
    if !is_label_key(key) {
        faults.text(field, key, "not the key of a label");
    }
}

fn label_value(field: &Path, value: &str, faults: &mut Faults<'_>) {
    if !is_label_value(value) {
        faults.text(field, value, "not the value of a label");
    }
}
