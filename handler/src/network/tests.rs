//! Tests of the whole binding in real network namespaces: node, pod and guest.
//!
//! ```text
//! node: peer (10.244.9.1) ==veth== pod: eth0 (10.244.9.7), k6t-eth0, tap0 ==frames copied== guest: tap (10.0.2.2)
//! ```
//!
//! The guest is a namespace of its own behind a second tap. Two threads copy frames between both taps, as
//! QEMU would. These tests need root; without it they print this and pass.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::addresses::MacAddress;
use super::apply::Descriptors;
use super::nft::rules::{Port, Ports, Protocol};
use super::*;
use barevirt_api::masquerade::{IPV4, IPV6};

pub(crate) mod bridge;
mod bridge_ipv6;
mod cuts;
mod frames;
mod learning;
mod macvlan;
mod neighbours;
mod outside;
mod passt;
mod rogue;
mod rounds;
mod sidecar;
mod tap;
mod vlan;

const NODE4: Ipv4Addr = Ipv4Addr::new(10, 244, 9, 1);
const POD4: Ipv4Addr = Ipv4Addr::new(10, 244, 9, 7);
const NODE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x244, 9, 0, 0, 0, 1);
const POD6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x244, 9, 0, 0, 0, 7);
const WAIT: Duration = Duration::from_secs(5);
const MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 7]);

fn wanted(ports: Vec<Port>) -> Wanted {
    forwarding(ports.into_iter().map(Ports::from).collect())
}

fn forwarding(ports: Vec<Ports>) -> Wanted {
    Wanted {
        interface: "default".to_owned(),
        network: "default".to_owned(),
        index: 0,
        candidates: vec!["eth0".to_owned()],
        tap_owner: 107,
        queues: 1,
        mac: Some(MAC),
        binding: Binding::Masquerade(Masquerade { ipv4: IPV4, ipv6: IPV6, ports, has_sidecar: false }),
        alone: false,
    }
}

/// Runs `work` on a thread in that namespace.
pub(crate) fn inside<T: Send + 'static>(netns: &OwnedFd, work: impl FnOnce() -> T + Send + 'static) -> T {
    let netns = netns.try_clone().unwrap();
    let work = move || {
        setns(&netns, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    };
    thread::spawn(work).join().unwrap()
}

/// Runs a program in that namespace, and returns its output.
fn run_in(netns: &OwnedFd, program: &'static str, arguments: &'static str) -> String {
    inside(netns, move || {
        let output = std::process::Command::new(program).args(arguments.split(' ')).output();
        let output = output.unwrap_or_else(|error| panic!("{program} (see cluster-up/deps.sh): {error}"));
        assert!(
            output.status.success(),
            "{program} {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    })
}

/// Runs async `work` with rtnetlink on a thread in that namespace.
fn with_netlink<T, F>(netns: &OwnedFd, work: impl FnOnce(Handle) -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    inside(netns, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().unwrap();
            tokio::spawn(connection);
            work(handle).await
        })
    })
}

/// A namespace with only its loopback interface, which is up; `None` without root.
pub(crate) fn namespace() -> Option<OwnedFd> {
    let made = thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET).map(|()| netns::current().unwrap()))
        .join()
        .unwrap();
    match made {
        Ok(netns) => {
            with_netlink(&netns, |netlink| async move {
                change(&netlink, LinkUnspec::new_with_index(1).up().build()).await;
            });
            // Addresses of new links are usable at once.
            inside(&netns, || std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap());
            Some(netns)
        }
        Err(error) => {
            eprintln!("skipped: cannot make a network namespace: {error}");
            None
        }
    }
}

async fn change(netlink: &Handle, message: LinkMessage) {
    netlink.link().change(message).execute().await.unwrap();
}

async fn index(netlink: &Handle, name: &str) -> u32 {
    use futures::TryStreamExt;
    let mut links = netlink.link().get().match_name(name.to_owned()).execute();
    links.try_next().await.unwrap().unwrap().header.index
}

