//! Sandboxes of launchers' pods that end under their guests. The kubelet gives up a pod that never starts its containers again: it
//! makes no other sandbox for it. So the pod ends with its guest, and the machine starts in another one.

use crate::namespace::Namespace;
use crate::networks::Left;
use crate::wait::RUNNING;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A machine whose pod has lost its sandbox.
pub struct Ended<'a> {
    namespace: &'a Namespace,
    machine: &'a str,
    /// UID of the instance that the machine had.
    instance: Value,
    /// Name of the pod that it ran in.
    pod: String,
    left: Left,
}

/// Ends the sandbox of a machine's pod, once the machine runs. The pod has that many links on its node.
///
/// # Errors
/// When the machine does not run in time, the pod has another number of links, or no sandbox runs there.
pub fn end<'a>(namespace: &'a Namespace, machine: &'a str, links: usize) -> Result<Ended<'a>> {
    let instance = namespace.wait_phase(machine, "Running", RUNNING)?["metadata"]["uid"].clone();
    let pod = namespace.launcher(machine)?;
    let left = Left::of(&pod)?;
    ensure!(left.links.len() == links, "the pod of {machine} has the links {:?}", left.links);
    left.node.kill(&pod, "pause", "KILL")?;
    Ok(Ended { namespace, machine, instance, pod: name(&pod)?, left })
}

impl Ended<'_> {
    /// Waits until the machine has another instance. From then on [`Namespace::launcher`] does not give the pod that has ended.
    ///
    /// # Errors
    /// When it has none in time.
    pub fn wait_instance(&self) -> Result<()> {
        let is_another = |vmi: &Value| vmi["metadata"]["uid"] != self.instance;
        self.namespace.wait("vmi", self.machine, "to be another", RUNNING * 2, is_another).map(drop)
    }

    /// Waits until the machine runs in another pod, and nothing of the former pod's network is left on its node.
    ///
    /// # Errors
    /// When it does not run in time, or something is left; the error names what.
    pub fn runs_in_another_pod(&self) -> Result<()> {
        let Self { namespace, machine, instance, pod, left } = self;
        namespace.wait("vmi", machine, "to be another, and Running", RUNNING * 2, |vmi| {
            vmi["metadata"]["uid"] != *instance && vmi["status"]["phase"] == "Running"
        })?;
        ensure!(name(&namespace.launcher(machine)?)? != *pod, "{machine} runs in the same pod");
        left.wait_gone()
    }
}

fn name(pod: &Value) -> Result<String> {
    Ok(pod["metadata"]["name"].as_str().context("a pod without a name")?.to_owned())
}
