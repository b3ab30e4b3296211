//! Looks at the stored certificates and executes the plan.

use super::issue::{Authority, CertificateError, Issued, Leaf};
use super::plan::{Change, Observed, plan};
use crate::operator::{MANAGED_BY_LABEL, NAME, owned};
use barevirt_api::rotation::Rotation;
use barevirt_component::certificates::{Pair, ParsedCertificate, Seal};
use barevirt_component::changes::{Changes, named};
use barevirt_component::error::chain;
use barevirt_component::request::Error;
use barevirt_component::request::{call, call_opt};
use futures::future::join_all;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::watcher;
use kube::{Client, Resource};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{info, warn};

/// Name of the authority's secret and of the bundle's config map.
const AUTHORITY: &str = "kubevirt-ca";
/// The bundle's key in its config map.
const BUNDLE_KEY: &str = "ca-bundle";
/// Annotation of the authority's secret: since when it signs, seconds since 1970.
const SINCE_ANNOTATION: &str = "operator.barevirt.dev/signs-since";
/// Secrets of former versions: one certificate of all handlers, and another name for virt-api's client certificate.
pub const FORMER_SECRETS: [&str; 2] =
    ["kubevirt-virt-handler-server-certs", "kubevirt-virt-handler-client-certs"];

/// Failure of one round.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    /// A request failed.
    #[error(transparent)]
    Api(#[from] Error),
    /// A certificate could not be made or read.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Another client writes them, too.
    #[error("the certificates do not settle")]
    Unsettled,
}

/// The result of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The bundle of trusted authorities, PEM.
    pub bundle: String,
    /// The seal of virt-api's certificate, if there is one.
    pub seal: Option<Seal>,
    /// The pause without any work, if no other client writes.
    pub pause: Option<Duration>,
}

/// Keeps the certificates.
#[derive(Clone)]
pub struct Publisher {
    client: Client,
    namespace: String,
}

/// The contents of the authority's secret.
struct Stored {
    authority: Option<Authority>,
    next: Option<Authority>,
    /// The seal of virt-api's certificate.
    seal: Option<Seal>,
}

