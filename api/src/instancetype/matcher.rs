//! How a machine names its instance type and its preference.
//!
//! Both are named in the same way, so one type reads both.

use super::GROUP;
use crate::cause::{Cause, Path};
use crate::v1::{InstancetypeMatcher, InstancetypeStatusRef, PreferenceMatcher, VirtualMachine};

/// The kind of object that is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// An instance type.
    Instancetype,
    /// A preference.
    Preference,
}

/// Where the named object lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In the machine's namespace.
    Namespaced,
    /// In no namespace: all namespaces can use it.
    Cluster,
}

/// One matcher of a machine. An empty value counts as not given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matcher<'a> {
    /// The kind of object that is named.
    pub family: Family,
    /// Its name.
    pub name: Option<&'a str>,
    /// Its kind.
    pub kind: Option<&'a str>,
    /// The stored copy to use instead.
    pub revision_name: Option<&'a str>,
    /// Volume whose labels give the name.
    pub infer_from_volume: Option<&'a str>,
    /// What to do if the volume's labels give no name.
    pub infer_from_volume_failure_policy: Option<&'a str>,
}

impl Family {
    /// Both families, in the order in which they are processed.
    pub const ALL: [Self; 2] = [Self::Instancetype, Self::Preference];

    /// The machine's matcher of this family.
    pub fn matcher(self, vm: &VirtualMachine) -> Option<Matcher<'_>> {
        match self {
            Self::Instancetype => vm.spec.instancetype.as_ref().map(Matcher::of_instancetype),
            Self::Preference => vm.spec.preference.as_ref().map(Matcher::of_preference),
        }
    }

    /// The instance type or preference that the machine's status records.
    pub fn reference(self, vm: &VirtualMachine) -> Option<&InstancetypeStatusRef> {
        let status = vm.status.as_ref()?;
        match self {
            Self::Instancetype => status.instancetype_ref.as_ref(),
            Self::Preference => status.preference_ref.as_ref(),
        }
    }

    /// Field of the matcher.
    pub fn path(self) -> Path {
        Path::new("spec").child(match self {
            Self::Instancetype => "instancetype",
            Self::Preference => "preference",
        })
    }

    /// Kind of the objects.
    pub fn object_kind(self, scope: Scope) -> &'static str {
        match (self, scope) {
            (Self::Instancetype, Scope::Namespaced) => "VirtualMachineInstancetype",
            (Self::Instancetype, Scope::Cluster) => "VirtualMachineClusterInstancetype",
            (Self::Preference, Scope::Namespaced) => "VirtualMachinePreference",
            (Self::Preference, Scope::Cluster) => "VirtualMachineClusterPreference",
        }
    }

    /// Resource of the objects, for paths and messages.
    pub fn plural(self, scope: Scope) -> String {
        format!("{}s", self.object_kind(scope).to_ascii_lowercase())
    }

    /// Where objects of this kind live. The kind may be plural and in any case. `None` for a kind of another
    /// family.
    pub fn scope(self, kind: Option<&str>) -> Option<Scope> {
        let Some(kind) = kind else { return Some(Scope::Cluster) };
        let kind = kind.to_ascii_lowercase();
        [Scope::Namespaced, Scope::Cluster].into_iter().find(|scope| {
            let plural = self.plural(*scope);
            kind == plural || Some(kind.as_str()) == plural.strip_suffix('s')
        })
    }

    /// KubeVirt's word for the matcher.
    fn word(self) -> &'static str {
        match self {
            Self::Instancetype => "InstancetypeMatcher",
            Self::Preference => "PreferenceMatcher",
        }
    }
}

