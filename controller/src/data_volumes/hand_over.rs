//! Hands DataVolumes that are not filled over to another owner of their definition, which is CDI: ends what fills them, and
//! deletes their claims. [`plan`] makes the decisions.

use super::again::{FAILED, UNFILLED};
use super::senders;
use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi::{DATA_VOLUME_DEFINITION, DataVolume};
use barevirt_component::changes::SELDOM;
use barevirt_component::data_volumes::is_of_another;
use barevirt_component::notes::Note;
use barevirt_component::request::{Error, call, call_opt};
use barevirt_plan::imports::LABEL;
use barevirt_plan::imports::hand_over::{Left, Step, plan, unfinished};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use std::time::Duration;
use tracing::{info, warn};

/// Event: an unfilled claim was deleted.
const HANDED_OVER: &str = "HandedOverToCDI";
/// Event: a pod uses an unfilled claim.
const IN_USE: &str = "ClaimInUse";

/// Does all that can be done now; returns when the next round is due, `None` once nothing is left.
pub(super) async fn round(cluster: &Cluster) -> Option<Duration> {
    match all(cluster).await {
        Ok(again) => again,
        Err(error) => {
            warn!(%error, why = error.message(), "data volumes are not handed over yet");
            Some(FAILED)
        }
    }
}

async fn all(cluster: &Cluster) -> Result<Option<Duration>, Error> {
    let client = &cluster.client;
    if !is_of_another(client, DATA_VOLUME_DEFINITION).await? {
        // There is no definition: nobody serves DataVolumes yet.
        return Ok(Some(SELDOM));
    }
    senders::remove_all(client).await?;
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let ours = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let found = call("list", || "claims of data volumes".to_owned(), claims.list(&ours)).await?;
    let mut again = None;
    for claim in found.items {
        let (namespace, name) = (claim.namespace(), claim.name_any());
        // A failure does not keep the others from being handed over.
        let next = one(cluster, claim).await.unwrap_or_else(|error| {
            warn!(namespace, name, %error, why = error.message(), "a claim is not handed over yet");
            Some(FAILED)
        });
        again = again.into_iter().chain(next).min();
    }
    Ok(again)
}

/// Hands one over; returns when to look at it again.
async fn one(cluster: &Cluster, claim: PersistentVolumeClaim) -> Result<Option<Duration>, Error> {
    let Some(name) = unfinished(&claim, FIELD_MANAGER).map(str::to_owned) else { return Ok(None) };
    let (client, namespace) = (&cluster.client, claim.namespace().unwrap_or_default());
    let all: Api<DataVolume> = Api::namespaced(client.clone(), &namespace);
    let found = call_opt("get", || format!("data volume {namespace}/{name}"), all.get(&name)).await?;
    let Some(data_volume) = found else { return Ok(None) };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pods =
        call("list", || format!("pods of {namespace}"), pods.list(&ListParams::default())).await?.items;
    let left = Left { data_volume, claim, pods };
    let planned = plan(&left);
    if let Some(pod) = &planned.used_by {
        let message = format!(
            "claim {} is not filled, and pod {pod} uses it: CDI makes its own after that",
            left.claim.name_any()
        );
        cluster.notes.tell(Note::warning(IN_USE, message), left.data_volume.object_ref(&()));
    }
    let changes = !planned.steps.is_empty();
    // CDI may have been removed meanwhile: then the claim is filled here.
    if changes && !is_of_another(client, DATA_VOLUME_DEFINITION).await? {
        return Ok(Some(FAILED));
    }
    for step in planned.steps {
        let removes = step == Step::RemoveClaim;
        perform(client, &left.claim, step).await?;
        if removes {
            info!(namespace, data_volume = name, "an unfilled claim is left to CDI");
            let message = format!(
                "claim {} was not filled yet and is deleted: CDI makes its own",
                left.claim.name_any()
            );
            cluster.notes.tell(Note::normal(HANDED_OVER, message), left.data_volume.object_ref(&()));
        }
    }
    // The next round sees whether it was enough.
    Ok(if changes { Some(FAILED) } else { planned.used_by.map(|_| UNFILLED) })
}

async fn perform(client: &Client, claim: &PersistentVolumeClaim, step: Step) -> Result<(), Error> {
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let about = || format!("claim {namespace}/{name}");
    match step {
        Step::RemovePod { name, uid } => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let params = only(Some(uid), None);
            call_opt("delete", || format!("pod {namespace}/{name}"), pods.delete(&name, &params))
                .await
                .map(drop)
        }
        Step::MarkClaim(patch) => {
            let params =
                PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
            call("patch", about, claims.patch_metadata(&name, &params, &Patch::Merge(&patch))).await.map(drop)
        }
        Step::RemoveClaim => {
            // The decision holds only for this version of the claim.
            let params = only(claim.metadata.uid.clone(), claim.metadata.resource_version.clone());
            call_opt("delete", about, claims.delete(&name, &params)).await.map(drop)
        }
    }
}

/// Deletes only that object, and in that version where one is given.
fn only(uid: Option<String>, resource_version: Option<String>) -> DeleteParams {
    DeleteParams { preconditions: Some(Preconditions { uid, resource_version }), ..DeleteParams::default() }
}
