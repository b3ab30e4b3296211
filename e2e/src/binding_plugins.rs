//! Guests whose cards are connected as a binding plugin says. Neither kind of plugin gives a guest its address, so on the pods'
//! network the test tells it.
//!
//! ```text
//!   bare     managedTap   network -- the pod's link -- bridge -- tap -- guest
//!   macvtap  tap          network -- "lower" -- macvtap with the name of the pod's link -- guest
//! ```

use crate::components::{RUNNING_COMPONENTS, lives, wait_in_force};
use crate::console::Console;
use crate::guest;
use crate::installation::{Changed, wait_available};
use crate::namespace::Namespace;
use crate::networks;
use crate::node::Node;
use crate::pods::Client;
use crate::wait::{self, RUNNING, SOON};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// The plugin of managed taps.
pub const MANAGED: &str = "bare";
/// The plugin whose pods have a tap. The test [makes it](make_macvtap) in place of a CNI plugin.
pub const MACVTAP: &str = "macvtap";
/// Pattern of the names of pods' links on networks beside that of the pods.
pub const BESIDE: &str = "pod[0-9a-f]*";
/// The pod's link on the pods' network.
pub const FIRST: &str = "eth0";
/// The link below a macvtap that a test has [made](make_macvtap), which leads to the network.
pub const LOWER: &str = "lower";

/// Has the installation know both plugins, until the value is dropped. Who calls it is [alone](crate::alone).
///
/// # Errors
/// When that is not in force in time.
pub fn begin() -> Result<Changed> {
    wait_available()?;
    let components = lives(RUNNING_COMPONENTS)?;
    let changed = Changed::begin(&json!({"configuration": {"network": {"binding": {
        MANAGED: {"domainAttachmentType": "managedTap", "migration": {"method": "link-refresh"},
            "computeResourceOverhead": {"requests": {"memory": "7Mi"}}},
        MACVTAP: {"domainAttachmentType": "tap", "migration": {"method": "link-refresh"}},
    }}}}))?;
    wait_in_force(components.keys())?;
    Ok(changed)
}

/// A guest on the pods' network on that node, by that plugin, with user data. It waits for no DHCP server, as there is none.
pub fn on_pod_network(name: &str, plugin: &str, node: &str, user_data: &str) -> Value {
    let mut manifest = guest::with_user_data(guest::instance(name), user_data);
    let spec = guest::spec_of(&mut manifest);
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    spec["domain"]["devices"]["interfaces"] = json!([{"name": "default", "binding": {"name": plugin}}]);
    let network_data = "version: 2\nethernets:\n  eth0:\n    dhcp4: false\n";
    spec["volumes"][1]["cloudInitNoCloud"]["networkData"] = json!(network_data);
    manifest
}

/// Starts the machine `vm`, whose guest can move. Its second card is on a macvtap, with that MAC address, on a network of both
/// nodes. The console is logged in.
///
/// # Errors
/// When the guest does not boot in time.
pub fn start_movable(namespace: &Namespace, mac: &str) -> Result<Console> {
    networks::define(namespace, "lan", &json!({"macspoofchk": false}))?;
    let mut machine = guest::movable(guest::machine("vm", "Always"));
    let spec = guest::spec_of(&mut machine);
    let card = json!({"name": "lan", "binding": {"name": MACVTAP}, "macAddress": mac});
    guest::push(&mut spec["domain"]["devices"]["interfaces"], card);
    guest::push(&mut spec["networks"], json!({"name": "lan", "multus": {"networkName": "lan"}}));
    namespace.apply(&machine)?;
    make_macvtap(namespace, "vm", BESIDE)?;
    Console::booted(namespace, "vm")
}

/// Turns a link of the pod into a macvtap with the link's name and IP addresses. A macvtap has another MAC address than the link
/// below it. It gets its name last, since the handler takes it then. The link below, which is on the node with a CNI plugin, says
/// nothing about the addresses above it.
const MAKE_MACVTAP: &str = r#"
    link=$(ip -o link show type veth | sed -n "s/.*: \(LINK\)@.*/\1/p")
    has=$(ip -o address show dev $link scope global | sed "s/.* inet6* \([^ ]*\) .*/\1/")
    ip link set $link down
    ip link set $link name lower
    ip address flush dev lower
    ip link set lower address 02:00:00:79:00:98
    echo 1 >/proc/sys/net/ipv4/conf/lower/arp_ignore
    ip link set lower up
    ip link add link lower name upper type macvtap mode bridge
    for one in $has; do ip address add $one dev upper; done
    ip link set upper name $link
"#;

/// Makes it once the pod of that guest has its network. Until then the handler finds no tap, and tries again.
///
/// # Errors
/// When there is no pod in time, or no such link.
pub fn make_macvtap(namespace: &Namespace, guest: &str, link: &str) -> Result<()> {
    make_macvtap_in(|| namespace.launcher(guest), link)
}

