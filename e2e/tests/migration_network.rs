//! A separate network for migrations: guests migrate over it, and only handlers are attached to it. The test bed's
//! delegate attaches it in place of Multus (`cluster-up/go/networks`).
//!
//! The test changes the `KubeVirt` object and replaces all handlers, so it has its own file.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, object, objects, try_kubectl_with};
use barevirt_e2e::installation::{Changed, NAMESPACE, patch, wait_available};
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Node, alone, guest, in_namespace};
use serde_json::{Value, json};

const DEFINITION: &str = "network-attachment-definition";
/// Lower limit of the bytes that a migration sends: the guest's memory contains at least its system.
const SENT: u64 = 8 << 20;

/// A network between the nodes, defined in the handlers' namespace until this value is dropped.
struct Defined {
    name: String,
    addresses: String,
}

impl Defined {
    fn begin(name: &str, subnet: &str) -> Result<Self> {
        // The nodes of the test bed are on one machine, so they share one list of addresses in use.
        let defined = Self { name: name.to_owned(), addresses: format!("/var/tmp/{name}") };
        let config = json!({
            "cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": "lan0", "mtu": 1400,
            "ipam": {"type": "host-local", "dataDir": defined.addresses, "ranges": [[{"subnet": subnet}]]},
        });
        let definition = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"config": config.to_string()},
        });
        let applied = try_kubectl_with(&["apply", "-f", "-"], &definition.to_string())?;
        ensure!(applied.code == 0, "{}", applied.text());
        Ok(defined)
    }

    fn end(&self) -> Result<()> {
        kubectl(&["delete", DEFINITION, &self.name, "-n", NAMESPACE, "--ignore-not-found"])?;
        let nodes = objects(&["node"])?;
        let node = nodes.first().and_then(|node| node["metadata"]["name"].as_str()).context("no node")?;
        Node::named(node).sh(&format!("rm -rf {}", self.addresses)).map(drop)
    }
}

impl Drop for Defined {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("cannot remove network {}: {error:#}", self.name);
        }
    }
}

/// Nodes with the addresses of their handlers on that network, from the annotations of the handlers' pods.
fn addresses(network: &str) -> Result<Vec<(String, String)>> {
    let pods = objects(&["pod", "-n", NAMESPACE, "-l", "kubevirt.io=virt-handler"])?;
    let mut found = vec![];
    for pod in pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
        let noted = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].as_str();
        let noted: Value = serde_json::from_str(noted.context("a handler's pod has no network status")?)?;
        let named = format!("{NAMESPACE}/{network}");
        let own = noted.as_array().into_iter().flatten().find(|one| one["name"] == named.as_str());
        let own = own.with_context(|| format!("a handler is not on {network}: {noted}"))?;
        ensure!(own["interface"] == "migration0", "{own}");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        found.push((text(&pod["spec"]["nodeName"]), text(&own["ips"][0])));
    }
    Ok(found)
}

/// Bytes that a node has sent over the link of additional networks.
fn sent(node: &str) -> Result<u64> {
    let text = Node::named(node).sh("awk '$1 == \"eth1:\" { print $10 }' /proc/net/dev")?;
    text.trim().parse().with_context(|| format!("{text:?} is not a number"))
}

#[test]
fn guests_move_over_the_network_for_migrations_that_the_test_beds_delegate_attaches() {
    in_namespace("mignet", |namespace| {
        let _alone = alone();
        wait_available()?;
        namespace.apply(&guest::movable(guest::machine("vm", "Always")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let boot = console.ok("cat /proc/sys/kernel/random/boot_id", SOON)?;
        console.leave()?;

        let named = |family: &str| format!("{}-{family}", namespace.name());
        let networks = [
            (Defined::begin(&named("v4"), "10.90.0.0/24")?, "10.90.0."),
            (Defined::begin(&named("v6"), "fd00:90::/64")?, "fd00:90::"),
        ];
        {
            // The former configuration is restored before the definitions are deleted.
            let _changed = Changed::begin(&json!({}))?;
            for (network, prefix) in &networks {
                patch(&json!({"configuration": {"migrations": {"network": network.name}}}))?;
                wait_available()?;
                let all = addresses(&network.name)?;
                ensure!(all.len() >= 2 && all.iter().all(|(_, one)| one.starts_with(prefix)), "{all:?}");
                let home = namespace.need("vmi", "vm")?["status"]["nodeName"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                let before = sent(&home)?;
                let state = namespace.migrate("vm")?["status"]["migrationState"].clone();
                let told = |field: &str| state[field].as_str().unwrap_or_default().to_owned();
                let target = (told("targetNode"), told("targetNodeAddress"));
                ensure!(all.contains(&target), "{target:?} is none of {all:?}");
                let bytes = sent(&home)?.saturating_sub(before);
                ensure!(bytes > SENT, "{bytes} bytes went over {}", network.name);
                ensure!(state["migrationConfiguration"]["network"] == network.name.as_str(), "{state}");
            }
            // No launcher is attached to it.
            let launcher = namespace.launcher("vm")?;
            let annotations = &launcher["metadata"]["annotations"];
            ensure!(annotations["k8s.v1.cni.cncf.io/networks"].is_null(), "{annotations}");
        }
        wait_available()?;
        let handlers = object(&["daemonset", "virt-handler", "-n", NAMESPACE])?.context("no handlers")?;
        let annotations = &handlers["spec"]["template"]["metadata"]["annotations"];
        ensure!(annotations["k8s.v1.cni.cncf.io/networks"].is_null(), "{annotations}");
        let state = namespace.migrate("vm")?["status"]["migrationState"].clone();
        let address = state["targetNodeAddress"].as_str().unwrap_or_default();
        ensure!(!networks.iter().any(|(_, prefix)| address.starts_with(prefix)), "{state}");

        let mut console = Console::open(namespace, "vm")?;
        console.login(SOON)?;
        let now = console.ok("cat /proc/sys/kernel/random/boot_id", SOON)?;
        console.leave()?;
        ensure!(now == boot, "the guest has booted again");
        Ok(())
    });
}
