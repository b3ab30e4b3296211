//! Whether DataVolumes belong to Barevirt or to CDI. virt-operator and virt-controller both use this rule.

use crate::changes::{Changes, named};
use crate::request::{Error, call_opt};
use barevirt_api::cdi::{CDI_DEFINITION as CDI, DATA_VOLUME_DEFINITION as DEFINITION, is_own_definition};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::watcher;
use kube::{Api, Client, ResourceExt};

/// Whether Barevirt fills DataVolumes at this moment: their definition is Barevirt's own, and CDI is not
/// installed.
///
/// # Errors
/// If the API server does not answer.
pub async fn are_ours(client: &Client) -> Result<bool, Error> {
    is_ours(client, DEFINITION).await
}

/// Whether Barevirt manages the objects of one of CDI's definitions at this moment: the definition is
/// Barevirt's own, and CDI is not installed. `name` is the definition's.
///
/// # Errors
/// If the API server does not answer.
pub async fn is_ours(client: &Client, name: &'static str) -> Result<bool, Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let about = |name: &'static str| move || format!("definition {name}");
    let found = call_opt("get", about(name), definitions.get_metadata(name)).await?;
    if !found.is_some_and(|found| is_own_definition(found.labels())) {
        return Ok(false);
    }
    Ok(call_opt("get", about(CDI), definitions.get_metadata(CDI)).await?.is_none())
}

/// Whether another one serves the objects of one of CDI's definitions at this moment: CDI is installed, or the definition has
/// another owner. Without a definition nobody serves them.
///
/// # Errors
/// If the API server does not answer.
pub async fn is_of_another(client: &Client, name: &'static str) -> Result<bool, Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let about = |name: &'static str| move || format!("definition {name}");
    let found = call_opt("get", about(name), definitions.get_metadata(name)).await?;
    match found {
        Some(found) if is_own_definition(found.labels()) => {
            Ok(call_opt("get", about(CDI), definitions.get_metadata(CDI)).await?.is_some())
        }
        found => Ok(found.is_some()),
    }
}

/// Tells of changes of a definition until the future is dropped: after one, [`is_ours`] may answer differently. That of CDI's
/// own kind counts for all of them.
pub async fn watch(client: &Client, name: &'static str, changes: &Changes) {
    let definitions: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client.clone());
    changes.follow(watcher(definitions, named(name)), &format!("definition {name}")).await;
}
