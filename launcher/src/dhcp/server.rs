//! The I/O around the pure answers. Runs until it is dropped.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr, SocketAddrV4, SocketAddrV6, UdpSocket as StdSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::sockopt::Broadcast;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn6, sendmsg, setsockopt};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep};

use super::answers::Answers;
use super::errors::{ERROR_PAUSE, note};
use super::guest::Guest;
use super::ipv6::Neighbours;
use super::pace::Pace;
use super::router::ALL_NODES;
use super::{heard, router, tap, v4, v6};

/// Sockets that the handler opened, each bound to the bridge.
#[derive(Debug, Default)]
pub struct Sockets {
    /// UDP, port 67.
    pub dhcp4: Option<OwnedFd>,
    /// UDP over IPv6, port 547, joined `ff02::1:2`.
    pub dhcp6: Option<OwnedFd>,
    /// Raw ICMPv6, joined `ff02::2`. Where other hosts are on the guest's network: a packet socket on the tap,
    /// which also serves DHCPv6, or on which the guest's own addresses are heard if it is given none.
    pub router: Option<OwnedFd>,
    /// Interface index of the bridge in the pod.
    pub bridge_index: u32,
}

/// Why a guest cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("set up {socket} socket")]
pub struct ServeError {
    socket: &'static str,
    #[source]
    source: io::Error,
}

/// Serves the guest on the sockets until dropped; returns only if a descriptor is not a socket of its kind.
/// Families without a socket or without an address are not served. `tell` gets the addresses that a guest without any
/// from here has by itself, whenever there is another one.
///
/// # Errors
/// If a descriptor is not a socket of its kind.
pub async fn serve(
    guest: Guest,
    sockets: Sockets,
    tell: impl Fn(Vec<IpAddr>),
) -> Result<Infallible, ServeError> {
    let Sockets { dhcp4, dhcp6, router, bridge_index } = sockets;
    let dhcp4 = dhcp4.map(|socket| prepare(socket, "dhcp4", true)).transpose()?;
    let dhcp6 = dhcp6.map(|socket| prepare(socket, "dhcp6", false)).transpose()?;
    let router = router.map(|socket| prepare(socket, "ra", false)).transpose()?;
    let has_neighbours = guest.ipv6.as_ref().is_some_and(|ipv6| ipv6.neighbours == Neighbours::Network);
    let has_none = guest.ipv4.is_none() && guest.ipv6.is_none();
    tracing::info!(
        mac = %guest.mac,
        dhcp4 = dhcp4.is_some() && guest.ipv4.is_some(),
        dhcp6 = (dhcp6.is_some() || has_neighbours && router.is_some()) && guest.ipv6.is_some(),
        router = router.is_some() && guest.ipv6.is_some(),
        "serving addresses to the guest"
    );
    let answers = Answers::new(&guest);
    let ((), (), ()) = tokio::join!(
        async {
            match &dhcp4 {
                Some(socket) => serve_v4(&answers, socket).await,
                None => std::future::pending().await,
            }
        },
        async {
            match &dhcp6 {
                Some(socket) => serve_v6(&answers, socket, bridge_index).await,
                None => std::future::pending().await,
            }
        },
        async {
            match &router {
                Some(socket) if has_none => heard::listen(guest.mac, socket, &tell).await,
                Some(socket) if has_neighbours => tap::serve(&guest, &answers, socket).await,
                Some(socket) => serve_router(&guest, socket, bridge_index).await,
                None => std::future::pending().await,
            }
        },
    );
    // None of the three tasks ends.
    std::future::pending().await
}

fn prepare(socket: OwnedFd, name: &'static str, broadcasts: bool) -> Result<UdpSocket, ServeError> {
    let failed = |source| ServeError { socket: name, source };
    if broadcasts {
        setsockopt(&socket, Broadcast, &true).map_err(|errno| failed(errno.into()))?;
    }
    // A raw socket sends and receives through the same calls.
    let socket = StdSocket::from(socket);
    socket.set_nonblocking(true).map_err(failed)?;
    UdpSocket::from_std(socket).map_err(failed)
}

async fn serve_v4(answers: &Answers<'_>, socket: &UdpSocket) {
    let mut buffer = [0; v4::LARGEST_REQUEST];
    loop {
        let received = socket.recv_from(&mut buffer).await;
        let Ok((length, _)) = received.inspect_err(|error| note("dhcp4", error)) else {
            sleep(ERROR_PAUSE).await;
            continue;
        };
        if let Some(v4::Reply { bytes, to }) = answers.v4(&buffer[..length], Instant::now()) {
            let to = SocketAddrV4::new(to, v4::CLIENT_PORT);
            let _ = socket.send_to(&bytes, to).await.inspect_err(|error| note("dhcp4", error));
        }
    }
}

async fn serve_v6(answers: &Answers<'_>, socket: &UdpSocket, bridge_index: u32) {
    let mut buffer = [0; v6::LARGEST_REQUEST];
    loop {
        let received = socket.recv_from(&mut buffer).await;
        let Ok((length, from)) = received.inspect_err(|error| note("dhcp6", error)) else {
            sleep(ERROR_PAUSE).await;
            continue;
        };
        // Clients send from their link-local address; other messages do not come from the link.
        let std::net::SocketAddr::V6(from) = from else { continue };
        if !from.ip().is_unicast_link_local() {
            continue;
        }
        if let Some(bytes) = answers.v6(&buffer[..length], Instant::now()) {
            let to = SocketAddrV6::new(*from.ip(), v6::CLIENT_PORT, 0, bridge_index);
            let _ = socket.send_to(&bytes, to).await.inspect_err(|error| note("dhcp6", error));
        }
    }
}

async fn serve_router(guest: &Guest, socket: &UdpSocket, bridge_index: u32) {
    let advertisements = router::advertisements(guest);
    if advertisements.is_empty() {
        return std::future::pending().await;
    }
    let mut pace = Pace::new();
    let mut buffer = [0; 1500];
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                Ok((length, _)) => {
                    if router::is_solicitation(&buffer[..length]) {
                        pace.ask();
                    }
                }
                Err(error) => {
                    note("ra", &error);
                    sleep(ERROR_PAUSE).await;
                }
            },
            () = pace.due() => {
                for router::Advertisement { from, message } in &advertisements {
                    let send = || advertise(socket, message, *from, bridge_index);
                    let sent = socket.async_io(Interest::WRITABLE, send).await;
                    let _ = sent.inspect_err(|error| note("ra", error));
                }
            }
        }
    }
}

/// Sends to all nodes from the bridge's link-local address, with the hop limit that receivers require.
fn advertise(
    socket: &UdpSocket,
    message: &[u8],
    source: Option<Ipv6Addr>,
    bridge_index: u32,
) -> io::Result<()> {
    let hop_limit = 255;
    let info = libc::in6_pktinfo {
        ipi6_addr: libc::in6_addr { s6_addr: source.unwrap_or(Ipv6Addr::UNSPECIFIED).octets() },
        #[allow(clippy::useless_conversion)] // signed with musl
        ipi6_ifindex: bridge_index.try_into().map_err(|_| io::ErrorKind::InvalidInput)?,
    };
    let control = [ControlMessage::Ipv6HopLimit(&hop_limit), ControlMessage::Ipv6PacketInfo(&info)];
    let to = SockaddrIn6::from(SocketAddrV6::new(ALL_NODES, 0, 0, bridge_index));
    sendmsg(socket.as_raw_fd(), &[IoSlice::new(message)], &control, MsgFlags::MSG_DONTWAIT, Some(&to))?;
    Ok(())
}
