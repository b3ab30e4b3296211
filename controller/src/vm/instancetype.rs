//! The instance type and the preference of a machine.
//!
//! ```text
//!   seen first, or another one named: object --copy--> ControllerRevision, named in the machine's status
//!   start:                            ControllerRevision --> instance
//! ```
//!
//! So a machine starts as it did the last time, whatever happened to the objects since. To use the new contents, a user
//! removes the copy from the status, or names another object. A running instance takes over what it can of another one.

use crate::cluster::Cluster;
use crate::ownership;
use crate::write::FIELD_MANAGER;
use barevirt_api::defaults;
use barevirt_api::instancetype::expand::{self, Chosen};
use barevirt_api::instancetype::matcher::{Family, Matcher, Scope};
use barevirt_api::instancetype::revision::{self, Source};
use barevirt_api::instancetype::{GROUP, VERSION};
use barevirt_api::names::{
    REASON_FAILED_CREATE, REASON_FAILED_FIND_INSTANCETYPE, REASON_FAILED_FIND_PREFERENCE,
};
use barevirt_api::settings::Binding;
use barevirt_api::v1::{
    ControllerRevisionRef, InstancetypeStatusRef, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec,
};
use barevirt_component::error::response;
use barevirt_component::request::Error;
use barevirt_component::request::call;
use barevirt_plan::template;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::info;

/// The status fields of both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct References {
    /// The instance type.
    pub instancetype: Option<InstancetypeStatusRef>,
    /// The preference.
    pub preference: Option<InstancetypeStatusRef>,
}

/// Why a machine cannot be started with what it names for now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    /// Reason of the Failure condition.
    pub(super) reason: &'static str,
    /// Its message.
    pub(super) message: String,
}

/// The result of a look at the API server: found, or refused with a reason.
type LookupResult<T> = Result<Result<T, Refusal>, Error>;

/// Whether the status names copies of everything that the machine names.
pub(super) fn is_recorded(vm: &VirtualMachine) -> bool {
    Family::ALL
        .into_iter()
        .filter_map(|family| family.matcher(vm))
        .all(|matcher| revision::is_recorded(vm, &matcher))
}

/// Stores copies of what the machine names, where they are missing.
pub(super) async fn record(cluster: &Cluster, vm: &VirtualMachine) -> LookupResult<References> {
    let mut references = References::default();
    for family in Family::ALL {
        let Some(matcher) = family.matcher(vm) else { continue };
        let reference = match record_one(cluster, vm, &matcher).await? {
            Ok(reference) => reference,
            Err(refusal) => return Ok(Err(refusal)),
        };
        match family {
            Family::Instancetype => references.instancetype = Some(reference),
            Family::Preference => references.preference = Some(reference),
        }
    }
    Ok(Ok(references))
}

