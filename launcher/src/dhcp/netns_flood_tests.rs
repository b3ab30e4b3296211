//! A guest that floods its launcher with requests, in network namespaces: it gets few answers, and a guest of another pod gets
//! its addresses and its router meanwhile. Both launchers have one thread here, and processes of their own on a node.

use std::fs;
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::guest::tests::interface;
use super::netns_tests::{GUEST_MAC, dhclient, pod, run, script, side, udhcpc, wait_for};
use super::v4::tests::discover;
use super::v6::tests::solicit;
use super::*;

const NEIGHBOUR_MAC: &str = "02:12:34:56:78:9b";
/// How long the flood has lasted when the other guest asks.
const BEFORE: Duration = Duration::from_secs(1);
/// The flood ends then in any case.
const LONGEST: Duration = Duration::from_secs(60);
/// Contents of a packet of the usual size, over UDP with either version of IP.
const ROOM: usize = 1452;
/// Types of messages of ICMPv6.
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;

/// What a guest floods its launcher with.
struct Flood {
    socket: UdpSocket,
    to: SocketAddr,
    requests: Vec<Vec<u8>>,
    is_answer: fn(&[u8]) -> bool,
}

/// What a guest has sent, and how many answers came back.
struct Seen {
    sent: usize,
    answers: usize,
    lasted: Duration,
}

/// The request again, with this option as often as one packet allows.
fn filled(mut request: Vec<u8>, option: &[u8]) -> Vec<u8> {
    while request.len() + option.len() < ROOM {
        request.extend(option);
    }
    request
}

/// The request again, with an option that is longer than what follows.
fn lying(mut request: Vec<u8>, option: &[u8]) -> Vec<u8> {
    request.extend(option);
    request
}

/// An option that nobody knows: its beginning, and as many bytes as that says.
fn unknown(beginning: &[u8], length: usize) -> Vec<u8> {
    [beginning, &vec![7; length]].concat()
}

fn dhcp4() -> Flood {
    run("ip addr add 10.0.2.2/24 dev guest-end");
    let socket = UdpSocket::bind("0.0.0.0:68").unwrap();
    let mut open = discover();
    let end = open.pop().unwrap();
    let mut long = filled(open.clone(), &unknown(&[250, 255], 255));
    long.push(end);
    let requests = vec![discover(), long, lying(open, &[61, 255, 1]), vec![0xff; 4000]];
    Flood { socket, to: "10.0.2.1:67".parse().unwrap(), requests, is_answer: |_| true }
}

/// That group of hosts on the guest's link.
fn on_link(group: &str, port: u16) -> SocketAddr {
    SocketAddrV6::new(group.parse().unwrap(), port, 0, if_nametoindex("guest-end").unwrap()).into()
}

fn dhcp6() -> Flood {
    let socket = UdpSocket::bind("[::]:546").unwrap();
    let long = filled(solicit(), &unknown(&[0xfd, 0xe8, 0, 255], 255));
    let requests = vec![solicit(), long, lying(solicit(), &[0, 3, 255, 255, 1]), vec![0xff; 4000]];
    Flood { socket, to: on_link("ff02::1:2", 547), requests, is_answer: |_| true }
}

fn routers() -> Flood {
    let icmp = SockProtocol::IcmpV6;
    let socket = socket(AddressFamily::Inet6, SockType::Raw, SockFlag::SOCK_CLOEXEC, icmp).unwrap();
    // The kernel adds the checksum.
    let solicitation = || vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    let long = filled(solicitation(), &unknown(&[0xfd, 32], 254));
    let requests = vec![solicitation(), long, lying(solicitation(), &[1, 255, 1]), vec![SOLICITATION; 5]];
    let is_answer = |message: &[u8]| message.first() == Some(&ADVERTISEMENT);
    Flood { socket: socket.into(), to: on_link("ff02::2", 0), requests, is_answer }
}

