//! A node whose handler is silent takes no new guests: its label `kubevirt.io/schedulable` is set to `false`, with
//! KubeVirt's event. The handler's next heartbeat sets it to `true` again.

use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::names::{REASON_NODE_UNRESPONSIVE, SCHEDULABLE_LABEL};
use barevirt_component::notes::Note;
use barevirt_component::request::call_opt;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Pause between two checks.
const PERIOD: Duration = Duration::from_secs(10);

/// Checks while this process leads.
pub async fn run(cluster: Arc<Cluster>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        for node in cluster.nodes.silent(Instant::now()) {
            mark(&cluster, &node).await;
        }
    }
}

async fn mark(cluster: &Cluster, name: &str) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({"metadata": {"labels": {SCHEDULABLE_LABEL: "false"}}}));
    match call_opt("patch", || format!("node {name}"), nodes.patch_metadata(name, &params, &patch)).await {
        Ok(Some(node)) => {
            info!(node = name, "virt-handler is silent: the node takes no new guests");
            let about = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(name.to_owned()),
                uid: node.metadata.uid,
                ..ObjectReference::default()
            };
            let message = "virt-handler is not responsive, marking node as unresponsive";
            cluster.notes.tell(Note::normal(REASON_NODE_UNRESPONSIVE, message), about);
        }
        // The node was deleted meanwhile.
        Ok(None) => {}
        Err(error) => warn!(node = name, %error, why = error.message(), "node not marked as unresponsive"),
    }
}
