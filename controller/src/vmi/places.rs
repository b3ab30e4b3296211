//! The states of pods' nodes.

use crate::cluster::Cluster;
use crate::node::NodeState;
use barevirt_component::request::{Error, call_opt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::Api;
use std::time::Instant;

/// The state of a pod's node; `None` where the pod has no node.
pub(super) async fn node_of(cluster: &Cluster, pod: Option<&Pod>) -> Result<Option<NodeState>, Error> {
    let name = pod.and_then(|pod| pod.spec.as_ref()).and_then(|spec| spec.node_name.as_deref());
    match name.filter(|name| !name.is_empty()) {
        None => Ok(None),
        Some(name) => node_state(cluster, name).await.map(Some),
    }
}

/// The state of a node.
pub(super) async fn node_state(cluster: &Cluster, name: &str) -> Result<NodeState, Error> {
    let state = cluster.nodes.state(name, Instant::now());
    if state != NodeState::Gone {
        return Ok(state);
    }
    // A node that has just joined may not be in the cache; a wrong answer could end a guest.
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let found = call_opt("get", || format!("node {name}"), nodes.get(name)).await?;
    Ok(if found.is_some() { NodeState::Ready } else { NodeState::Gone })
}