fn given(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

impl<'a> Matcher<'a> {
    fn of_instancetype(matcher: &'a InstancetypeMatcher) -> Self {
        let InstancetypeMatcher {
            infer_from_volume,
            infer_from_volume_failure_policy,
            kind,
            name,
            revision_name,
        } = matcher;
        Matcher {
            family: Family::Instancetype,
            name: given(name.as_ref()),
            kind: given(kind.as_ref()),
            revision_name: given(revision_name.as_ref()),
            infer_from_volume: given(infer_from_volume.as_ref()),
            infer_from_volume_failure_policy: given(infer_from_volume_failure_policy.as_ref()),
        }
    }

    fn of_preference(matcher: &'a PreferenceMatcher) -> Self {
        let PreferenceMatcher {
            infer_from_volume,
            infer_from_volume_failure_policy,
            kind,
            name,
            revision_name,
        } = matcher;
        Matcher {
            family: Family::Preference,
            name: given(name.as_ref()),
            kind: given(kind.as_ref()),
            revision_name: given(revision_name.as_ref()),
            infer_from_volume: given(infer_from_volume.as_ref()),
            infer_from_volume_failure_policy: given(infer_from_volume_failure_policy.as_ref()),
        }
    }

    /// Where the named object lives.
    ///
    /// # Errors
    /// KubeVirt's sentence about a kind that is not one of the family.
    pub fn scope(&self) -> Result<Scope, String> {
        self.family.scope(self.kind).ok_or_else(|| {
            let kind = self.kind.unwrap_or_default();
            format!("got unexpected kind in {}: {kind}", self.family.word())
        })
    }

    /// The API server's message for an object that does not exist.
    pub fn not_found(&self, scope: Scope) -> String {
        format!("{}.{GROUP} \"{}\" not found", self.family.plural(scope), self.name.unwrap_or_default())
    }

    /// Everything wrong with the matcher itself, except whether the object exists.
    pub fn causes(&self) -> Vec<Cause> {
        let path = self.family.path();
        let mut causes = Vec::new();
        if self.name.is_none() && self.infer_from_volume.is_none() {
            let message = format!(
                "Either Name or InferFromVolume should be provided within the {}",
                self.family.word()
            );
            causes.push(Cause::not_found(&path, message));
        }
        if let Err(message) = self.scope() {
            causes.push(Cause::invalid(&path.child("kind"), message));
        }
        if self.infer_from_volume.is_some() {
            for (field, word, given) in [("name", "Name", self.name), ("kind", "Kind", self.kind)] {
                if given.is_some() {
                    let message =
                        format!("{word} already set, should be cleared before setting inferFromVolume");
                    causes.push(Cause::not_supported(&path.child(field), message));
                }
            }
        }
        if let Some(policy) = self.infer_from_volume_failure_policy {
            let field = path.child("inferFromVolumeFailurePolicy");
            if !["Reject", "Ignore"].contains(&policy) {
                let message = format!("Invalid value '{policy}' for InferFromVolumeFailurePolicy");
                causes.push(Cause::invalid(&field, message));
            } else if self.infer_from_volume.is_none() {
                causes.push(Cause::not_supported_yet(&field, "without inferFromVolume"));
            }
        }
        causes
    }

    /// A cause if the matcher names another object but keeps the copy of the former one.
    pub fn change(&self, old: &Matcher<'_>) -> Option<Cause> {
        let kept = old.revision_name.is_some() && old.revision_name == self.revision_name;
        (kept && old.name != self.name).then(|| {
            let field = self.family.path().child("revisionName");
            Cause::invalid(&field, "the Matcher Name has been updated without updating the RevisionName")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn causes(matcher: Value) -> Vec<String> {
        let matcher: InstancetypeMatcher = serde_json::from_value(matcher).unwrap();
        Matcher::of_instancetype(&matcher)
            .causes()
            .iter()
            .map(|cause| format!("{} {} {}", cause.kind.reason(), cause.field, cause.message))
            .collect()
    }

    #[test]
    fn kinds_in_any_case_and_number() {
        for (kind, scope) in [
            (None, Some(Scope::Cluster)),
            (Some("VirtualMachineClusterInstancetype"), Some(Scope::Cluster)),
            (Some("virtualmachineclusterinstancetypes"), Some(Scope::Cluster)),
            (Some("VirtualMachineInstancetype"), Some(Scope::Namespaced)),
            (Some("VIRTUALMACHINEINSTANCETYPES"), Some(Scope::Namespaced)),
            (Some("VirtualMachinePreference"), None),
            (Some("virtualmachineinstancetypess"), None),
        ] {
            assert_eq!(Family::Instancetype.scope(kind), scope, "{kind:?}");
        }
        assert_eq!(Family::Preference.scope(Some("virtualmachinepreferences")), Some(Scope::Namespaced));
        assert_eq!(Family::Preference.scope(Some("VirtualMachineClusterPreference")), Some(Scope::Cluster));
    }

    #[test]
    fn matcher_rules() {
        let none: Vec<String> = vec![];
        assert_eq!(causes(json!({"name": "a"})), none);
        assert_eq!(causes(json!({"name": "a", "revisionName": "r"})), none);
        assert_eq!(causes(json!({"inferFromVolume": "v", "inferFromVolumeFailurePolicy": "Ignore"})), none);
        assert_eq!(
            causes(json!({"kind": "VirtualMachineInstancetype"})),
            [
                "FieldValueNotFound spec.instancetype Either Name or InferFromVolume should be provided within the \
                 InstancetypeMatcher"
            ]
        );
        assert_eq!(
            causes(json!({"name": "a", "kind": "Pod"})),
            ["FieldValueInvalid spec.instancetype.kind got unexpected kind in InstancetypeMatcher: Pod"]
        );
        assert_eq!(
            causes(json!({"inferFromVolume": "v", "name": "a", "inferFromVolumeFailurePolicy": "Panic"})),
            [
                "FieldValueNotSupported spec.instancetype.name Name already set, should be cleared before setting \
                 inferFromVolume",
                "FieldValueInvalid spec.instancetype.inferFromVolumeFailurePolicy Invalid value 'Panic' for \
                 InferFromVolumeFailurePolicy",
            ]
        );
        assert_eq!(
            causes(json!({"name": "a", "inferFromVolumeFailurePolicy": "Ignore"})),
            ["FieldValueNotSupported spec.instancetype.inferFromVolumeFailurePolicy \
                 spec.instancetype.inferFromVolumeFailurePolicy without inferFromVolume is not supported yet"]
        );
    }

    #[test]
    fn another_name_needs_another_revision() {
        let of = |name, revision| Matcher {
            family: Family::Preference,
            name: Some(name),
            kind: None,
            revision_name: revision,
            infer_from_volume: None,
            infer_from_volume_failure_policy: None,
        };
        let field = |cause: Option<Cause>| cause.map(|cause| cause.field);
        assert_eq!(
            field(of("b", Some("r")).change(&of("a", Some("r")))).as_deref(),
            Some("spec.preference.revisionName")
        );
        assert_eq!(of("b", Some("s")).change(&of("a", Some("r"))), None);
        assert_eq!(of("b", None).change(&of("a", Some("r"))), None);
        assert_eq!(of("b", None).change(&of("a", None)), None);
        assert_eq!(of("a", Some("r")).change(&of("a", Some("r"))), None);
    }
}
