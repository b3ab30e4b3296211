//! A guest that sends what no well-behaved guest sends: forged addresses, advertisements of routers, answers of a DHCP server,
//! requests with wrong options, and floods. Where the binding or the network forbids them, they do not come out of its pod. Neither
//! another guest of its node nor a pod notices, and its own launcher goes on. The network beside that of the pods is attached by the
//! test bed's own delegate, in place of Multus.
//!
//! ```text
//! hostile -- eth0 behind masquerade -- pod -- node -- pod -- eth0 -- victim -- held connection to the pod "near"
//!        \-- eth1 with a bridge ----- network "lan" ------- eth1 --/      \-- held connection to the pod "beside"
//! ```
//!
//! The network `lan` drops other MAC addresses than a card's own (`macspoofchk`). On the pods' network itself, which checks nothing, a
//! guest with a bridge would disturb all other tests; there the docs promise nothing.

use anyhow::{Context, Result, bail, ensure};
use barevirt_e2e::command::kubectl;
use barevirt_e2e::container::Container;
use barevirt_e2e::frames::{Own, Watch, ensure_kept_in};
use barevirt_e2e::installation::NAMESPACE;
use barevirt_e2e::networks::{self, Left};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, condition, guest, handlers, held_connection, in_namespace, pods};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const NODE: &str = "node01";
const LAN: &str = "lan";
/// The guest's addresses and its router's behind masquerade.
const INSIDE: [&str; 2] = ["10.0.2.2", "fd10:0:2::2"];
const ROUTER: &str = "10.0.2.1";
/// MAC addresses: that of no card, and those of all hosts.
const FORGED: &str = "02:00:00:82:00:66";
const ALL: &str = "ff:ff:ff:ff:ff:ff";
const ALL6: &str = "33:33:00:00:00:01";
/// How the small guest asks for an address on a card.
const ASK: &str = "-q -n -t 10 -T 1 -s /etc/udhcpc.script";
/// Fewer frames in three seconds are no flood.
const FLOOD: u64 = 300;

/// A running guest.
struct Guest {
    name: &'static str,
    console: Console,
    pod: Left,
    /// Its pod's addresses, that of IPv4 first.
    addresses: [String; 2],
    /// The cards' MAC addresses.
    macs: [String; 2],
    /// The second card's address.
    lan: String,
    /// The name of that card's link in the pod, without what comes before the digits.
    digits: String,
    /// What its web server says, and no other guest's.
    boot: String,
}

/// A pod with a connection to the victim.
struct Peer {
    name: &'static str,
    addresses: Vec<String>,
    /// Where it reaches the victim.
    victim: String,
}

fn instance(name: &str) -> Value {
    let mut manifest = guest::instance(name);
    let spec = guest::spec_of(&mut manifest);
    spec["nodeSelector"] = json!({ "kubernetes.io/hostname": NODE });
    guest::push(&mut spec["domain"]["devices"]["interfaces"], json!({ "name": LAN, "bridge": {} }));
    guest::push(&mut spec["networks"], json!({ "name": LAN, "multus": { "networkName": LAN } }));
    manifest
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().context("a text is missing")?.to_owned())
}

fn booted(namespace: &Namespace, name: &'static str) -> Result<Guest> {
    namespace.wait_phase(name, "Running", RUNNING)?;
    let mut console = Console::open(namespace, name)?;
    console.login(BOOT)?;
    console.ok(&format!("ip link set eth1 up && udhcpc -i eth1 {ASK}"), SOON)?;
    wait::until_true("the guest's IPv6 address and route", SOON, || {
        let said = console.ok("ip addr show dev eth0; ip -6 route show", SOON)?;
        Ok(said.contains(&format!("inet6 {}/", INSIDE[1])) && said.contains("default via fe80::"))
    })?;
    let launcher = namespace.launcher(name)?;
    let (first, second) =
        (networks::card_status(namespace, name, "default")?, networks::card_status(namespace, name, LAN)?);
    let link = text(&second["podInterfaceName"])?;
    Ok(Guest {
        name,
        boot: console.ok("cat /www/boot-id", SOON)?,
        console,
        pod: Left::of(&launcher)?,
        addresses: pods::both_addresses(&launcher)?,
        macs: [text(&first["mac"])?, text(&second["mac"])?],
        lan: text(&second["ipAddress"])?,
        digits: link.strip_prefix("pod").context("the link has another name")?.to_owned(),
    })
}

