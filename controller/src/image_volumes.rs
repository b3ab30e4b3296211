//! Whether the cluster supports images as volumes of pods: by default from Kubernetes 1.35 on, before that with a feature
//! gate.
//!
//! An API server without support drops the field, and then reports a volume without a source. A dry run of a pod finds out.

use crate::cluster::Cluster;
use barevirt_component::error::response;
use barevirt_component::request::Error;
use barevirt_component::request::call;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::json;
use std::time::Duration;
use tracing::{info, warn};

/// How often the API server is asked: a newer one may replace it.
const AGAIN: Duration = Duration::from_secs(600);
/// The same without an answer.
const RETRY: Duration = Duration::from_secs(10);

/// Asks once and records the answer; returns when to ask again.
pub async fn look(cluster: &Cluster, namespace: &str) -> Duration {
    match are_taken(cluster, namespace).await {
        Ok(taken) => {
            if cluster.set_image_volumes(taken) != taken {
                info!(taken, "images as volumes of pods");
            }
            AGAIN
        }
        Err(error) => {
            warn!(%error, "not known whether images can be volumes of pods");
            RETRY
        }
    }
}

/// Asks repeatedly.
pub async fn run(cluster: &Cluster, namespace: &str, mut pause: Duration) {
    loop {
        tokio::time::sleep(pause).await;
        pause = look(cluster, namespace).await;
    }
}

async fn are_taken(cluster: &Cluster, namespace: &str) -> Result<bool, Error> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let answer = call("try", || format!("a pod with an image volume in {namespace}"), async {
        let pod = serde_json::from_value(question()).map_err(kube::Error::SerdeError)?;
        pods.create(&params, &pod).await
    });
    match answer.await {
        Ok(pod) => {
            let volumes = pod.spec.and_then(|spec| spec.volumes).unwrap_or_default();
            Ok(volumes.iter().any(|volume| volume.image.is_some()))
        }
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|answer| answer.code == 422) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn question() -> serde_json::Value {
    json!({
        "metadata": { "generateName": "image-volume-" },
        "spec": {
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "none", "image": "none",
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                "volumeMounts": [{ "name": "image", "mountPath": "/image" }],
            }],
            "volumes": [{ "name": "image", "image": { "reference": "none" } }],
        },
    })
}
