//! Instance types and preferences of machines, read from the API server, so that a machine is validated and
//! shown with its final settings.
//!
//! `barevirt_api` decides how they are applied; this module only reads them.

use barevirt_api::instancetype::expand::{self, Chosen, Lookup, Lookups};
use barevirt_api::instancetype::matcher::{Family, Matcher, Scope};
use barevirt_api::instancetype::revision::{self, Source};
use barevirt_api::instancetype::{GROUP, VERSION};
use barevirt_api::settings::GuestDefaults;
use barevirt_api::v1::VirtualMachine;
use hyper::body::Bytes;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::DynamicObject;
use kube::core::admission::AdmissionRequest;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::{self, Answer, Refusal};
use crate::front_proxy::User;
use crate::infer;

/// The machine of a review. `None` for a machine that cannot be decoded, which validation reports, and for
/// one that is being deleted.
pub fn reviewed(request: &AdmissionRequest<DynamicObject>) -> Option<VirtualMachine> {
    let object = serde_json::to_value(request.object.as_ref()?).ok()?;
    let mut vm = serde_json::from_value::<VirtualMachine>(object).ok()?;
    if vm.metadata.deletion_timestamp.is_some() {
        return None;
    }
    // The API server fills in the namespace only after admission.
    vm.metadata.namespace = vm.metadata.namespace.or_else(|| request.namespace.clone());
    Some(vm)
}

/// `expand-spec`: a machine of the cluster without references to instance type and preference.
///
/// # Errors
/// 404 for a machine that does not exist, 500 for one that cannot be expanded, as KubeVirt answers.
pub async fn machine(
    client: &Client,
    guest: &GuestDefaults,
    user: &User,
    namespace: &str,
    name: &str,
) -> Result<Answer, Refusal> {
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    let vm = vms.get(name).await.map_err(|error| Refusal::from_kube("get VirtualMachine", error))?;
    let expanded = on_its_own(client, guest, user, &vm).await.map_err(Refusal::internal)?;
    Ok(answer::ok(&expanded))
}

/// `expand-vm-spec`: the machine of the body without references to instance type and preference.
///
/// # Errors
/// 400 for a body that is not a machine of this namespace, or one that cannot be expanded.
pub async fn body(
    client: &Client,
    guest: &GuestDefaults,
    user: &User,
    namespace: &str,
    body: &Bytes,
) -> Result<Answer, Refusal> {
    let vm = given(namespace, body)?;
    let expanded = on_its_own(client, guest, user, &vm).await.map_err(Refusal::bad_request)?;
    Ok(answer::ok(&expanded))
}

/// The machine in a body.
fn given(namespace: &str, body: &[u8]) -> Result<VirtualMachine, Refusal> {
    if body.is_empty() {
        return Err(Refusal::bad_request("empty request body"));
    }
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!("Can not unmarshal Request body to struct, error: {error}"))
    })?;
    let invalid = |why: String| Refusal::bad_request(format!("Object is not a valid VirtualMachine: {why}"));
    let mut vm: VirtualMachine =
        serde_json::from_value(value.clone()).map_err(|error| invalid(error.to_string()))?;
    let mut unknown = Vec::new();
    let known = serde_json::to_value(&vm).map_err(|error| invalid(error.to_string()))?;
    for part in ["metadata", "spec"] {
        fields_beyond(part, &value[part], &known[part], &mut unknown);
    }
    if !unknown.is_empty() {
        return Err(invalid(format!("unknown field {}", unknown.join(", "))));
    }
    if vm.metadata.namespace.as_deref().is_some_and(|own| !own.is_empty() && own != namespace) {
        return Err(Refusal::bad_request(format!("VM namespace must be empty or {namespace}")));
    }
    vm.metadata.namespace = Some(namespace.to_owned());
    Ok(vm)
}

/// Given fields that are unknown.
fn fields_beyond(path: &str, given: &Value, known: &Value, unknown: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), known) => {
            for (name, value) in given {
                let path = format!("{path}.{name}");
                match known.get(name) {
                    Some(known) => fields_beyond(&path, value, known, unknown),
                    None if says_nothing(value) => {}
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (index, (value, known)) in given.iter().zip(known).enumerate() {
                fields_beyond(&format!("{path}[{index}]"), value, known, unknown);
            }
        }
        _ => {}
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The machine without references to its instance type and preference, or why it cannot be expanded.
async fn on_its_own(
    client: &Client,
    guest: &GuestDefaults,
    user: &User,
    vm: &VirtualMachine,
) -> Result<VirtualMachine, String> {
    let mut vm = vm.clone();
    let inferred = infer::inferred(client, Some(user), &vm).await;
    if let Some((_, Err(cause))) = inferred.iter().find(|(_, choice)| choice.is_err()) {
        return Err(cause.to_string());
    }
    infer::apply(&inferred, &mut vm);
    let Lookups { instancetype, preference } = lookups(client, &vm).await;
    let chosen = Chosen { instancetype: instancetype.into_result()?, preference: preference.into_result()? };
    expand::on_its_own(&vm, &chosen, guest).map_err(|causes| expand::sentence(&causes))
}

/// The instance type and preference that the machine names.
pub async fn lookups(client: &Client, vm: &VirtualMachine) -> Lookups {
    let (instancetype, preference) =
        tokio::join!(lookup(client, vm, Family::Instancetype), lookup(client, vm, Family::Preference));
    Lookups { instancetype, preference }
}

/// Looks up an object that the machine names: in its own copy, else in the object itself.
async fn lookup<T: DeserializeOwned>(client: &Client, vm: &VirtualMachine, family: Family) -> Lookup<T> {
    let Some(matcher) = family.matcher(vm) else { return Lookup::None };
    match find(client, vm, &matcher).await {
        Ok(found) => Lookup::Found(found),
        Err(why) => Lookup::Missing(why),
    }
}

async fn find<T: DeserializeOwned>(
    client: &Client,
    vm: &VirtualMachine,
    matcher: &Matcher<'_>,
) -> Result<T, String> {
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let scope = match revision::source(vm, matcher)? {
        Source::Object(scope) => scope,
        Source::Revision(name) => {
            let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
            let found = revisions.get(&name).await.map_err(words)?;
            if revision::is_of(matcher, &found) {
                return revision::read(matcher.family, &found);
            }
            matcher.scope()?
        }
    };
    // A request with an empty name would return the list.
    let name = matcher.name.ok_or_else(|| matcher.not_found(scope))?;
    let kind = GroupVersionKind::gvk(GROUP, VERSION, matcher.family.object_kind(scope));
    let resource = ApiResource::from_gvk_with_plural(&kind, &matcher.family.plural(scope));
    let objects: Api<DynamicObject> = match scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    let object = objects.get(name).await.map_err(words)?;
    let object = serde_json::to_value(object).map_err(|error| error.to_string())?;
    revision::object(matcher.family, &object)
}

/// The API server's own message, if it sent one.
fn words(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "expand_tests.rs"]
mod tests;
