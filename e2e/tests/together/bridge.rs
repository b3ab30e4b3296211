//! The bridge binding on the pod network: the guest has the pod's own address, and is directly on its
//! network.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};

fn bridged(name: &str) -> Value {
    let mut manifest = guest::instance(name);
    manifest["spec"]["domain"]["devices"]["interfaces"] = json!([{ "name": "default", "bridge": {} }]);
    manifest["spec"]["networks"] = json!([{ "name": "default", "pod": {} }]);
    manifest
}

#[test]
fn a_guest_has_the_address_of_its_pod_and_is_reached_there() {
    in_namespace("bridge", |namespace| {
        pods::server(namespace, "greeter", "hello from a pod")?;
        namespace.apply(&bridged("vm"))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let launcher = namespace.launcher("vm")?;
        let address = launcher["status"]["podIP"].as_str().context("the pod has no address")?.to_owned();
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        let has = console.ok("ip -4 address show dev eth0", SOON)?;
        ensure!(has.contains(&format!("inet {address}/")), "the pod has {address}, and the guest {has}");
        let answer = console.ok("timeout 20 wget -qO- http://greeter/", SOON)?;
        ensure!(answer == "hello from a pod", "{answer}");
        console.leave()?;
        let client = pods::client_on(namespace, "client", "node01")?;
        let url = format!("http://{}/hostname", pods::host(&address));
        client.wait_answer(&url, None, BOOT)?;
        let vmi = namespace.need("vmi", "vm")?;
        let told = &vmi["status"]["interfaces"][0];
        ensure!(told["ipAddress"] == address.as_str(), "{told}");
        let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let migratable = conditions.iter().find(|condition| condition["type"] == "LiveMigratable");
        ensure!(migratable.is_some_and(|it| it["reason"] == "InterfaceNotLiveMigratable"), "{conditions:?}");
        Ok(())
    });
}

/// Prints what tells one guest from another.
const BOOT_ID: &str = "cat /www/boot-id";

/// A running guest on that node: its pod's IPv6 address, and a console that has logged in.
fn with_ipv6(namespace: &Namespace, name: &str, node: &str) -> Result<(String, Console)> {
    let mut manifest = bridged(name);
    guest::spec_of(&mut manifest)["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    namespace.apply(&manifest)?;
    namespace.wait_phase(name, "Running", RUNNING)?;
    let launcher = namespace.launcher(name)?;
    let addresses = launcher["status"]["podIPs"].as_array().cloned().unwrap_or_default();
    let mut addresses = addresses.iter().filter_map(|one| one["ip"].as_str());
    let address = addresses.find(|address| address.contains(':')).context("the pod has no IPv6 address")?;
    let mut console = Console::open(namespace, name)?;
    console.login(BOOT)?;
    Ok((address.to_owned(), console))
}

#[test]
fn guests_with_their_pods_ipv6_addresses_reach_each_other_and_pods_by_the_networks_router() {
    in_namespace("bridge6", |namespace| {
        let (address, mut console) = with_ipv6(namespace, "first", "node01")?;
        let (other, mut second) = with_ipv6(namespace, "second", "node02")?;
        let boots = [console.ok(BOOT_ID, SOON)?, second.ok(BOOT_ID, SOON)?];
        second.leave()?;
        wait::until_true("the pod's IPv6 address in the guest", SOON, || {
            let has = console.ok("ip -6 address show dev eth0", SOON)?;
            Ok(has.contains(&format!("inet6 {address}/128")) && !has.contains("dadfailed"))
        })?;
        // The router of the advertisement is the network's own, not the pod.
        let routes = console.ok("ip -6 route show", SOON)?;
        let default = routes.lines().find(|line| line.starts_with("default via fe80::"));
        ensure!(default.is_some_and(|line| line.contains("dev eth0")), "{routes}");
        let url = format!("http://{}/boot-id", pods::host(&other));
        wait::until_true(&format!("an answer from {url}"), BOOT, || {
            Ok(console.run(&format!("timeout 5 wget -qO- {url}"), SOON)?.0.trim() == boots[1].trim())
        })?;
        console.leave()?;
        for node in ["node01", "node02"] {
            let name = format!("client-{node}");
            let client = pods::client_on(namespace, &name, node)?;
            let url = format!("http://{}/boot-id", pods::host(&address));
            client.wait_answer(&url, Some(boots[0].trim()), SOON)?;
        }
        let told = namespace.need("vmi", "first")?["status"]["interfaces"][0].clone();
        let all = told["ipAddresses"].as_array().cloned().unwrap_or_default();
        ensure!(all.len() == 2 && all.contains(&json!(address)), "{told}");
        Ok(())
    });
}
