//! Networks of the test bed beside that of the pods, and what pods have of networks on their nodes.

use crate::wait::{self, SOON};
use crate::{Namespace, Node};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// MTU of these networks, in bytes.
pub const MTU: u32 = 1400;

/// Defines a network on the link between the nodes.
///
/// # Errors
/// When the definition is refused.
pub fn define(namespace: &Namespace, name: &str, more: &Value) -> Result<()> {
    let mut config =
        json!({ "cniVersion": "1.0.0", "type": "bridge", "bridge": "lan0", "mtu": MTU, "macspoofchk": true });
    config.as_object_mut().context("no object")?.extend(more.as_object().cloned().unwrap_or_default());
    namespace.apply(&json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name }, "spec": { "config": config.to_string() },
    }))
}

/// What a launcher's pod has on its node outside its own network namespace.
pub struct Left {
    /// The node that the pod is or was on.
    pub node: Node,
    /// The pod's network namespace, as its processes name it.
    namespace: String,
    /// Where that namespace is mounted.
    mount: String,
    /// UID of the pod.
    pub pod: String,
    /// The pod's links on the node.
    pub links: Vec<String>,
}

impl Left {
    /// Looks while the pod's launcher runs.
    ///
    /// # Errors
    /// When it does not run, or the node does not answer.
    pub fn of(pod: &Value) -> Result<Self> {
        let node = Node::of(pod)?;
        let process = node.processes(pod, "virt-launcher")?.first().copied().context("no launcher")?;
        let namespace = node.sh(&format!("readlink /proc/{process}/ns/net"))?.trim().to_owned();
        let mount = node.sh(&format!(
            "for n in /run/netns/*; do [ \"$(stat -Lc 'net:[%i]' $n)\" != '{namespace}' ] || echo $n; done"
        ))?;
        ensure!(!mount.is_empty(), "the network namespace of the pod is mounted nowhere");
        let uid = pod["metadata"]["uid"].as_str().context("no uid")?.to_owned();
        // The other ends of the pod's links, by their interface indexes on the node.
        let there = format!("nsenter -t {process} -n ip -o link show type veth");
        let numbers = node.sh(&format!("{there} | sed -n 's/.*@if\\([0-9]*\\):.*/\\1/p'"))?;
        let here = node.sh("ip -o link show type veth")?;
        let ours = |line: &&str| {
            numbers.lines().any(|number| line.split(':').next().is_some_and(|index| index == number.trim()))
        };
        let name = |line: &str| Some(line.split(": ").nth(1)?.split('@').next()?.to_owned());
        let links = here.lines().filter(ours).filter_map(name).collect();
        Ok(Self { node, namespace, mount: mount.trim().to_owned(), pod: uid, links })
    }

    /// The parts that are on the node now: links, rules, records of attachments, the pod's processes, and whatever holds its
    /// namespace, which contains taps, bridges and further rules.
    ///
    /// The kernel gives the number of a namespace that is gone to a new one. So once it is mounted elsewhere, it is another
    /// pod's.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn now(&self) -> Result<Vec<String>> {
        let Self { namespace, mount, pod, links, .. } = self;
        let links = links.join("|");
        let script = format!(
            "ip -o link show | grep -E ': ({links})@' | cut -c1-40; \
             nft list table bridge nat 2>/dev/null | grep -E '({links})'; \
             grep -l {pod} /var/lib/cni/attached/results/*; \
             grep -l 'pod{pod}' /proc/[0-9]*/cgroup 2>/dev/null; \
             for n in /run/netns/*; do \
               [ \"$(stat -Lc 'net:[%i]' $n 2>/dev/null)\" = '{namespace}' ] || continue; \
               [ $n = '{mount}' ] || exit 0; \
               echo \"$n is it\"; \
             done; \
             for p in /proc/[0-9]*; do \
               [ \"$(readlink $p/ns/net 2>/dev/null)\" != '{namespace}' ] || echo \"$p is in it\"; \
             done; \
             find /proc/[0-9]*/fd -lname '{namespace}' 2>/dev/null; true"
        );
        Ok(self.node.sh(&script)?.lines().map(str::to_owned).collect())
    }

    /// Waits until none of them is left.
    ///
    /// # Errors
    /// When the node does not answer, or after a minute; the error names what is left.
    pub fn wait_gone(&self) -> Result<()> {
        let mut left = Vec::new();
        let gone = wait::until_true("nothing of the pod to be on its node", SOON, || {
            left = self.now()?;
            Ok(left.is_empty())
        });
        gone.with_context(|| format!("of pod {}: {left:?}", self.pod))
    }
}
