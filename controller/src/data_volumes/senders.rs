//! Pods that send claims to importers of other namespaces: creates them, introduces their importer, and removes them, also
//! when their DataVolume is gone.

use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi::DataVolume;
use barevirt_component::error::chain;
use barevirt_component::request::{Error, call, call_opt};
use barevirt_plan::imports::{RECEIVER_ANNOTATION, SELECTOR, asked_by, is_waiting};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use std::time::Duration;
use tracing::{info, warn};

/// Pause between two sweeps, while there are senders.
const SWEEP: Duration = Duration::from_secs(5);

/// Makes a sender.
pub(super) async fn make(cluster: &Cluster, wanted: &Pod) -> Result<(), Error> {
    let namespace = wanted.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
    let about = || format!("pod {namespace}/{}", wanted.name_any());
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    // Set before the request: a sender that may exist is looked for.
    cluster.senders.may_be();
    call("create", about, pods.create(&params, wanted)).await.map(drop)
}

/// Tells a sender of its importer.
pub(super) async fn introduce(
    cluster: &Cluster,
    (namespace, name): (&str, &str),
    certificate: &str,
) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let about = || format!("pod {namespace}/{name}");
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = json!({ "metadata": { "annotations": { RECEIVER_ANNOTATION: certificate } } });
    call("patch", about, pods.patch_metadata(name, &params, &Patch::Merge(&patch))).await.map(drop)
}

/// Removes a sender.
pub(super) async fn remove(
    cluster: &Cluster,
    (namespace, name): (&str, &str),
    uid: &str,
) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let about = || format!("pod {namespace}/{name}");
    call_opt("delete", about, pods.delete(name, &params)).await.map(drop)
}

/// Removes senders that no DataVolume needs any more, while there may be any. It continues when another owner serves
/// DataVolumes.
pub(super) async fn sweep(cluster: &Cluster) {
    loop {
        if cluster.senders.are_there() {
            match sweep_once(cluster).await {
                Ok(true) => {}
                Ok(false) => cluster.senders.are_gone(),
                Err(error) => warn!(error = %chain(&error), "pods that send claims may be left"),
            }
        }
        tokio::time::sleep(SWEEP).await;
    }
}

/// Removes them once; returns whether there are any senders.
async fn sweep_once(cluster: &Cluster) -> Result<bool, Error> {
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    let wanted = ListParams::default().labels(SELECTOR);
    let found = pods.list(&wanted);
    let found = call("list", || "pods that send claims".to_owned(), found).await?.items;
    for pod in found.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        // Without our annotations it is not ours, whatever its labels.
        let Some((namespace, name, uid)) = asked_by(pod) else { continue };
        let all: Api<DataVolume> = Api::namespaced(cluster.client.clone(), &namespace);
        let about = || format!("data volume {namespace}/{name}");
        let volume = call_opt("get", about, all.get(&name)).await?;
        let waits = volume.is_some_and(|volume| {
            volume.metadata.uid.as_ref() == Some(&uid)
                && volume.metadata.deletion_timestamp.is_none()
                && is_waiting(&volume)
        });
        if !waits {
            let own = pod.namespace().unwrap_or_default();
            info!(namespace = own, pod = pod.name_any(), "deleting a sender that no DataVolume needs");
            remove(cluster, (&own, &pod.name_any()), &pod.uid().unwrap_or_default()).await?;
        }
    }
    Ok(!found.is_empty())
}
