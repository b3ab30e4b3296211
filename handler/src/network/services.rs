//! The sockets on which the launcher serves DHCP, DHCPv6 and router advertisements. They need privileges (low
//! ports, raw, bound to an interface), so the handler opens them in the pod's namespace and hands them over.
//!
//! On a bridge with other hosts, an advertisement or an answer of DHCPv6 must reach the guest only. There the
//! launcher gets a packet socket on the guest's tap: it receives what the guest sends, and what it sends goes to
//! the guest, past the bridge.
//!
//! There, requests of DHCPv4 are received on the bridge, too, but only in frames from the guest's MAC address. The
//! client's address in a request proves nothing: any host can write the guest's, and use up the answers that the guest
//! gets. The filter looks at the frame around the request, for which the kernel's own IPv4 and UDP stay in use; a packet
//! socket on the tap would need both again in the launcher. What it cannot tell apart is a host that also sends from the
//! guest's MAC address. Where the network lets a host do that, it can take the guest's traffic altogether; `macspoofchk`
//! of the plugin `bridge` prevents it.

use std::io;
use std::net::{Ipv6Addr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, SetSockOpt, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, bind, setsockopt,
    socket, sockopt,
};

use super::addresses::MacAddress;
use super::plan::Service;
use crate::kernel;

/// Port of DHCP servers.
const DHCP4_PORT: u16 = 67;
/// Port of DHCPv6 servers.
const DHCP6_PORT: u16 = 547;
/// Multicast address of all DHCPv6 relay agents and servers.
const DHCP6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// Multicast address of all routers.
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// ICMPv6 type of a router solicitation, the only message that the socket receives.
const ROUTER_SOLICITATION: u8 = 133;
/// ICMPv6 types of neighbour discovery.
const NEIGHBOUR_SOLICITATION: u32 = 135;
const NEIGHBOUR_ADVERTISEMENT: u32 = 136;
/// Ethernet's numbers of ARP and IPv6.
const ARP: u32 = 0x0806;
const IPV6: u32 = 0x86dd;
/// Number of ICMPv6.
const ICMP6: u32 = 58;
/// Number of UDP.
const UDP: u32 = 17;
/// Where a filter finds whether a frame has a VLAN's tag (`SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT`).
const VLAN_PRESENT: u32 = 0xffff_f030;
/// Where a filter of any socket finds the source address of the frame (`SKF_LL_OFF`, and the length of the other address).
const FRAME_SOURCE: u32 = 0xffe0_0000 + 6;
/// Most bytes of a frame that the socket receives. Requests are smaller.
const FRAME: u32 = 2048;
/// Hop limit that neighbour discovery requires: it proves that no router forwarded the message.
const NEIGHBOUR_DISCOVERY_HOPS: i32 = 255;

/// Opens the socket for `service` on interface `link`, whose index is `index`, in the calling thread's namespace.
pub fn open(service: Service, link: &str, index: u32) -> io::Result<OwnedFd> {
    match service {
        Service::Dhcp4 { only_from } => dhcp4(link, only_from),
        Service::Dhcp6 => dhcp6(link, index),
        Service::RouterAdvertisement => router_advertisement(link, index),
        Service::Frames => kernel::receive_frames(index, &requests()),
        Service::Neighbours => kernel::receive_frames(index, &neighbours()),
    }
}

fn dhcp4(link: &str, only_from: Option<MacAddress>) -> io::Result<OwnedFd> {
    let fd = socket(AddressFamily::Inet, SockType::Datagram, flags(), None)?;
    bind_to(&fd, link)?;
    // Before it has a port, so that nothing else is received.
    if let Some(mac) = only_from {
        kernel::receive_only(&fd, &sent_from(mac))?;
    }
    set(&fd, sockopt::ReuseAddr, &true)?;
    set(&fd, sockopt::Broadcast, &true)?;
    kernel::send_without_checksum(&fd)?;
    bind(
        std::os::fd::AsRawFd::as_raw_fd(&fd),
        &SockaddrIn::from(SocketAddrV4::new([0, 0, 0, 0].into(), DHCP4_PORT)),
    )?;
    Ok(fd)
}

fn dhcp6(link: &str, index: u32) -> io::Result<OwnedFd> {
    let fd = socket(AddressFamily::Inet6, SockType::Datagram, flags(), None)?;
    bind_to(&fd, link)?;
    set(&fd, sockopt::ReuseAddr, &true)?;
    set(&fd, sockopt::Ipv6V6Only, &true)?;
    let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, DHCP6_PORT, 0, 0);
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn6::from(any))?;
    join(fd, DHCP6_SERVERS, index)
}