async fn configure(netlink: &Handle, name: &str, addresses: &[(IpAddr, u8)], gateways: &[IpAddr]) {
    let index = index(netlink, name).await;
    change(netlink, LinkUnspec::new_with_index(index).up().build()).await;
    for (address, prefix) in addresses {
        let mut request = netlink.address().add(index, *address, *prefix);
        if address.is_ipv6() {
            let message = request.message_mut();
            message.header.flags |= netlink_packet_route::address::AddressHeaderFlags::Nodad;
        }
        request.execute().await.unwrap();
    }
    for gateway in gateways {
        let route = match gateway {
            IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new().gateway(*gateway).build(),
            IpAddr::V6(gateway) => {
                RouteMessageBuilder::<Ipv6Addr>::new().gateway(*gateway).output_interface(index).build()
            }
        };
        netlink.route().add(route).execute().await.unwrap();
    }
}

/// A node, and a pod with an interface `eth0` as a CNI plugin creates it.
fn node_and_pod(ipv6: bool) -> Option<(OwnedFd, OwnedFd)> {
    let (node, pod) = (namespace()?, namespace()?);
    connect(&node, &pod, ipv6);
    Some((node, pod))
}

/// Gives the namespace `pod` an interface `eth0` that leads to the namespace `node`.
pub(crate) fn connect(node: &OwnedFd, pod: &OwnedFd, ipv6: bool) {
    let pod_fd = pod.try_clone().unwrap();
    with_netlink(node, move |netlink| async move {
        let veth = LinkVeth::new("peer", "eth0").build();
        netlink.link().add(veth).execute().await.unwrap();
        let eth0 = index(&netlink, "eth0").await;
        change(&netlink, LinkUnspec::new_with_index(eth0).mtu(1400).setns_by_fd(pod_fd.as_raw_fd()).build())
            .await;
        configure(&netlink, "peer", &[(NODE4.into(), 24), (NODE6.into(), 64)], &[]).await;
    });
    with_netlink(pod, move |netlink| async move {
        let (mut addresses, mut gateways) = (vec![(POD4.into(), 24)], vec![NODE4.into()]);
        if ipv6 {
            addresses.push((POD6.into(), 64));
            gateways.push(NODE6.into());
        }
        configure(&netlink, "eth0", &addresses, &gateways).await;
    });
}

/// Adds a link with this name and these addresses to a namespace. Its other end has no address.
pub(crate) fn add_link(netns: &OwnedFd, name: &'static str, addresses: Vec<(IpAddr, u8)>) {
    with_netlink(netns, move |netlink| async move {
        netlink.link().add(LinkVeth::new("nobody", name).build()).execute().await.unwrap();
        configure(&netlink, "nobody", &[], &[]).await;
        configure(&netlink, name, &addresses, &[]).await;
    });
}

/// A namespace that stands for the guest behind `tap`, with the guest's addresses of a masquerade binding.
fn guest(tap: OwnedFd, mac: MacAddress) -> OwnedFd {
    let addresses = vec![(IPV4.guest.into(), IPV4.prefix), (IPV6.guest.into(), IPV6.prefix)];
    station(tap, mac, addresses, vec![IPV4.gateway.into(), IPV6.gateway.into()])
}

fn station(tap: OwnedFd, mac: MacAddress, addresses: Vec<(IpAddr, u8)>, gateways: Vec<IpAddr>) -> OwnedFd {
    let guest = namespace().unwrap();
    let nic = inside(&guest, || {
        let tun = std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap();
        crate::kernel::attach_tap(tun, "nic", 0, false).unwrap()
    });
    with_netlink(&guest, move |netlink| async move {
        let nic = index(&netlink, "nic").await;
        change(&netlink, LinkUnspec::new_with_index(nic).address(mac.0.to_vec()).mtu(1400).build()).await;
        configure(&netlink, "nic", &addresses, &gateways).await;
    });
    let (tap, nic) = (std::fs::File::from(tap), std::fs::File::from(nic));
    for (mut from, mut to) in [(tap.try_clone().unwrap(), nic.try_clone().unwrap()), (nic, tap)] {
        thread::spawn(move || {
            let mut frame = vec![0; 65600];
            while let Ok(length) = from.read(&mut frame) {
                let _ = to.write(&frame[..length]);
            }
        });
    }
    guest
}

