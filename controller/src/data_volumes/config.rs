//! The CDIConfig `config`, where its definition is ours: it is made, and its status says which settings count.

use super::again::FAILED;
use super::observe::{config, shown};
use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi::{CONFIG, CONFIG_DEFINITION, CONFIG_KIND, CdiConfig, GROUP};
use barevirt_api::settings::{Imports, Settings};
use barevirt_component::changes::{Listener, SELDOM};
use barevirt_component::data_volumes;
use barevirt_component::error::chain;
use barevirt_component::request::{Error, call};
use barevirt_plan::imports::{ConfigStep, config_step};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tracing::{info, warn};

/// The settings that a CDIConfig shows.
pub(super) fn given(settings: &Settings) -> (Imports, Vec<String>) {
    (settings.imports.clone(), settings.image_pull_secrets.clone())
}

/// Works until the future is dropped.
pub(super) async fn work(cluster: &Cluster, mut changed: Listener) {
    loop {
        let pause = match keep(cluster).await {
            Ok(()) => SELDOM,
            Err(error) => {
                warn!(error = %chain(&error), "the settings of imports are not kept");
                FAILED
            }
        };
        changed.wait(pause).await;
    }
}

async fn keep(cluster: &Cluster) -> Result<(), Error> {
    let found = config(cluster).await?;
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    let about = || "storage classes".to_owned();
    let classes = call("list", about, classes.list_metadata(&ListParams::default())).await?;
    let classes: Vec<String> = classes.items.iter().map(ResourceExt::name_any).collect();
    let installation = shown(cluster, found.as_ref());
    let Some(step) = config_step(found.as_ref(), &installation, &classes) else { return Ok(()) };
    // As with DataVolumes: a CDI that was installed a moment ago finds its object untouched.
    if !data_volumes::is_ours(&cluster.client, CONFIG_DEFINITION).await? {
        return Ok(());
    }
    carry_out(cluster, found.as_ref(), step).await
}

async fn carry_out(cluster: &Cluster, found: Option<&CdiConfig>, step: ConfigStep) -> Result<(), Error> {
    let all: Api<CdiConfig> = Api::all(cluster.client.clone());
    let about = || format!("{CONFIG_KIND} {CONFIG}");
    match step {
        ConfigStep::Make(config) => {
            let params =
                PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
            call("create", about, all.create(&params, &config)).await?;
            info!("the settings of imports are made");
            Ok(())
        }
        ConfigStep::Write(status) => {
            // With its UID none is made; applied, so that classes that are gone are taken out.
            let body = json!({
                "apiVersion": format!("{GROUP}/v1beta1"), "kind": CONFIG_KIND,
                "metadata": { "name": CONFIG, "uid": found.and_then(|found| found.metadata.uid.clone()) },
                "status": status,
            });
            let params = PatchParams::apply(FIELD_MANAGER).force();
            call("update the status of", about, all.patch(CONFIG, &params, &Patch::Apply(&body)))
                .await
                .map(drop)
        }
    }
}
