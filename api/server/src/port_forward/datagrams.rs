//! A UDP socket as a stream.
//!
//! A datagram does not say that it is the last one, and a client may use each of its ports once, as resolvers do. So a stream
//! without datagrams ends after a while: otherwise such a client would soon have all streams that a guest may have.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UdpSocket;
use tokio::time::{Instant, Sleep, sleep};

/// How long a stream may have no datagram: as long as Linux keeps a UDP connection in mind whose two sides both have sent.
const SILENT: Duration = Duration::from_secs(120);

/// A connected UDP socket as a stream of bytes: each write is a datagram, and so is each read. It ends when nothing was written or
/// read for a while.
pub(super) struct Datagrams {
    socket: UdpSocket,
    last: Instant,
    /// Ends at the earliest moment at which the stream may be silent for too long.
    silent: Pin<Box<Sleep>>,
}

impl Datagrams {
    pub(super) fn new(socket: UdpSocket) -> Self {
        Self { socket, last: Instant::now(), silent: Box::pin(sleep(SILENT)) }
    }
}

impl AsyncRead for Datagrams {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        loop {
            match self.socket.poll_recv(context, buffer) {
                // An empty datagram would look like the end of the stream.
                Poll::Ready(Ok(())) if buffer.filled().len() == before => {}
                Poll::Ready(outcome) => {
                    self.last = Instant::now();
                    return Poll::Ready(outcome);
                }
                Poll::Pending => {
                    ready!(self.silent.as_mut().poll(context));
                    let ends = self.last + SILENT;
                    if ends <= Instant::now() {
                        return Poll::Ready(Ok(()));
                    }
                    // There were datagrams meanwhile.
                    self.silent.as_mut().reset(ends);
                }
            }
        }
    }
}

impl AsyncWrite for Datagrams {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.last = Instant::now();
        self.socket.poll_send(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{advance, pause};

    /// Both ends of a connection.
    async fn pair() -> (UdpSocket, UdpSocket) {
        let guest = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let ours = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        ours.connect(guest.local_addr().unwrap()).await.unwrap();
        guest.connect(ours.local_addr().unwrap()).await.unwrap();
        (guest, ours)
    }

    #[tokio::test]
    async fn each_write_is_a_datagram() {
        let (guest, ours) = pair().await;
        let mut ours = Datagrams::new(ours);
        let mut buffer = [0; 64];
        for text in ["one", "two"] {
            ours.write_all(text.as_bytes()).await.unwrap();
            let length = guest.recv(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..length], text.as_bytes());
        }
        for text in ["", "three", "four"] {
            guest.send(text.as_bytes()).await.unwrap();
        }
        for text in ["three", "four"] {
            let length = ours.read(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..length], text.as_bytes());
        }
    }

    #[tokio::test]
    async fn a_stream_without_datagrams_ends() {
        let (_guest, ours) = pair().await;
        pause();
        let mut ours = Datagrams::new(ours);
        let mut buffer = [0; 64];
        let begun = Instant::now();
        advance(SILENT / 2).await;
        ours.write_all(b"more").await.unwrap();
        assert_eq!(ours.read(&mut buffer).await.unwrap(), 0);
        let passed = begun.elapsed();
        assert!(passed >= SILENT + SILENT / 2 && passed < 2 * SILENT, "{passed:?}");
    }
}