/// Has a guest move, and makes a macvtap of that link of the pod that it moves to. Returns the instance after it.
///
/// # Errors
/// When there is no such pod in time, or no such link, or the guest does not move.
pub fn migrate_to_macvtap(namespace: &Namespace, guest: &str, link: &str) -> Result<Value> {
    let home = begin_migration_to_macvtap(namespace, guest, link)?;
    namespace.wait_moved(guest, &home)
}

/// The same, without the end of the migration. Returns the node that the guest is on until then.
///
/// # Errors
/// When the guest cannot move, or there is no such pod in time, or no such link.
pub fn begin_migration_to_macvtap(namespace: &Namespace, guest: &str, link: &str) -> Result<Value> {
    let home = namespace.begin_migration(guest)?;
    make_macvtap_in(|| namespace.target(guest), link)?;
    Ok(home)
}

fn make_macvtap_in(find: impl Fn() -> Result<Value>, link: &str) -> Result<()> {
    let (node, sandbox) = wait::until("the pod's sandbox", RUNNING, || {
        let Ok(pod) = find() else { return Ok(None) };
        let Ok(node) = Node::of(&pod) else { return Ok(None) };
        let sandbox = node.processes(&pod, "pause")?.first().copied();
        Ok(sandbox.map(|sandbox| (node, sandbox)))
    })?;
    let script = MAKE_MACVTAP.replace("LINK", link);
    node.sh(&format!("nsenter -t {sandbox} -n sh -ec '{script}'")).map(drop)
}

/// Tells the guest at that console its pod's addresses, with the gateways and name servers of another pod of its node.
///
/// # Errors
/// When the guest or the pod refuses a command.
pub fn take_addresses(console: &mut Console, addresses: &[String; 2], beside: &Client<'_>) -> Result<()> {
    let show = "ip address show dev eth0; ip route; ip -6 route; cat /etc/resolv.conf";
    let shown = beside.sh(show)?;
    ensure!(shown.code == 0, "{}", shown.text());
    console.ok(&commands(addresses, &shown.stdout)?, SOON).map(drop)
}

/// The guest's commands, from what the other pod shows.
fn commands([four, six]: &[String; 2], shown: &str) -> Result<String> {
    let prefix = |word: &'static str| {
        let address = after(shown, word).find(|address| !address.starts_with("fe80:"));
        address.and_then(|address| address.split_once('/')).map(|(_, prefix)| prefix)
    };
    let gateway = |is_ipv6: bool| after(shown, "default via ").find(|one| one.contains(':') == is_ipv6);
    let (four_prefix, six_prefix) = (prefix("inet "), prefix("inet6 "));
    let missing = || format!("not both addresses and gateways are in {shown}");
    let (four_prefix, six_prefix) = four_prefix.zip(six_prefix).with_context(missing)?;
    let (four_gateway, six_gateway) = gateway(false).zip(gateway(true)).with_context(missing)?;
    let names = shown.lines().filter(|line| line.starts_with("nameserver ") || line.starts_with("search "));
    let names: String = names.map(|line| format!(" '{line}'")).collect();
    Ok(format!(
        "ip address add {four}/{four_prefix} dev eth0 && ip address add {six}/{six_prefix} dev eth0 && \
         ip route replace default via {four_gateway} && ip -6 route replace default via {six_gateway} dev eth0 && \
         printf '%s\\n'{names} >/etc/resolv.conf"
    ))
}

/// The words that follow the lines' beginning.
fn after<'s>(shown: &'s str, beginning: &'static str) -> impl Iterator<Item = &'s str> {
    shown.lines().filter_map(move |line| line.trim().strip_prefix(beginning)?.split(' ').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "2: eth0@if9: <BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
    inet 10.244.1.5/24 brd 10.244.1.255 scope global eth0
    inet6 fe80::1/128 scope link
    inet6 fd00:1::5/64 scope global
default via 10.244.1.1 dev eth0
10.244.1.0/24 dev eth0 scope link  src 10.244.1.5
fd00:1::/64 dev eth0  metric 256
default via fd00:1::1 dev eth0  metric 1024
search a.svc.cluster.local svc.cluster.local
nameserver 10.96.0.10
options ndots:5
";

    #[test]
    fn a_guest_is_told_its_own_addresses_and_what_its_neighbour_has_beside() {
        let own = ["10.244.1.9".to_owned(), "fd00:1::9".to_owned()];
        assert_eq!(
            commands(&own, SHOWN).unwrap(),
            "ip address add 10.244.1.9/24 dev eth0 && ip address add fd00:1::9/64 dev eth0 && \
             ip route replace default via 10.244.1.1 && ip -6 route replace default via fd00:1::1 dev eth0 && \
             printf '%s\\n' 'search a.svc.cluster.local svc.cluster.local' 'nameserver 10.96.0.10' >/etc/resolv.conf"
        );
        assert!(commands(&own, "inet 10.244.1.5/24\ndefault via 10.244.1.1 dev eth0").is_err());
    }
}
