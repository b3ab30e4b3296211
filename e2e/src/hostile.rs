//! Guests that send what no well-behaved guest sends, beside a guest that must not notice it.
//!
//! ```text
//! hostile -- eth0 behind masquerade -- pod -- node -- pod -- eth0 -- victim -- held connection to a pod
//!        \-- eth1 ------------------- network "lan" ------- eth1 --/      \-- held connection to a pod on "lan"
//! ```
//!
//! The network `lan` drops other MAC addresses than a card's own (`macspoofchk`). The second cards are connected in several
//! [ways](Card). Tests of those that need other settings of the installation are in a program of their own.

use crate::binding_plugins::{self, BESIDE, LOWER, MACVTAP, MANAGED};
use crate::command::kubectl;
use crate::console::Console;
use crate::container::Container;
use crate::frames::{Own, Watch, ensure_kept_in, ensure_none_of};
use crate::installation::NAMESPACE;
use crate::namespace::Namespace;
use crate::networks::{self, Left};
use crate::sending::{self, ALL, ALL6, FORGED};
use crate::wait::{self, SOON};
use crate::{condition, guest, handlers, held_connection, pods};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The node of all of them.
pub const NODE: &str = "node01";
/// The network of the second cards.
pub const LAN: &str = "lan";
/// The guest's addresses behind masquerade.
pub const INSIDE: [&str; 2] = ["10.0.2.2", "fd10:0:2::2"];
/// Its router's there.
pub const ROUTER: &str = "10.0.2.1";
/// The MAC address of a card on a macvtap.
const OF_MACVTAP: &str = "02:00:00:82:00:02";

/// How the second card of a guest is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// By a bridge. The launcher hands its addresses to the guest.
    Bridge,
    /// By a [managed tap](MANAGED) of a binding plugin.
    Managed,
    /// By a [macvtap](MACVTAP) of a binding plugin. There is no bridge in the pod.
    Macvtap,
}

/// A running guest.
pub struct Guest {
    /// Its instance's name.
    pub name: &'static str,
    /// Its console, which is logged in.
    pub console: Console,
    /// Its launcher's pod.
    pub pod: Left,
    /// Its pod's addresses, that of IPv4 first.
    pub addresses: [String; 2],
    /// The cards' MAC addresses.
    pub macs: [String; 2],
    /// How its second card is connected.
    card: Card,
    /// The second card's address.
    pub lan: String,
    /// The name of that card's link in the pod, without what comes before the digits.
    digits: String,
    /// What its web server says, and no other guest's.
    boot: String,
}

/// A pod with a connection to the victim.
pub struct Peer {
    /// Its name.
    pub name: &'static str,
    /// Its addresses on the network of that connection, that of IPv4 first.
    pub addresses: Vec<String>,
    /// Where it reaches the victim.
    victim: String,
}

/// Defines the network. It gives addresses of both families, and the longest frames of a guest fit.
///
/// # Errors
/// When the definition is refused.
pub fn define_lan(namespace: &Namespace) -> Result<()> {
    let ranges = json!([[{ "subnet": "10.82.0.0/24" }], [{ "subnet": "fd82::/64" }]]);
    networks::define(
        namespace,
        LAN,
        &json!({ "ipam": { "type": "host-local", "ranges": ranges }, "mtu": 1500 }),
    )
}

/// Starts a guest with such a card on that network.
///
/// # Errors
/// When it is refused, or its pod gets no macvtap.
pub fn start(namespace: &Namespace, name: &str, card: Card) -> Result<()> {
    let interface = match card {
        Card::Bridge => json!({ "name": LAN, "bridge": {} }),
        Card::Managed => json!({ "name": LAN, "binding": { "name": MANAGED } }),
        // The macvtap is made with another address than that of the pod's link, from which alone the network takes frames.
        Card::Macvtap => json!({ "name": LAN, "binding": { "name": MACVTAP }, "macAddress": OF_MACVTAP }),
    };
    let mut manifest = guest::instance(name);
    let spec = guest::spec_of(&mut manifest);
    spec["nodeSelector"] = json!({ "kubernetes.io/hostname": NODE });
    guest::push(&mut spec["domain"]["devices"]["interfaces"], interface);
    guest::push(&mut spec["networks"], json!({ "name": LAN, "multus": { "networkName": LAN } }));
    namespace.apply(&manifest)?;
    match card {
        Card::Bridge | Card::Managed => Ok(()),
        Card::Macvtap => binding_plugins::make_macvtap(namespace, name, BESIDE),
    }
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().context("a text is missing")?.to_owned())
}

