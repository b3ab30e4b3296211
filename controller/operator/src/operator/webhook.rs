//! Admission of the `KubeVirt` object, answered here rather than by virt-api: what would bring virt-api back can be written
//! while it is away.
//!
//! ```text
//!   API server --TLS, 8444--> review: facts (is there another? what would be lost?) --> virt-api's rules --> answer
//! ```
//!
//! Every replica answers, whether it leads or not. The certificate comes from its secret through the API, not from a mounted
//! file: the secret is made by the operator itself, and there is none when it starts.

use super::existing;
use crate::certificates::Leaf;
use barevirt_api::settings::Settings;
use barevirt_api::v1::KubeVirt;
use barevirt_api::webhooks::Hook;
use barevirt_component::certificates::{Clients, Pair, Server, Shown, TlsPolicy};
use barevirt_component::error::chain;
use barevirt_component::probes::listen;
use barevirt_component::request::Error;
use barevirt_component::request::call;
use futures::StreamExt;
use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::DynamicObject;
use kube::core::admission::AdmissionReview;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};
use virt_api::admission::{Facts, Known, review};
use virt_api::answer::{self, Answer, Refusal};

/// A body's largest size: an AdmissionReview carries the old and the new object.
const LARGEST_BODY: usize = 8 << 20;
/// Connections at one time; the API servers keep few.
const MOST_CONNECTIONS: usize = 256;
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// What an answer is made with.
pub struct Webhook {
    client: Client,
    namespace: String,
    shown: Shown,
    tls: Arc<Server>,
}

impl Webhook {
    /// One that follows its certificate in that namespace, and what the installation allows in TLS.
    pub fn follow(client: Client, namespace: &str, policy: watch::Receiver<TlsPolicy>) -> Arc<Self> {
        let (sender, shown) = watch::channel(None);
        tokio::spawn(follow_secret(client.clone(), namespace.to_owned(), sender));
        let tls = Server::follow(shown.clone(), Clients::Everybody, policy, &[b"h2", b"http/1.1"]);
        Arc::new(Webhook { client, namespace: namespace.to_owned(), shown, tls })
    }

    /// Whether there is a certificate: before that nobody need be sent here.
    pub fn answers(&self) -> bool {
        self.shown.borrow().is_some()
    }

    /// The certificate, as it is followed.
    pub fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// Answers until the future is dropped.
    ///
    /// # Errors
    /// Where the address cannot be used.
    pub async fn serve(self: Arc<Self>, address: SocketAddr) -> std::io::Result<()> {
        let listener = listen(address).await?;
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
            let Ok((tcp, _)) = listener.accept().await else {
                // Out of descriptors, most likely: do not spin.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let webhook = self.clone();
            tokio::spawn(async move {
                webhook.connection(tcp).await;
                drop(place);
            });
        }
    }

    async fn connection(self: Arc<Self>, tcp: TcpStream) {
        let Some(config) = self.tls.current() else { return debug!("no certificate yet") };
        let accepted = TlsAcceptor::from(config).accept(tcp);
        let Ok(Ok(tls)) = tokio::time::timeout(HANDSHAKE_WITHIN, accepted).await else {
            return debug!("no TLS session");
        };
        let service = service_fn(move |request| {
            let webhook = self.clone();
            async move { Ok::<_, Infallible>(webhook.answer(request).await.unwrap_or_else(Answer::from)) }
        });
        if let Err(error) =
            Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(tls), service).await
        {
            debug!(%error, "connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let path = request.uri().path().trim_start_matches('/');
        let hook = Hook::of_operator_at(path)
            .ok_or_else(|| Refusal::not_found("the server could not find the requested resource"))?;
        if request.method() != Method::POST {
            return Err(Refusal::method_not_allowed());
        }
        let body = body(request).await?;
        let facts = self.facts(hook).await.map_err(|error| Refusal::internal(error.message()))?;
        decide(hook, &self.namespace, &facts, &body).map(|review| answer::ok(&review))
    }

    /// What the rules look at beside the object.
    async fn facts(&self, hook: Hook) -> Result<Facts, Error> {
        let mut facts = Facts::default();
        if hook == Hook::KubeVirtCreate {
            let kubevirts: Api<KubeVirt> = Api::all(self.client.clone());
            let params = ListParams::default().limit(1);
            let found = kubevirts.list_metadata(&params);
            facts.installed = !call("list", || "kubevirts".to_owned(), found).await?.items.is_empty();
        }
        if hook == Hook::KubeVirtDelete {
            facts.workloads = existing::workloads(&self.client).await?;
        }
        Ok(facts)
    }
}

fn decide(
    hook: Hook,
    namespace: &str,
    facts: &Facts,
    body: &[u8],
) -> Result<AdmissionReview<DynamicObject>, Refusal> {
    // Nothing about the object depends on the settings in force: it is what they are made of.
    let (settings, now) = (Settings::default(), Time(Timestamp::now()));
    review(hook, &Known { namespace, settings: &settings, facts, now: &now }, body)
}

async fn body(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    match tokio::time::timeout(BODY_WITHIN, Limited::new(request.into_body(), LARGEST_BODY).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(Refusal::bad_request(format!("read the request's body: {error}"))),
        Err(_) => Err(Refusal::bad_request("the request's body did not come in time")),
    }
}

/// Watches the one secret; the last good certificate stays until the secret is gone.
async fn follow_secret(client: Client, namespace: String, sender: watch::Sender<Option<Arc<Pair>>>) {
    let name = Leaf::Operator.secret();
    let secrets: Api<Secret> = Api::namespaced(client, &namespace);
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(secrets, only).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(secret) | Event::InitApply(secret)) => match read(&secret) {
                Some(Ok(pair)) => {
                    let changed = sender.send_if_modified(|shown| {
                        let new = shown.as_deref() != Some(&pair);
                        if new {
                            *shown = Some(Arc::new(pair));
                        }
                        new
                    });
                    if changed {
                        info!(secret = name, "took over a certificate");
                    }
                }
                Some(Err(error)) => {
                    warn!(secret = name, error = %chain(&error), "certificate not taken over");
                }
                None => warn!(secret = name, "the secret has no certificate"),
            },
            Ok(Event::Delete(_)) => drop(sender.send_replace(None)),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => warn!(secret = name, error = %chain(&error), "the watch is interrupted"),
        }
    }
}

