//! Labels that control our components, which users may not set or which have to be numbers, and annotations that
//! request features that do not exist yet.

use super::{Cause, Path, Requester, gated};
use crate::gates::Gates;
use crate::names;
use crate::syntax::quoted;
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
    verbosity(path, metadata.labels.as_ref(), causes);
    gated::annotations(path, metadata.annotations.as_ref(), gates, causes);
}

/// How much a launcher is to log. KubeVirt accepts any text, and makes no pod where it is no number.
fn verbosity(path: &Path, labels: Option<&BTreeMap<String, String>>, causes: &mut Vec<Cause>) {
    let level = labels.and_then(|labels| labels.get(names::LOG_VERBOSITY_LABEL));
    if let Some(level) = level.filter(|level| level.parse::<u32>().is_err()) {
        let field = path.child(&format!("labels[{}]", names::LOG_VERBOSITY_LABEL));
        let message = format!("{field} is {}, and has to be a whole number, 0 or more", quoted(level));
        causes.push(Cause::invalid(&field, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_of_the_log_is_a_number() {
        let causes = |level: &str| {
            let labels = [(names::LOG_VERBOSITY_LABEL.to_owned(), level.to_owned())].into();
            let metadata = ObjectMeta { labels: Some(labels), ..ObjectMeta::default() };
            let mut causes = Vec::new();
            validate(&Path::new("metadata"), &metadata, Requester::User, &Gates::default(), &mut causes);
            causes
        };
        for right in ["0", "2", "10"] {
            assert_eq!(causes(right), [], "{right}");
        }
        for wrong in ["", "high", "-1"] {
            let found = causes(wrong);
            assert_eq!(found.len(), 1, "{wrong}");
            assert_eq!(found[0].field, "metadata.labels[logVerbosity]");
        }
    }
}
