//! Webhooks: an AdmissionReview in, one out. The decision depends on the request and on facts about other
//! objects.
//!
//! ```text
//!   body --> request --> facts (reads other objects that a rule needs) --> review (pure) --> body
//!                   \--> eviction (reads the pod and its instance)  --------------------------------/
//!                                \--> evacuate: marks the instance; only for the API server
//! ```
//!
//! The rules themselves are `barevirt_api`'s; this module only calls them. An answer is either a JSON patch
//! of defaults, an approval, or a refusal with every cause at once.

mod created;
mod eviction;
mod facts;
mod kinds;
mod launcher_pod;
mod request;

pub use created::Created;
pub use facts::Facts;
pub use request::Known;

use barevirt_api::defaults;
use barevirt_api::instancetype::expand;
use barevirt_api::names::{
    SERVICE_ACCOUNT_API, SERVICE_ACCOUNT_CONTROLLER, SERVICE_ACCOUNT_HANDLER, SERVICE_ACCOUNT_OPERATOR,
};
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use barevirt_api::validate::kinds::{lock, migration};
use barevirt_api::validate::{self, Cause, Requester};
use barevirt_api::webhooks::Hook;
use barevirt_component::installation::Reading;
use json_patch::{Patch, PatchOperation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionResponse, AdmissionReview, Operation};
use kube::core::response::{StatusCause, StatusDetails};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::request::{Request, read, request, user, value};
use crate::answer::Refusal;
use crate::infer;

/// Service accounts of our own components, which may write status and immutable fields.
const COMPONENTS: [&str; 4] =
    [SERVICE_ACCOUNT_API, SERVICE_ACCOUNT_CONTROLLER, SERVICE_ACCOUNT_HANDLER, SERVICE_ACCOUNT_OPERATOR];
/// Extra attribute in which the API server names the node that a token was made for.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Fields that are removed from a machine once its instance type and preference are inferred from a volume.
const ANSWERED: [&str; 7] = [
    "/spec/instancetype",
    "/spec/instancetype/inferFromVolume",
    "/spec/instancetype/inferFromVolumeFailurePolicy",
    "/spec/preference",
    "/spec/preference/inferFromVolume",
    "/spec/preference/inferFromVolumeFailurePolicy",
    "/spec/template/spec/domain/memory",
];

/// Answers one review, after reading the objects that it needs.
///
/// # Errors
/// 400 for a body that is not an AdmissionReview with a request; 500 if other objects cannot be read.
pub async fn answer(
    client: &Client,
    namespace: &str,
    config: &Reading,
    created: &Created,
    hook: Hook,
    body: &[u8],
) -> Result<AdmissionReview<DynamicObject>, Refusal> {
    let request = request(body)?;
    let settings = &config.settings;
    if hook == Hook::Eviction {
        return Ok(eviction::answer(client, settings, &request).await.into_review());
    }
    let user = user(&request);
    let user = component(namespace, &request).is_none().then_some(&user);
    let facts = facts::observe(client, config, hook, &request, user).await?;
    let now = Time(jiff::Timestamp::now());
    let review = respond(hook, &Known { namespace, settings, facts: &facts, now: &now }, &request)?;
    if creates_machine(hook, &request) && review.response.as_ref().is_some_and(|response| response.allowed) {
        created.count(request.namespace.as_deref().unwrap_or_default());
    }
    Ok(review)
}

/// Marks the instance whose launcher is evicted, if the eviction means that the instance leaves its node.
/// Only for callers known to be the API server, because any client can send a review. The review is always
/// allowed; [`Hook::Eviction`] decides.
///
/// # Errors
/// 400 for a body that is not an AdmissionReview with a request; the API server's error if the mark cannot be
/// written.
pub async fn evacuate(
    client: &Client,
    config: &Reading,
    body: &[u8],
) -> Result<AdmissionReview<DynamicObject>, Refusal> {
    let request = request(body)?;
    eviction::mark(client, &config.settings, &request).await.map_err(Refusal::internal)?;
    Ok(AdmissionResponse::from(&request).into_review())
}

/// Whether the request creates a machine, if it is allowed.
fn creates_machine(hook: Hook, request: &Request) -> bool {
    hook == Hook::Machine && request.operation == Operation::Create && !request.dry_run
}

/// Answers one review.
///
/// # Errors
/// 400 for a body that is not an AdmissionReview with a request.
pub fn review(hook: Hook, known: &Known<'_>, body: &[u8]) -> Result<AdmissionReview<DynamicObject>, Refusal> {
    respond(hook, known, &request(body)?)
}

fn respond(
    hook: Hook,
    known: &Known<'_>,
    request: &Request,
) -> Result<AdmissionReview<DynamicObject>, Refusal> {
    let decision = decide(hook, known, request);
    let mut response = AdmissionResponse::from(request);
    response.warnings = Some(warnings(hook, request)).filter(|warnings| !warnings.is_empty());
    let response = match decision {
        Ok(None) => response,
        Ok(Some(patch)) => response
            .with_patch(patch)
            .map_err(|error| Refusal::internal(format!("write the patch of defaults: {error}")))?,
        Err(causes) => deny(response, request, &causes),
    };
    Ok(response.into_review())
}

