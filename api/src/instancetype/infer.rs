//! Instance type and preference from the labels of a volume: `inferFromVolume`.
//!
//! ```text
//!   volume --> claim
//!          \-> DataVolume (its own labels first), or its template --> claim, snapshot
//!                                                                \--> DataSource (its own labels first) --> claim, snapshot
//! ```
//!
//! This module decides which object comes next; the caller reads it. The inferred name replaces
//! `inferFromVolume` in the machine.

use super::matcher::{Family, Matcher};
use crate::cause::Cause;
use crate::cdi::{self, DataVolumeSpec};
use crate::syntax::{is_dns_label, is_dns_subdomain, quoted};
use crate::v1::{InstancetypeMatcher, PreferenceMatcher, VirtualMachine, VirtualMachineSpec};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube_core::{ApiResource, GroupVersionKind};
use serde_json::Value;

/// The kinds of objects that an inference reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A PersistentVolumeClaim.
    Claim,
    /// A VolumeSnapshot.
    Snapshot,
    /// A DataVolume.
    DataVolume,
    /// A DataSource.
    DataSource,
}

impl Kind {
    /// The kind as an API resource.
    pub fn resource(self) -> ApiResource {
        match self {
            Kind::Claim => ApiResource::erase::<PersistentVolumeClaim>(&()),
            Kind::Snapshot => ApiResource::from_gvk(&GroupVersionKind::gvk(
                "snapshot.storage.k8s.io",
                "v1",
                "VolumeSnapshot",
            )),
            Kind::DataVolume => cdi::resource(cdi::DATA_VOLUME),
            Kind::DataSource => cdi::resource(cdi::DATA_SOURCE),
        }
    }
}

/// An object to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The object that the labels name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Name of the instance type or preference.
    pub name: String,
    /// Its kind, if the labels give one.
    pub kind: Option<String>,
}

/// The state of an inference after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another object has to be read.
    Reference(Reference),
    /// The labels name this object.
    Found(Named),
}

/// Why nothing can be inferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Message for users, in KubeVirt's words.
    pub message: String,
    /// Whether the machine may choose to start without an instance type or preference.
    pub may_be_ignored: bool,
}

/// What replaces `inferFromVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This object. If the flag is set, the machine's own memory is removed: it was only a fallback in case
    /// nothing could be inferred.
    Named(Named, bool),
    /// Nothing.
    Without,
}

fn fatal<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { message: message.into(), may_be_ignored: false })
}

fn lacking<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { message: message.into(), may_be_ignored: true })
}

/// The first object to read for the machine's volume of this name.
///
/// # Errors
/// If nothing can be inferred from the volume.
pub fn begin(vm: &VirtualMachine, volume: &str) -> Result<Reference, Failure> {
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let Some(found) = vm.spec.template.spec.volumes.iter().find(|one| one.name == volume) else {
        return fatal(format!("unable to find volume {volume} to infer defaults"));
    };
    if let Some(source) = &found.persistent_volume_claim {
        return look(Kind::Claim, namespace, &source.claim_name);
    }
    let Some(source) = &found.data_volume else {
        return lacking(format!("unable to infer defaults from volume {volume} as type is not supported"));
    };
    match vm.spec.data_volume_templates.iter().find(|template| template.name() == source.name) {
        Some(template) => of_specification(&template.spec, namespace),
        None => look(Kind::DataVolume, namespace, &source.name),
    }
}

/// The next step after an object was read; `object` is `None` if it does not exist. `namespace` is the
/// machine's.
///
/// # Errors
/// If nothing can be inferred from the object.
pub fn follow(
    family: Family,
    namespace: &str,
    at: &Reference,
    found: Option<&Value>,
) -> Result<Next, Failure> {
    let Some(found) = found else {
        return match at.kind {
            // A filled DataVolume may have been deleted since. Its claim has the same name.
            Kind::DataVolume => look(Kind::Claim, &at.namespace, &at.name).map(Next::Reference),
            Kind::Claim | Kind::Snapshot | Kind::DataSource => {
                let kind = at.kind.resource().kind;
                fatal(format!("{kind} {}/{} not found", at.namespace, at.name))
            }
        };
    };
    if let Some(named) = by_labels(family, found) {
        return Ok(Next::Found(named));
    }
    match at.kind {
        Kind::Claim | Kind::Snapshot => {
            lacking(format!("unable to find required {} label on the volume", name_label(family)))
        }
        Kind::DataVolume => {
            let spec = serde_json::from_value(found["spec"].clone()).unwrap_or_default();
            of_specification(&spec, namespace).map(Next::Reference)
        }
        Kind::DataSource => {
            let said = cdi::stands_for(found);
            for (kind, source) in [(Kind::Claim, &said["pvc"]), (Kind::Snapshot, &said["snapshot"])] {
                if let Some(name) = source["name"].as_str() {
                    let own = source["namespace"].as_str().filter(|own| !own.is_empty());
                    return look(kind, own.unwrap_or(&at.namespace), name).map(Next::Reference);
                }
            }
            lacking(
                "unable to infer defaults from DataSource that doesn't provide DataVolumeSourcePVC or \
                 DataVolumeSourceSnapshot",
            )
        }
    }
}

