//! The API service of `upload.cdi.kubevirt.io`: virt-api answers it where DataVolumes are ours and there is no other server.
//! CDI writes the same object when it is installed, and owns it from then on; if it is still ours by then, it is deleted.
//!
//! ```text
//!   DataVolumes are ours, no object ------> made
//!   ours, not as wanted ------------------> changed: authorities come and go
//!   ours, DataVolumes are not any more ---> deleted: CDI makes its own
//!   another owner's ----------------------> left alone
//! ```
//!
//! The service that it names shows the owner: no label would follow a change of that.

use super::cache::Cache;
use super::{looks, owned};
use crate::objects::metadata;
use crate::workloads::UPLOADS_PORT;
use barevirt_api::cdi::{UPLOAD_GROUP, UPLOAD_VERSION};
use barevirt_api::names::{CA_BUNDLE_KEY, CA_CONFIG_MAP, INSTALL_NAMESPACE};
use barevirt_component::changes::named;
use barevirt_component::data_volumes;
use barevirt_component::request::{Error, call, call_opt};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::watcher;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;
use tracing::info;

/// Name of the object.
pub(crate) const UPLOAD_SERVICE: &str = "v1beta1.upload.cdi.kubevirt.io";
/// Our service.
const SERVICE: &str = "virt-api";

/// Keeps it correct while there is an installation. The definitions, which decide whether DataVolumes are ours, are watched
/// by [`super::data_volumes`].
pub(super) async fn follow(client: Client, cache: Arc<Cache>) {
    let services: Api<PartialObjectMeta<APIService>> = Api::all(client.clone());
    let maps: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client.clone(), INSTALL_NAMESPACE);
    let changes = cache.looks();
    tokio::select! {
        () = looks::follow(&cache, "the APIService of uploads", || keep(&client)) => {}
        () = changes.follow(watcher(services, named(UPLOAD_SERVICE)), "the APIService of uploads") => {}
        () = changes.follow(watcher(maps, named(CA_CONFIG_MAP)), "the authorities") => {}
    }
}

/// What to do about the object.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Make,
    Change,
    Remove,
    Leave,
}

/// Decides. `bundle` has the authorities that it must trust; `None` where DataVolumes are not ours.
fn turn(found: Option<&APIService>, bundle: Option<&str>) -> Turn {
    match (found, bundle) {
        (None, Some(_)) => Turn::Make,
        (None, None) => Turn::Leave,
        (Some(found), _) if !is_ours(found) => Turn::Leave,
        (Some(_), None) => Turn::Remove,
        (Some(found), Some(bundle)) => {
            let spec = found.spec.as_ref();
            let believes = spec.and_then(|spec| spec.ca_bundle.as_ref());
            let port = spec.and_then(|spec| spec.service.as_ref()?.port);
            let same = believes.is_some_and(|believed| believed.0 == bundle.as_bytes());
            if same && port == Some(UPLOADS_PORT.into()) { Turn::Leave } else { Turn::Change }
        }
    }
}

fn is_ours(found: &APIService) -> bool {
    let service = found.spec.as_ref().and_then(|spec| spec.service.as_ref());
    service.is_some_and(|service| {
        service.name.as_deref() == Some(SERVICE) && service.namespace.as_deref() == Some(INSTALL_NAMESPACE)
    })
}

/// The object to apply.
fn wanted(bundle: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": metadata(UPLOAD_SERVICE, SERVICE),
        "spec": {
            "group": UPLOAD_GROUP,
            "version": UPLOAD_VERSION,
            "groupPriorityMinimum": 900,
            "versionPriority": 15,
            "caBundle": ByteString(bundle.as_bytes().to_vec()),
            "service": { "name": SERVICE, "namespace": INSTALL_NAMESPACE, "port": UPLOADS_PORT },
        },
    })
}

async fn keep(client: &Client) -> Result<(), Error> {
    let api: Api<APIService> = Api::all(client.clone());
    let found = call_opt("get", about, api.get(UPLOAD_SERVICE)).await?;
    let bundle = if data_volumes::are_ours(client).await? { bundle(client).await? } else { None };
    let params = PatchParams::apply(super::NAME);
    let (params, done) = match turn(found.as_ref(), bundle.as_deref()) {
        Turn::Leave => return Ok(()),
        Turn::Remove => return remove(client).await,
        // Without force: if another client made it in the meantime, that one keeps it.
        Turn::Make => (params, "made"),
        Turn::Change => (params.force(), "changed"),
    };
    let body = wanted(&bundle.unwrap_or_default());
    call("apply", about, api.patch(UPLOAD_SERVICE, &params, &Patch::Apply(&body))).await?;
    info!(service = UPLOAD_SERVICE, done, "the APIService of uploads");
    Ok(())
}

/// The authorities that the API server must trust; `None` before there are any.
async fn bundle(client: &Client) -> Result<Option<String>, Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), INSTALL_NAMESPACE);
    let found = call_opt("get", || format!("config map {CA_CONFIG_MAP}"), maps.get(CA_CONFIG_MAP)).await?;
    Ok(found.and_then(|map| map.data).and_then(|mut data| data.remove(CA_BUNDLE_KEY)))
}

/// Deletes ours: namespaces cannot be deleted while an API group has no server.
pub(super) async fn remove(client: &Client) -> Result<(), Error> {
    let api: Api<APIService> = Api::all(client.clone());
    let Some(found) = call_opt("get", about, api.get(UPLOAD_SERVICE)).await? else { return Ok(()) };
    let Some(uid) = found.uid().filter(|_| is_ours(&found)) else { return Ok(()) };
    let params = owned::of(&uid, DeleteParams::default());
    call_opt("delete", about, api.delete(UPLOAD_SERVICE, &params)).await?;
    info!(service = UPLOAD_SERVICE, "deleted the API service of uploads");
    Ok(())
}

fn about() -> String {
    format!("API service {UPLOAD_SERVICE}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(change: impl FnOnce(&mut Value)) -> APIService {
        let mut value = wanted("PEM");
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_what_is_ours_is_ever_changed() {
        let same = found(|_| {});
        let of_cdi =
            found(|value| value["spec"]["service"] = json!({ "name": "cdi-api", "namespace": "cdi" }));
        // The API service that a definition of that group creates names no service.
        let local = found(|value| drop(value["spec"].as_object_mut().unwrap().remove("service")));
        let former = found(|value| value["spec"]["service"]["port"] = json!(443));
        for (found, bundle, expected) in [
            (None, None, Turn::Leave),
            (None, Some("PEM"), Turn::Make),
            (Some(&same), Some("PEM"), Turn::Leave),
            (Some(&same), Some("another"), Turn::Change),
            (Some(&former), Some("PEM"), Turn::Change),
            (Some(&same), None, Turn::Remove),
            (Some(&of_cdi), Some("another"), Turn::Leave),
            (Some(&of_cdi), None, Turn::Leave),
            (Some(&local), None, Turn::Leave),
            (Some(&local), Some("PEM"), Turn::Leave),
        ] {
            assert_eq!(turn(found, bundle), expected, "{bundle:?}");
        }
    }
}
