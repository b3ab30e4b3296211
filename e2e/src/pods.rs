//! Plain pods beside the guests: clients and servers.

use crate::command::{Output, try_kubectl_with};
use crate::container::Container;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::wait::{self, SOON};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

/// Image with busybox and `udp` (`images/guest-tiny/udp.c`) that every node of the test cluster has.
const BUSYBOX: &str = "localhost/barevirt-cluster/busybox:devel";

/// Where pods and guests of tests answer datagrams, each with itself.
pub const ECHO: u16 = 7000;

/// MTU of the pods' network, in bytes.
pub const MTU: usize = 1500;

/// How many seconds one command in a client asks a web server.
const ASKING: u32 = 10;

/// A pod that `restricted` admits, with that command.
pub fn pod(name: &str, command: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsUser": 1000, "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "main", "image": BUSYBOX, "command": command,
                "securityContext": {
                    "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                },
            }],
        },
    })
}

/// A pod that idles until it gets commands.
pub fn client<'a>(namespace: &'a Namespace, name: &'a str) -> Result<Client<'a>> {
    start(namespace, name, &pod(name, &["sleep", "3600"]))
}

/// The same on that node.
pub fn client_on<'a>(namespace: &'a Namespace, name: &'a str, node: &str) -> Result<Client<'a>> {
    let mut pod = pod(name, &["sleep", "3600"]);
    pod["spec"]["nodeName"] = json!(node);
    start(namespace, name, &pod)
}

/// The same on that node, with a second link `net1` on a network that gives addresses.
pub fn client_beside<'a>(
    namespace: &'a Namespace,
    name: &'a str,
    node: &str,
    network: &str,
) -> Result<Client<'a>> {
    let mut pod = pod(name, &["sleep", "3600"]);
    pod["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": network });
    pod["spec"]["nodeName"] = json!(node);
    start(namespace, name, &pod)
}

/// The same as root with the usual capabilities, which `restricted` does not admit.
pub fn root_client<'a>(namespace: &'a Namespace, name: &'a str) -> Result<Client<'a>> {
    let mut pod = pod(name, &["sleep", "3600"]);
    pod["spec"]["securityContext"] = json!({});
    pod["spec"]["containers"][0]["securityContext"] = json!({});
    start(namespace, name, &pod)
}

/// The same from that manifest, whose container has busybox.
///
/// # Errors
/// When the API server refuses it, or it does not run in time.
pub fn start<'a>(namespace: &'a Namespace, name: &'a str, pod: &Value) -> Result<Client<'a>> {
    namespace.apply(pod)?;
    wait_running(namespace, name)?;
    Ok(Client { namespace, name })
}

/// A pod that answers on TCP port 8080 with one line, and datagrams at [`ECHO`], with a Service of the same name in front of it, which
/// has an address of each IP family and takes connections at port 80 and datagrams at [`ECHO`].
pub fn server(namespace: &Namespace, name: &str, line: &str) -> Result<()> {
    serve(namespace, name, &serving(name, line))
}

/// The same on that node.
pub fn server_on(namespace: &Namespace, name: &str, line: &str, node: &str) -> Result<()> {
    let mut pod = serving(name, line);
    pod["spec"]["nodeName"] = json!(node);
    serve(namespace, name, &pod)
}

/// The manifest of such a pod.
pub fn serving(name: &str, line: &str) -> Value {
    let script = format!(
        "mkdir /tmp/www; echo '{line}' >/tmp/www/index.html; udp {ECHO} & exec httpd -f -p 8080 -h /tmp/www"
    );
    pod(name, &["sh", "-c", &script])
}

fn serve(namespace: &Namespace, name: &str, pod: &Value) -> Result<()> {
    namespace.apply(pod)?;
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name },
        "spec": {
            "selector": { "app": name }, "ipFamilyPolicy": "PreferDualStack",
            "ports": [
                { "name": "web", "port": 80, "targetPort": 8080 },
                { "name": "echo", "port": ECHO, "protocol": "UDP" },
            ],
        },
    }))?;
    wait_running(namespace, name)
}

