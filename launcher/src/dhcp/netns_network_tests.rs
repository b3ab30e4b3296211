//! IPv6 of a guest on its pod's own network, in network namespaces as the handler sets them up: a gateway, a pod
//! and a guest, with the kernel's own handling of router advertisements and ISC's dhclient.
//!
//! ```text
//!  gateway: peer (fd00:10:244:9::1, fe80::..) == pod: eth0-nic ─ k6t-eth0 ─ tap0 == guest: guest-end
//! ```

use super::ipv6::tests::on_network;
use super::netns_tests::{GUEST_MAC, dhclient, run, side, wait_for};
use super::*;

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use barevirt_protocol::v1::Route;
use nix::ifaddrs::getifaddrs;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, bind, socket};

const GATEWAY: &str = "fd00:10:244:9::1";
const ADDRESS: &str = "fd00:10:244:9::7";
const ROUTER: &str = "fe80::ba:5eff:fe00:109";

fn setting(link: &str, name: &str, value: &str) {
    fs::write(format!("/proc/sys/net/ipv6/conf/{link}/{name}"), value).unwrap();
}

/// The pod's side, and the packet socket on the tap.
fn pod(gateway: i32, guest: i32) -> OwnedFd {
    unshare(CloneFlags::CLONE_NEWNET).expect("needs root");
    for line in [
        "ip link add k6t-eth0 type bridge",
        "ip link add tap0 type veth peer name guest-end",
        "ip link add eth0-nic type veth peer name peer address 02:ba:5e:00:01:09",
        "ip link set tap0 master k6t-eth0",
        "ip link set eth0-nic master k6t-eth0",
    ] {
        run(line);
    }
    ["k6t-eth0", "tap0", "eth0-nic"].into_iter().for_each(|link| setting(link, "disable_ipv6", "1"));
    run(&format!("ip link set guest-end netns {guest}"));
    run(&format!("ip link set peer netns {gateway}"));
    ["k6t-eth0", "tap0", "eth0-nic"]
        .into_iter()
        .for_each(|link| drop(run(&format!("ip link set {link} up"))));
    let socket =
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll).unwrap();
    let is_tap = |one: &nix::ifaddrs::InterfaceAddress| one.interface_name == "tap0";
    let address = getifaddrs().unwrap().filter(is_tap).find_map(|one| one.address).unwrap();
    bind(socket.as_raw_fd(), address.as_link_addr().unwrap()).unwrap();
    socket
}

/// The routers that a host on the network learns of, beside the guest.
fn gateway(done: &mpsc::Receiver<()>) -> String {
    setting("all", "forwarding", "1");
    setting("peer", "accept_dad", "0");
    // It takes advertisements, so that those that reach it are seen.
    setting("peer", "accept_ra", "2");
    run(&format!("ip addr add {GATEWAY}/64 dev peer nodad"));
    run("ip link set peer up");
    done.recv().expect("the guest's side");
    run("ip -6 route show default")
}

/// What the guest received.
struct Received {
    routes: String,
    lease: BTreeMap<String, String>,
    pinged: bool,
}

fn guest(directory: &Path, done: &mpsc::Sender<()>) -> Received {
    setting("guest-end", "accept_ra", "1");
    setting("guest-end", "accept_dad", "0");
    run(&format!("ip link set guest-end address {GUEST_MAC}"));
    run("ip link set guest-end up");
    let routes =
        wait_for("default route", || Some(run("ip -6 route")).filter(|routes| routes.contains("default")));
    let lease = dhclient(directory);
    run(&format!("ip addr add {}/128 dev guest-end", lease["new_ip6_address"]));
    // Far addresses of the gateway are reached by the default route.
    let ping = |address: &str| {
        let ping = Command::new("busybox").args(["ping6", "-c", "1", "-W", "5", address]).output();
        ping.is_ok_and(|output| output.status.success())
    };
    let pinged = ping(GATEWAY) && ping("fd00:99::1");
    done.send(()).unwrap();
    Received { routes, lease, pinged }
}

#[tokio::test]
async fn a_guest_on_its_pods_network_gets_the_pods_address_and_router_and_no_other_host_sees_it() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let (tell_done, done) = mpsc::channel();
    let gateway = side(move || {
        run("ip link set lo up");
        run("ip addr add fd00:99::1/128 dev lo");
        gateway(&done)
    });
    let guest = side(move || guest(&path, &tell_done));
    let numbers = (gateway.number, guest.number);
    let tap = thread::spawn(move || pod(numbers.0, numbers.1)).join().unwrap();

    let mut facts = on_network();
    (facts.mac, facts.ipv6, facts.ipv6_gateway) = (GUEST_MAC.into(), ADDRESS.into(), ROUTER.into());
    facts.ipv6_routes =
        vec![Route { destination: "fd00:10:244:9::".into(), prefix: 64, gateway: String::new() }];
    let settings = Guest::new(&facts, Some("vm1"), None).unwrap();
    let server = tokio::spawn(serve(settings, Sockets { router: Some(tap), ..Sockets::default() }, |_| ()));
    gateway.go.send(()).unwrap();
    guest.go.send(()).unwrap();
    let seen = tokio::task::spawn_blocking(move || guest.thread.join()).await.unwrap();
    let leaked = tokio::task::spawn_blocking(move || gateway.thread.join()).await.unwrap();
    assert!(!server.is_finished());
    server.abort();

    let Received { routes, lease, pinged } = seen.expect("the guest's side");
    assert!(routes.contains(&format!("default via {ROUTER}")) && routes.contains("proto ra"), "{routes}");
    assert!(routes.contains("fd00:10:244:9::/64"), "{routes}");
    assert_eq!((lease["new_ip6_address"].as_str(), pinged), (ADDRESS, true), "{routes} {lease:?}");
    assert_eq!(lease["new_dhcp6_name_servers"], "fd10:96::a");
    assert_eq!(leaked.expect("the gateway's side"), "");
}
