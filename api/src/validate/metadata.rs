//! Labels that control our components, which users may not set, and annotations that request features that do
//! not exist yet.

use super::{Cause, Path, Requester, gated};
use crate::gates::Gates;
use crate::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;

/// Labels on instances that only our components may set.
pub(super) const RESERVED_LABELS: [&str; 6] = [
    names::CREATED_BY_LABEL,
    names::MIGRATION_JOB_LABEL,
    names::NODE_NAME_LABEL,
    names::MIGRATION_TARGET_NODE_LABEL,
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

/// Metadata of an instance, or of a template of one.
pub(super) fn validate(
    path: &Path,
    metadata: &ObjectMeta,
    requester: Requester,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let found = reserved(metadata.labels.as_ref());
    if requester == Requester::User && !found.is_empty() {
        let names: Vec<&str> = found.into_keys().collect();
        causes.push(Cause::not_supported(
            &path.child("labels"),
            format!(
                "creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited: {}",
                names.join(", ")
            ),
        ));
    }
    gated::annotations(path, metadata.annotations.as_ref(), gates, causes);
}