/// Starts a server that answers each connection with the client's address.
fn serve(netns: &OwnedFd, address: SocketAddr) {
    let (ready, up) = mpsc::channel();
    let netns = netns.try_clone().unwrap();
    thread::spawn(move || {
        setns(&netns, CloneFlags::CLONE_NEWNET).unwrap();
        let listener = TcpListener::bind(address).unwrap();
        ready.send(()).unwrap();
        while let Ok((mut stream, peer)) = listener.accept() {
            let _ = stream.write_all(peer.ip().to_string().as_bytes());
        }
    });
    up.recv_timeout(WAIT).unwrap();
}

/// The answer of the server at `address`; `None` if it cannot be reached.
fn ask(netns: &OwnedFd, address: impl Into<SocketAddr>) -> Option<String> {
    let address = address.into();
    inside(netns, move || {
        let mut stream = TcpStream::connect_timeout(&address, WAIT).ok()?;
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    })
}

/// Checks that nobody answers at any of these addresses. They are asked at the same time.
fn nobody_answers(netns: &OwnedFd, addresses: &[(IpAddr, u16)]) {
    let begin = |address: &(IpAddr, u16)| {
        let (netns, address) = (netns.try_clone().unwrap(), *address);
        (address, thread::spawn(move || ask(&netns, address)))
    };
    let asked: Vec<_> = addresses.iter().map(begin).collect();
    for (address, answer) in asked {
        assert_eq!(answer.join().unwrap(), None, "{address:?}");
    }
}

fn prepare_blocking(
    pod: &OwnedFd,
    wanted: &Wanted,
    held: &BTreeSet<String>,
) -> (usize, Prepared, Descriptors) {
    let outcome = prepare_all(pod, vec![wanted.clone()], held);
    let steps = outcome.steps;
    let (prepared, opened) = only_card(outcome);
    (steps, prepared, opened)
}

/// The one card of an outcome, and its descriptors.
fn only_card(mut outcome: Outcome) -> (Prepared, Descriptors) {
    (outcome.cards.remove(0).1, outcome.opened)
}

fn prepare_all(pod: &OwnedFd, cards: Vec<Wanted>, held: &BTreeSet<String>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(prepare(pod.try_clone().unwrap(), cards, held.clone())).unwrap()
}

fn names(descriptors: &Descriptors) -> Vec<&str> {
    descriptors.iter().map(|(name, _)| name.as_str()).collect()
}

fn take(descriptors: &mut Descriptors, name: &str) -> OwnedFd {
    let place = descriptors.iter().position(|(found, _)| found == name).unwrap();
    descriptors.remove(place).1
}

#[test]
fn the_guest_is_joined_to_the_pod_network_in_both_directions() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    let wanted = wanted(Vec::new());
    let (_, prepared, mut descriptors) = prepare_blocking(&pod, &wanted, &BTreeSet::new());
    assert_eq!(
        names(&descriptors),
        ["net/default/tap", "net/default/dhcp4", "net/default/dhcp6", "net/default/ra"]
    );
    assert_eq!(prepared.mtu, 1400);
    assert_eq!(prepared.pod_addresses, [IpAddr::from(POD4), IpAddr::from(POD6)]);
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    is_joined(&node, &pod, &guest);
}

