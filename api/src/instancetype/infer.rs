//! Instance type and preference by the labels of a volume: `inferFromVolume`.
//!
//! ```text
//!   volume --> claim
//!          \-> DataVolume (its own labels first), or its template --> claim, snapshot
//!                                                                \--> DataSource (its own labels first) --> claim, snapshot
//! ```
//!
//! Which object comes next is decided here; a shell reads it. What was inferred takes the place of the question: the machine
//! names it from then on.

use super::matcher::{Family, Matcher};
use crate::cause::Cause;
use crate::cdi::{self, DataVolumeSpec};
use crate::syntax::{is_dns_label, is_dns_subdomain};
use crate::v1::{InstancetypeMatcher, PreferenceMatcher, VirtualMachine, VirtualMachineSpec};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

/// What objects an inference reads.
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
    /// How the API server has them.
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
pub struct Look {
    /// What it is.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What the labels name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Name of the instance type or preference.
    pub name: String,
    /// Its kind, where they say it.
    pub kind: Option<String>,
}

/// What an inference has come to so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another object is to be read.
    Look(Look),
    /// Its end.
    Found(Named),
}

/// Why nothing can be inferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For people, in KubeVirt's words.
    pub message: String,
    /// Whether the machine may ask to go on without.
    pub may_be_ignored: bool,
}

/// What takes the place of the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This one. The machine's own memory goes where it was only there in case nothing could be inferred.
    Named(Named, bool),
    /// None.
    Without,
}

fn fatal<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { message: message.into(), may_be_ignored: false })
}

fn lacking<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { message: message.into(), may_be_ignored: true })
}

