//! What the tests know of the components: their pods, health and settings in force.

use crate::api_server;
use crate::command::objects;
use crate::installation::{NAMESPACE, kubevirt};
use crate::wait::{self, SOON};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Selects the pods of what runs machines.
pub const RUNNING_COMPONENTS: &str = "kubevirt.io in (virt-api, virt-controller, virt-handler)";
/// Selects these and virt-operator's.
pub const ALL_COMPONENTS: &str = "kubevirt.io in (virt-api, virt-controller, virt-handler, virt-operator)";

/// Names of pods, with values that change when a process is restarted.
pub fn lives(selector: &str) -> Result<BTreeMap<String, String>> {
    let pods = objects(&["pod", "-n", NAMESPACE, "-l", selector])?;
    let life = |pod: &Value| {
        let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
        format!("{} {restarts}", pod["metadata"]["uid"])
    };
    Ok(pods
        .iter()
        .map(|pod| (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), life(pod)))
        .collect())
}

/// What a component answers at a path of its port of probes.
pub fn raw(pod: &str, path: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/https:{pod}:8443/proxy/{path}");
    api_server::text(&path)
}

/// What it says about itself.
pub fn health(pod: &str) -> Result<Value> {
    serde_json::from_str(&raw(pod, "healthz")?).with_context(|| format!("healthz of {pod} is not JSON"))
}

/// The version of the `KubeVirt` object.
pub fn version() -> Result<Value> {
    Ok(kubevirt()?.context("there is no KubeVirt")?["metadata"]["resourceVersion"].clone())
}

/// Waits until the current object is in force in all of these pods.
pub fn wait_in_force<'a>(pods: impl Iterator<Item = &'a String> + Clone) -> Result<()> {
    let mut last = String::new();
    let in_force = wait::until_true("every component to run with the object as it is", SOON, || {
        let version = version()?;
        for pod in pods.clone() {
            // One whose connection breaks is asked again.
            let said = health(pod);
            let is_in_force = said.as_ref().is_ok_and(|health| {
                health["config-resource-version"] == version && health["config-refused"].is_null()
            });
            if !is_in_force {
                last = format!("version {version}, and {pod} says {said:?}");
                return Ok(false);
            }
        }
        Ok(true)
    });
    in_force.with_context(|| last)
}