/// Which of our components sends the request; `None` for all other clients.
fn component(namespace: &str, request: &Request) -> Option<&'static str> {
    let name = request.user_info.username.as_deref().unwrap_or_default();
    COMPONENTS.into_iter().find(|component| name == format!("system:serviceaccount:{namespace}:{component}"))
}

fn decide(hook: Hook, known: &Known<'_>, request: &Request) -> Result<Option<Patch>, Vec<Cause>> {
    let creating = request.operation == Operation::Create;
    let gates = &known.settings.gates;
    let guest = &known.settings.guest;
    let component = component(known.namespace, request);
    let requester = if component.is_some() { Requester::Component } else { Requester::User };
    match hook {
        Hook::MutateMachine => {
            let refused = known.facts.inferred.iter().filter_map(|(_, choice)| choice.clone().err());
            let causes: Vec<Cause> = refused.collect();
            if !causes.is_empty() {
                return Err(causes);
            }
            mutate(request, |vm| {
                infer::apply(&known.facts.inferred, vm);
                // The preference is applied before our defaults.
                expand::prefer(vm, &known.facts.named);
                if creating { defaults::admit_vm(vm, guest) } else { defaults::vm(vm, guest) }
            })
            .map(Some)
        }
        Hook::MutateInstance if creating => {
            mutate(request, |vmi: &mut VirtualMachineInstance| {
                // A new status may only name the revision of its machine, which the controller writes.
                let said = vmi.status.take().and_then(|status| status.virtual_machine_revision_name);
                let revision = said.filter(|_| component == Some(SERVICE_ACCOUNT_CONTROLLER));
                defaults::admit_vmi(vmi, guest, known.now);
                vmi.status.get_or_insert_default().virtual_machine_revision_name = revision;
            })
            .map(Some)
        }
        Hook::MutateInstance if requester == Requester::Component => Ok(None),
        Hook::MutateInstance => {
            let old: VirtualMachineInstance = read(request.old_object.as_ref())?;
            mutate(request, |vmi: &mut VirtualMachineInstance| {
                vmi.status = validate::protected_status(&old, vmi, requester).cloned();
            })
            .map(Some)
        }
        Hook::MutateMigration => mutate(request, migration::complete).map(Some),
        Hook::MutateLauncher => Ok(Some(launcher_pod::complete(&read(request.object.as_ref())?))),
        Hook::Machine => {
            let vm: VirtualMachine = read(request.object.as_ref())?;
            let old: Option<VirtualMachine> =
                if creating { None } else { Some(read(request.old_object.as_ref())?) };
            // The machine must be valid with its instance type and preference.
            let vm = expand::admit(old.as_ref(), vm, &known.facts.named, guest.binding)?;
            refuse(match old {
                None => validate::vm(&vm, requester, gates),
                Some(old) => {
                    let mut causes = validate::vm_update(&old, &vm, requester, gates);
                    causes.extend(lock::machine(&old, &vm));
                    causes
                }
            })
        }
        Hook::InstanceCreate => {
            refuse(validate::vmi_create(&read(request.object.as_ref())?, requester, gates))
        }
        Hook::InstanceUpdate => {
            let old = read(request.old_object.as_ref())?;
            let new = read(request.object.as_ref())?;
            let mut causes = validate::vmi_update(&old, &new, requester, gates);
            // The handlers' tokens are on all nodes: each may only change objects on its own node.
            if component == Some(SERVICE_ACCOUNT_HANDLER) {
                let node = request.user_info.extra.as_ref().and_then(|extra| extra.get(NODE_NAME)?.first());
                causes.extend(validate::handler_update(&old, &new, node.map(String::as_str)));
            }
            refuse(causes)
        }
        other => refuse(kinds::causes(other, known, request, requester)?),
    }
}

fn warnings(hook: Hook, request: &Request) -> Vec<String> {
    // An object that cannot be decoded is refused for that reason.
    kinds::warnings(hook, request).unwrap_or_default()
}

fn refuse(causes: Vec<Cause>) -> Result<Option<Patch>, Vec<Cause>> {
    if causes.is_empty() { Ok(None) } else { Err(causes) }
}

/// The change of the typed object as a patch of the original object. The patch adds and replaces; it only
/// removes a status, which users may not write, and inferred fields. It does not touch fields that our types
/// do not know, nor metadata other than labels, annotations and finalizers.
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
        let may_go = path.starts_with("/status") || ANSWERED.contains(&path.as_str());
        (may_go || !matches!(operation, PatchOperation::Remove(_)))
            && ours.iter().any(|prefix| {
                path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    });
    Ok(Patch(operations))
}

/// A refusal in the form that KubeVirt's clients read: 422, reason Invalid, every cause with its field.
fn deny(response: AdmissionResponse, request: &Request, causes: &[Cause]) -> AdmissionResponse {
    let causes: Vec<Cause> = causes.iter().map(Cause::advised).collect();
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
mod tests;
