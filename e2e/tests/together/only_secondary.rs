//! Guests that are not on the pods' network: all their cards are on networks that the test bed's own delegate attaches in place of
//! Multus, beside that of the pods or in its place. The API server is on none of these networks. A guest that is only on networks
//! beside that of the pods is never reached through it, and the commands that would need that say so.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, networks};
use serde_json::{Value, json};

/// How the messages begin. They also say from where the guest is reached.
const NO_WAY: &str = "the guest has no interface on the pod network";

/// A guest with these bridged cards only, each on the network of its definition, which is `multus`. It is on the node of the pod
/// that it shall reach, because each node has a list of its own of the addresses in use.
fn guest_with(cards: &[(&str, Value)]) -> Value {
    let mut manifest = guest::instance("vm");
    let spec = guest::spec_of(&mut manifest);
    spec["nodeSelector"] = json!({ "kubernetes.io/hostname": "node01" });
    let named = |(name, _): &(&str, Value)| json!({ "name": name, "bridge": {} });
    spec["domain"]["devices"]["interfaces"] = cards.iter().map(named).collect();
    let networks = cards.iter().map(|(name, multus)| json!({ "name": name, "multus": multus }));
    spec["networks"] = networks.collect();
    manifest
}

/// Defines a network that gives addresses of that range, and starts a pod on it; the pod's address there.
fn leasing(namespace: &Namespace, name: &str, range: &str) -> Result<String> {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": range }]] });
    networks::define(namespace, name, &json!({ "ipam": ipam }))?;
    networks::neighbour(namespace, name)
}

/// The guest has the address that its card's status shows, and reaches the pod there.
fn has_its_address(namespace: &Namespace, console: &mut Console, card: &str, neighbour: &str) -> Result<()> {
    let shown = networks::card_status(namespace, "vm", card)?;
    let address = shown["ipAddress"].as_str().with_context(|| format!("no address is shown: {shown}"))?;
    networks::wait_inside(console, &[format!("inet {address}/24")])?;
    let answer = console.ok(&format!("timeout 20 wget -qO- http://{neighbour}:8080/"), SOON)?;
    ensure!(answer == "neighbour", "{answer}");
    Ok(())
}

#[test]
fn a_guest_with_only_cards_of_the_test_beds_delegate_runs_and_commands_say_that_no_way_leads_to_it() {
    in_namespace("secondary", |namespace| {
        let neighbour = leasing(namespace, "leased", "10.83.0.0/24")?;
        networks::define(namespace, "plain", &json!({}))?;
        let on = |name: &str| json!({ "networkName": name });
        let manifest = guest_with(&[("leased", on("leased")), ("plain", on("plain"))]);
        let mut console = Console::boot(namespace, &manifest)?;
        has_its_address(namespace, &mut console, "leased", &neighbour)?;
        has_both_cards_in_its_status(namespace, &mut console)?;
        console.leave()?;
        commands_say_that_there_is_no_way(namespace)
    });
}

fn has_both_cards_in_its_status(namespace: &Namespace, console: &mut Console) -> Result<()> {
    for (name, inside) in [("leased", "eth0"), ("plain", "eth1")] {
        wait::until_true(&format!("both sources of card {name}"), SOON, || {
            let shown = networks::card_status(namespace, "vm", name)?;
            Ok(shown["infoSource"] == "domain, multus-status")
        })?;
        let shown = networks::card_status(namespace, "vm", name)?;
        let link = shown["podInterfaceName"].as_str().unwrap_or_default();
        ensure!(link.starts_with("pod") && shown["linkState"] == "up", "{shown}");
        let mac = console.ok(&format!("cat /sys/class/net/{inside}/address"), SOON)?;
        ensure!(shown["mac"] == mac, "the guest's card has {mac}: {shown}");
    }
    let cards = namespace.need("vmi", "vm")?["status"]["interfaces"].clone();
    ensure!(cards.as_array().map(Vec::len) == Some(2), "{cards}");
    Ok(())
}

fn commands_say_that_there_is_no_way(namespace: &Namespace) -> Result<()> {
    for command in [
        &["port-forward", "--stdio=true", "vmi/vm", "80"][..],
        &["ssh", "root@vmi/vm", "-c", "true"],
        &["scp", "root@vmi/vm:/etc/hostname", "/dev/null"],
        &["expose", "vmi", "vm", "--name=web", "--port=80"],
    ] {
        let output = namespace.try_virtctl(command)?;
        let said = output.text();
        ensure!(output.code != 0 && said.contains(NO_WAY), "{command:?} ends with {}: {said}", output.code);
    }
    ensure!(namespace.get("service", "web")?.is_none(), "there is a service that reaches nobody");
    Ok(())
}

#[test]
fn a_default_network_that_the_test_beds_delegate_attaches_is_the_guests_in_place_of_the_pod_network() {
    in_namespace("default-network", |namespace| {
        let neighbour = leasing(namespace, "first", "10.84.0.0/24")?;
        let first = json!({ "networkName": "first", "default": true });
        let mut console = Console::boot(namespace, &guest_with(&[("first", first)]))?;
        has_its_address(namespace, &mut console, "first", &neighbour)?;
        console.leave()?;
        let shown = networks::card_status(namespace, "vm", "first")?;
        ensure!(shown["podInterfaceName"] == "eth0", "{shown}");
        let pod = namespace.launcher("vm")?;
        ensure!(
            pod["status"]["podIP"] == shown["ipAddress"],
            "the pod has another address than {shown}: {}",
            pod["status"]
        );
        Ok(())
    });
}