impl Guest {
    /// The guest that was [started](start) so, once it has booted and has its addresses.
    ///
    /// # Errors
    /// When it does not boot, or has no address.
    pub fn booted(namespace: &Namespace, name: &'static str, card: Card) -> Result<Self> {
        let mut console = Console::booted(namespace, name)?;
        // Nothing waits for duplicates of its address, as with the first card (`images/guest-tiny/root/etc/network`).
        console.ok("echo 0 >/proc/sys/net/ipv6/conf/eth1/accept_dad; ip link set eth1 up", SOON)?;
        wait::until_true("the guest's IPv6 addresses and route", SOON, || {
            let said = console.ok("ip addr show dev eth0; ip -6 route show", SOON)?;
            let has_first = said.contains(&format!("inet6 {}/", INSIDE[1]));
            let has_second = sending::link_local(&mut console, "eth1").is_ok();
            Ok(has_first && has_second && said.contains("default via fe80::"))
        })?;
        let launcher = namespace.launcher(name)?;
        let lan = networks::address(&launcher, 1)?;
        match card {
            Card::Bridge => sending::is_given_addresses(&mut console, "eth1")?,
            Card::Managed | Card::Macvtap => {
                console.ok(&format!("ip addr add {lan}/24 dev eth1"), SOON)?;
            }
        }
        let first = networks::card_status(namespace, name, "default")?;
        let second = networks::card_status(namespace, name, LAN)?;
        let link = text(&second["podInterfaceName"])?;
        Ok(Self {
            name,
            boot: console.ok("cat /www/boot-id", SOON)?,
            console,
            pod: Left::of(&launcher)?,
            addresses: pods::both_addresses(&launcher)?,
            macs: [text(&first["mac"])?, text(&second["mac"])?],
            card,
            lan,
            digits: link.strip_prefix("pod").context("the link has another name")?.to_owned(),
        })
    }

    /// Sends frames by a card; returns their number.
    ///
    /// # Errors
    /// When none can be sent.
    pub fn send(&mut self, card: &str, frames: &str) -> Result<u64> {
        sending::send(&mut self.console, card, frames)
    }

    /// Checks that it reaches the victim's web server, and is given its own addresses.
    ///
    /// # Errors
    /// When that is not so.
    pub fn is_well(&mut self, namespace: &Namespace, victim: &Guest) -> Result<()> {
        for address in [&victim.addresses[0], &victim.addresses[1], &victim.lan] {
            let url = format!("http://{}/boot-id", pods::host(address));
            let answer = self.console.ok(&format!("timeout 20 wget -qO- {url}"), SOON)?;
            ensure!(answer == victim.boot, "{url} answers {answer}");
        }
        let has_server: &[&str] = match self.card {
            Card::Bridge => &["eth0", "eth1"],
            Card::Managed | Card::Macvtap => &["eth0"],
        };
        for card in has_server {
            sending::is_given_addresses(&mut self.console, card)?;
        }
        let ready = condition(&namespace.need("vmi", self.name)?, "Ready");
        ensure!(ready["status"] == "True", "{ready}");
        Ok(())
    }
}

impl Peer {
    /// Starts the pod and its connection to the victim at that address, on the pods' network or on another one.
    ///
    /// # Errors
    /// When the pod does not run, or nothing arrives.
    pub fn begin(
        namespace: &Namespace,
        name: &'static str,
        network: Option<&str>,
        victim: &mut Guest,
        address: &str,
    ) -> Result<Self> {
        held_connection::begin_on(namespace, name, (NODE, network), &mut victim.console, address)?;
        let pod = namespace.need("pod", name)?;
        let addresses = match network {
            Some(_) => vec![networks::address(&pod, 1)?],
            None => pods::both_addresses(&pod)?.to_vec(),
        };
        Ok(Self { name, addresses, victim: address.to_owned() })
    }
}

