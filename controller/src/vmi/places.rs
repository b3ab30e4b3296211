//! How the nodes of pods are.

use crate::cluster::Cluster;
use crate::node::NodeState;
use barevirt_component::request::{Error, call_opt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::Api;
use std::time::Instant;

/// How the node of a pod is; none where the pod has none.
pub(super) async fn node_of(cluster: &Cluster, pod: Option<&Pod>) -> Result<Option<NodeState>, Error> {
    let name = pod.and_then(|pod| pod.spec.as_ref()).and_then(|spec| spec.node_name.as_deref());
    match name.filter(|name| !name.is_empty()) {
        None => Ok(None),
        Some(name) => node_state(cluster, name).await.map(Some),
    }
}

/// How a node is.
pub(super) async fn node_state(cluster: &Cluster, name: &str) -> Result<NodeState, Error> {
    let state = cluster.nodes.state(name, Instant::now());
    if state != NodeState::Gone {
        return Ok(state);
    }
    // A node that joined a moment ago may not be in the cache; a guest's life hangs on this.
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let found = call_opt("get", || format!("node {name}"), nodes.get(name)).await?;
    Ok(if found.is_some() { NodeState::Ready } else { NodeState::Gone })
}