async fn record_one(
    cluster: &Cluster,
    vm: &VirtualMachine,
    matcher: &Matcher<'_>,
) -> LookupResult<InstancetypeStatusRef> {
    let mut reference = revision::reference(vm, matcher);
    if let Some(name) = reference.controller_revision_ref.as_ref().and_then(|kept| kept.name.clone()) {
        return Ok(stored(cluster, vm, matcher.family, &name).await?.map(|_| reference));
    }
    let (scope, name) = match place(matcher) {
        Ok(place) => place,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let object = match object(cluster, vm, matcher.family, scope, name).await? {
        Ok(object) => object,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let wanted = conflicts(vm, matcher.family, &object)
        .and_then(|()| revision::copy(vm, ownership::owner(vm), matcher.family, scope, &object));
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(why) => return Ok(Err(not_stored(&why))),
    };
    Ok(store(cluster, vm, wanted).await?.map(|name| {
        reference.controller_revision_ref = Some(ControllerRevisionRef { name: Some(name) });
        reference
    }))
}

/// Why a machine cannot be used with an instance type. Admission has checked, but the object may have changed since.
fn conflicts(vm: &VirtualMachine, family: Family, object: &serde_json::Value) -> Result<(), String> {
    if family == Family::Preference {
        return Ok(());
    }
    let chosen = Chosen { instancetype: Some(revision::object(family, object)?), preference: None };
    expand::instance(vm, &chosen, Binding::default(), template::instance(vm))
        .map(drop)
        .map_err(|causes| expand::sentence(&causes))
}

/// The instance of a machine with both applied, from the copies that the status names.
pub(super) async fn applied(
    cluster: &Cluster,
    vm: &VirtualMachine,
    instance: VirtualMachineInstance,
) -> LookupResult<VirtualMachineInstance> {
    let instancetype = match kept(cluster, vm, Family::Instancetype).await? {
        Ok(instancetype) => instancetype,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let preference = match kept(cluster, vm, Family::Preference).await? {
        Ok(preference) => preference,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if instancetype.is_none() && preference.is_none() {
        return Ok(Ok(instance));
    }
    let binding = cluster.config().settings.guest.binding;
    let applied = expand::instance(vm, &Chosen { instancetype, preference }, binding, instance);
    Ok(applied.map_err(|causes| {
        let message = format!("Error creating virtual machine instance: {}", expand::sentence(&causes));
        Refusal { reason: REASON_FAILED_CREATE, message }
    }))
}

/// The machine's template with both applied, and defaults. Also for a machine that names neither: templates are compared.
pub(super) async fn expanded(
    cluster: &Cluster,
    vm: &VirtualMachine,
) -> LookupResult<VirtualMachineInstanceSpec> {
    let binding = cluster.config().settings.guest.binding;
    Ok(applied(cluster, vm, template::instance(vm)).await?.map(|mut instance| {
        defaults::devices(&mut instance.spec, binding);
        defaults::spec(&mut instance.spec);
        instance.spec
    }))
}

async fn kept<T: DeserializeOwned>(
    cluster: &Cluster,
    vm: &VirtualMachine,
    family: Family,
) -> LookupResult<Option<T>> {
    let Some(matcher) = family.matcher(vm) else { return Ok(Ok(None)) };
    let name = match revision::source(vm, &matcher) {
        Ok(Source::Revision(name)) => name,
        // A copy is recorded before a start is planned.
        Ok(Source::Object(scope)) => return Ok(Err(not_found(family, matcher.not_found(scope)))),
        Err(message) => return Ok(Err(not_found(family, message))),
    };
    Ok(stored(cluster, vm, family, &name)
        .await?
        .and_then(|found| revision::read(family, &found).map(Some).map_err(|why| not_found(family, why))))
}

/// The contents of what the machine names: its copies, else the objects.
pub(super) async fn named(cluster: &Cluster, vm: &VirtualMachine) -> LookupResult<Chosen> {
    let instancetype = match contents(cluster, vm, Family::Instancetype).await? {
        Ok(instancetype) => instancetype,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let found = contents(cluster, vm, Family::Preference).await?;
    Ok(found.map(|preference| Chosen { instancetype, preference }))
}

async fn contents<T: DeserializeOwned>(
    cluster: &Cluster,
    vm: &VirtualMachine,
    family: Family,
) -> LookupResult<Option<T>> {
    let Some(matcher) = family.matcher(vm) else { return Ok(Ok(None)) };
    let unreadable = |why: String| not_found(family, why);
    let copy = revision::reference(vm, &matcher).controller_revision_ref.and_then(|kept| kept.name);
    if let Some(name) = copy {
        let found = stored(cluster, vm, family, &name).await?;
        return Ok(found.and_then(|found| revision::read(family, &found).map(Some).map_err(unreadable)));
    }
    let (scope, name) = match place(&matcher) {
        Ok(place) => place,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let found = object(cluster, vm, family, scope, name).await?;
    Ok(found.and_then(|object| revision::object(family, &object).map(Some).map_err(unreadable)))
}

/// Where the object that is named lives, and its name.
fn place<'a>(matcher: &Matcher<'a>) -> Result<(Scope, &'a str), Refusal> {
    match (matcher.scope(), matcher.name) {
        (Ok(scope), Some(name)) => Ok((scope, name)),
        (Ok(scope), None) => Err(not_found(matcher.family, matcher.not_found(scope))),
        (Err(message), _) => Err(not_found(matcher.family, message)),
    }
}

/// The stored copy of that name.
async fn stored(
    cluster: &Cluster,
    vm: &VirtualMachine,
    family: Family,
    name: &str,
) -> LookupResult<ControllerRevision> {
    let namespace = vm.namespace().unwrap_or_default();
    let revisions: Api<ControllerRevision> = Api::namespaced(cluster.client.clone(), &namespace);
    let found = call("get", || format!("controller revision {namespace}/{name}"), revisions.get(name)).await;
    looked(family, found)
}

/// The object that the machine names, as the API server has it.
async fn object(
    cluster: &Cluster,
    vm: &VirtualMachine,
    family: Family,
    scope: Scope,
    name: &str,
) -> LookupResult<serde_json::Value> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, family.object_kind(scope));
    let resource = ApiResource::from_gvk_with_plural(&kind, &family.plural(scope));
    let objects: Api<DynamicObject> = match scope {
        Scope::Namespaced => {
            Api::namespaced_with(cluster.client.clone(), &vm.namespace().unwrap_or_default(), &resource)
        }
        Scope::Cluster => Api::all_with(cluster.client.clone(), &resource),
    };
    let found = call("get", || format!("{} {name}", kind.kind), objects.get(name)).await;
    // The object came as JSON, so it has a JSON form.
    Ok(looked(family, found)?.map(|object| serde_json::to_value(object).unwrap_or_default()))
}

/// A missing object is not our failure: it is reported to the user, in the API server's words.
fn looked<T>(family: Family, found: Result<T, Error>) -> LookupResult<T> {
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|answer| answer.code == 404) => {
            let message = response(&source).map(|answer| answer.message.clone()).unwrap_or_default();
            Ok(Err(not_found(family, message)))
        }
        Err(error) => Err(error),
    }
}

