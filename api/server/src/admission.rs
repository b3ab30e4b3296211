//! Webhooks: an AdmissionReview in, one out. Pure: what is decided depends on the request and the time.
//!
//! The rules themselves are `barevirt_api`'s; here they are only connected. An answer is either a JSON patch of
//! defaults, an approval, or a refusal with every cause at once.

use barevirt_api::defaults;
use barevirt_api::gates::Gates;
use barevirt_api::names::{SERVICE_ACCOUNT_API, SERVICE_ACCOUNT_CONTROLLER, SERVICE_ACCOUNT_HANDLER};
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use barevirt_api::validate::{self, Cause, Path, Requester};
use json_patch::{Patch, PatchOperation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use kube::core::response::{StatusCause, StatusDetails};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::Refusal;
use crate::route::Hook;

/// Service accounts of our own components, which may write status and immutable fields.
const COMPONENTS: [&str; 4] =
    [SERVICE_ACCOUNT_API, SERVICE_ACCOUNT_CONTROLLER, SERVICE_ACCOUNT_HANDLER, "kubevirt-operator"];
/// Where the API server says which node a token was made for.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

type Request = AdmissionRequest<DynamicObject>;

/// Answers one review.
///
/// # Errors
/// 400 for a body that is no AdmissionReview with a request.
pub fn review(
    hook: Hook,
    namespace: &str,
    body: &[u8],
    now: &Time,
) -> Result<AdmissionReview<DynamicObject>, Refusal> {
    let review: AdmissionReview<DynamicObject> = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("the body is no AdmissionReview: {error}")))?;
    let request: Request = review
        .try_into()
        .map_err(|error| Refusal::bad_request(format!("the AdmissionReview has no request: {error}")))?;
    let decision = decide(hook, namespace, &request, now);
    let mut response = AdmissionResponse::from(&request);
    response.warnings = warnings(hook, &request);
    let response = match decision {
        Ok(None) => response,
        Ok(Some(patch)) => response
            .with_patch(patch)
            .map_err(|error| Refusal::internal(format!("write the patch of defaults: {error}")))?,
        Err(causes) => deny(response, &request, &causes),
    };
    Ok(response.into_review())
}

/// Which of our components asks; none for everybody else.
fn component(namespace: &str, request: &Request) -> Option<&'static str> {
    let name = request.user_info.username.as_deref().unwrap_or_default();
    COMPONENTS.into_iter().find(|component| name == format!("system:serviceaccount:{namespace}:{component}"))
}

fn decide(hook: Hook, namespace: &str, request: &Request, now: &Time) -> Result<Option<Patch>, Vec<Cause>> {
    let creating = request.operation == Operation::Create;
    let gates = Gates::default();
    let component = component(namespace, request);
    let requester = if component.is_some() { Requester::Component } else { Requester::User };
    match hook {
        Hook::MutateMachine if creating => mutate(request, defaults::admit_vm).map(Some),
        Hook::MutateMachine => mutate(request, defaults::vm).map(Some),
        Hook::MutateInstance if creating => mutate(request, |vmi| defaults::admit_vmi(vmi, now)).map(Some),
        Hook::MutateInstance if requester == Requester::Component => Ok(None),
        Hook::MutateInstance => {
            let old: VirtualMachineInstance = read(request.old_object.as_ref())?;
            mutate(request, |vmi: &mut VirtualMachineInstance| {
                vmi.status = validate::protected_status(&old, vmi, requester).cloned();
            })
            .map(Some)
        }
        Hook::ValidateMachine => {
            let vm: VirtualMachine = read(request.object.as_ref())?;
            refuse(if creating {
                validate::vm(&vm, requester, &gates)
            } else {
                validate::vm_update(&read(request.old_object.as_ref())?, &vm, requester, &gates)
            })
        }
        Hook::ValidateInstanceCreate => {
            refuse(validate::vmi_create(&read(request.object.as_ref())?, requester, &gates))
        }
        Hook::ValidateInstanceUpdate => {
            let old = read(request.old_object.as_ref())?;
            let new = read(request.object.as_ref())?;
            let mut causes = validate::vmi_update(&old, &new, requester);
            // Its tokens are spread over all nodes: each may change only what is on its own.
            if component == Some(SERVICE_ACCOUNT_HANDLER) {
                let node = request.user_info.extra.as_ref().and_then(|extra| extra.get(NODE_NAME)?.first());
                causes.extend(validate::handler_update(&old, &new, node.map(String::as_str)));
            }
            refuse(causes)
        }
    }
}

fn warnings(hook: Hook, request: &Request) -> Option<Vec<String>> {
    let Hook::ValidateMachine = hook else { return None };
    let vm: VirtualMachine = read(request.object.as_ref()).ok()?;
    Some(validate::vm_warnings(&vm)).filter(|warnings| !warnings.is_empty())
}

fn refuse(causes: Vec<Cause>) -> Result<Option<Patch>, Vec<Cause>> {
    if causes.is_empty() { Ok(None) } else { Err(causes) }
}

/// What a change of the typed object means for the object as it came in: a patch that adds and replaces, and removes
/// only from status, which is no user's to write. What our types do not know is not ours to touch, nor is metadata
/// beyond labels, annotations and finalizers.
fn mutate<T: DeserializeOwned + Serialize>(
    request: &Request,
    change: impl FnOnce(&mut T),
) -> Result<Patch, Vec<Cause>> {
    let mut object: T = read(request.object.as_ref())?;
    change(&mut object);
    let Patch(mut operations) = json_patch::diff(&value(&request.object)?, &value(&object)?);
    operations.retain(|operation| {
        let path = operation.path().to_string();
        let ours = ["/spec", "/status", "/metadata/finalizers", "/metadata/labels", "/metadata/annotations"];
        (path.starts_with("/status") || !matches!(operation, PatchOperation::Remove(_)))
            && ours.iter().any(|prefix| {
                path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    });
    Ok(Patch(operations))
}

fn read<T: DeserializeOwned>(object: Option<&DynamicObject>) -> Result<T, Vec<Cause>> {
    let object = object.ok_or_else(|| vec![unreadable("the review has no object")])?;
    serde_json::from_value(value(object)?).map_err(|error| vec![unreadable(error.to_string())])
}

fn unreadable(why: impl Into<String>) -> Cause {
    Cause::invalid(&Path::new(""), why)
}

fn value(object: &impl Serialize) -> Result<Value, Vec<Cause>> {
    serde_json::to_value(object).map_err(|error| vec![unreadable(error.to_string())])
}

/// A refusal as KubeVirt's clients read it: 422, reason Invalid, every cause with its field.
fn deny(response: AdmissionResponse, request: &Request, causes: &[Cause]) -> AdmissionResponse {
    let sentences: Vec<String> = causes.iter().map(ToString::to_string).collect();
    let mut response = response.deny(sentences.join(", "));
    response.result.code = 422;
    response.result.reason = "Invalid".to_owned();
    response.result.details = Some(StatusDetails {
        name: request.name.clone(),
        group: request.kind.group.clone(),
        kind: request.kind.kind.clone(),
        uid: String::new(),
        retry_after_seconds: 0,
        causes: causes
            .iter()
            .map(|cause| StatusCause {
                reason: cause.kind.reason().to_owned(),
                message: cause.message.clone(),
                field: cause.field.clone(),
            })
            .collect(),
    });
    response
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