/// What no frame may change.
#[derive(Debug)]
pub struct Seen {
    /// The victim's, and those of the hostile guest's pod.
    addresses_and_routes: [String; 2],
    /// Who knows which MAC address of the victim, of the peer, or of the victim's router.
    neighbours: BTreeSet<String>,
}

impl Seen {
    /// Looks.
    ///
    /// # Errors
    /// When a guest, a pod or a node does not answer.
    pub fn now(namespace: &Namespace, hostile: &Guest, victim: &mut Guest, peer: &Peer) -> Result<Self> {
        let show = |enter: &str| {
            let addresses = format!("{enter} ip -o addr show | awk '{{ print $2, $4 }}'");
            // The time that is left changes.
            format!("{addresses}; {enter} ip route show; {enter} ip -6 route show | sed 's/ *expires.*//'")
        };
        let enter = hostile.pod.enter();
        let inside = victim.console.ok(&show(""), SOON)?;
        let addresses_and_routes = [inside, hostile.pod.node.sh(&show(&enter))?];
        let of_peer = Container::of(&namespace.need("pod", peer.name)?)?.sh("ip neigh show")?;
        let enter = victim.pod.enter();
        let tables = [
            ("victim", victim.console.ok("ip neigh show", SOON)?),
            ("victim's pod", victim.pod.node.sh(&format!("{enter} ip neigh show"))?),
            (peer.name, of_peer.stdout),
        ];
        let known = [ROUTER, &peer.victim, &peer.addresses[0]];
        let neighbours = tables.iter().flat_map(|(who, table)| neighbours(who, table, &known)).collect();
        Ok(Self { addresses_and_routes, neighbours })
    }

    /// Checks that nothing else is seen later. A neighbour may be forgotten.
    ///
    /// # Errors
    /// When that is not so.
    pub fn ensure_still(&self, later: &Self) -> Result<()> {
        let is_same = self.addresses_and_routes == later.addresses_and_routes;
        ensure!(is_same && later.neighbours.is_subset(&self.neighbours), "before: {self:?}, then: {later:?}");
        Ok(())
    }
}

/// The lines `WHO ADDRESS MAC` of a table of neighbours for those of these addresses whose MAC address is known.
pub fn neighbours(who: &str, table: &str, addresses: &[&str]) -> Vec<String> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|address| addresses.contains(address))?;
        let mac = words.skip_while(|word| *word != "lladdr").nth(1)?;
        Some(format!("{who} {address} {mac}"))
    };
    table.lines().filter_map(line).collect()
}

