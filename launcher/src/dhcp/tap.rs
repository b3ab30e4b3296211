//! DHCPv6 and router advertisements in frames, on a packet socket that the handler bound to the guest's tap.

use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep};

use super::answers::Answers;
use super::errors::{ERROR_PAUSE, note};
use super::frame::{self, Message};
use super::guest::Guest;
use super::pace::Pace;
use super::{SERVER_LINK_LOCAL, router};

/// Serves the guest. `socket` is the packet socket: reading and writing are the same as for other sockets.
pub(super) async fn serve(guest: &Guest, answers: &Answers<'_>, socket: &UdpSocket) {
    let advertisements: Vec<Vec<u8>> = router::advertisements(guest)
        .into_iter()
        .map(|one| frame::advertisement(one.from.unwrap_or(SERVER_LINK_LOCAL), &one.message))
        .collect();
    let mut pace = Pace::new();
    let mut buffer = [0; frame::LARGEST];
    loop {
        tokio::select! {
            received = socket.recv(&mut buffer) => match received {
                Ok(length) => {
                    if receive(guest, answers, socket, &buffer[..length]).await {
                        pace.ask();
                    }
                }
                Err(error) => {
                    note("tap", &error);
                    sleep(ERROR_PAUSE).await;
                }
            },
            () = pace.due() => {
                for advertisement in &advertisements {
                    send(socket, advertisement).await;
                }
            }
        }
    }
}

/// Answers a request of DHCPv6. Returns whether the guest asks for an advertisement.
async fn receive(guest: &Guest, answers: &Answers<'_>, socket: &UdpSocket, frame: &[u8]) -> bool {
    match frame::read(frame, guest.mac) {
        Some(Message::Solicitation) => true,
        Some(Message::Dhcp { from, bytes }) => {
            if let Some(reply) = answers.v6(bytes, Instant::now()) {
                send(socket, &frame::dhcp(guest.mac, from, &reply)).await;
            }
            false
        }
        None => false,
    }
}

async fn send(socket: &UdpSocket, frame: &[u8]) {
    let _ = socket.send(frame).await.inspect_err(|error| note("tap", error));
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket as StdSocket;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use tokio::net::UnixDatagram;
    use tokio::time::timeout;

    use super::super::frame::PROTOCOL_ICMP6;
    use super::super::frame::tests::{CLIENT, from_guest};
    use super::super::ipv6::tests::on_network;
    use super::super::v6;
    use super::*;

    const UDP: u8 = 17;
    /// As many solicitations take ten seconds if each is answered.
    const MANY: usize = 100;
    const SOON: Duration = Duration::from_secs(5);

    /// A frame with a request of DHCPv6.
    fn request() -> Vec<u8> {
        let message = v6::tests::solicit();
        let length = u16::try_from(8 + message.len()).unwrap().to_be_bytes();
        let datagram = [&[2, 0x22, 0, 0][..], &length, &[0; 2], &message].concat();
        let mut frame = from_guest(CLIENT, UDP, 1, &datagram);
        // The checksum, which nobody reads, went to the place of the port.
        frame[56..58].copy_from_slice(&547_u16.to_be_bytes());
        frame
    }

    #[tokio::test]
    async fn a_guest_that_has_asked_for_routers_many_times_is_answered_by_dhcpv6_at_once() {
        // Frames go through a socket of another kind by the same calls.
        let (tap, end) = UnixDatagram::pair().unwrap();
        let tap = StdSocket::from(OwnedFd::from(tap.into_std().unwrap()));
        let tap = UdpSocket::from_std(tap).unwrap();
        let guest = Guest::new(&on_network(), Some("vm1"), None).unwrap();
        let answers = Answers::new(&guest);
        let solicitation = from_guest(CLIENT, PROTOCOL_ICMP6, 255, &[133, 0, 0, 0, 0, 0, 0, 0]);
        let asks = async {
            for _ in 0..MANY {
                end.send(&solicitation).await.unwrap();
            }
            end.send(&request()).await.unwrap();
            let (mut buffer, mut advertisements) = ([0; frame::LARGEST], 0);
            loop {
                end.recv(&mut buffer).await.unwrap();
                match buffer[20] {
                    UDP => return advertisements,
                    _ => advertisements += 1,
                }
            }
        };
        let advertisements: usize = tokio::select! {
            () = serve(&guest, &answers, &tap) => panic!("it serves until it is dropped"),
            answered = timeout(SOON, asks) => answered.expect("no answer of DHCPv6"),
        };
        assert!(advertisements < MANY, "{advertisements} advertisements");
    }
}
