//! Labels that decide what our components do: users may not set them.

use super::{Cause, CauseKind, Path, Requester};
use crate::names;
use std::collections::BTreeMap;

/// Labels on instances that only our components may set.
pub(super) const RESERVED_LABELS: [&str; 6] = [
    names::CREATED_BY_LABEL,
    "kubevirt.io/migrationJobUID",
    names::NODE_NAME_LABEL,
    "kubevirt.io/migrationTargetNodeName",
    names::SCHEDULABLE_LABEL,
    "kubevirt.io/install-strategy",
];

/// The reserved ones among the labels.
pub(super) fn reserved(labels: Option<&BTreeMap<String, String>>) -> BTreeMap<&str, &str> {
    labels
        .into_iter()
        .flatten()
        .filter(|(label, _)| RESERVED_LABELS.contains(&label.as_str()))
        .map(|(label, value)| (label.as_str(), value.as_str()))
        .collect()
}

pub(super) fn reserved_labels(
    path: &Path,
    labels: Option<&BTreeMap<String, String>>,
    requester: Requester,
    causes: &mut Vec<Cause>,
) {
    let found = reserved(labels);
    if requester == Requester::User && !found.is_empty() {
        let names: Vec<&str> = found.into_keys().collect();
        causes.push(Cause::new(
            CauseKind::NotSupported,
            &path.child("labels"),
            format!(
                "creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited: {}",
                names.join(", ")
            ),
        ));
    }
}
