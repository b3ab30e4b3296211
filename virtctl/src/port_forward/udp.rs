//! UDP: each client of a local port, identified by its address, has its own stream.
//!
//! Nothing says that a client has sent its last datagram. The server ends a stream on which there are none; before that, the stream
//! of the client that was silent longest makes room for a new client.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use futures::{SinkExt, StreamExt};
use hyper::body::Bytes;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use super::{CHUNK, PortOpener, report};
use crate::stream::{self, Socket, StreamEnd};

/// Datagrams of one client that wait for their stream; more are dropped.
const WAITING: usize = 64;
/// Clients of one port at the same time: half of the streams that a guest may have.
const CLIENTS: usize = 64;

/// Serves the clients of a local port.
pub(super) async fn serve(local: Arc<UdpSocket>, opener: Arc<PortOpener>) -> anyhow::Result<()> {
    let mut clients = Clients::default();
    let mut buffer = vec![0; CHUNK];
    loop {
        let (length, client) = local.recv_from(&mut buffer).await.context("receive a datagram")?;
        let datagram = Bytes::copy_from_slice(&buffer[..length]);
        if let Some(receiver) = clients.pass(client, datagram, Instant::now()) {
            let (opener, local) = (Arc::clone(&opener), Arc::clone(&local));
            report(client, async move { carry(opener.open().await?, receiver, &local, client).await });
        }
    }
}

/// A client that has a stream.
struct Known {
    stream: mpsc::Sender<Bytes>,
    last: Instant,
}

/// The clients of a port.
#[derive(Default)]
struct Clients(HashMap<SocketAddr, Known>);

impl Clients {
    /// Passes a datagram on to its client's stream. For a client that has none, returns what its stream takes the datagrams from.
    fn pass(&mut self, client: SocketAddr, datagram: Bytes, now: Instant) -> Option<mpsc::Receiver<Bytes>> {
        self.0.retain(|_, known| !known.stream.is_closed());
        if let Some(known) = self.0.get_mut(&client) {
            known.last = now;
            // If the queue is full, the datagram is dropped.
            let _ = known.stream.try_send(datagram);
            return None;
        }
        if self.0.len() >= CLIENTS {
            let silent = self.0.iter().min_by_key(|(_, known)| known.last).map(|(client, _)| *client);
            if let Some(client) = silent {
                self.0.remove(&client);
            }
        }
        let (stream, receiver) = mpsc::channel(WAITING);
        let _ = stream.try_send(datagram);
        self.0.insert(client, Known { stream, last: now });
        Some(receiver)
    }
}

/// Carries the datagrams of one client.
async fn carry(
    socket: Socket,
    mut outward: mpsc::Receiver<Bytes>,
    local: &UdpSocket,
    client: SocketAddr,
) -> anyhow::Result<Option<String>> {
    let (mut to_guest, mut from_guest) = socket.split();
    let mut ping = tokio::time::interval(stream::PING_EVERY);
    loop {
        tokio::select! {
            datagram = outward.recv() => match datagram {
                Some(datagram) => to_guest.send(Message::Binary(datagram)).await?,
                // Another client has its place.
                None => {
                    to_guest.close().await?;
                    return Ok(None);
                }
            },
            message = from_guest.next() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    local.send_to(&bytes, client).await?;
                }
                // The client's next datagram opens another stream.
                Some(Ok(Message::Close(frame))) => return StreamEnd::Closed(frame).reason(),
                None => return Ok(None),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
            },
            _ = ping.tick() => to_guest.send(Message::Ping(Bytes::new())).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_new_client_takes_the_place_of_the_one_that_was_silent_longest() {
        let mut clients = Clients::default();
        let begun = Instant::now();
        let mut pass = |client: u16, second: u64| {
            let address = SocketAddr::from(([127, 0, 0, 1], client));
            clients.pass(address, Bytes::from_static(b"x"), begun + Duration::from_secs(second))
        };
        let most = u16::try_from(CLIENTS).unwrap();
        let mut streams: Vec<_> = (1..=most).map(|client| pass(client, client.into()).unwrap()).collect();
        assert!(pass(1, 1000).is_none());
        let mut new = pass(most + 1, 1001).unwrap();
        assert_eq!(new.recv().await.as_deref(), Some(&b"x"[..]));
        // The first one has sent again; the second one has its last datagram, and then the end.
        assert_eq!(streams[1].recv().await.as_deref(), Some(&b"x"[..]));
        assert_eq!(streams[1].recv().await, None);
        assert_eq!([streams[0].len(), streams[2].len()], [2, 1]);
        // A stream that has ended makes room itself, and its client gets another one.
        drop(streams.remove(2));
        assert!(pass(3, 1002).is_some());
        assert!(!streams[2].is_closed(), "the fourth client keeps its stream");
    }
}
