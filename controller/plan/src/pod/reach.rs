//! From which nodes volumes can be reached that the pod itself does not have: those that are plugged in once the guest runs.
//!
//! The scheduler knows nothing of them. So what their storage says of nodes becomes part of what the pod asks of its own:
//!
//! ```text
//!   the pod's terms          one of them ┐
//!   a volume's terms         one of them ├─ and ──> the pod's terms
//!   another volume's terms   one of them ┘
//! ```
//!
//! A guest runs without a volume that cannot be brought to it. So none keeps the pod from every node: one that contradicts what
//! was asked for before it has no say, nor has one with which the terms would be too many.

use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
};

/// Most requirements and values in all terms of a pod: every one is looked at for every node.
const MOST: usize = 1000;

/// Where a volume can be reached from. Volumes that can be reached from everywhere have none.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// Its name.
    pub volume: String,
    /// The pod does not have it: it is plugged in once the guest runs.
    pub comes_later: bool,
    /// Nodes for which any one of these holds.
    pub terms: Vec<NodeSelectorTerm>,
}

/// Why a volume has no say in where the pod is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// No node reaches it and all that came before it.
    Contradicts,
    /// The terms would be too many.
    TooMany,
}

impl Unheard {
    /// In words.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Unheard::Contradicts => "no node that the guest may run on reaches its storage",
            Unheard::TooMany => {
                "its storage and the affinity of the guest name too many nodes to be told together"
            }
        }
    }
}

/// Places the pod where volumes that come later can be reached; those that have no say in it. The pod's own volumes come
/// first: the scheduler places it by them anyway.
pub fn add<'a>(pod: &mut Pod, reaches: &'a [Reach]) -> Vec<(&'a str, Unheard)> {
    let Some(spec) = &mut pod.spec else { return vec![] };
    let labels = labels(spec);
    let mut terms = own_terms(spec);
    let (mut heard, mut unheard) = (false, vec![]);
    let own = reaches.iter().filter(|reach| !reach.comes_later);
    for reach in own.chain(reaches.iter().filter(|reach| reach.comes_later)) {
        match both(&terms, &reach.terms, &labels) {
            Ok(met) => {
                terms = met;
                heard |= reach.comes_later;
            }
            Err(why) if reach.comes_later => unheard.push((reach.volume.as_str(), why)),
            Err(_) => {}
        }
    }
    if heard {
        let nodes: &mut NodeAffinity =
            spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
        nodes.required_during_scheduling_ignored_during_execution =
            Some(NodeSelector { node_selector_terms: terms });
    }
    unheard
}

/// What the pod asks of its node, of which any one has to hold.
fn own_terms(spec: &PodSpec) -> Vec<NodeSelectorTerm> {
    let nodes = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    match nodes.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref()) {
        // A term that asks for nothing fits no node.
        Some(own) => own.node_selector_terms.iter().filter(|term| size(term) > 0).cloned().collect(),
        // Only here it stands for all of them.
        None => vec![NodeSelectorTerm::default()],
    }
}

/// Labels that the node has to have in any case.
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

/// Terms that hold where one of each holds. What contradicts itself is left out, and what another one says already.
fn both(
    terms: &[NodeSelectorTerm],
    others: &[NodeSelectorTerm],
    labels: &[NodeSelectorRequirement],
) -> Result<Vec<NodeSelectorTerm>, Unheard> {
    let total = |terms: &[NodeSelectorTerm]| terms.iter().map(size).sum::<usize>();
    if total(terms) > MOST || total(others) > MOST {
        return Err(Unheard::TooMany);
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
                return Err(Unheard::TooMany);
            }
        }
    }
    if met.is_empty() { Err(Unheard::Contradicts) } else { Ok(met) }
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

/// Whether one says nothing that the other does not say, too.
fn is_part(one: &NodeSelectorTerm, of: &NodeSelectorTerm) -> bool {
    [(&one.match_expressions, &of.match_expressions), (&one.match_fields, &of.match_fields)].iter().all(
        |(one, of)| one.iter().flatten().all(|requirement| of.iter().flatten().any(|o| o == requirement)),
    )
}

/// Whether no node can be like that, as far as it shows without looking at any: a list of values of which none is left.
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
        // Of the others only the node can tell.
        _ => true,
    }
}

#[cfg(test)]
mod tests;
