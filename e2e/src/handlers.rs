//! The handlers of the cluster.

use anyhow::Result;
use serde_json::Value;

use crate::command::objects;

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