/// Checks that a guest behind masquerade reaches its node in both families, and is reached from the node and the pod.
fn is_joined(node: &OwnedFd, pod: &OwnedFd, guest: &OwnedFd) {
    serve(guest, (Ipv6Addr::UNSPECIFIED, 8080).into());
    serve(node, (Ipv6Addr::UNSPECIFIED, 9090).into());
    // The guest's ports are the pod's ports, and the guest sees the client's address.
    assert_eq!(ask(node, (POD4, 8080)), Some(format!("::ffff:{NODE4}")));
    assert_eq!(ask(node, (POD6, 8080)), Some(NODE6.to_string()));
    // The guest's connections come from the pod's address.
    assert_eq!(ask(guest, (NODE4, 9090)), Some(format!("::ffff:{POD4}")));
    assert_eq!(ask(guest, (NODE6, 9090)), Some(POD6.to_string()));
    // kubectl port-forward: connections from the pod's own loopback reach the guest from the gateway.
    assert_eq!(ask(pod, (Ipv4Addr::LOCALHOST, 8080)), Some(format!("::ffff:{}", IPV4.gateway)));
    assert_eq!(ask(pod, (Ipv6Addr::LOCALHOST, 8080)), Some(IPV6.gateway.to_string()));
}

#[test]
fn a_second_handler_changes_nothing_and_opens_only_what_is_missing() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    let wanted = wanted(Vec::new());
    let (steps, first, mut descriptors) = prepare_blocking(&pod, &wanted, &BTreeSet::new());
    assert!(steps > 10);
    let mut held: BTreeSet<String> = descriptors.iter().map(|(name, _)| name.clone()).collect();
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    serve(&guest, (Ipv6Addr::UNSPECIFIED, 8080).into());

    let (steps, second, opened) = prepare_blocking(&pod, &wanted, &held);
    assert_eq!((steps, names(&opened)), (0, vec![]));
    assert_eq!(first, second);
    assert!(ask(&node, (POD4, 8080)).is_some());

    // The rules differ from the previous handler's, so they are replaced. A socket that got lost is opened
    // again.
    held.remove("net/default/dhcp4");
    drop(descriptors);
    let only = self::wanted(vec![Port { protocol: Protocol::Tcp, number: 22 }]);
    let (steps, _, opened) = prepare_blocking(&pod, &only, &held);
    assert_eq!((steps, names(&opened)), (3, vec!["net/default/dhcp4"]));
    assert_eq!(ask(&node, (POD4, 8080)), None);
}

#[test]
fn a_tap_of_several_queues_is_opened_once_for_each_and_survives_a_handler_that_ends_half_way() {
    let Some((_node, pod)) = node_and_pod(false) else { return };
    let wanted = Wanted { queues: 3, ..wanted(Vec::new()) };
    let (_, _, mut descriptors) = prepare_blocking(&pod, &wanted, &BTreeSet::new());
    assert_eq!(
        names(&descriptors),
        ["net/default/tap.2", "net/default/tap.1", "net/default/tap", "net/default/dhcp4"]
    );
    let queues = || {
        inside(&pod, || {
            std::fs::read_to_string("/proc/thread-self/net/dev").unwrap().matches("tap0:").count()
        })
    };
    assert_eq!(queues(), 1, "one device for all of them");
    // The launcher got only the first descriptor.
    let kept = take(&mut descriptors, "net/default/tap.2");
    drop(descriptors);
    let held = BTreeSet::from(["net/default/tap.2".to_owned()]);
    let (_, _, again) = prepare_blocking(&pod, &wanted, &held);
    assert_eq!(names(&again), ["net/default/tap.1", "net/default/tap", "net/default/dhcp4"]);
    // CPUs that were added later change nothing.
    let held = names(&again).into_iter().chain(["net/default/tap.2"]).map(str::to_owned).collect();
    let (steps, _, opened) = prepare_blocking(&pod, &Wanted { queues: 4, ..wanted }, &held);
    assert_eq!((steps, names(&opened)), (0, vec![]));
    drop((kept, again));
}

