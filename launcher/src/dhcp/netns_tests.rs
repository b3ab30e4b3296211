//! The servers on real sockets in a network namespace, opened as the handler opens them, with real clients in
//! another namespace: busybox's udhcpc, the kernel's own handling of router advertisements, and ISC's
//! dhclient for DHCPv6.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::sockopt::{BindToDevice, Ipv6V6Only, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, bind, setsockopt, socket,
};

use super::guest::tests::interface;
use super::*;

pub(super) const GUEST_MAC: &str = "02:12:34:56:78:9a";

/// Runs a program in this thread's namespace.
pub(super) fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).stdin(Stdio::null()).output().expect(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A thread in a network namespace of its own: its number, how to let it go on, and its result.
pub(super) struct Side<T> {
    pub(super) number: i32,
    pub(super) go: mpsc::Sender<()>,
    pub(super) thread: JoinHandle<T>,
}

pub(super) fn side<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Side<T> {
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("needs root");
        tell.send(nix::unistd::gettid().as_raw()).unwrap();
        gone.recv().expect("the pod's side");
        work()
    });
    Side { number: told.recv().unwrap(), go, thread }
}

/// The pod's side: a bridge with the addresses of the masquerade binding, and one end of a veth pair on it.
pub(super) fn pod(guest_thread: i32) -> Sockets {
    unshare(CloneFlags::CLONE_NEWNET).expect("needs root");
    for line in [
        "ip link set lo up",
        "ip link add k6t-eth0 address 02:00:00:00:00:00 type bridge",
        "ip link add pod-end type veth peer name guest-end",
        "ip link set pod-end master k6t-eth0",
        "ip addr add 10.0.2.1/24 dev k6t-eth0",
        "ip addr add fd10:0:2::1/120 dev k6t-eth0 nodad",
    ] {
        run(line);
    }
    fs::write("/proc/sys/net/ipv6/conf/k6t-eth0/accept_dad", "0").unwrap();
    run(&format!("ip link set guest-end netns {guest_thread}"));
    run("ip link set pod-end up");
    run("ip link set k6t-eth0 up");
    let bridge_index = if_nametoindex("k6t-eth0").unwrap();
    Sockets {
        dhcp4: Some(open_dhcp4()),
        dhcp6: Some(open_v6(SockType::Datagram, None, 547, "ff02::1:2", bridge_index)),
        router: Some(open_v6(SockType::Raw, SockProtocol::IcmpV6, 0, "ff02::2", bridge_index)),
        bridge_index,
    }
}

fn open_dhcp4() -> OwnedFd {
    let opened = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&opened, ReuseAddr, &true).unwrap();
    setsockopt(&opened, BindToDevice, &"k6t-eth0".into()).unwrap();
    let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 67);
    bind(opened.as_raw_fd(), &SockaddrIn::from(address)).unwrap();
    opened
}

fn open_v6(
    kind: SockType,
    protocol: impl Into<Option<SockProtocol>>,
    port: u16,
    group: &str,
    bridge_index: u32,
) -> OwnedFd {
    let opened = socket(AddressFamily::Inet6, kind, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
    setsockopt(&opened, BindToDevice, &"k6t-eth0".into()).unwrap();
    if port != 0 {
        setsockopt(&opened, Ipv6V6Only, &true).unwrap();
        let address = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
        bind(opened.as_raw_fd(), &SockaddrIn6::from(address)).unwrap();
    }
    // The same call for both kinds of socket.
    let opened = UdpSocket::from(opened);
    opened.join_multicast_v6(&group.parse().unwrap(), bridge_index).unwrap();
    opened.into()
}

/// Waits until `probe` returns a value.
pub(super) fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "no {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A client's script that writes its environment to a file if its reason matches.
pub(super) fn script(directory: &Path, reason: &str) -> (PathBuf, PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let (script, result) = (directory.join(format!("script-{reason}")), directory.join(reason));
    let text = format!(
        "#!/bin/sh\ncase \"$1$reason\" in {reason}) env > {0}.part; mv {0}.part {0};; esac\n",
        result.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    (script, result)
}

fn variables(path: &Path) -> Option<BTreeMap<String, String>> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect())
}

pub(super) fn udhcpc(script: &Path) -> bool {
    let client = Command::new("busybox")
        .args("udhcpc -i guest-end -n -q -f -t 3 -T 1 -O search -O mtu -O 240 -s".split(' '))
        .arg(script)
        .stdin(Stdio::null())
        .output()
        .expect("busybox with udhcpc is needed (Debian package busybox-static)");
    client.status.success()
}