fn router_advertisement(link: &str, index: u32) -> io::Result<OwnedFd> {
    let fd = socket(AddressFamily::Inet6, SockType::Raw, flags(), SockProtocol::IcmpV6)?;
    bind_to(&fd, link)?;
    kernel::receive_only_icmp6(&fd, ROUTER_SOLICITATION)?;
    set(&fd, sockopt::Ipv6MulticastHops, &NEIGHBOUR_DISCOVERY_HOPS)?;
    set(&fd, sockopt::Ipv6Ttl, &NEIGHBOUR_DISCOVERY_HOPS)?;
    join(fd, ALL_ROUTERS, index)
}

const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// A step of a filter of frames, in the kernel's language (`linux/filter.h`). The number of steps to leave out comes
/// after the value: if both are equal, or else if they are not.
fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).unwrap_or(u16::MAX), jt, jf, k }
}

/// The filter for what comes in frames from that MAC address.
fn sent_from(MacAddress([a, b, c, d, e, f]): MacAddress) -> [libc::sock_filter; 6] {
    [
        step(LOAD_WORD, FRAME_SOURCE, 0, 0),
        step(EQUAL, u32::from_be_bytes([a, b, c, d]), 0, 3),
        step(LOAD_HALF, FRAME_SOURCE + 4, 0, 0),
        step(EQUAL, u32::from_be_bytes([0, 0, e, f]), 0, 1),
        step(RETURN, FRAME, 0, 0),
        step(RETURN, 0, 0, 0),
    ]
}

/// The filter for ARP and neighbour discovery, without a VLAN.
fn neighbours() -> [libc::sock_filter; 12] {
    [
        // The kernel takes a VLAN's tag out of the frame.
        step(LOAD_BYTE, VLAN_PRESENT, 0, 0),
        step(EQUAL, 0, 0, 9),
        step(LOAD_HALF, 12, 0, 0),
        step(EQUAL, ARP, 6, 0),
        step(EQUAL, IPV6, 0, 6),
        step(LOAD_BYTE, 20, 0, 0),
        step(EQUAL, ICMP6, 0, 4),
        step(LOAD_BYTE, 54, 0, 0),
        step(EQUAL, NEIGHBOUR_SOLICITATION, 1, 0),
        step(EQUAL, NEIGHBOUR_ADVERTISEMENT, 0, 1),
        step(RETURN, FRAME, 0, 0),
        step(RETURN, 0, 0, 0),
    ]
}

/// The filter for router solicitations and requests of DHCPv6, without a VLAN and without extension headers.
fn requests() -> [libc::sock_filter; 13] {
    [
        // The kernel takes a VLAN's tag out of the frame.
        step(LOAD_BYTE, VLAN_PRESENT, 0, 0),
        step(EQUAL, 0, 0, 10),
        step(LOAD_HALF, 12, 0, 0),
        step(EQUAL, IPV6, 0, 8),
        step(LOAD_BYTE, 20, 0, 0),
        step(EQUAL, ICMP6, 0, 2),
        step(LOAD_BYTE, 54, 0, 0),
        step(EQUAL, ROUTER_SOLICITATION.into(), 3, 4),
        step(EQUAL, UDP, 0, 3),
        step(LOAD_HALF, 56, 0, 0),
        step(EQUAL, DHCP6_PORT.into(), 0, 1),
        step(RETURN, FRAME, 0, 0),
        step(RETURN, 0, 0, 0),
    ]
}

fn flags() -> SockFlag {
    SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK
}

fn bind_to(fd: &OwnedFd, link: &str) -> io::Result<()> {
    set(fd, sockopt::BindToDevice, &link.to_owned().into())
}

fn set<O: SetSockOpt>(fd: &impl AsFd, option: O, value: &O::Val) -> io::Result<()> {
    setsockopt(fd, option, value).map_err(io::Error::from)
}

/// The type of the standard library only gives access to the option, and works for any IPv6 socket.
fn join(fd: OwnedFd, group: Ipv6Addr, index: u32) -> io::Result<OwnedFd> {
    let socket = UdpSocket::from(fd);
    socket.join_multicast_v6(&group, index)?;
    Ok(OwnedFd::from(socket))
}
