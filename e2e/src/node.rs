//! A shell on a node, for what users cannot do: kill processes, check for leftovers. And `kubectl drain`.

use crate::command::{cluster_script, kubectl, run_within, succeed};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::time::Duration;

/// How long kubectl may take to end once its own time has passed.
const END: Duration = Duration::from_secs(30);

/// A node of the cluster.
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
}

impl Node {
    /// The node of that name.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// The node that a pod is on.
    pub fn of(pod: &Value) -> Result<Self> {
        let name = pod["spec"]["nodeName"].as_str().context("the pod is on no node")?;
        Ok(Self::named(name))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a command line on it.
    pub fn sh(&self, script: &str) -> Result<String> {
        let mut command = cluster_script("cli.sh");
        succeed(command.args(["ssh", &self.name, "sh", "-c", script]), None)
    }

    /// Process ids of a program in a pod, found by the pod's control group.
    pub fn processes(&self, pod: &Value, program: &str) -> Result<Vec<u32>> {
        let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
        // systemd's layout has underscores in place of dashes.
        let script = format!(
            "for p in /proc/[0-9]*; do \
               grep -q -e '{uid}' -e '{}' $p/cgroup 2>/dev/null || continue; \
               [ \"$(readlink $p/exe 2>/dev/null | sed 's|.*/||')\" = '{program}' ] && echo ${{p#/proc/}}; \
             done; true",
            uid.replace('-', "_")
        );
        let lines = self.sh(&script)?;
        Ok(lines.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }

    /// Sends a signal to that program in a pod, which has to run there.
    pub fn kill(&self, pod: &Value, program: &str, signal: &str) -> Result<()> {
        let processes = self.processes(pod, program)?;
        ensure!(!processes.is_empty(), "no {program} runs in that pod on {}", self.name);
        for process in processes {
            self.sh(&format!("kill -{signal} {process}"))?;
        }
        Ok(())
    }

    /// The whole serial log of a launcher pod, from the node's side.
    pub fn serial_log(&self, pod: &Value) -> Result<String> {
        let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
        let directory = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/private");
        self.sh(&format!("find {directory} -name 'serial0.log*' | sort -r | xargs -r cat"))
    }

    /// Ends the node like a power failure.
    pub fn cut_power(&self) -> Result<()> {
        succeed(cluster_script("node-kill.sh").arg(&self.name), None).map(drop)
    }

    /// Starts it again.
    pub fn start(&self) -> Result<()> {
        succeed(cluster_script("node-start.sh").arg(&self.name), None).map(drop)
    }
}

/// `kubectl drain`, limited to the pods of a selector; afterwards pods are placed on the node again, also if it fails.
///
/// # Errors
/// When pods are still there after that time.
pub fn drain(node: &str, selector: &str, within: Duration) -> Result<()> {
    let (selector, timeout) =
        (format!("--pod-selector={selector}"), format!("--timeout={}s", within.as_secs()));
    let mut command = cluster_script("kubectl.sh");
    command.args(["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", &selector, &timeout]);
    // kubectl ends by itself when the time has passed.
    let drained = run_within(&mut command, None, within + END);
    kubectl(&["uncordon", node])?;
    let drained = drained?;
    ensure!(drained.code == 0, "{node} is not drained: {}", drained.text().trim());
    Ok(())
}
