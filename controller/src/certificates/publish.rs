//! Looks at the stored certificates and writes what the plan says.

use super::issue::{Authority, CertificateError, Issued, Leaf, Seen};
use super::plan::{Observed, plan};
use crate::error::{Error, chain};
use crate::shell::{self, call, call_opt};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{info, warn};

/// Name of the authority's secret and of the bundle's config map.
const AUTHORITY: &str = "kubevirt-ca";
/// The bundle's key in its config map.
const BUNDLE_KEY: &str = "ca-bundle";
/// Our name in managed fields: the only writer of certificates and of `caBundle`.
const FIELD_MANAGER: &str = "virt-controller-certificates";
const VALIDATOR: &str = "virt-api-validator";
const MUTATOR: &str = "virt-api-mutator";
const API_SERVICES: [&str; 2] = ["v1.subresources.kubevirt.io", "v1alpha3.subresources.kubevirt.io"];
/// Time between two looks. Webhook configurations that are applied anew are without a bundle for that long at most.
const PERIOD: Duration = Duration::from_secs(15);
/// Time to the next try after a failure.
const RETRY: Duration = Duration::from_secs(3);

/// Failure of one round.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error(transparent)]
    Api(#[from] Error),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("the certificates do not settle")]
    Unsettled,
}

/// Keeps the certificates.
pub struct Publisher {
    client: Client,
    namespace: String,
}