/// Asks for an address as the guest; returns the variables of the lease.
pub(super) fn dhclient(directory: &Path) -> BTreeMap<String, String> {
    let (bound, lease) = script(directory, "BOUND6");
    let mut client = Command::new("dhclient")
        .args(["-6", "-1", "-d", "-lf"])
        .arg(directory.join("leases"))
        .arg("-pf")
        .arg(directory.join("pid"))
        .arg("-sf")
        .arg(bound)
        .arg("guest-end")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("dhclient is needed (Debian package isc-dhcp-client)");
    let lease = wait_for("DHCPv6 lease", || variables(&lease));
    client.kill().unwrap();
    client.wait().unwrap();
    lease
}

/// What the guest received.
struct Received {
    stranger_was_served: bool,
    v4: BTreeMap<String, String>,
    route: String,
    mtu: String,
    v6: BTreeMap<String, String>,
}

fn guest(directory: &Path) -> Received {
    run("ip link set lo up");
    fs::write("/proc/sys/net/ipv6/conf/guest-end/accept_ra", "1").unwrap();
    fs::write("/proc/sys/net/ipv6/conf/guest-end/accept_dad", "0").unwrap();
    let (bound, v4) = script(directory, "bound");

    run("ip link set guest-end address 02:99:99:99:99:99");
    run("ip link set guest-end up");
    let stranger_was_served = udhcpc(&bound);
    run("ip link set guest-end down");
    run(&format!("ip link set guest-end address {GUEST_MAC}"));
    run("ip link set guest-end up");

    assert!(udhcpc(&bound), "udhcpc got no lease");
    let v4 = variables(&v4).unwrap();
    // The kernel sends a router solicitation by itself when the link comes up.
    let route = wait_for("default route", || {
        Some(run("ip -6 route show default")).filter(|routes| routes.contains("default"))
    });
    let mtu = fs::read_to_string("/proc/sys/net/ipv6/conf/guest-end/mtu").unwrap();

    let v6 = dhclient(directory);
    Received { stranger_was_served, v4, route, mtu: mtu.trim().to_owned(), v6 }
}

#[tokio::test]
async fn real_clients_get_what_the_guest_is_meant_to_have() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let Side { number, go, thread: guest_side } = side(move || guest(&path));
    let sockets = thread::spawn(move || pod(number)).join().unwrap();

    let mut facts = interface();
    facts.mac = GUEST_MAC.into();
    let options = barevirt_api::v1::DhcpOptions {
        private_options: vec![barevirt_api::v1::DhcpPrivateOption { option: 240, value: "private".into() }],
        ..Default::default()
    };
    let guest = Guest::new(&facts, Some("vm1"), Some(&options)).unwrap();
    let server = tokio::spawn(serve(guest, sockets, |_| ()));
    go.send(()).unwrap();
    let seen = tokio::task::spawn_blocking(move || guest_side.join()).await.unwrap().unwrap();
    assert!(!server.is_finished());
    server.abort();

    assert!(!seen.stranger_was_served, "another MAC address gets no lease");
    let v4 = |name: &str| seen.v4.get(name).map(String::as_str).unwrap_or_default();
    assert_eq!((v4("ip"), v4("subnet"), v4("mask")), ("10.0.2.2", "255.255.255.0", "24"), "{:?}", seen.v4);
    assert_eq!((v4("router"), v4("serverid"), v4("dns")), ("10.0.2.1", "10.0.2.1", "10.96.0.10"));
    assert_eq!((v4("hostname"), v4("domain"), v4("mtu")), ("vm1", "shop.svc.cluster.local", "1450"));
    assert_eq!((v4("broadcast"), v4("lease")), ("10.0.2.255", LEASE.to_string().as_str()));
    assert_eq!(v4("search"), "shop.svc.cluster.local svc.cluster.local");
    assert_eq!(v4("opt240"), "70726976617465");
    assert!(seen.route.contains("via fe80::ff:fe00:0") && seen.route.contains("proto ra"), "{}", seen.route);
    assert_eq!(seen.mtu, "1450");
    let v6 = |name: &str| seen.v6.get(name).map(String::as_str).unwrap_or_default();
    assert_eq!(v6("new_ip6_address"), "fd10:0:2::2", "{:?}", seen.v6);
    assert_eq!(v6("new_dhcp6_name_servers"), "fd10:96::a");
    assert_eq!(v6("new_dhcp6_domain_search"), "shop.svc.cluster.local. svc.cluster.local.");
    assert_eq!(v6("new_max_life"), LEASE.to_string());
}
