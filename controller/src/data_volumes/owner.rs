//! Whose DataVolumes are.

use crate::cluster::Cluster;
use barevirt_api::cdi::{CDI_DEFINITION as CDI, DATA_VOLUME_DEFINITION as DEFINITION, is_own_definition};
use barevirt_component::request::{Error, call_opt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::Api;

/// Whether they are ours to fill, as it is at this moment.
pub(super) async fn is_us(cluster: &Cluster) -> Result<bool, Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let about = |name: &'static str| move || format!("definition {name}");
    let found = call_opt("get", about(DEFINITION), definitions.get_metadata(DEFINITION)).await?;
    let Some(found) = found else { return Ok(false) };
    if !is_own_definition(found.labels()) {
        return Ok(false);
    }
    Ok(call_opt("get", about(CDI), definitions.get_metadata(CDI)).await?.is_none())
}
