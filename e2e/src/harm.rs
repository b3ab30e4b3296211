//! Kills processes with signal 9, from outside.

use crate::api_server;
use crate::command::{objects, try_kubectl};
use crate::components::raw;
use crate::node::Node;
use crate::wait::{self, SOON};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Until a component's killed pods are ready again, including the kubelet's pauses between restarts.
const READY: Duration = Duration::from_secs(120);
/// What virt-api serves behind the API server's aggregator.
const AGGREGATED: &str = "/apis/subresources.kubevirt.io/v1";

/// Waits until all containers of a component are ready, and its programs say so themselves: for some seconds after a kill, the
/// status of a pod is that from before. virt-api also has to be reached through the aggregator, which looks for it at intervals.
pub fn component_is_ready(name: &str) -> Result<()> {
    wait::until_true(&format!("{name} to be ready again"), READY, || {
        let pods = objects(&["pod", "-n", "kubevirt", "-l", &format!("kubevirt.io={name}")])?;
        let ready = |pod: &Value| {
            let containers = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
            let is_said =
                !containers.is_empty() && containers.iter().all(|container| container["ready"] == true);
            is_said && raw(pod["metadata"]["name"].as_str().unwrap_or_default(), "readyz").is_ok()
        };
        let all = !pods.is_empty() && pods.iter().all(ready);
        Ok(all && (name != "virt-api" || api_server::text(AGGREGATED).is_ok()))
    })
}

/// Kills Kubernetes' API server on this machine, and waits until the cluster has started it again.
pub fn kill_kubernetes_api() -> Result<()> {
    let output = Command::new("pgrep").args(["-x", "kube-apiserver"]).output()?;
    let processes = String::from_utf8_lossy(&output.stdout).into_owned();
    let process = processes.split_whitespace().next().context("no kube-apiserver on this machine")?;
    let status = Command::new("kill").args(["-KILL", process]).status()?;
    ensure!(status.success(), "kube-apiserver cannot be killed");
    wait::until_true("the API server to answer again", SOON, || {
        let answer = try_kubectl(&["get", "--raw", "/readyz"])?;
        Ok(answer.code == 0)
    })
}

/// Kills a daemon of the node that is in no pod, and waits until the node has started it again.
pub fn kill_daemon(node: &Node, program: &str) -> Result<()> {
    let before = node.programs(program)?;
    ensure!(!before.is_empty(), "no {program} runs on {}", node.name());
    let processes: Vec<String> = before.iter().map(ToString::to_string).collect();
    node.sh(&format!("kill -KILL {}", processes.join(" ")))?;
    wait::until_true(&format!("{program} to run again on {}", node.name()), SOON, || {
        Ok(node.programs(program)?.iter().any(|process| !before.contains(process)))
    })
}