/// Checks what the hostile guest sends on [`LAN`]: its pod believes nothing of it, and the network keeps back what has another MAC
/// address.
///
/// # Errors
/// When that is not so.
pub fn is_kept_in_on_lan(
    namespace: &Namespace,
    hostile: &mut Guest,
    victim: &mut Guest,
    beside: &Peer,
) -> Result<()> {
    hostile.is_well(namespace, victim)?;
    let before = Seen::now(namespace, hostile, victim, beside)?;
    let (mine, mac) = (hostile.lan.clone(), hostile.macs[1].clone());
    let own = Own { mac: &mac, ipv4: &mine, ipv6: None };
    let digits = hostile.digits.clone();
    let (sent, out, bridge) = match hostile.card {
        Card::Bridge | Card::Managed => {
            let sent = Watch::guest(&hostile.pod, &format!("tap{digits}"), &own)?;
            let bridge = hostile.pod.mac(&format!("k6t-{digits}"))?;
            (Some(sent), format!("{digits}-nic"), Some(bridge))
        }
        // Only what enters a bridge is counted, and this one has none.
        Card::Macvtap => (None, LOWER.to_owned(), None),
    };
    let came_out = Watch::pod(&hostile.pod, &out, &own)?;

    let (theirs, theirs4, beside4) = (&victim.macs[1], &victim.lan, &beside.addresses[0]);
    for frames in [
        format!("{FORGED} {theirs} udp {mine} {theirs4}"),
        format!("{FORGED} {ALL} arp {theirs4} {theirs4}"),
        format!("{FORGED} {ALL} arp {beside4} {beside4}"),
        format!("{FORGED} {ALL6} neighbour fd00:82::66 ff02::1"),
        format!("{FORGED} {ALL6} router fe80::66 ff02::1"),
        format!("{FORGED} {ALL} offer {mine} 10.82.0.77"),
    ] {
        hostile.send("eth1", &frames)?;
    }
    // From its own MAC address, and to its own pod only: other hosts of the network would hear it.
    if let Some(bridge) = &bridge {
        for frames in [
            format!("{mac} {bridge} router fe80::66 ff02::1"),
            format!("{mac} {bridge} options 0.0.0.0 255.255.255.255 2"),
        ] {
            hostile.send("eth1", &frames)?;
        }
        // How many answers there are says nothing here: other hosts of the network are heard, too.
        sending::flood_ipv6(&mut hostile.console, "eth1", &mac, [bridge, bridge])?;
    }
    sending::flood(&mut hostile.console, "eth1", &format!("{mac} {theirs} udp {mine} {theirs4}"))?;
    hostile.is_well(namespace, victim)?;
    // Last, because its own pod's bridge then looks for the victim behind the tap, for five minutes.
    hostile.send("eth1", &format!("{theirs} {ALL} arp {theirs4} {theirs4}"))?;

    let kinds = ["mac", "ipv6", "arp", "neighbour", "router", "offer"];
    match sent {
        Some(sent) => ensure_kept_in(&kinds, &sent.counted()?, &came_out.counted()?)?,
        None => ensure_none_of(&kinds, &came_out.counted()?)?,
    }
    held_connection::goes_on(namespace, beside.name)?;
    before.ensure_still(&Seen::now(namespace, hostile, victim, beside)?)
}

/// Checks that the node's handler and the guest's launcher have logged no error since then, and that the launcher says that it was
/// flooded from these MAC addresses.
///
/// # Errors
/// When that is not so.
pub fn nothing_has_failed(
    namespace: &Namespace,
    hostile: &Guest,
    began: jiff::Timestamp,
    flooded_from: &[&str],
) -> Result<()> {
    let handlers = handlers::pods()?;
    let (_, handler) = handlers.iter().find(|(node, _)| node == NODE).context("the node has no handler")?;
    let since = format!("--since-time={began:.0}");
    let of_handler = kubectl(&["logs", "-n", NAMESPACE, handler, &since])?;
    let launcher = text(&namespace.launcher(hostile.name)?["metadata"]["name"])?;
    let of_launcher = namespace.kubectl(&["logs", &launcher, "-c", "compute"])?;
    for line in of_handler.lines().chain(of_launcher.lines()) {
        ensure!(!line.contains("\"level\":\"ERROR\"") && !line.contains("panicked at"), "{line}");
    }
    for mac in flooded_from {
        let is_told = |line: &str| line.contains("asks for its addresses too often") && line.contains(mac);
        ensure!(of_launcher.lines().any(is_told), "the flood of requests from {mac} was none: {of_launcher}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_neighbours_with_these_addresses_and_a_mac_address_are_listed() {
        let table = "10.82.0.2 dev eth1 lladdr 02:00:00:00:00:02 used 0/0/0 probes 1 REACHABLE
10.82.0.3 dev eth1  used 0/0/0 probes 6 FAILED
10.82.0.4 dev eth1 lladdr 02:00:00:00:00:04 STALE
";
        assert_eq!(
            neighbours("victim", table, &["10.82.0.2", "10.82.0.3"]),
            ["victim 10.82.0.2 02:00:00:00:00:02"]
        );
    }
}
