//! A component that does nothing for a while.

use anyhow::{Result, ensure};
use barevirt_e2e::command::objects;
use barevirt_e2e::{Node, installation};
use serde_json::Value;

/// Pods of a component whose programs do nothing, until this is dropped.
pub(crate) struct Stopped {
    component: &'static str,
    pods: Vec<Value>,
}

impl Stopped {
    /// Stops the component in those of its pods that are chosen.
    pub(crate) fn begin(component: &'static str, is_chosen: impl Fn(&Value) -> bool) -> Result<Self> {
        let selector = format!("kubevirt.io={component}");
        let mut pods = objects(&["pod", "-n", installation::NAMESPACE, "-l", &selector])?;
        pods.retain(is_chosen);
        ensure!(!pods.is_empty(), "there is no such pod of {component}");
        let stopped = Self { component, pods };
        for pod in &stopped.pods {
            Node::of(pod)?.kill(pod, component, "STOP")?;
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pod in &self.pods {
            let continued = Node::of(pod).and_then(|node| node.kill(pod, self.component, "CONT"));
            // The kubelet may have replaced it.
            if let Err(error) = continued {
                eprintln!("{} does not go on: {error:#}", pod["metadata"]["name"]);
            }
        }
    }
}
