//! The requests of an upload to the API server: objects, tokens, and the proxy's URL.

use anyhow::{Context, bail, ensure};
use barevirt_api::cdi::{self, UPLOAD_GROUP as TOKENS, UPLOAD_VERSION as VERSION, annotation};
use http::Method;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use serde_json::{Value, json};

use super::existing::{self, Filled};
use super::objects;
use super::upload::{Target, Upload};
use crate::session::{self, Session};

/// A resource that the API group has only if Barevirt serves it.
const OWN: &str = "uploads/proxy";
/// Name of the only CDIConfig.
const CONFIG: &str = "config";

/// The namespace of an upload, and the requests that an upload makes there.
pub(super) struct Cluster<'a> {
    session: &'a Session,
}

/// Whether an API server refused with that status.
fn refused_with(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

impl<'a> Cluster<'a> {
    pub(super) fn new(session: &'a Session) -> Self {
        Self { session }
    }

    /// The namespace of the upload.
    pub(super) fn namespace(&self) -> &str {
        &self.session.namespace
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.session.client.clone(), self.namespace())
    }

    fn of_cdi(&self, name: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.session.client.clone(), self.namespace(), &cdi::resource(name))
    }

    /// Whether CDI serves uploads, rather than Barevirt. Fails if neither does: the objects of an upload
    /// would wait forever.
    pub(super) async fn need_uploads(&self) -> anyhow::Result<bool> {
        let served = match self.session.client.list_api_groups().await {
            Ok(served) => served,
            // A user without this permission is refused by the next request.
            Err(error) if refused_with(&error, 403) => return Ok(true),
            Err(error) => return Err(session::plain(error)).context("list the API groups of the cluster"),
        };
        for group in [cdi::GROUP, TOKENS] {
            ensure!(
                served.groups.iter().any(|found| found.name == group),
                "this cluster has no CDI, which takes uploads: nothing serves {group}. Install the Containerized Data Importer, and upload again"
            );
        }
        // Barevirt's group has a resource that CDI's does not have.
        let version = format!("{TOKENS}/{VERSION}");
        let served = self.session.client.list_api_group_resources(&version).await.map_err(session::plain);
        let served = served.with_context(|| format!("list the resources of {version}"))?;
        Ok(!served.resources.iter().any(|resource| resource.name == OWN))
    }

    /// Path of the API server that passes an image on to the claim's pod.
    pub(super) fn upload_path(&self, claim: &str) -> String {
        format!("/apis/{TOKENS}/{VERSION}/namespaces/{}/uploads/{claim}/proxy", self.namespace())
    }

    /// The existing claim to upload to, if any. Fails when it cannot be used, and when there is none and none may be created.
    pub(super) async fn existing(&self, upload: &Upload) -> anyhow::Result<Option<PersistentVolumeClaim>> {
        let (namespace, name) = (self.namespace(), &upload.name);
        let Some(claim) = self.claim_opt(name).await? else {
            println!("PVC {namespace}/{name} not found");
            ensure!(
                upload.create,
                "persistentvolumeclaims \"{name}\" not found in namespace {namespace}: leave out --no-create to make it"
            );
            return Ok(None);
        };
        let claim = match upload.target {
            Target::Claim => claim,
            Target::DataVolume => {
                let data_volume = self.data_volume(name).await?;
                let filled = existing::filled(&claim, data_volume.as_ref(), namespace, name);
                match filled.map_err(anyhow::Error::msg)? {
                    Filled::Own => claim,
                    Filled::By(prime) => {
                        let found = self.claims().get(&prime).await.map_err(session::plain);
                        found.with_context(|| format!("Unable to get PVC Prime {namespace}/{prime}"))?
                    }
                }
            }
        };
        existing::usable(upload, &claim).map_err(anyhow::Error::msg)?;
        Ok(Some(claim))
    }

    /// Annotates a claim so that CDI opens it for an upload.
    pub(super) async fn mark_for_upload(&self, claim: &PersistentVolumeClaim) -> anyhow::Result<()> {
        if existing::annotated(claim, annotation::UPLOAD).is_some() {
            return Ok(());
        }
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({ "metadata": { "annotations": { (annotation::UPLOAD): "" } } });
        let marked = self.claims().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let context = || format!("annotate PVC {}/{name}", self.namespace());
        marked.map(drop).map_err(session::plain).with_context(context)
    }

    /// Makes the claim or DataVolume, and returns its kind.
    pub(super) async fn create(&self, upload: &Upload) -> anyhow::Result<&'static str> {
        let Some(size) = &upload.size else {
            bail!("when creating a resource, the size must be specified: add --size")
        };
        if let Some(class) = &upload.storage_class {
            let classes: Api<StorageClass> = Api::all(self.session.client.clone());
            let found = classes.get_metadata_opt(class).await.map_err(session::plain);
            let found = found.with_context(|| format!("get storage class {class}"))?;
            ensure!(found.is_some(), "storageclasses.storage.k8s.io \"{class}\" not found");
        }
        let (params, name) = (PostParams::default(), &upload.name);
        let (kind, made) = match upload.target {
            Target::Claim => {
                let claim = objects::claim(upload, size);
                ("PersistentVolumeClaim", self.claims().create(&params, &claim).await.map(drop))
            }
            Target::DataVolume => {
                let object = serde_json::from_value(objects::data_volume(upload, size))?;
                ("DataVolume", self.of_cdi("DataVolume").create(&params, &object).await.map(drop))
            }
        };
        let context = || format!("create {kind} {}/{name}", self.namespace());
        made.map_err(session::plain).with_context(context)?;
        Ok(kind)
    }

    /// The claim; it must exist.
    pub(super) async fn claim(&self, name: &str) -> anyhow::Result<PersistentVolumeClaim> {
        let found = self.claims().get(name).await.map_err(session::plain);
        found.with_context(|| format!("get PVC {}/{name}", self.namespace()))
    }

    /// The claim, if it exists.
    pub(super) async fn claim_opt(&self, name: &str) -> anyhow::Result<Option<PersistentVolumeClaim>> {
        let found = self.claims().get_opt(name).await.map_err(session::plain);
        found.with_context(|| format!("get PVC {}/{name}", self.namespace()))
    }

    /// The DataVolume, if it exists.
    pub(super) async fn data_volume(&self, name: &str) -> anyhow::Result<Option<DynamicObject>> {
        let found = self.of_cdi("DataVolume").get_opt(name).await.map_err(session::plain);
        found.with_context(|| format!("get DataVolume {}/{name}", self.namespace()))
    }

    /// Events about objects of a kind and name. None if the user may not read them.
    pub(super) async fn events(&self, kind: &str, name: &str) -> anyhow::Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.session.client.clone(), self.namespace());
        let about =
            ListParams::default().fields(&format!("involvedObject.kind={kind},involvedObject.name={name}"));
        match events.list(&about).await {
            Ok(list) => Ok(list.items),
            Err(error) if refused_with(&error, 403) => Ok(Vec::new()),
            Err(error) => Err(session::plain(error)).with_context(|| format!("list events of {kind} {name}")),
        }
    }

    /// The upload proxy's URL in the cluster's settings; none if images go through the API server.
    pub(super) async fn proxy_url(&self, is_of_cdi: bool) -> anyhow::Result<Option<String>> {
        if !is_of_cdi {
            return Ok(None);
        }
        let configs: Api<DynamicObject> =
            Api::all_with(self.session.client.clone(), &cdi::resource("CDIConfig"));
        let found = configs.get(CONFIG).await.map_err(session::plain);
        let config =
            found.with_context(|| format!("get CDIConfig {CONFIG}; --uploadproxy-url does without"))?;
        url_of(&config.data)
            .map(Some)
            .context("uploadproxy URL not found: CDIConfig config has none, give it with --uploadproxy-url")
    }

    /// A token that lets its bearer upload to the claim, for five minutes.
    pub(super) async fn token(&self, claim: &str) -> anyhow::Result<String> {
        let namespace = self.namespace();
        let path = format!("/apis/{TOKENS}/{VERSION}/namespaces/{namespace}/uploadtokenrequests");
        let request = json!({
            "apiVersion": format!("{TOKENS}/{VERSION}"), "kind": "UploadTokenRequest",
            "metadata": { "generateName": "token-for-virtctl-", "namespace": namespace },
            "spec": { "pvcName": claim },
        });
        let answer = self.session.call_json(Method::POST, path, &request).await;
        let answer = answer.with_context(|| format!("request a token for PVC {namespace}/{claim}"))?;
        let token = answer["status"]["token"].as_str().filter(|token| !token.is_empty());
        token.map(str::to_owned).context("CDI answers a request for a token without one")
    }

    /// Makes the DataSource of the claim's name point to the claim, and returns what was done.
    pub(super) async fn point_data_source(&self, upload: &Upload) -> anyhow::Result<String> {
        let (sources, namespace, name) = (self.of_cdi("DataSource"), self.namespace(), &upload.name);
        let found = sources.get_metadata_opt(name).await.map_err(session::plain);
        let found = found.with_context(|| format!("get DataSource {namespace}/{name}"))?;
        let (done, pointed) = match found.map(|source| source.meta().name.clone()) {
            Some(_) => {
                let patch = Patch::Merge(objects::data_source_patch(upload, namespace));
                let patched = sources.patch(name, &PatchParams::default(), &patch).await;
                ("Updated an existing", patched)
            }
            None => {
                let object = serde_json::from_value(objects::data_source(upload, namespace))?;
                ("Created a new", sources.create(&PostParams::default(), &object).await)
            }
        };
        pointed.map_err(session::plain).with_context(|| format!("write DataSource {namespace}/{name}"))?;
        Ok(format!("{done} DataSource {namespace}/{name}"))
    }
}

/// The proxy's URL in a CDIConfig: the override, else the one that CDI found.
fn url_of(config: &Value) -> Option<String> {
    let wanted = config["spec"]["uploadProxyURLOverride"].as_str();
    let url = wanted.or_else(|| config["status"]["uploadProxyURL"].as_str())?;
    Some(url.to_owned()).filter(|url| !url.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_is_where_the_configuration_says() {
        let found = json!({ "spec": {}, "status": { "uploadProxyURL": "proxy.found" } });
        assert_eq!(url_of(&found).as_deref(), Some("proxy.found"));
        let wanted = json!({
            "spec": { "uploadProxyURLOverride": "proxy.wanted" }, "status": { "uploadProxyURL": "proxy.found" },
        });
        assert_eq!(url_of(&wanted).as_deref(), Some("proxy.wanted"));
        assert_eq!(url_of(&json!({ "spec": {}, "status": {} })), None);
    }
}