fn of_specification(spec: &DataVolumeSpec, namespace: &str) -> Result<Reference, Failure> {
    let or = |own: &str| if own.is_empty() { namespace.to_owned() } else { own.to_owned() };
    if let Some(source) = &spec.source {
        if let Some(claim) = &source.pvc {
            return look(Kind::Claim, &or(&claim.namespace), &claim.name);
        }
        if let Some(snapshot) = &source.snapshot {
            return look(Kind::Snapshot, &or(&snapshot.namespace), &snapshot.name);
        }
    }
    match &spec.source_ref {
        Some(reference) if reference.kind == cdi::DATA_SOURCE => {
            let own = or(reference.namespace.as_deref().unwrap_or_default());
            look(Kind::DataSource, &own, &reference.name)
        }
        Some(reference) => lacking(format!(
            "unable to infer defaults from DataVolumeSourceRef as Kind {} is not supported",
            reference.kind
        )),
        None => lacking("unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported"),
    }
}

/// Namespace and name become part of a request's path.
fn look(kind: Kind, namespace: &str, name: &str) -> Result<Reference, Failure> {
    if !is_dns_label(namespace) || !is_dns_subdomain(name) {
        let (namespace, name) = (quoted(namespace), quoted(name));
        return fatal(format!("{} {namespace}/{name} not found", kind.resource().kind));
    }
    Ok(Reference { kind, namespace: namespace.to_owned(), name: name.to_owned() })
}

fn name_label(family: Family) -> &'static str {
    match family {
        Family::Instancetype => "instancetype.kubevirt.io/default-instancetype",
        Family::Preference => "instancetype.kubevirt.io/default-preference",
    }
}

fn by_labels(family: Family, found: &Value) -> Option<Named> {
    let labels = &found["metadata"]["labels"];
    let name = labels[name_label(family)].as_str()?.to_owned();
    let kind = labels[format!("{}-kind", name_label(family))].as_str();
    Some(Named { name, kind: kind.filter(|kind| !kind.is_empty()).map(str::to_owned) })
}

/// The choice for a matcher that the result of an inference leads to.
///
/// # Errors
/// If nothing can be inferred and the machine does not allow that.
pub fn choose(matcher: &Matcher<'_>, end: Result<Named, Failure>) -> Result<Choice, Cause> {
    let ignores = matcher.infer_from_volume_failure_policy == Some("Ignore");
    match end {
        Ok(named) => Ok(Choice::Named(named, ignores && matcher.family == Family::Instancetype)),
        Err(failure) if failure.may_be_ignored && ignores => Ok(Choice::Without),
        Err(failure) => {
            let field = matcher.family.path().child("inferFromVolume");
            Err(Cause::not_found(&field, failure.message))
        }
    }
}

/// Replaces `inferFromVolume` by the choice.
pub fn apply(family: Family, choice: &Choice, spec: &mut VirtualMachineSpec) {
    let named = match choice {
        Choice::Named(named, forgets_memory) => {
            if *forgets_memory {
                spec.template.spec.domain.memory = None;
            }
            Some(named.clone())
        }
        Choice::Without => None,
    };
    match family {
        Family::Instancetype => {
            spec.instancetype = named.map(|Named { name, kind }| InstancetypeMatcher {
                name: Some(name),
                kind,
                ..InstancetypeMatcher::default()
            });
        }
        Family::Preference => {
            spec.preference = named.map(|Named { name, kind }| PreferenceMatcher {
                name: Some(name),
                kind,
                ..PreferenceMatcher::default()
            });
        }
    }
}

#[cfg(test)]
mod tests;