impl Publisher {
    /// A publisher for the components in this namespace.
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        Publisher { client, namespace: namespace.into() }
    }

    /// Looks once and writes what is missing. `published` is the bundle that all webhook configurations and API services are
    /// known to contain; empty where that is not known.
    pub async fn round(&self, rotation: &Rotation, published: &str) -> Result<Round, RoundError> {
        // One round each for the authority, its successor, bundle and leaves; in the last one nothing is left to do.
        for _ in 0..5 {
            let (Stored { authority, next, mut seal }, mut observed) = self.observe().await?;
            observed.published =
                ParsedCertificate::all(published.as_bytes()).into_iter().map(|seen| seen.key_id).collect();
            let now = Timestamp::now();
            let plan = plan(&observed, rotation, &self.namespace, now.as_second());
            let life = rotation.authority.duration;
            match (plan.change, authority, next) {
                (Change::None, Some(authority), _) => {
                    if let Some(bundle) = &plan.bundle {
                        self.write_bundle(&bundle.concat()).await?;
                        info!(authorities = bundle.len(), "published the bundle of authorities");
                    }
                    for leaf in &plan.issue {
                        let profile = leaf.profile(&self.namespace);
                        let issued = authority.issue(&profile, now, rotation.leaf.duration)?;
                        self.write_secret(leaf.secret(), &data(&issued, None), None).await?;
                        if *leaf == Leaf::Api {
                            seal = sealed(&issued.certificate, &issued.key);
                        }
                        info!(secret = leaf.secret(), "issued a certificate");
                    }
                    let bundle = plan.bundle.map_or_else(
                        || observed.bundle.iter().map(|seen| seen.pem.as_str()).collect(),
                        |bundle| bundle.concat(),
                    );
                    let pause = plan.due.map(|due| {
                        Duration::from_secs(u64::try_from(due.saturating_sub(now.as_second())).unwrap_or(0))
                    });
                    return Ok(Round { bundle, seal, pause });
                }
                (Change::Next, Some(authority), _) => {
                    let made = Authority::generate(now, life)?;
                    let data = data(&authority.issued, Some(&made.issued));
                    self.write_secret(AUTHORITY, &data, observed.since).await?;
                    info!(secret = AUTHORITY, "made the next certificate authority");
                }
                (Change::Promote, _, Some(next)) => {
                    self.write_secret(AUTHORITY, &data(&next.issued, None), Some(now.as_second())).await?;
                    info!(secret = AUTHORITY, "the next certificate authority signs from now on");
                }
                (Change::New, _, _) => {
                    let made = Authority::generate(now, life)?;
                    self.write_secret(AUTHORITY, &data(&made.issued, None), None).await?;
                    info!(secret = AUTHORITY, "made a new certificate authority");
                }
                // The plan keeps or promotes only what was observed.
                (Change::None | Change::Next | Change::Promote, _, _) => return Err(RoundError::Unsettled),
            }
        }
        Err(RoundError::Unsettled)
    }

    /// Tells of changes of all that a round looks at, until the future is dropped.
    pub async fn watch(&self, changes: &Changes) {
        let secrets: Api<PartialObjectMeta<Secret>> = Api::namespaced(self.client.clone(), &self.namespace);
        let maps: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(self.client.clone(), &self.namespace);
        let names = Leaf::ALL.map(Leaf::secret).into_iter().chain([AUTHORITY]);
        let secrets = names.map(|name| {
            let events = watcher(secrets.clone(), named(name));
            async move { changes.follow(events, &format!("secret {name}")).await }
        });
        tokio::join!(join_all(secrets), changes.follow(watcher(maps, named(AUTHORITY)), "the bundle"));
    }

    /// The authority that signs now, if there is one.
    pub async fn authority(&self) -> Result<Option<Authority>, Error> {
        Ok(self.stored().await?.0.authority)
    }

    async fn stored(&self) -> Result<(Stored, Option<i64>), Error> {
        let Some(secret) = self.secret(AUTHORITY).await? else {
            return Ok((Stored { authority: None, next: None, seal: None }, None));
        };
        let load = |[certificate, key]: [&str; 2]| {
            let (certificate, key) = (text(&secret, certificate)?, text(&secret, key)?);
            match Authority::load(&certificate, &key) {
                Ok(authority) => Some(authority),
                Err(error) => {
                    warn!(secret = AUTHORITY, error = %chain(&error), "the stored authority is replaced");
                    None
                }
            }
        };
        let annotations = secret.metadata.annotations.as_ref();
        let since = annotations.and_then(|all| all.get(SINCE_ANNOTATION)?.parse().ok());
        Ok((Stored { authority: load(SIGNING), next: load(NEXT), seal: None }, since))
    }

    async fn observe(&self) -> Result<(Stored, Observed), Error> {
        let (mut stored, since) = self.stored().await?;
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let bundle =
            call_opt("get", || format!("config map {AUTHORITY}"), config_maps.get(AUTHORITY)).await?;
        let bundle = bundle.and_then(|map| map.data).and_then(|mut data| data.remove(BUNDLE_KEY));
        let mut leaves = BTreeMap::new();
        for leaf in Leaf::ALL {
            // One that has lost our label is made again: at the end only what has it is removed.
            let found = self.secret(leaf.secret()).await?.filter(|secret| owned::is_ours(&secret.metadata));
            let Some(secret) = found else { continue };
            // Without its key a certificate is of no use.
            let [certificate, key] = SIGNING.map(|key| text(&secret, key));
            if leaf == Leaf::Api {
                stored.seal =
                    certificate.as_ref().zip(key.as_ref()).and_then(|(shown, key)| sealed(shown, key));
            }
            if let Some(seen) =
                certificate.zip(key).and_then(|(found, _)| ParsedCertificate::first(found.as_bytes()))
            {
                leaves.insert(leaf, seen);
            }
        }
        let seen = |authority: &Option<Authority>| authority.as_ref().map(|authority| authority.seen.clone());
        let observed = Observed {
            authority: seen(&stored.authority),
            since,
            next: seen(&stored.next),
            bundle: ParsedCertificate::all(bundle.unwrap_or_default().as_bytes()),
            published: vec![],
            leaves,
        };
        Ok((stored, observed))
    }

    async fn secret(&self, name: &str) -> Result<Option<Secret>, Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        call_opt("get", || format!("secret {name}"), secrets.get(name)).await
    }

    async fn write_secret(&self, name: &str, data: &Data, since: Option<i64>) -> Result<(), Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut body = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": name, "labels": component_labels()},
            "data": data,
        });
        if let Some(since) = since {
            body["metadata"]["annotations"] = json!({SINCE_ANNOTATION: since.to_string()});
        }
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

    /// Removes secrets of former versions that nothing reads any more.
    pub async fn remove_former(&self) -> Result<(), Error> {
        self.remove_secrets(FORMER_SECRETS).await
    }

    /// Removes everything.
    pub async fn remove(&self) -> Result<(), Error> {
        self.remove_secrets(Leaf::ALL.map(Leaf::secret).into_iter().chain([AUTHORITY])).await?;
        self.remove_former().await?;
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        delete(&config_maps, "config map", AUTHORITY).await
    }

    async fn remove_secrets(&self, names: impl IntoIterator<Item = &'static str>) -> Result<(), Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        for name in names {
            delete(&secrets, "secret", name).await?;
        }
        Ok(())
    }
}

