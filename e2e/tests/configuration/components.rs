//! What the tests know of the components: their pods, health and settings in force.

use anyhow::{Context, Result};
use barevirt_e2e::api_server;
use barevirt_e2e::command::objects;
use barevirt_e2e::installation::{NAMESPACE, kubevirt};
use barevirt_e2e::wait::{self, SOON};
use serde_json::Value;
use std::collections::BTreeMap;

pub(crate) const RUNNING_COMPONENTS: &str = "kubevirt.io in (virt-api, virt-controller, virt-handler)";
pub(crate) const ALL_COMPONENTS: &str =
    "kubevirt.io in (virt-api, virt-controller, virt-handler, virt-operator)";

/// Names of pods, with values that change when a process is restarted.
pub(crate) fn lives(selector: &str) -> Result<BTreeMap<String, String>> {
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

pub(crate) fn raw(pod: &str, path: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/https:{pod}:8443/proxy/{path}");
    api_server::text(&path)
}

pub(crate) fn health(pod: &str) -> Result<Value> {
    serde_json::from_str(&raw(pod, "healthz")?).with_context(|| format!("healthz of {pod} is not JSON"))
}

pub(crate) fn version() -> Result<Value> {
    Ok(kubevirt()?.context("there is no KubeVirt")?["metadata"]["resourceVersion"].clone())
}

/// Waits until the current object is in force in all of these pods.
pub(crate) fn wait_in_force<'a>(pods: impl Iterator<Item = &'a String> + Clone) -> Result<()> {
    wait::until_true("every component to run with the object as it is", SOON, || {
        let version = version()?;
        for pod in pods.clone() {
            let health = health(pod)?;
            if health["config-resource-version"] != version || !health["config-refused"].is_null() {
                return Ok(false);
            }
        }
        Ok(true)
    })
}
