//! Carries out the plan for a DataVolume.

use super::again::{REFUSED, UNFILLED};
use super::steps::{self, Place};
use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi::{DataVolume, DataVolumeStatus};
use barevirt_component::notes::Note;
use barevirt_component::request::{Category, Error, call};
use barevirt_plan::data_volumes::status::{FAILED, SUCCEEDED};
use barevirt_plan::imports::{self, Event, Observed, Plan, Step, pod_name};
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::time::Duration;
use tracing::info;

/// Event: an object could not be created.
const FAILED_CREATE: &str = "FailedCreate";
/// Event: a quota leaves no space for it.
const EXCEEDED_QUOTA: &str = "ErrExceededQuota";

/// Carries out the plan; returns when to look again.
pub(super) async fn apply(
    cluster: &Cluster,
    observed: &Observed,
    plan: Plan,
) -> Result<Option<Duration>, Error> {
    let data_volume = &observed.data_volume;
    let Plan { step, status, after, last, events, again } = plan;
    if let Some(step) = step {
        let claim = matches!(step, Step::MakeClaim(_));
        match perform(cluster, data_volume, step).await {
            Err(error) if error.category() == Category::Refused => {
                return refuse(cluster, observed, claim, &error).await;
            }
            done => done?,
        }
    }
    if let Some(status) = &status {
        write(cluster, data_volume, status).await?;
        for Event { warning, reason, message } in events {
            let note = if warning { Note::warning(reason, message) } else { Note::normal(reason, message) };
            cluster.notes.tell(note, data_volume.object_ref(&()));
        }
    }
    for step in after.into_iter().chain(last) {
        perform(cluster, data_volume, step).await?;
    }
    let now = status.as_ref().or(data_volume.status.as_ref()).and_then(|status| status.phase.as_deref());
    let over = matches!(now, Some(SUCCEEDED | FAILED)) || data_volume.metadata.deletion_timestamp.is_some();
    Ok(again.or((!over).then_some(UNFILLED)))
}

/// Reports an object that could not be created: a user has to raise a quota or grant a permission.
async fn refuse(
    cluster: &Cluster,
    observed: &Observed,
    claim: bool,
    error: &Error,
) -> Result<Option<Duration>, Error> {
    let (data_volume, message) = (&observed.data_volume, error.message());
    let reason = if message.contains("exceeded quota") { EXCEEDED_QUOTA } else { FAILED_CREATE };
    if let Some(status) = imports::refused(observed, claim, reason, &message) {
        write(cluster, data_volume, &status).await?;
        cluster.notes.tell(Note::warning(reason, message), data_volume.object_ref(&()));
    }
    Ok(Some(REFUSED))
}

async fn write(cluster: &Cluster, data_volume: &DataVolume, status: &DataVolumeStatus) -> Result<(), Error> {
    let (namespace, name) = (namespace(data_volume), data_volume.name_any());
    let body = json!({
        "metadata": { "resourceVersion": data_volume.metadata.resource_version, "uid": data_volume.metadata.uid },
        "status": status,
    });
    let all: Api<DataVolume> = Api::namespaced(cluster.client.clone(), &namespace);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(&body);
    let about = || format!("data volume {namespace}/{name}");
    call("update the status of", about, all.patch_status(&name, &params, &patch)).await?;
    let phase = status.phase.as_deref().unwrap_or_default();
    if data_volume.status.as_ref().and_then(|old| old.phase.as_deref()) != Some(phase) {
        info!(namespace, data_volume = name, phase, "phase of a data volume");
    }
    Ok(())
}

async fn perform(cluster: &Cluster, data_volume: &DataVolume, step: Step) -> Result<(), Error> {
    let (namespace, claim) = (namespace(data_volume), data_volume.name_any());
    let pod = pod_name(&claim);
    steps::perform(cluster, &Place { namespace: &namespace, claim: &claim, pod: &pod }, step).await
}

fn namespace(data_volume: &DataVolume) -> String {
    data_volume.namespace().unwrap_or_default()
}