#[test]
fn only_listed_ports_are_forwarded() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    let wanted = wanted(vec![Port { protocol: Protocol::Tcp, number: 8080 }]);
    let (_, _, mut descriptors) = prepare_blocking(&pod, &wanted, &BTreeSet::new());
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    for port in [8080, 8081] {
        serve(&guest, (Ipv6Addr::UNSPECIFIED, port).into());
    }
    for address in [IpAddr::from(POD4), IpAddr::from(POD6)] {
        assert!(ask(&node, (address, 8080)).is_some());
        assert_eq!(ask(&node, (address, 8081)), None);
    }
    assert!(ask(&pod, (Ipv4Addr::LOCALHOST, 8080)).is_some());
    assert_eq!(ask(&pod, (Ipv4Addr::LOCALHOST, 8081)), None);
    // Connections that the guest opens itself are never restricted.
    serve(&node, (Ipv6Addr::UNSPECIFIED, 9090).into());
    assert!(ask(&guest, (NODE4, 9090)).is_some());
    // The guest's own address is no way around the list.
    run_in(&node, "ip", "route add 10.0.2.0/24 via 10.244.9.7");
    run_in(&node, "ip", "-6 route add fd10:0:2::/120 via fd00:10:244:9::7");
    let (four, six) = (IpAddr::from(IPV4.guest), IpAddr::from(IPV6.guest));
    nobody_answers(&node, &[(four, 8080), (four, 8081), (six, 8080), (six, 8081)]);
}

#[test]
fn two_thousand_ports_are_forwarded() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    // None of them is beside another one.
    let ports = (0..2000).map(|number| Port { protocol: Protocol::Tcp, number: 8080 + 2 * number });
    let (_, _, mut descriptors) = prepare_blocking(&pod, &wanted(ports.collect()), &BTreeSet::new());
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    for (port, is_forwarded) in [(8080, true), (8081, false), (12077, false), (12078, true)] {
        serve(&guest, (Ipv6Addr::UNSPECIFIED, port).into());
        for address in [IpAddr::from(POD4), IpAddr::from(POD6)] {
            assert_eq!(ask(&node, (address, port)).is_some(), is_forwarded, "{address} {port}");
        }
    }
    assert!(ask(&pod, (Ipv4Addr::LOCALHOST, 12078)).is_some());
}

#[test]
fn only_ports_of_a_range_are_forwarded() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    let card = forwarding(vec![Ports { protocol: Protocol::Tcp, first: 8080, last: 8082 }]);
    let (_, _, mut descriptors) = prepare_blocking(&pod, &card, &BTreeSet::new());
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    for port in 8079..=8083 {
        serve(&guest, (Ipv6Addr::UNSPECIFIED, port).into());
    }
    for (port, is_forwarded) in [(8079, false), (8080, true), (8081, true), (8082, true), (8083, false)] {
        for address in [IpAddr::from(POD4), IpAddr::from(POD6)] {
            assert_eq!(ask(&node, (address, port)).is_some(), is_forwarded, "{address} {port}");
        }
        assert_eq!(ask(&pod, (Ipv4Addr::LOCALHOST, port)).is_some(), is_forwarded, "{port}");
    }
}

#[test]
fn a_pod_without_ipv6_has_ipv4_only() {
    let Some((node, pod)) = node_and_pod(false) else { return };
    let wanted = wanted(Vec::new());
    let (_, prepared, mut descriptors) = prepare_blocking(&pod, &wanted, &BTreeSet::new());
    assert_eq!(names(&descriptors), ["net/default/tap", "net/default/dhcp4"]);
    assert_eq!((prepared.ipv6.as_ref(), prepared.link_local), (None, None));
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    serve(&guest, (Ipv4Addr::UNSPECIFIED, 8080).into());
    assert_eq!(ask(&node, (POD4, 8080)), Some(NODE4.to_string()));
}

