//! The bridge binding on the pod network: the guest has the pod's own address, and is directly on its
//! network.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, condition, guest, in_namespace, pods, questions};
use serde_json::{Value, json};

fn bridged(name: &str) -> Value {
    let mut manifest = guest::instance(name);
    manifest["spec"]["domain"]["devices"]["interfaces"] = json!([{ "name": "default", "bridge": {} }]);
    manifest["spec"]["networks"] = json!([{ "name": "default", "pod": {} }]);
    manifest
}

/// Prints what distinguishes one guest from another.
const BOOT_ID: &str = "cat /www/boot-id";

/// A running guest on that node: its pod's addresses, that of IPv4 first, and a console that has logged in.
fn on(namespace: &Namespace, name: &str, node: &str) -> Result<([String; 2], Console)> {
    let mut manifest = bridged(name);
    guest::spec_of(&mut manifest)["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    namespace.apply(&manifest)?;
    namespace.wait_phase(name, "Running", RUNNING)?;
    let launcher = namespace.launcher(name)?;
    let addresses = pods::both_addresses(&launcher)?;
    ensure!(launcher["status"]["podIP"] == addresses[0], "the first address of {name} is not {addresses:?}");
    let mut console = Console::open(namespace, name)?;
    console.login(BOOT)?;
    Ok((addresses, console))
}

/// Two guests on two nodes, and a pod on each. Each step is a behaviour of its own.
#[test]
fn guests_have_their_pods_addresses_and_reach_each_other_and_pods_and_are_reached_there() {
    in_namespace("bridge", |namespace| {
        pods::server(namespace, "greeter", "hello from a pod")?;
        let (addresses, mut console) = on(namespace, "first", "node01")?;
        let (others, mut second) = on(namespace, "second", "node02")?;
        let boots = [console.ok(BOOT_ID, SOON)?, second.ok(BOOT_ID, SOON)?];
        second.leave()?;
        has_its_pods_ipv4_address(&mut console, &addresses[0])?;
        has_its_pods_ipv6_address_and_the_networks_router(&mut console, &addresses[1])?;
        reaches_a_service(namespace, &mut console)?;
        let url = format!("http://{}/boot-id", pods::host(&others[1]));
        wait::until_true(&format!("an answer from {url}"), BOOT, || {
            Ok(console.run(&format!("timeout 5 wget -qO- {url}"), SOON)?.0.trim() == boots[1].trim())
        })?;
        console.leave()?;
        for node in ["node01", "node02"] {
            let name = format!("client-{node}");
            let client = pods::client_on(namespace, &name, node)?;
            for address in &addresses {
                let url = format!("http://{}/boot-id", pods::host(address));
                client.wait_answer(&url, Some(boots[0].trim()), SOON)?;
            }
        }
        is_reported(namespace, &addresses)
    });
}

fn has_its_pods_ipv4_address(console: &mut Console, address: &str) -> Result<()> {
    let has = console.ok("ip -4 address show dev eth0", SOON)?;
    ensure!(has.contains(&format!("inet {address}/")), "the pod has {address}, and the guest {has}");
    Ok(())
}

fn has_its_pods_ipv6_address_and_the_networks_router(console: &mut Console, address: &str) -> Result<()> {
    wait::until_true("the pod's IPv6 address in the guest", SOON, || {
        let has = console.ok("ip -6 address show dev eth0", SOON)?;
        Ok(has.contains(&format!("inet6 {address}/128")) && !has.contains("dadfailed"))
    })?;
    // The router of the advertisement is the network's own, not the pod.
    let routes = console.ok("ip -6 route show", SOON)?;
    let default = routes.lines().find(|line| line.starts_with("default via fe80::"));
    ensure!(default.is_some_and(|line| line.contains("dev eth0")), "{routes}");
    Ok(())
}

fn reaches_a_service(namespace: &Namespace, console: &mut Console) -> Result<()> {
    let answer = console.ok("timeout 20 wget -qO- http://greeter/", SOON)?;
    ensure!(answer == "hello from a pod", "{answer}");
    questions::ask_service(console, namespace, "greeter", "hello from a pod")
}

fn is_reported(namespace: &Namespace, addresses: &[String]) -> Result<()> {
    let vmi = namespace.need("vmi", "first")?;
    let told = &vmi["status"]["interfaces"][0];
    ensure!(told["ipAddress"] == addresses[0], "{told}");
    let all = told["ipAddresses"].as_array().cloned().unwrap_or_default();
    ensure!(all.len() == 2 && all.contains(&json!(addresses[1])), "{told}");
    let migratable = condition(&vmi, "LiveMigratable");
    ensure!(migratable["reason"] == "InterfaceNotLiveMigratable", "{}", vmi["status"]["conditions"]);
    Ok(())
}