impl Publisher {
    /// For the components in this namespace.
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        Publisher { client, namespace: namespace.into() }
    }

    /// Looks and writes for ever.
    pub async fn run(self) {
        loop {
            let pause = match self.round().await {
                Ok(()) => PERIOD,
                Err(error) => {
                    warn!(error = %chain(&error), "cannot keep the certificates");
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn round(&self) -> Result<(), RoundError> {
        // An authority, then bundle and leaves; the third look finds nothing left.
        for _ in 0..3 {
            let (authority, observed) = self.observe().await?;
            let now = Timestamp::now();
            let plan = plan(&observed, &self.namespace, now.as_second());
            if plan.new_authority {
                let made = Authority::generate(now)?;
                self.write_secret(AUTHORITY, &made.issued).await?;
                info!(secret = AUTHORITY, "made a new certificate authority");
                continue;
            }
            let Some(authority) = authority else { continue };
            if let Some(bundle) = &plan.bundle {
                self.write_bundle(&bundle.concat()).await?;
                info!(authorities = bundle.len(), "published the bundle of authorities");
            }
            for leaf in &plan.issue {
                let issued = authority.issue(*leaf, &self.namespace, now)?;
                self.write_secret(leaf.secret(), &issued).await?;
                info!(secret = leaf.secret(), "issued a certificate");
            }
            let bundle = plan.bundle.map_or_else(
                || observed.bundle.iter().map(|seen| seen.pem.as_str()).collect(),
                |bundle| bundle.concat(),
            );
            self.inject(&bundle).await?;
            return Ok(());
        }
        Err(RoundError::Unsettled)
    }

    async fn observe(&self) -> Result<(Option<Authority>, Observed), Error> {
        let authority = match self.read_secret(AUTHORITY).await? {
            None => None,
            Some((certificate, key)) => match Authority::load(&certificate, &key) {
                Ok(authority) => Some(authority),
                Err(error) => {
                    warn!(secret = AUTHORITY, error = %chain(&error), "the stored authority is replaced");
                    None
                }
            },
        };
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let bundle =
            call_opt("get", || format!("config map {AUTHORITY}"), config_maps.get(AUTHORITY)).await?;
        let bundle = bundle.and_then(|map| map.data).and_then(|mut data| data.remove(BUNDLE_KEY));
        let mut leaves = BTreeMap::new();
        for leaf in Leaf::ALL {
            let stored = self.read_secret(leaf.secret()).await?;
            if let Some(seen) = stored.and_then(|(certificate, _)| Seen::first(certificate.as_bytes())) {
                leaves.insert(leaf, seen);
            }
        }
        let observed = Observed {
            authority: authority.as_ref().map(|authority| authority.seen.clone()),
            bundle: Seen::all(bundle.unwrap_or_default().as_bytes()),
            leaves,
        };
        Ok((authority, observed))
    }

    /// Certificate and key of a secret; none where it, or one of them, is missing.
    async fn read_secret(&self, name: &str) -> Result<Option<(String, String)>, Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = call_opt("get", || format!("secret {name}"), secrets.get(name)).await?;
        let Some(data) = secret.and_then(|secret| secret.data) else { return Ok(None) };
        let text = |key| data.get(key).and_then(|value: &ByteString| String::from_utf8(value.0.clone()).ok());
        Ok(text("tls.crt").zip(text("tls.key")))
    }

    async fn write_secret(&self, name: &str, issued: &Issued) -> Result<(), Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let data = [("tls.crt", &issued.certificate), ("tls.key", &issued.key)]
            .map(|(key, value)| (key, ByteString(value.clone().into_bytes())));
        let body = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": name, "labels": component_labels()},
            "data": BTreeMap::from(data),
        });
        apply(&secrets, "secret", name, &body).await
    }

    async fn write_bundle(&self, bundle: &str) -> Result<(), Error> {
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": AUTHORITY, "labels": component_labels()},
            "data": {BUNDLE_KEY: bundle},
        });
        apply(&config_maps, "config map", AUTHORITY, &body).await
    }

    /// Brings the bundle to those who call virt-api. What is not installed is left alone.
    async fn inject(&self, bundle: &str) -> Result<(), Error> {
        let bundle = ByteString(bundle.as_bytes().to_vec());
        let wanted = Some(&bundle);

        let validators: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let found =
            call_opt("get", || format!("webhook configuration {VALIDATOR}"), validators.get(VALIDATOR));
        if let Some(webhooks) = found.await?.and_then(|found| found.webhooks)
            && webhooks.iter().any(|webhook| webhook.client_config.ca_bundle.as_ref() != wanted)
        {
            let names = webhooks.iter().map(|webhook| webhook.name.as_str());
            let body = webhook_bundles("ValidatingWebhookConfiguration", VALIDATOR, names, &bundle);
            apply(&validators, "webhook configuration", VALIDATOR, &body).await?;
            info!(configuration = VALIDATOR, "wrote the bundle of authorities");
        }

        let mutators: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let found = call_opt("get", || format!("webhook configuration {MUTATOR}"), mutators.get(MUTATOR));
        if let Some(webhooks) = found.await?.and_then(|found| found.webhooks)
            && webhooks.iter().any(|webhook| webhook.client_config.ca_bundle.as_ref() != wanted)
        {
            let names = webhooks.iter().map(|webhook| webhook.name.as_str());
            let body = webhook_bundles("MutatingWebhookConfiguration", MUTATOR, names, &bundle);
            apply(&mutators, "webhook configuration", MUTATOR, &body).await?;
            info!(configuration = MUTATOR, "wrote the bundle of authorities");
        }

        let services: Api<APIService> = Api::all(self.client.clone());
        for name in API_SERVICES {
            let found = call_opt("get", || format!("api service {name}"), services.get(name)).await?;
            if let Some(spec) = found.and_then(|found| found.spec)
                && spec.ca_bundle.as_ref() != wanted
            {
                let body = json!({
                    "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                    "metadata": {"name": name},
                    "spec": {"caBundle": bundle},
                });
                apply(&services, "api service", name, &body).await?;
                info!(service = name, "wrote the bundle of authorities");
            }
        }
        Ok(())
    }
}

fn component_labels() -> Value {
    json!({"app.kubernetes.io/managed-by": shell::FIELD_MANAGER, "app.kubernetes.io/part-of": "kubevirt"})
}

fn webhook_bundles<'a>(
    kind: &str,
    name: &str,
    webhooks: impl Iterator<Item = &'a str>,
    bundle: &ByteString,
) -> Value {
    let webhooks: Vec<Value> =
        webhooks.map(|name| json!({"name": name, "clientConfig": {"caBundle": bundle}})).collect();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": {"name": name}, "webhooks": webhooks,
    })
}

async fn apply<K>(api: &Api<K>, kind: &str, name: &str, body: &Value) -> Result<(), Error>
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let params = PatchParams::apply(FIELD_MANAGER).force();
    call("apply", || format!("{kind} {name}"), api.patch(name, &params, &Patch::Apply(body))).await?;
    Ok(())
}