#[test]
fn a_guest_behind_masquerade_is_told_an_address_of_each_family_that_its_pod_has() {
    let told = |addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| (address.parse().unwrap(), 64)).collect();
        let eth0 = Link { index: 2, mtu: 1400, addresses, ..Link::default() };
        let bridge = Link { index: 3, ..Link::default() };
        let links = BTreeMap::from([("eth0".to_owned(), eth0), ("k6t-eth0".to_owned(), bridge)]);
        let prepared = prepared(&wanted(Vec::new()), &links).unwrap();
        [prepared.ipv4.is_some(), prepared.ipv6.is_some(), prepared.link_local.is_some()]
    };
    assert_eq!(told(&["10.244.9.7", "fd00::7"]), [true, true, true]);
    assert_eq!(told(&["10.244.9.7", "fe80::7"]), [true, false, false]);
    assert_eq!(told(&["fd00::7", "fe80::7"]), [false, true, true]);
}

#[test]
fn dhcp_socket_receives_from_the_guest_only() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    let wanted = wanted(Vec::new());
    let (_, _, mut descriptors) = prepare_blocking(&pod, &wanted, &BTreeSet::new());
    let server = UdpSocket::from(take(&mut descriptors, "net/default/dhcp4"));
    server.set_nonblocking(false).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);

    request(&node, "peer", "from the node");
    request(&guest, "nic", "from the guest");
    let mut buffer = [0; 64];
    let (length, peer) = server.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], peer.port()), (&b"from the guest"[..], 68));
    assert!(server.recv_from(&mut buffer).is_err());
}

/// Sends a datagram to the DHCP servers that a link leads to.
fn request(netns: &OwnedFd, link: &'static str, text: &'static str) {
    inside(netns, move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 68)).unwrap();
        socket.set_broadcast(true).unwrap();
        let device = std::ffi::OsString::from(link);
        nix::sys::socket::setsockopt(&socket.as_fd(), nix::sys::socket::sockopt::BindToDevice, &device)
            .unwrap();
        socket.send_to(text.as_bytes(), (Ipv4Addr::BROADCAST, 67)).unwrap();
    });
}

/// Sends a datagram from the guest with a chosen source address, by a route over its gateway.
fn send_from(guest: &OwnedFd, source: IpAddr, to: SocketAddr, text: &'static str) {
    let prefix = if source.is_ipv4() { 32 } else { 128 };
    with_netlink(guest, move |netlink| async move {
        let nic = index(&netlink, "nic").await;
        let mut request = netlink.address().add(nic, source, prefix);
        if source.is_ipv6() {
            let message = request.message_mut();
            message.header.flags |= netlink_packet_route::address::AddressHeaderFlags::Nodad;
        }
        // It may already have the address.
        let _ = request.execute().await;
        let route = match to.ip() {
            IpAddr::V4(to) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(to, 32)
                .gateway(IPV4.gateway)
                .output_interface(nic)
                .build(),
            IpAddr::V6(to) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(to, 128)
                .gateway(IPV6.gateway)
                .output_interface(nic)
                .build(),
        };
        let _ = netlink.route().add(route).execute().await;
        let socket = UdpSocket::bind((source, 0)).unwrap();
        socket.send_to(text.as_bytes(), to).unwrap();
    });
}

