//! Looks at the stored certificates and writes what the plan says.

use super::issue::{Authority, CertificateError, Issued, Leaf, Seen};
use super::plan::{Observed, plan};
use crate::operator::{MANAGED_BY_LABEL, NAME};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, Resource};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tracing::{info, warn};
use virt_controller::error::{Error, chain};
use virt_controller::shell::{call, call_opt};

/// Name of the authority's secret and of the bundle's config map.
const AUTHORITY: &str = "kubevirt-ca";
/// The bundle's key in its config map.
const BUNDLE_KEY: &str = "ca-bundle";

/// Failure of one round.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    /// A request failed.
    #[error(transparent)]
    Api(#[from] Error),
    /// A certificate could not be made or read.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Something else writes them, too.
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

    /// Looks once and writes what is missing; the bundle of authorities that are to be trusted, PEM.
    pub async fn round(&self) -> Result<String, RoundError> {
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
            return Ok(bundle);
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

    /// Takes all of it away.
    pub async fn remove(&self) -> Result<(), Error> {
        let params = DeleteParams::default();
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        for name in Leaf::ALL.map(Leaf::secret).into_iter().chain([AUTHORITY]) {
            let deleted = secrets.delete(name, &params);
            call_opt("delete", || format!("secret {name}"), deleted).await?;
        }
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let deleted = config_maps.delete(AUTHORITY, &params);
        call_opt("delete", || format!("config map {AUTHORITY}"), deleted).await.map(drop)
    }
}

fn component_labels() -> Value {
    json!({MANAGED_BY_LABEL: NAME, "app.kubernetes.io/part-of": "kubevirt"})
}

async fn apply<K>(api: &Api<K>, kind: &str, name: &str, body: &Value) -> Result<(), Error>
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let params = PatchParams::apply(NAME).force();
    call("apply", || format!("{kind} {name}"), api.patch(name, &params, &Patch::Apply(body))).await?;
    Ok(())
}
