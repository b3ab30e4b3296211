//! A guest behind masquerade whose pod has the sidecar of a mesh.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};

use super::*;

const SIDECAR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
/// A port of the sidecar, and two of the guest.
const HEALTH: u16 = 15021;
const WEB: u16 = 8080;
const SSH: u16 = 22;

/// A node, its pod, and the pod's guest.
fn scene(has_sidecar: bool) -> Option<[OwnedFd; 3]> {
    let (node, pod) = node_and_pod(true)?;
    let ports = Vec::new();
    let binding = Binding::Masquerade(Masquerade { ipv4: IPV4, ipv6: IPV6, ports, has_sidecar });
    let card = Wanted { binding, ..wanted(Vec::new()) };
    let (_, _, mut descriptors) = prepare_blocking(&pod, &card, &BTreeSet::new());
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    serve(&guest, (Ipv6Addr::UNSPECIFIED, WEB).into());
    serve(&pod, (Ipv6Addr::UNSPECIFIED, HEALTH).into());
    Some([node, pod, guest])
}

/// The answer of the guest to its pod's sidecar, which connects to the pod's address.
fn asked_by_sidecar(pod: &OwnedFd) -> Option<String> {
    inside(pod, || {
        let asks = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(asks.as_raw_fd(), &SockaddrIn::from(std::net::SocketAddrV4::new(SIDECAR, 0))).unwrap();
        connect(asks.as_raw_fd(), &SockaddrIn::from(std::net::SocketAddrV4::new(POD4, WEB))).ok()?;
        let mut stream = TcpStream::from(asks);
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    })
}

#[test]
fn the_sidecar_of_a_mesh_is_reached_at_its_ports_and_reaches_the_guest() {
    let Some([node, pod, _guest]) = scene(true) else { return };
    assert_eq!(ask(&node, (POD4, HEALTH)), Some(format!("::ffff:{NODE4}")));
    assert_eq!(ask(&node, (POD6, HEALTH)), Some(NODE6.to_string()));
    assert_eq!(ask(&pod, (Ipv4Addr::LOCALHOST, HEALTH)), Some("::ffff:127.0.0.1".to_owned()));
    assert_eq!(asked_by_sidecar(&pod), Some(format!("::ffff:{}", IPV4.gateway)));
    // Everything else is the guest's.
    assert_eq!(ask(&node, (POD4, WEB)), Some(format!("::ffff:{NODE4}")));
    assert_eq!(ask(&pod, (Ipv4Addr::LOCALHOST, WEB)), Some(format!("::ffff:{}", IPV4.gateway)));
}

#[test]
fn without_a_sidecar_all_ports_are_the_guests() {
    let Some([node, pod, _guest]) = scene(false) else { return };
    assert_eq!(ask(&node, (POD4, HEALTH)), None);
    assert_eq!(asked_by_sidecar(&pod), None);
    assert_eq!(ask(&node, (POD4, WEB)), Some(format!("::ffff:{NODE4}")));
}

#[test]
fn a_mesh_takes_connections_before_the_guest_does_except_ssh() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    // The mesh is there before the launcher runs. Nothing listens where it redirects to.
    for arguments in [
        "add table ip mesh",
        "add chain ip mesh inbound { type nat hook prerouting priority -100 ; }",
        "add rule ip mesh inbound iifname eth0 meta l4proto tcp dnat to 10.244.9.7:15006",
    ] {
        run_in(&pod, "nft", arguments);
    }
    let binding = Masquerade { ipv4: IPV4, ipv6: IPV6, ports: Vec::new(), has_sidecar: true };
    let card = Wanted { binding: Binding::Masquerade(binding), ..wanted(Vec::new()) };
    let (_, _, mut descriptors) = prepare_blocking(&pod, &card, &BTreeSet::new());
    let guest = guest(take(&mut descriptors, "net/default/tap"), MAC);
    for port in [WEB, SSH] {
        serve(&guest, (Ipv6Addr::UNSPECIFIED, port).into());
    }
    assert_eq!(ask(&node, (POD4, WEB)), None);
    assert_eq!(ask(&node, (POD4, SSH)), Some(format!("::ffff:{NODE4}")));
    // The mesh has no rules for IPv6 here: what it leaves is the guest's.
    assert_eq!(ask(&node, (POD6, WEB)), Some(NODE6.to_string()));
}
