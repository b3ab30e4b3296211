//! How machines keep what they name.

use crate::v1::KubeVirtConfiguration;

/// What becomes of the instance type and the preference that a machine names: `instancetype.referencePolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReferencePolicy {
    /// The machine goes on naming them, and has a copy of each.
    #[default]
    Reference,
    /// Their values are written into the machine, which then names neither; but not if it has a copy of one of them.
    Expand,
    /// The same, also if the machine has copies.
    ExpandAll,
}

impl ReferencePolicy {
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Self {
        let given = configuration.instancetype.as_ref().and_then(|own| own.reference_policy.as_deref());
        match given {
            Some("expand") => ReferencePolicy::Expand,
            Some("expandAll") => ReferencePolicy::ExpandAll,
            // Admission accepts only `reference` beside them.
            _ => ReferencePolicy::Reference,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn machines_name_what_they_use_unless_another_policy_is_given() {
        let of = |policy: serde_json::Value| {
            let configuration = json!({"instancetype": {"referencePolicy": policy}});
            ReferencePolicy::of_configuration(&serde_json::from_value(configuration).unwrap())
        };
        assert_eq!(of(json!(null)), ReferencePolicy::Reference);
        assert_eq!(of(json!("reference")), ReferencePolicy::Reference);
        assert_eq!(of(json!("expand")), ReferencePolicy::Expand);
        assert_eq!(of(json!("expandAll")), ReferencePolicy::ExpandAll);
        assert_eq!(
            ReferencePolicy::of_configuration(&KubeVirtConfiguration::default()),
            ReferencePolicy::Reference
        );
    }
}
