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

use crate::session::Session;
use crate::stream::{self, PING_EVERY, Socket};

/// Removes the socket.
struct Listening<'a>(&'a Path);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        // It does not matter if the socket is already gone.
        let _ = std::fs::remove_file(self.0);
    }
}

/// Serves until it is interrupted.
pub(super) async fn run(session: &Session, path: &str, socket: &Path) -> anyhow::Result<()> {
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
                    let opened = stream::open(session, path).await?.map_err(anyhow::Error::msg)?;
                    carry(client, opened).await
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

/// Bytes of both sides, until one ends.
async fn carry(mut client: UnixStream, mut socket: Socket) -> anyhow::Result<()> {
    let mut chunk = vec![0; 16 << 10];
    let mut ping = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    loop {
        tokio::select! {
            read = client.read(&mut chunk) => match read? {
                0 => {
                    socket.close(None).await?;
                    return Ok(());
                }
                count => socket.send(Message::Binary(chunk[..count].to_vec().into())).await?,
            },
            message = socket.next() => match message {
                Some(Ok(Message::Binary(bytes))) => client.write_all(&bytes).await?,
                Some(Ok(Message::Text(text))) => client.write_all(text.as_bytes()).await?,
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
            },
            _ = ping.tick() => socket.send(Message::Ping(Vec::new().into())).await?,
        }
    }
}
