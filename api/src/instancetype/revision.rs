//! The copy of an instance type or preference that a machine keeps, so that each start uses the same
//! settings.
//!
//! A copy is a ControllerRevision that the machine owns. Its name says what it is a copy of; names, labels and content are
//! KubeVirt's. The machine's status names the copy in use.

use super::matcher::{Family, Matcher, Scope};
use super::{GROUP, VERSION};
use crate::v1::{ControllerRevisionRef, InstancetypeStatusRef, VirtualMachine};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Label: name of the copied object.
pub const OBJECT_NAME_LABEL: &str = "instancetype.kubevirt.io/object-name";
/// Label: kind of the copied object.
pub const OBJECT_KIND_LABEL: &str = "instancetype.kubevirt.io/object-kind";
/// Label: UID of the copied object.
pub const OBJECT_UID_LABEL: &str = "instancetype.kubevirt.io/object-uid";
/// Label: generation of the copied object.
pub const OBJECT_GENERATION_LABEL: &str = "instancetype.kubevirt.io/object-generation";
/// Label: API version of the copied object.
pub const OBJECT_VERSION_LABEL: &str = "instancetype.kubevirt.io/object-version";

/// Where to read a machine's instance type or preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// From the object itself, since there is no copy yet.
    Object(Scope),
    /// From the copy of this name.
    Revision(String),
}

/// Where to look first. A copy that the status names may only be used if it is a copy of the named object:
/// ask [`is_of`].
///
/// # Errors
/// KubeVirt's sentence about an unknown kind.
pub fn source(vm: &VirtualMachine, matcher: &Matcher<'_>) -> Result<Source, String> {
    let recorded = || revision_of(matcher.family.reference(vm)?);
    match matcher.revision_name.or_else(recorded) {
        Some(name) => Ok(Source::Revision(name.to_owned())),
        None => matcher.scope().map(Source::Object),
    }
}

/// Whether a copy is one that the machine names itself, or a copy of the object that the machine names.
pub fn is_of(matcher: &Matcher<'_>, revision: &ControllerRevision) -> bool {
    let labels = revision.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(OBJECT_NAME_LABEL)).map(String::as_str);
    // Copies of an older KubeVirt have no labels.
    let inside = || revision.data.as_ref().and_then(|data| data.0["metadata"]["name"].as_str());
    matcher.revision_name.is_some() || label.or_else(inside) == matcher.name
}

fn revision_of(reference: &InstancetypeStatusRef) -> Option<&str> {
    reference.controller_revision_ref.as_ref()?.name.as_deref().filter(|name| !name.is_empty())
}

/// What the machine's status should say: the matcher, and the copy in use. If it names no copy, one must be
/// made.
pub fn reference(vm: &VirtualMachine, matcher: &Matcher<'_>) -> InstancetypeStatusRef {
    let mut reference = matcher.family.reference(vm).cloned().unwrap_or_default();
    let mut changed = false;
    for (field, said) in [
        (&mut reference.name, matcher.name),
        (&mut reference.kind, matcher.kind),
        (&mut reference.infer_from_volume, matcher.infer_from_volume),
    ] {
        if said.is_some() && field.as_deref() != said {
            *field = said.map(str::to_owned);
            changed = true;
        }
    }
    if let Some(policy) = matcher.infer_from_volume_failure_policy {
        reference.infer_from_volume_failure_policy = Some(policy.to_owned());
    }
    if changed || revision_of(&reference).is_none() {
        reference.controller_revision_ref = None;
    }
    if let Some(name) = matcher.revision_name {
        reference.controller_revision_ref = Some(ControllerRevisionRef { name: Some(name.to_owned()) });
    }
    reference
}

/// Whether the status is up to date and names a copy.
pub fn is_recorded(vm: &VirtualMachine, matcher: &Matcher<'_>) -> bool {
    let wanted = reference(vm, matcher);
    wanted.controller_revision_ref.is_some() && matcher.family.reference(vm) == Some(&wanted)
}

/// The copy of an object as the API server returns it, for a machine to keep.
///
/// # Errors
/// What the object lacks.
pub fn copy(
    vm: &VirtualMachine,
    owner: OwnerReference,
    family: Family,
    scope: Scope,
    object: &Value,
) -> Result<ControllerRevision, String> {
    let kind = family.object_kind(scope);
    let text = |field: &str| {
        object["metadata"][field].as_str().ok_or_else(|| format!("{kind} has no metadata.{field}"))
    };
    let (name, uid) = (text("name")?, text("uid")?);
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
    let mut data = object.clone();
    data["apiVersion"] = json!(format!("{GROUP}/{VERSION}"));
    data["kind"] = json!(kind);
    if let Some(metadata) = data["metadata"].as_object_mut() {
        for field in ["labels", "annotations", "finalizers", "ownerReferences", "managedFields"] {
            metadata.remove(field);
        }
    }
    let machine = vm.metadata.name.as_deref().unwrap_or_default();
    let labels = [
        (OBJECT_GENERATION_LABEL, generation.to_string()),
        (OBJECT_KIND_LABEL, kind.to_owned()),
        (OBJECT_NAME_LABEL, name.to_owned()),
        (OBJECT_UID_LABEL, uid.to_owned()),
        (OBJECT_VERSION_LABEL, VERSION.to_owned()),
    ];
    Ok(ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{machine}-{name}-{VERSION}-{uid}-{generation}")),
            namespace: vm.metadata.namespace.clone(),
            owner_references: Some(vec![owner]),
            labels: Some(
                labels
                    .map(|(label, value)| (label.to_owned(), value))
                    .into_iter()
                    .collect::<BTreeMap<_, _>>(),
            ),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: 0,
    })
}

/// The specification in a copy, if it is one of this family.
///
/// # Errors
/// A sentence about its actual content.
pub fn read<T: DeserializeOwned>(family: Family, revision: &ControllerRevision) -> Result<T, String> {
    let none = Value::Null;
    object(family, revision.data.as_ref().map_or(&none, |data| &data.0)).map_err(|why| {
        format!("ControllerRevision {}: {why}", revision.metadata.name.as_deref().unwrap_or_default())
    })
}

/// The specification of an object of this family.
///
/// # Errors
/// A sentence about its actual kind.
pub fn object<T: DeserializeOwned>(family: Family, object: &Value) -> Result<T, String> {
    let (version, kind) =
        (object["apiVersion"].as_str().unwrap_or(""), object["kind"].as_str().unwrap_or(""));
    let known =
        [Scope::Namespaced, Scope::Cluster].into_iter().any(|scope| family.object_kind(scope) == kind);
    if !known || version != format!("{GROUP}/{VERSION}") {
        let article = match family {
            Family::Instancetype => "an instance type",
            Family::Preference => "a preference",
        };
        return Err(format!("not {article} of {GROUP}/{VERSION} but {version} {kind}"));
    }
    serde_json::from_value(object["spec"].clone()).map_err(|error| format!("{kind} cannot be read: {error}"))
}

/// Whether a copy that was found under the name has the same content as the wanted one.
pub fn holds_the_same(found: &ControllerRevision, wanted: &ControllerRevision) -> bool {
    let spec = |revision: &ControllerRevision| revision.data.as_ref().map(|data| data.0["spec"].clone());
    spec(found) == spec(wanted)
}

#[cfg(test)]
mod tests;
