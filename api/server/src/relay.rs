//! Copies the bytes of a websocket between a client and a handler.
//!
//! The sockets provide the back-pressure: at most one buffer per direction is held here, so a client that
//! does not read occupies its buffer and only stops its own guest's stream at the handler. The handler pings
//! the client every half minute and closes dead or stalled streams. This side only has to detect a handler
//! that disappears silently: a node without power sends nothing, not even the end of the connection.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Buffered bytes in each direction.
const BUFFER: usize = 16 << 10;
/// How long a handler may be silent: its pings to the client are four times as frequent.
const SILENT: Duration = Duration::from_secs(120);
/// How long either side may accept no data. The handler detects stalls of its own earlier.
const STALLED: Duration = Duration::from_secs(330);

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The client closed its side.
    Client,
    /// The handler closed its side.
    Handler,
    /// The handler is silent.
    Silent,
    /// A side accepts no data.
    Stalled,
    /// A connection failed.
    Broken,
}

/// Copies bytes until either side ends. Data that the handler sent before its end reaches the client.
pub async fn run<C, H>(client: C, handler: H) -> Ended
where
    C: AsyncRead + AsyncWrite + Unpin,
    H: AsyncRead + AsyncWrite + Unpin,
{
    let (from_client, mut to_client) = tokio::io::split(client);
    let (from_handler, mut to_handler) = tokio::io::split(handler);
    let ended = tokio::select! {
        ended = carry(from_client, &mut to_handler, None) => ended.unwrap_or(Ended::Client),
        ended = carry(from_handler, &mut to_client, Some(SILENT)) => ended.unwrap_or(Ended::Handler),
    };
    // Both sides get it at once. An error here means that the side is already gone.
    let _ =
        timeout(Duration::from_secs(1), async { tokio::join!(to_client.shutdown(), to_handler.shutdown()) })
            .await;
    ended
}

/// Copies one direction, with a limit on the silence; returns the fault, if there was one.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    to: &mut (impl AsyncWrite + Unpin),
    silent: Option<Duration>,
) -> Option<Ended> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer);
        let read = match silent {
            None => read.await,
            Some(silent) => match timeout(silent, read).await {
                Ok(read) => read,
                Err(_) => return Some(Ended::Silent),
            },
        };
        let length = match read {
            Ok(0) => return None,
            Ok(length) => length,
            Err(_) => return Some(Ended::Broken),
        };
        let write = async {
            to.write_all(&buffer[..length]).await?;
            to.flush().await
        };
        match timeout(STALLED, write).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Some(Ended::Broken),
            Err(_) => return Some(Ended::Stalled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    #[tokio::test]
    async fn the_last_bytes_of_a_handler_reach_the_client() {
        let (mut client, ours) = duplex(64);
        let (theirs, mut handler) = duplex(64);
        let relayed = tokio::spawn(run(ours, theirs));
        client.write_all(b"typed").await.unwrap();
        let mut got = [0; 5];
        handler.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"typed");
        handler.write_all(b"last words").await.unwrap();
        drop(handler);
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "last words");
        assert_eq!(relayed.await.unwrap(), Ended::Handler);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_says_nothing_is_given_up() {
        let (mut client, ours) = duplex(64);
        let (theirs, handler) = duplex(64);
        let relayed = tokio::spawn(run(ours, theirs));
        assert_eq!(relayed.await.unwrap(), Ended::Silent);
        // The client gets it as well.
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        drop(handler);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_disconnected() {
        let (client, ours) = duplex(64);
        let (theirs, mut handler) = duplex(64);
        let relayed = tokio::spawn(run(ours, theirs));
        let flood = tokio::spawn(async move { while handler.write_all(&[0; 64]).await.is_ok() {} });
        assert_eq!(relayed.await.unwrap(), Ended::Stalled);
        flood.await.unwrap();
        drop(client);
    }
}