/// The first object to read for a machine's volume of that name.
///
/// # Errors
/// Where the volume can tell nothing.
pub fn begin(vm: &VirtualMachine, volume: &str) -> Result<Look, Failure> {
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

/// What comes after an object was read; none where it is not there. `namespace` is the machine's.
///
/// # Errors
/// Where it can tell nothing.
pub fn follow(family: Family, namespace: &str, at: &Look, found: Option<&Value>) -> Result<Next, Failure> {
    let Some(found) = found else {
        return match at.kind {
            // One that was filled may have been taken away since: its claim has its name.
            Kind::DataVolume => look(Kind::Claim, &at.namespace, &at.name).map(Next::Look),
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
            of_specification(&spec, namespace).map(Next::Look)
        }
        Kind::DataSource => {
            let said = cdi::stands_for(found);
            for (kind, source) in [(Kind::Claim, &said["pvc"]), (Kind::Snapshot, &said["snapshot"])] {
                if let Some(name) = source["name"].as_str() {
                    let own = source["namespace"].as_str().filter(|own| !own.is_empty());
                    return look(kind, own.unwrap_or(&at.namespace), name).map(Next::Look);
                }
            }
            lacking(
                "unable to infer defaults from DataSource that doesn't provide DataVolumeSourcePVC or \
                 DataVolumeSourceSnapshot",
            )
        }
    }
}

fn of_specification(spec: &DataVolumeSpec, namespace: &str) -> Result<Look, Failure> {
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

/// Both become part of a request's path.
fn look(kind: Kind, namespace: &str, name: &str) -> Result<Look, Failure> {
    if !is_dns_label(namespace) || !is_dns_subdomain(name) {
        let (namespace, name) = (namespace.escape_debug(), name.escape_debug());
        return fatal(format!("{} {namespace}/{name} not found", kind.resource().kind));
    }
    Ok(Look { kind, namespace: namespace.to_owned(), name: name.to_owned() })
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

/// The choice that an inference's end is for a matcher.
///
/// # Errors
/// Where nothing can be inferred and the machine is not to go on without.
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

/// Puts a choice in the place of the question.
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
mod tests {
    use super::*;
    use serde_json::json;

    fn vm(volume: Value, templates: Value) -> VirtualMachine {
        let mut volume = volume;
        volume["name"] = json!("root");
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "runStrategy": "Always", "dataVolumeTemplates": templates,
                "instancetype": {"inferFromVolume": "root"}, "preference": {"inferFromVolume": "root"},
                "template": {"spec": {"domain": {"devices": {}, "memory": {"guest": "1Gi"}}, "volumes": [volume]}},
            },
        }))
        .unwrap()
    }

    /// Follows a machine's volume through a cluster of objects by their paths.
    fn infer(vm: &VirtualMachine, cluster: &Value) -> Result<(String, Option<String>), (String, bool)> {
        let told = |failure: Failure| (failure.message, failure.may_be_ignored);
        let mut at = begin(vm, "root").map_err(told)?;
        for _ in 0..5 {
            let path = format!("{} {}/{}", at.kind.resource().kind, at.namespace, at.name);
            match follow(Family::Instancetype, "shop", &at, cluster.get(&path)).map_err(told)? {
                Next::Look(next) => at = next,
                Next::Found(named) => return Ok((named.name, named.kind)),
            }
        }
        panic!("no end")
    }

    fn labelled(name: &str) -> Value {
        json!({"metadata": {"labels": {"instancetype.kubevirt.io/default-instancetype": name}}})
    }

    #[test]
    fn labels_are_found_wherever_they_are() {
        let claim = json!({"persistentVolumeClaim": {"claimName": "disk"}});
        let data_volume = json!({"dataVolume": {"name": "disk"}});
        let template = |spec: Value| json!([{"metadata": {"name": "disk"}, "spec": spec}]);
        let pvc = json!({"source": {"pvc": {"namespace": "golden", "name": "image"}}});
        let snapshot = json!({"source": {"snapshot": {"namespace": "golden", "name": "image"}}});
        let by = json!({"sourceRef": {"kind": "DataSource", "namespace": "golden", "name": "fedora"}});
        let source = |of: Value| json!({"spec": {"source": of}});
        let none = json!([]);
        for (case, vm, cluster) in [
            ("a claim", vm(claim, none.clone()), json!({"PersistentVolumeClaim shop/disk": labelled("a")})),
            (
                "a DataVolume",
                vm(data_volume.clone(), none.clone()),
                json!({"DataVolume shop/disk": labelled("a")}),
            ),
            (
                "a DataVolume that is gone",
                vm(data_volume.clone(), none.clone()),
                json!({"PersistentVolumeClaim shop/disk": labelled("a")}),
            ),
            (
                "what a DataVolume copied",
                vm(data_volume.clone(), none),
                json!({"DataVolume shop/disk": {"spec": pvc}, "PersistentVolumeClaim golden/image": labelled("a")}),
            ),
            (
                "the claim of a template",
                vm(data_volume.clone(), template(pvc)),
                json!({"PersistentVolumeClaim golden/image": labelled("a")}),
            ),
            (
                "the snapshot of a template",
                vm(data_volume.clone(), template(snapshot)),
                json!({"VolumeSnapshot golden/image": labelled("a")}),
            ),
            (
                "a DataSource",
                vm(data_volume.clone(), template(by.clone())),
                json!({"DataSource golden/fedora": labelled("a")}),
            ),
            (
                "the claim of a DataSource",
                vm(data_volume.clone(), template(by.clone())),
                json!({
                    "DataSource golden/fedora": source(json!({"pvc": {"name": "image"}})),
                    "PersistentVolumeClaim golden/image": labelled("a"),
                }),
            ),
            (
                "the snapshot of the DataSource that a DataSource stands for",
                vm(data_volume, template(by)),
                json!({
                    "DataSource golden/fedora": {
                        "spec": {"source": {"dataSource": {"name": "x", "namespace": "y"}}},
                        "status": {"source": {"snapshot": {"name": "image", "namespace": "vault"}}},
                    },
                    "VolumeSnapshot vault/image": labelled("a"),
                }),
            ),
        ] {
            assert_eq!(infer(&vm, &cluster), Ok(("a".to_owned(), None)), "{case}");
        }
    }

    #[test]
    fn what_tells_nothing_is_said_and_may_be_ignored() {
        let template = |spec: Value| {
            vm(json!({"dataVolume": {"name": "disk"}}), json!([{"metadata": {"name": "disk"}, "spec": spec}]))
        };
        let ignored = |message: &str| Err((message.to_owned(), true));
        let image = vm(json!({"containerDisk": {"image": "i"}}), json!([]));
        assert_eq!(
            infer(&image, &json!({})),
            ignored("unable to infer defaults from volume root as type is not supported")
        );
        assert_eq!(
            infer(&template(json!({"source": {"blank": {}}})), &json!({})),
            ignored("unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported")
        );
        assert_eq!(
            infer(&template(json!({"sourceRef": {"kind": "Pod", "name": "x"}})), &json!({})),
            ignored("unable to infer defaults from DataVolumeSourceRef as Kind Pod is not supported")
        );
        let claim = vm(json!({"persistentVolumeClaim": {"claimName": "disk"}}), json!([]));
        assert_eq!(
            infer(&claim, &json!({"PersistentVolumeClaim shop/disk": {}})),
            ignored(
                "unable to find required instancetype.kubevirt.io/default-instancetype label on the volume"
            )
        );
        assert_eq!(
            infer(&claim, &json!({})),
            Err(("PersistentVolumeClaim shop/disk not found".to_owned(), false))
        );
        let named = begin(&claim, "other").unwrap_err();
        assert_eq!(
            (named.message.as_str(), named.may_be_ignored),
            ("unable to find volume other to infer defaults", false)
        );
        // Names become part of a path.
        let path = template(json!({"source": {"pvc": {"namespace": "a/../b", "name": "x?y"}}}));
        assert_eq!(
            infer(&path, &json!({})),
            Err(("PersistentVolumeClaim a/../b/x?y not found".to_owned(), false))
        );
    }

    #[test]
    fn the_choice_takes_the_place_of_the_question() {
        let claim = json!({"persistentVolumeClaim": {"claimName": "disk"}});
        let mut machine = vm(claim, json!([]));
        let named =
            || Named { name: "u1.small".to_owned(), kind: Some("VirtualMachineInstancetype".to_owned()) };
        let matcher = |policy| Matcher {
            family: Family::Instancetype,
            name: None,
            kind: None,
            revision_name: None,
            infer_from_volume: Some("root"),
            infer_from_volume_failure_policy: policy,
        };
        let lacking = || Failure { message: "why".to_owned(), may_be_ignored: true };
        let fatal = || Failure { message: "why".to_owned(), may_be_ignored: false };
        assert_eq!(choose(&matcher(None), Ok(named())), Ok(Choice::Named(named(), false)));
        let cause = choose(&matcher(Some("Reject")), Err(lacking())).unwrap_err();
        assert_eq!(
            (cause.field.as_str(), cause.message.as_str()),
            ("spec.instancetype.inferFromVolume", "why")
        );
        assert_eq!(choose(&matcher(Some("Ignore")), Err(lacking())), Ok(Choice::Without));
        assert!(choose(&matcher(Some("Ignore")), Err(fatal())).is_err());

        apply(Family::Preference, &Choice::Without, &mut machine.spec);
        assert_eq!(machine.spec.preference, None);
        apply(Family::Instancetype, &Choice::Named(named(), false), &mut machine.spec);
        let written = serde_json::to_value(&machine.spec.instancetype).unwrap();
        assert_eq!(written, json!({"name": "u1.small", "kind": "VirtualMachineInstancetype"}));
        assert!(machine.spec.template.spec.domain.memory.is_some());
        // It was only there for the other case.
        let choice = choose(&matcher(Some("Ignore")), Ok(named())).unwrap();
        apply(Family::Instancetype, &choice, &mut machine.spec);
        assert_eq!(machine.spec.template.spec.domain.memory, None);
    }
}
