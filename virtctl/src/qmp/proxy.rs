//! A local socket that serves QMP, for tools such as QEMU's qmp-shell. Each connection is a separate session.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, bail};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, interval_at};
use tokio_tungstenite::tungstenite::Message;

use crate::reconnect::{self, End, Follow, Gone, Place};
use crate::session::Session;
use crate::stream::{self, PING_EVERY, Socket, StreamEnd};

/// Removes the socket.
struct Listening<'a>(&'a Path);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        // It does not matter if the socket is already gone.
        let _ = std::fs::remove_file(self.0);
    }
}

/// Serves until it is interrupted.
pub(super) async fn run(session: &Session, vmi: &str, path: &str, socket: &Path) -> anyhow::Result<()> {
    let listener = match UnixListener::bind(socket) {
        Ok(listener) => listener,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            bail!("{} is there already: another proxy may use it, else remove it", socket.display())
        }
        Err(error) => return Err(error).with_context(|| format!("listen on {}", socket.display())),
    };
    let _listening = Listening(socket);
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("keep {} for this user", socket.display()))?;
    // A first stream shows whether the instance answers, before a tool hangs.
    drop(stream::open(session, path).await?.map_err(anyhow::Error::msg)?);
    eprintln!("QMP on {}; ctrl-c ends it", socket.display());
    let mut clients = futures::stream::FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (client, _) = accepted.context("accept a client")?;
                clients.push(async move {
                    let place = Place::find(session, vmi).await;
                    let opened = stream::open(session, path).await?.map_err(anyhow::Error::msg)?;
                    let stream_end = carry(client, opened).await?;
                    if let Some(node) = moved(session, vmi, place, &stream_end).await {
                        eprintln!("{vmi} has moved to node {node}: connect to {} again.", socket.display());
                        return Ok(());
                    }
                    stream_end.reason().map(drop)
                });
            }
            Some(ended) = clients.next() => {
                if let Err(error) = ended {
                    eprintln!("{error:#}");
                }
            }
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// The node to which the guest has moved, if that ended a tool's session. The tool has to begin a new one: it waits for answers
/// to commands that nobody answers any more.
async fn moved(session: &Session, vmi: &str, place: Place, stream_end: &StreamEnd) -> Option<String> {
    let gone = Gone { place, end: End::of_stream(stream_end)?, follow: Follow::Moves };
    let ready = || std::future::ready(Some(()));
    let ((), there) = reconnect::again(session, vmi, &gone, || {}, ready).await?;
    Some(there.node)
}

/// Bytes of both sides, until one ends.
async fn carry(mut client: UnixStream, mut socket: Socket) -> anyhow::Result<StreamEnd> {
    let mut chunk = vec![0; 16 << 10];
    let mut ping = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    loop {
        tokio::select! {
            read = client.read(&mut chunk) => match read? {
                0 => {
                    socket.close(None).await?;
                    return Ok(StreamEnd::Local);
                }
                count => socket.send(Message::Binary(chunk[..count].to_vec().into())).await?,
            },
            message = socket.next() => match message {
                Some(Ok(Message::Binary(bytes))) => client.write_all(&bytes).await?,
                Some(Ok(Message::Text(text))) => client.write_all(text.as_bytes()).await?,
                Some(Ok(Message::Close(frame))) => return Ok(StreamEnd::Closed(frame)),
                None => return Ok(StreamEnd::Closed(None)),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Ok(StreamEnd::Broken(error.into())),
            },
            _ = ping.tick() => socket.send(Message::Ping(Vec::new().into())).await?,
        }
    }
}
