//! DHCPv6 and router advertisements in frames, on a packet socket that the handler bound to the guest's tap.

use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep};

use super::answers::Answers;
use super::frame::{self, Message};
use super::guest::Guest;
use super::pace::Pace;
use super::trouble::{ERROR_PAUSE, note};
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
        let wanted = tokio::select! {
            received = socket.recv(&mut buffer) => match received {
                Ok(length) => receive(guest, answers, socket, &buffer[..length]).await,
                Err(error) => {
                    note("tap", &error);
                    sleep(ERROR_PAUSE).await;
                    false
                }
            },
            () = pace.due() => true,
        };
        if wanted {
            pace.gap().await;
            for advertisement in &advertisements {
                send(socket, advertisement).await;
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
