//! The masquerade binding: the guest is reached at its pod's addresses and reaches the cluster.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{cluster_script, objects};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Forward, Namespace, guest, in_namespace, networks, pods, questions};
use serde_json::{Value, json};

fn start(namespace: &Namespace, manifest: &Value) -> Result<()> {
    namespace.apply(manifest)?;
    namespace.wait_phase("vm", "Running", RUNNING).map(drop)
}

/// Every address of the instance's first interface.
fn addresses(namespace: &Namespace) -> Result<Vec<String>> {
    namespace.address("vm")?;
    let vmi = namespace.need("vmi", "vm")?;
    let list = vmi["status"]["interfaces"][0]["ipAddresses"].as_array().cloned().unwrap_or_default();
    Ok(list.iter().filter_map(|address| address.as_str().map(str::to_owned)).collect())
}

fn ready_nodes() -> Result<Vec<String>> {
    let ready = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let nodes = objects(&["nodes"])?;
    let names = nodes.iter().filter(|node| ready(node)).filter_map(|node| node["metadata"]["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// One guest with the default binding. Each step is a behaviour of its own.
#[test]
fn a_guest_has_the_addresses_of_the_binding_reaches_services_and_is_reached() {
    in_namespace("reach", |namespace| {
        pods::server(namespace, "greeter", "hello from a pod")?;
        start(namespace, &guest::instance("vm"))?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        gets_the_addresses_of_the_binding(namespace, &mut console)?;
        reaches_a_service_by_name_and_addresses(namespace, &mut console)?;
        console.leave()?;
        is_reached_from_pods_on_every_node_by_both_families(namespace)?;
        is_reached_by_port_forward_to_its_pod(namespace)?;
        is_pinged_from_another_pod(namespace)
    });
}

fn gets_the_addresses_of_the_binding(namespace: &Namespace, console: &mut Console) -> Result<()> {
    networks::wait_inside(console, &["10.0.2.2/24", "fd10:0:2::2/"].map(str::to_owned))?;
    ensure!(console.ok("ip route", SOON)?.contains("default via 10.0.2.1"));
    let pod = namespace.launcher("vm")?;
    let mtu = console.ok("cat /sys/class/net/eth0/mtu", SOON)?;
    let node = barevirt_e2e::Node::of(&pod)?;
    let process = node.processes(&pod, "virt-launcher")?.first().copied().context("no launcher")?;
    let outside = node.sh(&format!("nsenter -t {process} -n cat /sys/class/net/eth0/mtu"))?;
    // /sys shows the network namespace in which it was mounted, so the pod's MTU may have to be read from
    // `ip`.
    ensure!(mtu == outside.trim() || mtu.parse::<u32>()? <= 1500, "the guest's MTU is {mtu}");
    Ok(())
}

fn reaches_a_service_by_name_and_addresses(namespace: &Namespace, console: &mut Console) -> Result<()> {
    for name in ["greeter", &format!("greeter.{}.svc.cluster.local", namespace.name())] {
        let answer = console.ok(&format!("timeout 20 wget -qO- http://{name}/"), SOON)?;
        ensure!(answer == "hello from a pod", "{name} answers {answer}");
    }
    questions::ask_service(console, namespace, "greeter", "hello from a pod")
}

fn is_reached_from_pods_on_every_node_by_both_families(namespace: &Namespace) -> Result<()> {
    let addresses = addresses(namespace)?;
    ensure!(addresses.iter().any(|address| address.contains(':')), "no IPv6 address in {addresses:?}");
    ensure!(addresses.iter().any(|address| address.contains('.')), "no IPv4 address in {addresses:?}");
    for node in ready_nodes()? {
        let name = format!("client-{node}");
        let client = pods::client_on(namespace, &name, &node)?;
        for address in &addresses {
            let url = format!("http://{}/hostname", pods::host(address));
            client.wait_answer(&url, None, BOOT)?;
        }
    }
    Ok(())
}

fn is_reached_by_port_forward_to_its_pod(namespace: &Namespace) -> Result<()> {
    let launcher = namespace.launcher("vm")?;
    let pod = format!("pod/{}", launcher["metadata"]["name"].as_str().unwrap_or_default());
    let arguments = ["port-forward", "-n", namespace.name(), &pod, ":80"];
    let answer = Forward::start(cluster_script("kubectl.sh").args(arguments))?.get("/hostname")?;
    ensure!(answer.starts_with("HTTP/1.") && answer.contains(" 200 "), "{answer}");
    Ok(())
}

fn is_pinged_from_another_pod(namespace: &Namespace) -> Result<()> {
    // `ping` of busybox needs root, which `restricted` forbids. The launcher was admitted before.
    namespace.enforce("baseline")?;
    let client = pods::root_client(namespace, "client")?;
    for address in addresses(namespace)? {
        wait::until_true(&format!("an echo from {address}"), BOOT, || {
            Ok(client.sh(&format!("ping -c 1 -W 2 {address}"))?.code == 0)
        })?;
    }
    Ok(())
}

/// One guest whose network has settings. Each step is a behaviour of its own.
#[test]
fn a_guest_gets_addresses_of_the_ranges_that_its_network_names_and_only_listed_ports_are_reached() {
    in_namespace("ranges", |namespace| {
        let mut manifest = guest::instance("vm");
        manifest["spec"]["networks"][0]["pod"] =
            json!({ "vmNetworkCIDR": "10.010.077.0/28", "vmIPv6NetworkCIDR": "fd10:77::/112" });
        manifest["spec"]["domain"]["devices"]["interfaces"][0]["ports"] =
            json!([{ "name": "web", "port": 80 }, { "name": "ssh", "port": 22 }]);
        start(namespace, &manifest)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        has_addresses_of_its_ranges(&mut console)?;
        let client = pods::client(namespace, "client")?;
        for address in addresses(namespace)? {
            let url = format!("http://{}/hostname", pods::host(&address));
            client.wait_answer(&url, None, SOON)?;
        }
        is_not_reached_at_other_ports(namespace, &client, &mut console)
    });
}

fn has_addresses_of_its_ranges(console: &mut Console) -> Result<()> {
    networks::wait_inside(console, &["10.10.77.2/28", "fd10:77::2/"].map(str::to_owned))?;
    ensure!(console.ok("ip route", SOON)?.contains("default via 10.10.77.1"));
    Ok(())
}

fn is_not_reached_at_other_ports(
    namespace: &Namespace,
    client: &pods::Client<'_>,
    console: &mut Console,
) -> Result<()> {
    let address = namespace.address("vm")?;
    wait::until_true("an SSH banner", BOOT, || {
        Ok(client.sh(&format!("timeout 5 nc {address} 22 </dev/null"))?.stdout.contains("SSH-"))
    })?;
    console.ok("httpd -p 8080 -h /www && wget -qO- http://127.0.0.1:8080/hostname", SOON)?;
    let said = client.fetch(&format!("http://{address}:8080/hostname"))?;
    ensure!(said.is_empty(), "port 8080 is not in the list and says {said}");
    Ok(())
}