/// The datagrams that a socket receives within a moment.
fn received(socket: &UdpSocket) -> Vec<String> {
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    let mut buffer = [0; 64];
    let mut all = Vec::new();
    while let Ok((length, _)) = socket.recv_from(&mut buffer) {
        all.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    all
}

#[test]
fn the_guest_cannot_reach_the_pods_loopback_or_use_foreign_addresses() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    let wanted = wanted(Vec::new());
    let (_, _, mut descriptors) = prepare_blocking(&pod, &wanted, &BTreeSet::new());
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    let listen =
        |netns: &OwnedFd, address: IpAddr| inside(netns, move || UdpSocket::bind((address, 7070)).unwrap());
    let (pod4, pod6) = (listen(&pod, IPV4.gateway.into()), listen(&pod, IPV6.gateway.into()));
    let loopback = listen(&pod, Ipv4Addr::LOCALHOST.into());
    let (node4, node6) = (listen(&node, NODE4.into()), listen(&node, NODE6.into()));
    // Otherwise the guest's own kernel would not send such packets.
    inside(&guest, || std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").unwrap());

    let (own4, own6) = (IpAddr::from(IPV4.guest), IpAddr::from(IPV6.guest));
    let foreign4 = IpAddr::from(Ipv4Addr::new(10, 0, 2, 77));
    let foreign6 = IpAddr::from(Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 0x77));
    for (source, text) in [(own4, "own"), (foreign4, "foreign")] {
        send_from(&guest, source, (IPV4.gateway, 7070).into(), text);
        send_from(&guest, source, (NODE4, 7070).into(), text);
    }
    for (source, text) in [(own6, "own"), (foreign6, "foreign")] {
        send_from(&guest, source, (IPV6.gateway, 7070).into(), text);
        send_from(&guest, source, (NODE6, 7070).into(), text);
    }
    // The guest has lost its own loopback address, so packets for it leave by its card.
    with_netlink(&guest, |netlink| async move {
        change(&netlink, LinkUnspec::new_with_index(1).down().build()).await;
    });
    send_from(&guest, own4, (Ipv4Addr::LOCALHOST, 7070).into(), "loopback");

    assert_eq!((received(&pod4), received(&node4)), (vec!["own".to_owned()], vec!["own".to_owned()]));
    assert_eq!((received(&pod6), received(&node6)), (vec!["own".to_owned()], vec!["own".to_owned()]));
    assert_eq!(received(&loopback), Vec::<String>::new());
}

#[test]
fn a_pod_without_its_interface_is_refused_and_left_alone() {
    let Some(pod) = namespace() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result =
        runtime.block_on(prepare(pod.try_clone().unwrap(), vec![wanted(Vec::new())], BTreeSet::new()));
    assert!(matches!(result, Err(NetworkError::Plan(PlanError::NoPodInterface(_)))), "{result:?}");
    let links = with_netlink(&pod, |netlink| async move {
        use futures::TryStreamExt;
        netlink.link().get().execute().try_collect::<Vec<_>>().await.unwrap().len()
    });
    // Kernels may add their own fallback tunnels, but never a bridge or a tap.
    let bridge = inside(&pod, || std::path::Path::new("/proc/sys/net/ipv4/conf/k6t-eth0").exists());
    assert!(links >= 1 && !bridge);
}

#[test]
fn a_refused_batch_names_the_message_and_changes_nothing() {
    let Some(pod) = namespace() else { return };
    inside(&pod, || {
        let nftables = Nftables::open().unwrap();
        let four = super::nft::rules::masquerade(
            "eth0",
            "k6t-eth0",
            IPV4.gateway.into(),
            IPV4.guest.into(),
            &[],
            None,
        );
        // An IPv4 address does not fit the register in a table for IPv6.
        let wrong = nft::rules::Ruleset { family: nft::rules::Family::V6, rules: four.rules.clone() };
        let error = nftables.replace(&wrong).unwrap_err();
        assert!(matches!(error, NftError::Refused { message: 7.., .. }), "{error:?}");
        // The refusals of thousands of messages have room, and the first one is named.
        let many = wrong.rules.iter().cycle().take(4000).cloned().collect();
        let error = nftables.replace(&nft::rules::Ruleset { rules: many, ..wrong.clone() }).unwrap_err();
        assert!(matches!(error, NftError::Refused { message: 7..20, .. }), "{error:?}");
        assert_eq!(nftables.fingerprint(nft::rules::Family::V6).unwrap(), None);
        nftables.create(&four).unwrap();
        // A table that is there keeps its rules.
        let error = nftables.create(&nft::rules::Ruleset { rules: Vec::new(), ..four.clone() }).unwrap_err();
        assert!(matches!(error, NftError::Refused { message: 1, .. }), "{error:?}");
        assert_eq!(nftables.fingerprint(nft::rules::Family::V4).unwrap(), Some(four.fingerprint().to_vec()));
        nftables.replace(&four).unwrap();
        let step = Step::ReplaceRules(four);
        assert!(format!("{step:?}").contains("Masquerade"));
    });
}