impl Guest {
    /// Sends frames, as `images/guest-tiny/frames.c` reads these words; returns their number.
    fn send(&mut self, frames: &str) -> Result<u64> {
        let said = self.console.ok(&format!("frames {frames}"), SOON)?;
        said.parse().with_context(|| format!("frames {frames} says {said}"))
    }

    /// Asks the victim's web server, and for its own addresses.
    fn is_well(&mut self, namespace: &Namespace, victim: &Guest) -> Result<()> {
        for address in [&victim.addresses[0], &victim.addresses[1], &victim.lan] {
            let url = format!("http://{}/boot-id", pods::host(address));
            let answer = self.console.ok(&format!("timeout 20 wget -qO- {url}"), SOON)?;
            ensure!(answer == victim.boot, "{url} answers {answer}");
        }
        for card in ["eth0", "eth1"] {
            self.console.ok(&format!("udhcpc -i {card} {ASK}"), SOON)?;
        }
        let ready = condition(&namespace.need("vmi", self.name)?, "Ready");
        ensure!(ready["status"] == "True", "{ready}");
        Ok(())
    }
}

impl Peer {
    fn begin(
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
struct Seen {
    /// The victim's, and those of the hostile guest's pod.
    addresses_and_routes: [String; 2],
    /// Who knows which MAC address of the victim, of the peer, or of the victim's router.
    neighbours: BTreeSet<String>,
}

impl Seen {
    fn now(namespace: &Namespace, hostile: &Guest, victim: &mut Guest, peer: &Peer) -> Result<Self> {
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
    fn ensure_still(&self, later: &Self) -> Result<()> {
        let is_same = self.addresses_and_routes == later.addresses_and_routes;
        ensure!(is_same && later.neighbours.is_subset(&self.neighbours), "before: {self:?}, then: {later:?}");
        Ok(())
    }
}

/// The lines `WHO ADDRESS MAC` of a table of neighbours for those of these addresses whose MAC address is known.
fn neighbours(who: &str, table: &str, addresses: &[&str]) -> Vec<String> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|address| addresses.contains(address))?;
        let mac = words.skip_while(|word| *word != "lladdr").nth(1)?;
        Some(format!("{who} {address} {mac}"))
    };
    table.lines().filter_map(line).collect()
}

/// Behind masquerade, nothing of the guest leaves the pod but packets with its own address, and these have the pod's.
fn behind_masquerade(namespace: &Namespace, hostile: &mut Guest, victim: &mut Guest) -> Result<Peer> {
    let address = victim.addresses[0].clone();
    let near = Peer::begin(namespace, "near", None, victim, &address)?;
    hostile.is_well(namespace, victim)?;
    let before = Seen::now(namespace, hostile, victim, &near)?;
    let own = hostile.macs[0].clone();
    let inside = Own { mac: &own, ipv4: INSIDE[0], ipv6: Some(INSIDE[1]) };
    let sent = Watch::guest(&hostile.pod, "tap0", &inside)?;
    let mac = hostile.pod.mac("eth0")?;
    let [four, six] = hostile.addresses.each_ref().map(String::as_str);
    let outside = Own { mac: &mac, ipv4: four, ipv6: Some(six) };
    let came_out = Watch::pod(&hostile.pod, "eth0", &outside)?;

    // A new lease makes the guest forget its neighbours.
    let table = hostile.console.ok(&format!("ping -c 1 -W 5 {ROUTER} >/dev/null; ip neigh show"), SOON)?;
    let router = neighbours("hostile", &table, &[ROUTER]);
    let router = router.first().and_then(|line| line.split(' ').nth(2)).context("no router is known")?;
    let [guest4, guest6] = INSIDE;
    let ([victim4, victim6], [near4, near6]) = (&victim.addresses, &near.addresses[..]) else {
        bail!("{} has not two addresses", near.name);
    };
    for frames in [
        format!("{FORGED} {router} udp {guest4} {near4}"),
        format!("{FORGED} {router} udp {guest6} {near6}"),
        format!("{own} {router} udp {victim4} {near4}"),
        format!("{own} {router} udp {victim6} {near6}"),
        format!("{own} {ALL} arp {victim4} {victim4}"),
        format!("{own} {ALL} arp {near4} {near4}"),
        format!("{own} {ALL6} neighbour {victim6} ff02::1"),
        format!("{own} {ALL6} router fe80::66 ff02::1"),
        format!("{own} {ALL} offer {guest4} 10.0.2.77"),
        format!("{own} {ALL} options 0.0.0.0 255.255.255.255 2"),
    ] {
        hostile.send(&format!("eth0 {frames}"))?;
    }
    let flood = hostile.send(&format!("eth0 {own} {ALL} udp {guest4} 255.255.255.255 3"))?;
    ensure!(flood > FLOOD, "{flood} frames are no flood");

    let kinds = ["mac", "ipv4", "ipv6", "arp", "neighbour", "router", "offer", "broadcast"];
    ensure_kept_in(&kinds, &sent.counted()?, &came_out.counted()?)?;
    held_connection::goes_on(namespace, near.name)?;
    before.ensure_still(&Seen::now(namespace, hostile, victim, &near)?)?;
    hostile.is_well(namespace, victim)?;
    Ok(near)
}

