//! Networks of the test bed beside that of the pods, cards on them, and what pods have of networks on their nodes.

use crate::wait::{self, SOON};
use crate::{Console, Namespace, Node, guest, pods};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// MTU of these networks, in bytes.
pub const MTU: usize = 1400;

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

/// Gives a manifest a card with that MAC address, on a network of its name without addresses, which is defined.
///
/// # Errors
/// When the definition is refused.
pub fn with_card(namespace: &Namespace, manifest: &mut Value, card: &str, mac: &str) -> Result<()> {
    define(namespace, card, &json!({}))?;
    let spec = guest::spec_of(manifest);
    let interface = json!({ "name": card, "bridge": {}, "macAddress": mac });
    guest::push(&mut spec["domain"]["devices"]["interfaces"], interface);
    guest::push(&mut spec["networks"], json!({ "name": card, "multus": { "networkName": card } }));
    Ok(())
}

/// A pod on `node01` with a web server at port 8080, and with a second link on a network that gives addresses; its address there.
/// If several networks are named, with commas between them, it is on all of them.
///
/// # Errors
/// When it does not run, or has no address there.
pub fn neighbour(namespace: &Namespace, network: &str) -> Result<String> {
    let serve = "echo neighbour >/tmp/index.html; exec httpd -f -p 8080 -h /tmp";
    let mut pod = pods::pod("neighbour", &["sh", "-c", serve]);
    pod["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": network });
    pod["spec"]["nodeName"] = json!("node01");
    namespace.apply(&pod)?;
    let pod =
        namespace.wait("pod", "neighbour", "to run", SOON, |pod| pod["status"]["phase"] == "Running")?;
    address(&pod, 1)
}

/// The address of a pod on one of its networks. They are counted from 0, which is the pods' own.
///
/// # Errors
/// When it has none there.
pub fn address(pod: &Value, network: usize) -> Result<String> {
    let noted = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].as_str();
    let noted: Value = serde_json::from_str(noted.context("nothing is noted")?)?;
    Ok(noted[network]["ips"][0].as_str().context("no address is noted")?.to_owned())
}

/// Waits until the guest's first card has these addresses, each with what follows it in the output of `ip`, which is returned.
/// Nothing in the small guest waits for those of IPv6.
///
/// # Errors
/// When it does not have them in time; the error says which it has.
pub fn wait_inside(console: &mut Console, wanted: &[String]) -> Result<String> {
    let mut inside = String::new();
    let has_all = wait::until_true(&format!("the guest to have {wanted:?}"), SOON, || {
        inside = console.ok("ip address show dev eth0", SOON)?;
        Ok(wanted.iter().all(|address| inside.contains(address)))
    });
    has_all.with_context(|| inside.clone())?;
    Ok(inside)
}

/// The status of a guest's card.
///
/// # Errors
/// When the guest has no such card.
pub fn card_status(namespace: &Namespace, guest: &str, card: &str) -> Result<Value> {
    let vmi = namespace.need("vmi", guest)?;
    let all = vmi["status"]["interfaces"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|entry| entry["name"] == card);
    found.cloned().with_context(|| format!("{guest} tells of no card {card}: {all:?}"))
}

/// Adds a card with a bridge to the template of a machine, on the network of that definition, with a MAC address or without.
///
/// # Errors
/// When the API server refuses it.
pub fn plug(
    namespace: &Namespace,
    machine: &str,
    (card, definition): (&str, &str),
    mac: Option<&str>,
) -> Result<()> {
    let network = json!({ "name": card, "multus": { "networkName": definition } });
    let mut interface = json!({ "name": card, "bridge": {} });
    if let Some(mac) = mac {
        interface["macAddress"] = json!(mac);
    }
    let operations = json!([
        { "op": "add", "path": "/spec/template/spec/networks/-", "value": network },
        { "op": "add", "path": "/spec/template/spec/domain/devices/interfaces/-", "value": interface },
    ]);
    namespace.change("vm", machine, &operations)
}

/// Sets the state of a machine's card, which is counted from 0: `up`, `down` or `absent`.
///
/// # Errors
/// When the API server refuses it.
pub fn set_state(namespace: &Namespace, machine: &str, card: usize, state: &str) -> Result<()> {
    let path = format!("/spec/template/spec/domain/devices/interfaces/{card}/state");
    namespace.change("vm", machine, &json!([{ "op": "add", "path": path, "value": state }]))
}

/// What a launcher's pod has on its node outside its own network namespace.
pub struct Left {
    /// The node that the pod is or was on.
    pub node: Node,
    /// A process in the pod's network namespace.
    process: u32,
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
        Ok(Self { node, process, namespace, mount: mount.trim().to_owned(), pod: uid, links })
    }

    /// What comes before a command on the node that shall run in the pod's own network namespace.
    pub fn enter(&self) -> String {
        format!("nsenter -t {} -n", self.process)
    }

    /// The links in the pod's own network namespace, one a line.
    ///
    /// # Errors
    /// When the pod is gone.
    pub fn links_of_pod(&self) -> Result<String> {
        self.node.sh(&format!("{} ip -o link show", self.enter()))
    }

    /// The MAC address of that link of the pod.
    ///
    /// # Errors
    /// When there is no such link, or it has none.
    pub fn mac(&self, link: &str) -> Result<String> {
        let shown = self.node.sh(&format!("{} ip -o link show dev {link}", self.enter()))?;
        let mac = shown.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
        Ok(mac.with_context(|| format!("{link} has no MAC address: {shown}"))?.to_owned())
    }

    /// The other end, on the node, of that link of the pod.
    ///
    /// # Errors
    /// When there is no such link.
    pub fn other_end(&self, link: &str) -> Result<String> {
        let there = self.node.sh(&format!("{} ip -o link show dev {link}", self.enter()))?;
        let number = there.split("@if").nth(1).and_then(|rest| rest.split(':').next());
        let number = number.with_context(|| format!("{link} leads nowhere: {there}"))?;
        let here = self.node.sh("ip -o link show type veth")?;
        let end = here.lines().find(|line| line.split(':').next() == Some(number));
        let name = end.and_then(|line| line.split(": ").nth(1)?.split('@').next());
        Ok(name.with_context(|| format!("{link} leads to no link of the node: {here}"))?.to_owned())
    }

    /// The file in which the kernel lists these links, each with a colon behind its name.
    pub fn links_file(&self) -> String {
        format!("/proc/{}/net/dev", self.process)
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