/// Limits the number of the namespace's pods by a quota, and waits until the API server enforces it.
pub fn limit(namespace: &Namespace, pods: &str) -> Result<()> {
    limit_to(namespace, "pods", pods)
}

/// The same for any resource that quotas count; it has a quota of its own.
pub fn limit_to(namespace: &Namespace, resource: &str, most: &str) -> Result<()> {
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": { "name": resource }, "spec": { "hard": { resource: most } },
    }))?;
    let counts = |quota: &Value| {
        quota["status"]["hard"][resource] == most && quota["status"]["used"][resource].is_string()
    };
    namespace.wait("resourcequota", resource, &format!("to count {resource}"), SOON, counts).map(drop)
}

/// Evicts a pod, as `kubectl drain` does, without a cordon of its node.
///
/// # Errors
/// When `kubectl` cannot be run. A denied eviction is no error: its code is not 0.
pub fn evict(namespace: &Namespace, pod: &str) -> Result<Output> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", namespace.name());
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "name": pod, "namespace": namespace.name() },
    });
    try_kubectl_with(&["create", "--raw", &path, "-f", "-"], &eviction.to_string())
}

fn wait_running(namespace: &Namespace, name: &str) -> Result<()> {
    namespace.wait("pod", name, "to run", SOON, |pod| pod["status"]["phase"] == "Running").map(drop)
}

/// A running client.
pub struct Client<'a> {
    namespace: &'a Namespace,
    name: &'a str,
}

impl Client<'_> {
    /// Runs a command line in it, as root.
    pub fn sh(&self, script: &str) -> Result<Output> {
        Container::of(&self.namespace.need("pod", self.name)?)?.sh(script)
    }

    /// Waits until a web server answers, with that line if one is given. The client itself asks again and again, because the
    /// guest boots meanwhile, and each command in the client is looked up again.
    pub fn wait_answer(&self, url: &str, line: Option<&str>, within: Duration) -> Result<()> {
        let fits = line.map_or_else(|| "-n \"$answer\"".to_owned(), |line| format!("\"$answer\" = '{line}'"));
        let script = format!(
            "end=$(($(date +%s) + {ASKING})); while [ $(date +%s) -lt $end ]; do \
               answer=$(timeout 5 wget -qO- '{url}'); [ {fits} ] && exit 0; sleep 0.3; \
             done; exit 1"
        );
        let what = format!("{} from {url}", line.unwrap_or("an answer"));
        wait::until_true(&what, within, || Ok(self.sh(&script)?.code == 0))
    }

    /// The answer of a web server; an empty text if there is none.
    pub fn fetch(&self, url: &str) -> Result<String> {
        Ok(self.sh(&format!("timeout 5 wget -qO- {url}"))?.stdout)
    }

    /// Waits until that text comes back from there as a datagram.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn wait_datagram(&self, address: &str, port: u16, text: &str) -> Result<()> {
        wait::until_true(&format!("a datagram to come back from {address} port {port}"), SOON, || {
            let asked = self.sh(&format!("udp {address} {port} {text}"))?;
            ensure!(
                asked.code != 127,
                "the nodes have an older image of busybox: make cluster-down cluster-up"
            );
            Ok(asked.code == 0)
        })
    }

    /// Its addresses, the one of IPv4 first.
    ///
    /// # Errors
    /// When it is not there, or does not have one of each family.
    pub fn addresses(&self) -> Result<[String; 2]> {
        both_addresses(&self.namespace.need("pod", self.name)?)
    }

    /// The pod's network, for programs of its node.
    ///
    /// # Errors
    /// When the pod is not there, or has no sandbox.
    pub fn inside(&self) -> Result<Inside> {
        let pod = self.namespace.need("pod", self.name)?;
        let node = Node::of(&pod)?;
        let sandbox = node.processes(&pod, "pause")?.first().copied().context("the pod has no sandbox")?;
        Ok(Inside { node, sandbox })
    }
}