/// The seal by which virt-api recognises the API server; `None` where the certificate cannot be used.
fn sealed(certificate: &str, key: &str) -> Option<Seal> {
    let pair = Pair::read(certificate.as_bytes(), key.as_bytes()).ok()?;
    Some(pair.seal().clone())
}

type Data = BTreeMap<&'static str, ByteString>;

/// Keys of the present certificate and its private key.
const SIGNING: [&str; 2] = ["tls.crt", "tls.key"];
/// Keys of the successor's certificate and its private key.
const NEXT: [&str; 2] = ["next.crt", "next.key"];

fn data(present: &Issued, next: Option<&Issued>) -> Data {
    let mut data = Data::new();
    for (keys, issued) in [(SIGNING, Some(present)), (NEXT, next)] {
        let Some(Issued { certificate, key }) = issued else { continue };
        data.extend(
            keys.into_iter().zip([certificate, key].map(|text| ByteString(text.clone().into_bytes()))),
        );
    }
    data
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok()
}

fn component_labels() -> Value {
    json!({MANAGED_BY_LABEL: NAME, "app.kubernetes.io/part-of": "kubevirt"})
}

/// Deletes the object of that name, if it is ours.
async fn delete<K>(api: &Api<K>, kind: &str, name: &str) -> Result<(), Error>
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let found = call_opt("get", || format!("{kind} {name}"), api.get_metadata(name)).await?;
    let Some(found) = found else { return Ok(()) };
    let Some(params) = owned::deletion(&found.metadata) else {
        warn!(kind, name, "left alone: it is not ours");
        return Ok(());
    };
    if call_opt("delete", || format!("{kind} {name}"), api.delete(name, &params)).await?.is_some() {
        info!(kind, name, "removed");
    }
    Ok(())
}

async fn apply<K>(api: &Api<K>, kind: &str, name: &str, body: &Value) -> Result<(), Error>
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let params = PatchParams::apply(NAME).force();
    call("apply", || format!("{kind} {name}"), api.patch(name, &params, &Patch::Apply(body))).await?;
    Ok(())
}