/// With a bridge, the guest's pod believes nothing of what it says, and the network keeps back what has another MAC address.
fn with_a_bridge(namespace: &Namespace, hostile: &mut Guest, victim: &mut Guest) -> Result<()> {
    let address = victim.lan.clone();
    let beside = Peer::begin(namespace, "beside", Some(LAN), victim, &address)?;
    hostile.is_well(namespace, victim)?;
    let before = Seen::now(namespace, hostile, victim, &beside)?;
    let (mine, mac) = (hostile.lan.clone(), hostile.macs[1].clone());
    let own = Own { mac: &mac, ipv4: &mine, ipv6: None };
    let sent = Watch::guest(&hostile.pod, &format!("tap{}", hostile.digits), &own)?;
    let came_out = Watch::pod(&hostile.pod, &format!("{}-nic", hostile.digits), &own)?;

    let bridge = hostile.pod.mac(&format!("k6t-{}", hostile.digits))?;
    let (theirs, theirs4, beside4) = (&victim.macs[1], &victim.lan, &beside.addresses[0]);
    for frames in [
        format!("{FORGED} {theirs} udp {mine} {theirs4}"),
        format!("{FORGED} {ALL} arp {theirs4} {theirs4}"),
        format!("{FORGED} {ALL} arp {beside4} {beside4}"),
        format!("{FORGED} {ALL6} neighbour fd00:82::66 ff02::1"),
        format!("{FORGED} {ALL6} router fe80::66 ff02::1"),
        format!("{FORGED} {ALL} offer {mine} 10.82.0.77"),
        // From its own MAC address, and to its own pod only: other hosts of the network would hear it.
        format!("{mac} {bridge} router fe80::66 ff02::1"),
        format!("{mac} {bridge} options 0.0.0.0 255.255.255.255 2"),
    ] {
        hostile.send(&format!("eth1 {frames}"))?;
    }
    let flood = hostile.send(&format!("eth1 {mac} {theirs} udp {mine} {theirs4} 3"))?;
    ensure!(flood > FLOOD, "{flood} frames are no flood");
    hostile.is_well(namespace, victim)?;
    // Last, because its own pod's bridge then looks for the victim behind the tap, for five minutes.
    hostile.send(&format!("eth1 {theirs} {ALL} arp {theirs4} {theirs4}"))?;

    let kinds = ["mac", "ipv6", "arp", "neighbour", "router", "offer"];
    ensure_kept_in(&kinds, &sent.counted()?, &came_out.counted()?)?;
    held_connection::goes_on(namespace, beside.name)?;
    before.ensure_still(&Seen::now(namespace, hostile, victim, &beside)?)
}

/// The node's handler and the guest's launcher have logged no error since then, and the launcher says that it was flooded.
fn nothing_has_failed(namespace: &Namespace, hostile: &Guest, began: jiff::Timestamp) -> Result<()> {
    let handlers = handlers::pods()?;
    let (_, handler) = handlers.iter().find(|(node, _)| node == NODE).context("the node has no handler")?;
    let since = format!("--since-time={began:.0}");
    let of_handler = kubectl(&["logs", "-n", NAMESPACE, handler, &since])?;
    let launcher = text(&namespace.launcher(hostile.name)?["metadata"]["name"])?;
    let of_launcher = namespace.kubectl(&["logs", &launcher, "-c", "compute"])?;
    for line in of_handler.lines().chain(of_launcher.lines()) {
        ensure!(!line.contains("\"level\":\"ERROR\"") && !line.contains("panicked at"), "{line}");
    }
    for mac in &hostile.macs {
        let is_told = |line: &str| line.contains("asks for its addresses too often") && line.contains(mac);
        ensure!(of_launcher.lines().any(is_told), "the flood of requests from {mac} was none: {of_launcher}");
    }
    Ok(())
}

