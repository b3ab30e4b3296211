//! The handlers of the cluster.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::objects;
use crate::node::Node;

/// Nodes with the name of the handler's pod on each.
///
/// # Errors
/// When the cluster does not answer.
pub fn pods() -> Result<Vec<(String, String)>> {
    let pods = objects(&["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-handler"])?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running");
    Ok(running
        .filter_map(|pod| Some((text(&pod["spec"]["nodeName"])?, text(&pod["metadata"]["name"])?)))
        .collect())
}

/// The process of the node's handler.
///
/// # Errors
/// When the node has no handler, or none runs there.
pub fn process(node: &Node) -> Result<u32> {
    let pods = objects(&["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-handler"])?;
    let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == node.name());
    let running = node.processes(pod.context("the node has no handler")?, "virt-handler")?;
    running.first().copied().context("no handler runs")
}

/// Nodes whose handler is ready, with its address.
///
/// # Errors
/// When the cluster does not answer.
pub fn addresses() -> Result<Vec<(String, String)>> {
    let pods = objects(&["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-handler"])?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let ready = pods.iter().filter(|pod| pod["status"]["containerStatuses"][0]["ready"] == true);
    Ok(ready
        .filter_map(|pod| Some((text(&pod["spec"]["nodeName"])?, text(&pod["status"]["podIP"])?)))
        .collect())
}