/// Creates the copy, or finds it; returns its name.
async fn store(cluster: &Cluster, vm: &VirtualMachine, wanted: ControllerRevision) -> LookupResult<String> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), wanted.name_any());
    let revisions: Api<ControllerRevision> = Api::namespaced(cluster.client.clone(), &namespace);
    let revision_subject = || format!("controller revision {namespace}/{name}");
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match call("create", revision_subject, revisions.create(&params, &wanted)).await {
        Ok(_) => {
            info!(namespace, vm = vm.name_any(), revision = name, "kept a copy");
            return Ok(Ok(name));
        }
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {}
        Err(error) => return Err(error),
    }
    let found = call("get", revision_subject, revisions.get(&name)).await?;
    Ok(usable(vm, &found, &wanted).map(|()| name).map_err(|why| not_stored(&why)))
}

/// Whether the object under a copy's name is such a copy.
fn usable(
    vm: &VirtualMachine,
    found: &ControllerRevision,
    wanted: &ControllerRevision,
) -> Result<(), String> {
    let name = found.name_any();
    if !revision::holds_the_same(found, wanted) {
        return Err(format!("found existing ControllerRevision with unexpected data: {name}"));
    }
    let owner = ownership::controller(found.meta());
    match owner.filter(|owner| Some(&owner.uid) != vm.meta().uid.as_ref()) {
        None => Ok(()),
        // Usually it belongs to a deleted machine of the same name, and will be deleted with it.
        Some(owner) => {
            Err(format!("ControllerRevision {name} belongs to another {} {}", owner.kind, owner.name))
        }
    }
}

fn not_found(family: Family, message: String) -> Refusal {
    let reason = match family {
        Family::Instancetype => REASON_FAILED_FIND_INSTANCETYPE,
        Family::Preference => REASON_FAILED_FIND_PREFERENCE,
    };
    Refusal { reason, message }
}

fn not_stored(why: &str) -> Refusal {
    let message =
        format!("error encountered while storing instancetype.kubevirt.io controllerRevisions: {why}");
    Refusal { reason: REASON_FAILED_CREATE, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vm(spec: Value, status: Value) -> VirtualMachine {
        let mut vm = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "m1"},
            "spec": {"runStrategy": "Always", "template": {"spec": {"domain": {"devices": {}}}}},
            "status": status,
        });
        for (name, value) in spec.as_object().unwrap() {
            vm["spec"][name] = value.clone();
        }
        serde_json::from_value(vm).unwrap()
    }

    fn revision(owner: &str, cpus: u32) -> ControllerRevision {
        serde_json::from_value(json!({
            "metadata": {"name": "r", "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "name": "web", "uid": owner, "controller": true}]},
            "data": {"spec": {"cpu": {"guest": cpus}}}, "revision": 0,
        }))
        .unwrap()
    }

    #[test]
    fn both_have_to_be_recorded() {
        let both = json!({"instancetype": {"name": "small"}, "preference": {"name": "linux"}});
        let of = |name: &str| json!({"name": name, "controllerRevisionRef": {"name": "r"}});
        for (spec, status, recorded) in [
            (json!({}), json!({}), true),
            (both.clone(), json!({}), false),
            (both.clone(), json!({"instancetypeRef": of("small")}), false),
            (both.clone(), json!({"instancetypeRef": of("small"), "preferenceRef": of("linux")}), true),
            (both, json!({"instancetypeRef": of("big"), "preferenceRef": of("linux")}), false),
        ] {
            assert_eq!(is_recorded(&vm(spec.clone(), status.clone())), recorded, "{spec} {status}");
        }
    }

    #[test]
    fn only_a_copy_of_ours_is_used() {
        let machine = vm(json!({}), json!({}));
        assert_eq!(usable(&machine, &revision("m1", 1), &revision("m1", 1)), Ok(()));
        assert_eq!(
            usable(&machine, &revision("m1", 2), &revision("m1", 1)),
            Err("found existing ControllerRevision with unexpected data: r".to_owned())
        );
        assert_eq!(
            usable(&machine, &revision("m0", 1), &revision("m1", 1)),
            Err("ControllerRevision r belongs to another VirtualMachine web".to_owned())
        );
        let mut nobodys = revision("m1", 1);
        nobodys.metadata.owner_references = None;
        assert_eq!(usable(&machine, &nobodys, &revision("m1", 1)), Ok(()));
    }

    #[test]
    fn an_instance_type_that_came_to_conflict_is_not_kept() {
        let object = json!({
            "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
            "spec": {"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}, "nodeSelector": {"a": "b"}},
        });
        let free = vm(json!({"instancetype": {"name": "small"}}), json!({}));
        assert_eq!(conflicts(&free, Family::Instancetype, &object), Ok(()));
        let template = json!({"spec": {"domain": {"devices": {}}, "nodeSelector": {"c": "d"}}});
        let bound = vm(json!({"instancetype": {"name": "small"}, "template": template}), json!({}));
        assert_eq!(
            conflicts(&bound, Family::Instancetype, &object),
            Err("VM field(s) spec.nodeSelector conflicts with selected instance type".to_owned())
        );
    }
}