#[test]
fn no_forged_frame_comes_out_also_where_the_test_beds_delegate_attaches_and_no_other_guest_notices() {
    in_namespace("hostile", |namespace| {
        let began = jiff::Timestamp::now();
        let range = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.82.0.0/24" }]] });
        // The longest frames of the hostile guest fit.
        networks::define(namespace, LAN, &json!({ "ipam": range, "mtu": 1500 }))?;
        for name in ["hostile", "victim"] {
            namespace.apply(&instance(name))?;
        }
        let mut hostile = booted(namespace, "hostile")?;
        let mut victim = booted(namespace, "victim")?;
        let near = behind_masquerade(namespace, &mut hostile, &mut victim)?;
        with_a_bridge(namespace, &mut hostile, &mut victim)?;
        // The first connection was held all the time.
        held_connection::goes_on(namespace, near.name)?;
        nothing_has_failed(namespace, &hostile, began)?;
        hostile.console.leave()?;
        victim.console.leave()?;
        Ok(())
    });
}

/// passt sends what the guest sends by sockets of the pod, whatever the guest's frames name. It follows a guest to another address,
/// so the guest harms itself, until it sends from its own address again.
#[test]
fn no_frame_that_a_guest_behind_passt_forges_comes_out_of_its_pod() {
    in_namespace("hostile-passt", |namespace| {
        pods::server(namespace, "near", "hello from a pod")?;
        let near = pods::both_addresses(&namespace.need("pod", "near")?)?;
        let mut manifest = guest::instance("vm");
        guest::spec_of(&mut manifest)["domain"]["devices"]["interfaces"] =
            json!([{ "name": "default", "passtBinding": {}, "ports": [{ "port": 80 }] }]);
        let mut console = Console::boot(namespace, &manifest)?;
        let launcher = namespace.launcher("vm")?;
        let addresses = pods::both_addresses(&launcher)?;
        networks::wait_inside(&mut console, &addresses.each_ref().map(|address| format!("{address}/")))?;
        let pod = Left::of(&launcher)?;
        let mac = pod.mac("eth0")?;
        let [four, six] = addresses.each_ref().map(String::as_str);
        let came_out = Watch::pod(&pod, "eth0", &Own { mac: &mac, ipv4: four, ipv6: Some(six) })?;
        is_answered_by(&mut console, &near)?;

        let own = console.ok("cat /sys/class/net/eth0/address", SOON)?;
        let router = "ip neigh show dev eth0 | sed -n 's/.* lladdr \\([^ ]*\\).*/\\1/p' | head -n 1";
        let router = console.ok(router, SOON)?;
        ensure!(!router.is_empty(), "the guest knows no router");
        let [near4, near6] = &near;
        for frames in [
            format!("{FORGED} {router} udp {four} {near4}"),
            format!("{FORGED} {router} udp {six} {near6}"),
            format!("{own} {router} udp 192.0.2.66 {near4}"),
            format!("{own} {router} udp 2001:db8::66 {near6}"),
            format!("{own} {ALL} arp {near4} {near4}"),
            format!("{own} {ALL6} neighbour {near6} ff02::1"),
            format!("{own} {ALL6} router fe80::66 ff02::1"),
        ] {
            let sent = console.ok(&format!("frames eth0 {frames}"), SOON)?;
            ensure!(sent == "1", "frames eth0 {frames} says {sent}");
        }
        is_answered_by(&mut console, &near)?;
        let came_out = came_out.counted()?;
        ensure!(came_out.of("all")? > 0, "no frame came out at all");
        for kind in ["mac", "ipv4", "ipv6", "arp", "neighbour", "router"] {
            ensure!(came_out.of(kind)? == 0, "frames of the kind {kind} came out: {came_out:?}");
        }
        let conditions = namespace.need("vmi", "vm")?["status"]["conditions"].to_string();
        ensure!(!conditions.contains("PasstEnded"), "{conditions}");
        console.leave().map(drop)
    });
}

/// The pod of that server answers the guest, at both of its addresses.
fn is_answered_by(console: &mut Console, server: &[String; 2]) -> Result<()> {
    for address in server {
        let url = format!("http://{}:8080/", pods::host(address));
        wait::until_true(&format!("{url} to answer the guest"), SOON, || {
            let (said, code) = console.run(&format!("timeout 5 wget -qO- {url}"), SOON)?;
            Ok(code == 0 && said.contains("hello from a pod"))
        })?;
    }
    Ok(())
}