fn read(secret: &Secret) -> Option<Result<Pair, barevirt_component::certificates::CertificateError>> {
    let data = secret.data.as_ref()?;
    Some(Pair::read(&data.get("tls.crt")?.0, &data.get("tls.key")?.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn ask(hook: Hook, facts: &Facts, object: &Value, old: &Value) -> Value {
        let operation = match (object.is_null(), old.is_null()) {
            (false, true) => "CREATE",
            (true, false) => "DELETE",
            _ => "UPDATE",
        };
        let body = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "kind": {"group": "kubevirt.io", "version": "v1", "kind": "KubeVirt"},
                "resource": {"group": "kubevirt.io", "version": "v1", "resource": "kubevirts"},
                "name": "kubevirt", "namespace": "kubevirt", "operation": operation,
                "userInfo": {"username": "somebody"}, "object": object, "oldObject": old,
            },
        });
        let answer = decide(hook, "kubevirt", facts, body.to_string().as_bytes()).unwrap();
        serde_json::to_value(answer).unwrap()["response"].clone()
    }

    fn kubevirt(spec: &Value) -> Value {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "spec": spec,
            "status": {"phase": "Deployed"},
        })
    }

    #[test]
    fn new_changed_and_deleted_objects_are_decided_about() {
        let (good, bad) = (kubevirt(&json!({})), kubevirt(&json!({"infra": {"replicas": 0}})));
        let none = Facts::default();
        let another = Facts { installed: true, ..Facts::default() };
        let blocked = kubevirt(&json!({"uninstallStrategy": "BlockUninstallIfWorkloadsExist"}));
        let lost =
            Facts { workloads: Some("Virtual Machines present, such as a/vm".into()), ..Facts::default() };
        for (hook, facts, object, old, refused) in [
            (Hook::KubeVirtCreate, &none, &good, &Value::Null, None),
            (Hook::KubeVirtCreate, &another, &good, &Value::Null, Some("already created")),
            (Hook::KubeVirtCreate, &none, &bad, &Value::Null, Some("replica count")),
            (Hook::KubeVirtUpdate, &none, &bad, &good, Some("replica count")),
            (Hook::KubeVirtUpdate, &none, &good, &bad, None),
            (Hook::KubeVirtDelete, &lost, &Value::Null, &good, None),
            (Hook::KubeVirtDelete, &lost, &Value::Null, &blocked, Some("such as a/vm")),
            (Hook::KubeVirtDelete, &none, &Value::Null, &blocked, None),
        ] {
            let response = ask(hook, facts, object, old);
            assert_eq!(response["allowed"], refused.is_none(), "{hook:?}: {response}");
            let message = response["status"]["message"].as_str().unwrap_or_default();
            assert!(message.contains(refused.unwrap_or_default()), "{hook:?}: {response}");
        }
    }

    #[test]
    fn what_is_no_review_is_refused() {
        let answer = decide(Hook::KubeVirtCreate, "kubevirt", &Facts::default(), b"{}");
        assert_eq!(answer.unwrap_err().reason, "BadRequest");
    }
}
