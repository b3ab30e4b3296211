//! Admission of the `KubeVirt` object, answered by virt-operator instead of virt-api: so a fix for virt-api can be written
//! while virt-api is down.
//!
//! ```text
//!   API server --TLS, 8444--> review: facts (is there another? what would be lost?) --> virt-api's rules --> answer
//! ```
//!
//! Every replica answers, leading or not. The certificate comes from its secret through the API, not from a mounted file:
//! the operator itself makes the secret, and there is none when it first starts.

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
use barevirt_component::server::bodies::Bodies;
use barevirt_component::server::{self, Caller, Limits};
use futures::StreamExt;
use http::{Method, Request};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::DynamicObject;
use kube::core::admission::AdmissionReview;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;
use tracing::{info, warn};
use virt_api::admission::{Facts, Known, review};
use virt_api::answer::{self, Answer, Refusal};

/// The webhook's state.
pub struct Webhook {
    client: Client,
    namespace: String,
    shown: Shown,
    tls: Arc<Server>,
    bodies: Bodies,
}

impl Webhook {
    /// A webhook that follows its certificate in that namespace, and the installation's TLS settings.
    pub fn follow(client: Client, namespace: &str, policy: watch::Receiver<TlsPolicy>) -> Arc<Self> {
        let (sender, shown) = watch::channel(None);
        tokio::spawn(follow_secret(client.clone(), namespace.to_owned(), sender));
        let tls = Server::follow(shown.clone(), Clients::Everybody, policy, &[b"h2", b"http/1.1"]);
        Arc::new(Webhook { client, namespace: namespace.to_owned(), shown, tls, bodies: Bodies::default() })
    }

    /// Whether there is a certificate: before that, no request should be sent here.
    pub fn answers(&self) -> bool {
        self.shown.borrow().is_some()
    }

    /// The certificate that the server presents.
    pub fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// Answers until the future is dropped.
    ///
    /// # Errors
    /// The address cannot be used.
    pub async fn serve(self: Arc<Self>, address: SocketAddr) -> std::io::Result<()> {
        let listener = listen(address).await?;
        let tls = self.tls.clone();
        let answer = move |caller: Caller, request: Request<Incoming>| {
            let webhook = self.clone();
            async move { webhook.answer(&caller, request).await.unwrap_or_else(Answer::from) }
        };
        server::serve(listener, Limits::QUIET, move || tls.current(), |_| false, answer).await;
        Ok(())
    }

    async fn answer(&self, caller: &Caller, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let path = request.uri().path().trim_start_matches('/');
        let hook = Hook::of_operator_at(path)
            .ok_or_else(|| Refusal::not_found("the server could not find the requested resource"))?;
        if request.method() != Method::POST {
            return Err(Refusal::method_not_allowed());
        }
        let body = self.bodies.read(caller, request).await?;
        let facts = self.facts(hook).await.map_err(|error| Refusal::internal(error.message()))?;
        decide(hook, &self.namespace, &facts, &body).map(|review| answer::ok(&review))
    }

    /// The facts that the rules need beside the object.
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
    // The object does not depend on the settings in force, since these are made from it.
    let (settings, now) = (Settings::default(), Time(Timestamp::now()));
    review(hook, &Known { namespace, settings: &settings, facts, now: &now }, body)
}

/// Watches only this secret; the last good certificate stays until the secret is gone.
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
    fn a_body_that_is_no_review_is_refused() {
        let answer = decide(Hook::KubeVirtCreate, "kubevirt", &Facts::default(), b"{}");
        assert_eq!(answer.unwrap_err().reason, "BadRequest");
    }
}