/// The network of a pod, for what the pod may not do and a program of the node may.
pub struct Inside {
    node: Node,
    sandbox: u32,
}

impl Inside {
    /// Tells the pod the MAC address of a neighbour on its second link `net1`, so that it never asks the network for it.
    ///
    /// # Errors
    /// When the node does not answer, or there is no such link.
    pub fn knows(&self, address: &str, mac: &str) -> Result<()> {
        let neighbour = format!("ip neigh replace {address} lladdr {mac} dev net1 nud permanent");
        self.node.sh(&format!("nsenter -t {} -n {neighbour}", self.sandbox)).map(drop)
    }

    /// How many fragments of packets the pod has received and made, in both IP families.
    ///
    /// # Errors
    /// When the node does not answer, or does not say it.
    pub fn fragments(&self) -> Result<u64> {
        let show = format!("nsenter -t {} -n cat /proc/net/snmp /proc/net/snmp6", self.sandbox);
        fragments(&self.node.sh(&show)?)
    }
}

/// Adds the kernel's counters up.
fn fragments(shown: &str) -> Result<u64> {
    const COUNTERS: [&str; 4] = ["ReasmReqds", "FragCreates", "Ip6ReasmReqds", "Ip6FragCreates"];
    // IPv4 has a line of names above one of numbers, and IPv6 a line for each name and number.
    let mut ipv4 = shown.lines().filter(|line| line.starts_with("Ip: "));
    let (names, numbers) = ipv4.next().zip(ipv4.next()).context("no counters of IPv4")?;
    let ipv4 = names.split_whitespace().zip(numbers.split_whitespace());
    let ipv6 = shown.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let all = ipv4.chain(ipv6).filter(|(name, _)| COUNTERS.contains(name));
    let all = all.map(|(_, number)| number.trim().parse::<u64>()).collect::<Result<Vec<_>, _>>()?;
    ensure!(all.len() == COUNTERS.len(), "{} of {COUNTERS:?} are in {shown}", all.len());
    Ok(all.iter().sum())
}

/// Both addresses of a pod, the one of IPv4 first.
///
/// # Errors
/// When it does not have one of each family.
pub fn both_addresses(pod: &Value) -> Result<[String; 2]> {
    let all = pod["status"]["podIPs"].as_array().cloned().unwrap_or_default();
    let of = |is_ipv6: bool| {
        let mut all = all.iter().filter_map(|one| one["ip"].as_str());
        all.find(|address| address.contains(':') == is_ipv6).map(str::to_owned)
    };
    let (four, six) = (of(false), of(true));
    Ok([four.context("the pod has no IPv4 address")?, six.context("the pod has no IPv6 address")?])
}

/// How many bytes of payload a ping or a datagram to that address may have for its packet to be as large as the MTU of the
/// pods' network.
pub fn largest_payload(address: &str) -> usize {
    payload_within(address, MTU)
}

/// The same on a network with that MTU, in bytes. By Linux's default, a packet of up to that size must not be fragmented on its
/// way.
pub fn payload_within(address: &str, mtu: usize) -> usize {
    // The headers of IP, and of ICMP or UDP.
    mtu - 8 - if address.contains(':') { 40 } else { 20 }
}

/// A URL's host part: IPv6 addresses in brackets.
pub fn host(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_of_both_families_are_counted() {
        let shown = "Ip: Forwarding ReasmTimeout ReasmReqds ReasmOKs FragOKs FragFails FragCreates
Ip: 1 0 2 1 3 0 4
Icmp: InMsgs InErrors
Icmp: 7 8
Ip6InReceives                   \t9
Ip6ReasmReqds                   \t16
Ip6FragCreates                  \t32
";
        assert_eq!(fragments(shown).unwrap(), 2 + 4 + 16 + 32);
        assert!(fragments("Ip: ReasmReqds FragCreates\nIp: 1 2\n").is_err());
        assert!(fragments("").is_err());
    }
}
