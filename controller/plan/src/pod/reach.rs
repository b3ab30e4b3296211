//! The nodes from which volumes can be reached that the pod does not have itself: those that are plugged in once the guest
//! runs.
//!
//! The scheduler does not know them. So the node requirements of their storage are added to the pod's own:
//!
//! ```text
//!   the pod's terms          one of them ┐
//!   a volume's terms         one of them ├─ and ──> the pod's terms
//!   another volume's terms   one of them ┘
//! ```
//!
//! A guest runs without a volume that cannot be brought to it. So no volume keeps the pod from every node: a volume is
//! ignored if it contradicts the former requirements, or if it would make the terms too many.

use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
};

/// Most requirements and values in all terms of a pod: the scheduler looks at each of them for every node.
const MOST: usize = 1000;

/// The nodes that reach a volume. A volume that every node reaches has no terms.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// Its name.
    pub volume: String,
    /// Whether the pod does not have it: it is plugged in once the guest runs.
    pub comes_later: bool,
    /// The node has to match at least one of these.
    pub terms: Vec<NodeSelectorTerm>,
}

/// Why a volume is ignored when the pod is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoreReason {
    /// No node reaches it and everything before it.
    Contradicts,
    /// The terms would be too many.
    TooMany,
}

impl IgnoreReason {
    /// Text of the reason.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            IgnoreReason::Contradicts => "no node that the guest may run on reaches its storage",
            IgnoreReason::TooMany => {
                "its storage and the affinity of the guest name too many combinations of nodes"
            }
        }
    }
}

/// Limits the pod to nodes that reach the volumes that come later; returns the ignored volumes. The pod's own volumes come
/// first: the scheduler honours them anyway.
pub fn add<'a>(pod: &mut Pod, reaches: &'a [Reach]) -> Vec<(&'a str, IgnoreReason)> {
    let Some(spec) = &mut pod.spec else { return vec![] };
    let labels = labels(spec);
    let mut terms = own_terms(spec);
    let (mut any_added, mut ignored) = (false, vec![]);
    let own = reaches.iter().filter(|reach| !reach.comes_later);
    for reach in own.chain(reaches.iter().filter(|reach| reach.comes_later)) {
        match both(&terms, &reach.terms, &labels) {
            Ok(met) => {
                terms = met;
                any_added |= reach.comes_later;
            }
            Err(why) if reach.comes_later => ignored.push((reach.volume.as_str(), why)),
            Err(_) => {}
        }
    }
    if any_added {
        let nodes: &mut NodeAffinity =
            spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
        nodes.required_during_scheduling_ignored_during_execution =
            Some(NodeSelector { node_selector_terms: terms });
    }
    ignored
}

/// The pod's own terms, of which at least one has to match.
fn own_terms(spec: &PodSpec) -> Vec<NodeSelectorTerm> {
    let nodes = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    match nodes.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref()) {
        // A term without requirements matches no node.
        Some(own) => own.node_selector_terms.iter().filter(|term| size(term) > 0).cloned().collect(),
        // Only here it matches all nodes.
        None => vec![NodeSelectorTerm::default()],
    }
}

/// Labels that every node must have.
fn labels(spec: &PodSpec) -> Vec<NodeSelectorRequirement> {
    let selector = spec.node_selector.iter().flatten();
    selector
        .map(|(key, value)| NodeSelectorRequirement {
            key: key.clone(),
            operator: "In".to_owned(),
            values: Some(vec![value.clone()]),
        })
        .collect()
}

/// Terms that hold where one of each list holds, without contradictory and redundant ones.
fn both(
    terms: &[NodeSelectorTerm],
    others: &[NodeSelectorTerm],
    labels: &[NodeSelectorRequirement],
) -> Result<Vec<NodeSelectorTerm>, IgnoreReason> {
    let total = |terms: &[NodeSelectorTerm]| terms.iter().map(size).sum::<usize>();
    if total(terms) > MOST || total(others) > MOST {
        return Err(IgnoreReason::TooMany);
    }
    let mut met: Vec<NodeSelectorTerm> = vec![];
    for term in terms {
        for other in others.iter().filter(|other| size(other) > 0) {
            let one = NodeSelectorTerm {
                match_expressions: joined(&term.match_expressions, &other.match_expressions),
                match_fields: joined(&term.match_fields, &other.match_fields),
            };
            if contradicts(&one, labels) || met.iter().any(|known| is_part(known, &one)) {
                continue;
            }
            met.retain(|known| !is_part(&one, known));
            met.push(one);
            if total(&met) > MOST {
                return Err(IgnoreReason::TooMany);
            }
        }
    }
    if met.is_empty() { Err(IgnoreReason::Contradicts) } else { Ok(met) }
}

type Requirements = Option<Vec<NodeSelectorRequirement>>;

fn size(term: &NodeSelectorTerm) -> usize {
    let all = term.match_expressions.iter().chain(&term.match_fields).flatten();
    all.map(|requirement| 1 + requirement.values.as_ref().map_or(0, Vec::len)).sum()
}

fn joined(one: &Requirements, other: &Requirements) -> Requirements {
    let mut all = one.clone().unwrap_or_default();
    for requirement in other.iter().flatten() {
        if !all.contains(requirement) {
            all.push(requirement.clone());
        }
    }
    (!all.is_empty()).then_some(all)
}

/// Whether every requirement of `one` is also in `of`.
fn is_part(one: &NodeSelectorTerm, of: &NodeSelectorTerm) -> bool {
    [(&one.match_expressions, &of.match_expressions), (&one.match_fields, &of.match_fields)].iter().all(
        |(one, of)| one.iter().flatten().all(|requirement| of.iter().flatten().any(|o| o == requirement)),
    )
}

/// Whether no node can match, as far as the term alone shows: all values of a list are excluded.
fn contradicts(term: &NodeSelectorTerm, labels: &[NodeSelectorRequirement]) -> bool {
    let expressions: Vec<_> = term.match_expressions.iter().flatten().chain(labels).collect();
    let fields: Vec<_> = term.match_fields.iter().flatten().collect();
    [expressions, fields].iter().any(|all| {
        let lists = all.iter().filter(|requirement| requirement.operator == "In");
        lists.into_iter().any(|list| {
            let same: Vec<_> = all.iter().filter(|other| other.key == list.key).collect();
            !list.values.iter().flatten().any(|value| same.iter().all(|other| allows(other, value)))
        })
    })
}

fn allows(requirement: &NodeSelectorRequirement, value: &String) -> bool {
    let listed = || requirement.values.iter().flatten().any(|one| one == value);
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "DoesNotExist" => false,
        // The others can only be judged against a node.
        _ => true,
    }
}

#[cfg(test)]
mod tests;