/// Starts the link of a guest, which has a link-local address at once.
fn start(mac: &str) {
    run("ip link set lo up");
    for (setting, value) in [("accept_ra", "1"), ("accept_dad", "0")] {
        fs::write(format!("/proc/sys/net/ipv6/conf/guest-end/{setting}"), value).unwrap();
    }
    run(&format!("ip link set guest-end address {mac}"));
    run("ip link set guest-end up");
}

fn flood(begin: fn() -> Flood, is_over: &AtomicBool) -> Seen {
    start(GUEST_MAC);
    let Flood { socket, to, requests, is_answer } = begin();
    socket.set_nonblocking(true).unwrap();
    let (mut sent, mut answers) = (0, 0);
    let begun = Instant::now();
    let mut answer = [0; 2048];
    while !is_over.load(Ordering::Relaxed) && begun.elapsed() < LONGEST {
        // What finds no room is not sent.
        sent += requests.iter().filter(|request| socket.send_to(request, to).is_ok()).count();
        while let Ok(length) = socket.recv(&mut answer) {
            answers += usize::from(is_answer(&answer[..length]));
        }
    }
    Seen { sent, answers, lasted: begun.elapsed() }
}

/// Whether the other guest gets its addresses and its router.
fn asks(directory: &Path) -> bool {
    start(NEIGHBOUR_MAC);
    let has_ipv4 = udhcpc(&script(directory, "bound").0);
    wait_for("default route", || run("ip -6 route show default").contains("default").then_some(()));
    has_ipv4 && dhclient(directory)["new_ip6_address"] == interface().ipv6
}

/// Has one guest flood its launcher while the other one asks. A launcher that keeps to its limits gives so many answers at once, and
/// then ten in a second.
async fn ensure_few_answers(begin: fn() -> Flood, at_once: usize) {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let is_over = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&is_over);
    let hostile = side(move || flood(begin, &until));
    let neighbour = side(move || asks(&path));
    let servers = [(hostile.number, GUEST_MAC), (neighbour.number, NEIGHBOUR_MAC)].map(|(number, mac)| {
        let sockets = thread::spawn(move || pod(number)).join().unwrap();
        let mut facts = interface();
        facts.mac = mac.into();
        tokio::spawn(serve(Guest::new(&facts, Some("vm1"), None).unwrap(), sockets, |_| ()))
    });
    hostile.go.send(()).unwrap();
    tokio::time::sleep(BEFORE).await;
    neighbour.go.send(()).unwrap();
    let is_served = tokio::task::spawn_blocking(move || neighbour.thread.join()).await.unwrap();
    is_over.store(true, Ordering::Relaxed);
    let hostile = tokio::task::spawn_blocking(move || hostile.thread.join()).await.unwrap().unwrap();
    for server in &servers {
        assert!(!server.is_finished());
        server.abort();
    }

    let Seen { sent, answers, lasted } = hostile;
    println!("{sent} requests, {answers} answers in {lasted:?}");
    // The last ones may still be on their way.
    let most = at_once as u128 + lasted.as_millis() / 100 + 1;
    assert!(answers as u128 <= most, "{answers} answers in {lasted:?}");
    // It is not silent either: in a second there are ten, on a machine that is not busy.
    assert!(answers >= at_once.max(5), "{answers} answers in {lasted:?}");
    assert!(sent > 10 * answers, "no flood: {sent} requests, {answers} answers");
    assert!(is_served.unwrap(), "the other guest did not get its addresses");
}

#[tokio::test]
async fn a_guest_that_floods_its_launcher_gets_few_answers_and_another_guest_gets_its_address() {
    ensure_few_answers(dhcp4, 20).await;
}

#[tokio::test]
async fn a_guest_that_floods_its_launcher_by_dhcpv6_gets_few_answers_and_another_guest_gets_its_address() {
    ensure_few_answers(dhcp6, 20).await;
}

#[tokio::test]
async fn a_guest_that_asks_for_routers_all_the_time_gets_few_answers_and_another_guest_gets_its_address() {
    ensure_few_answers(routers, 1).await;
}
