//! Answers certificate requests of handlers: watches them, and carries out the decisions of [`super::requests`].

use super::issue::CertificateError;
use super::publish::Publisher;
use super::requests::{Decision, Granted, Refusal, decide};
use crate::operator::NAME;
use barevirt_api::names::HANDLER_SIGNER;
use barevirt_api::rotation::Rotation;
use barevirt_component::error::chain;
use barevirt_component::request::{Category, Error};
use barevirt_component::request::{call, call_opt};
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

/// Pause before a retry after an error.
const RETRY: Duration = Duration::from_secs(2);
/// Pause before the next look without an event.
const IDLE: Duration = Duration::from_secs(60);

/// Why a request could not be answered.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    #[error(transparent)]
    Api(#[from] Error),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("there is no authority yet")]
    NoAuthority,
}

/// Answers until the future is dropped. Each request is looked at when it changes, and when its time has come.
pub async fn run(client: Client, publisher: Publisher, rotation: watch::Receiver<Rotation>) {
    let api: Api<CertificateSigningRequest> = Api::all(client);
    let writer = reflector::store::Writer::default();
    let known = writer.as_reader();
    let ours = watcher::Config::default().fields(&format!("spec.signerName={HANDLER_SIGNER}"));
    let mut changes =
        std::pin::pin!(kube::runtime::reflector(writer, watcher(api.clone(), ours)).default_backoff());
    let mut due: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let next = due.values().min().copied().unwrap_or_else(|| Instant::now() + IDLE);
        let requests = tokio::select! {
            change = changes.next() => match change {
                Some(Ok(Event::Apply(request) | Event::InitApply(request))) => vec![Arc::new(request)],
                Some(Ok(Event::Delete(request))) => {
                    due.remove(&request.name_any());
                    continue;
                }
                Some(Ok(Event::Init | Event::InitDone)) => continue,
                Some(Err(error)) => {
                    warn!(error = %chain(&error), "the watch of certificate requests is interrupted");
                    continue;
                }
                None => return,
            },
            () = sleep_until(next) => {
                let now = Instant::now();
                due.retain(|name, _| known.get(&ObjectRef::new(name)).is_some());
                let ripe = due.iter().filter(|(_, time)| **time <= now);
                ripe.filter_map(|(name, _)| known.get(&ObjectRef::new(name))).collect()
            }
        };
        let life = rotation.borrow().leaf.duration;
        for request in requests {
            let name = request.name_any();
            let after = match answer(&api, &publisher, &request, life).await {
                Ok(after) => after,
                // It has changed meanwhile: the watch reports it.
                Err(AnswerError::Api(error)) if error.category() == Category::Conflict => None,
                Err(error) => {
                    warn!(request = name, error = %chain(&error), "cannot answer a certificate request");
                    Some(RETRY)
                }
            };
            match after {
                Some(after) => due.insert(name, Instant::now() + after),
                None => due.remove(&name),
            };
        }
    }
}

/// Carries out the present decision about a request; returns when to look at it again. The watch reports what is written.
async fn answer(
    api: &Api<CertificateSigningRequest>,
    publisher: &Publisher,
    request: &CertificateSigningRequest,
    life: Duration,
) -> Result<Option<Duration>, AnswerError> {
    let name = request.name_any();
    let now = Timestamp::now();
    match decide(request, now) {
        Decision::Leave(after) => return Ok(after),
        Decision::Approve => {
            let message = "requested by the handler of that node";
            condition(api, request, "approval", ("Approved", "HandlerOfItsNode", message), now).await?;
        }
        Decision::Sign(granted) => {
            let authority = publisher.authority().await?.ok_or(AnswerError::NoAuthority)?;
            let Granted { profile, key } = *granted;
            let certificate = authority.sign(&profile, &key, now, life)?;
            let status = json!({"certificate": ByteString(certificate.into_bytes())});
            write(api, request, "status", &status).await?;
            info!(request = name, host = profile.dns_names.concat(), "signed a handler's certificate");
        }
        Decision::Deny(refusal) => refuse(api, request, ("approval", "Denied"), &refusal, now).await?,
        Decision::Fail(refusal) => refuse(api, request, ("status", "Failed"), &refusal, now).await?,
        Decision::Delete => {
            let preconditions = Preconditions { uid: request.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            call_opt("delete", || format!("certificate request {name}"), api.delete(&name, &params)).await?;
        }
    }
    Ok(None)
}

async fn refuse(
    api: &Api<CertificateSigningRequest>,
    request: &CertificateSigningRequest,
    (subresource, type_): (&str, &str),
    refusal: &Refusal,
    now: Timestamp,
) -> Result<(), Error> {
    let (name, username) = (request.name_any(), &request.spec.username);
    let (reason, message) = (refusal.reason(), refusal.to_string());
    warn!(request = name, username, reason, message, "a certificate request is not granted");
    condition(api, request, subresource, (type_, reason, &message), now).await
}

/// Adds a condition to the existing ones.
async fn condition(
    api: &Api<CertificateSigningRequest>,
    request: &CertificateSigningRequest,
    subresource: &str,
    (type_, reason, message): (&str, &str, &str),
    now: Timestamp,
) -> Result<(), Error> {
    let present = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    // An object of the API has a JSON form.
    let mut conditions: Vec<Value> =
        present.into_iter().flatten().map(|found| serde_json::to_value(found).unwrap_or_default()).collect();
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    conditions.push(json!({
        "type": type_, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": now,
    }));
    write(api, request, subresource, &json!({"conditions": conditions})).await
}

/// Writes to exactly the observed version of the request.
async fn write(
    api: &Api<CertificateSigningRequest>,
    request: &CertificateSigningRequest,
    subresource: &str,
    status: &Value,
) -> Result<(), Error> {
    let name = request.name_any();
    let patch = Patch::Merge(json!({
        "metadata": {"uid": request.uid(), "resourceVersion": request.resource_version()},
        "status": status,
    }));
    let params = PatchParams { field_manager: Some(NAME.to_owned()), ..PatchParams::default() };
    let written = api.patch_subresource(subresource, &name, &params, &patch);
    call("answer", || format!("certificate request {name}"), written).await.map(drop)
}
