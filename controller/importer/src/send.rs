//! Sends the disk of a claim to the one importer whose certificate is known.
//!
//! ```text
//!   connection --importer's certificate--> TLS --> head --path, range--> 200 or 206, bytes, the end
//!                      \--> not known yet: closed
//! ```
//!
//! Each connection has one request. The claim is mounted read-only, and its contents are not interpreted. The sender does
//! not know when the copy is complete: virt-controller deletes its pod. Otherwise it ends after a long time without
//! requests.

use crate::accept::connections;
use crate::failure::Failure;
use crate::keys;
use crate::local;
use crate::target::Places;
use barevirt_import_job::copy::DISK_PATH;
use rustls::ServerConfig;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

/// Concurrent connections: a copy uses one, and a second one until it notices that the first is lost.
const MOST_CONNECTIONS: usize = 4;
/// Time limit of the TLS handshake, and of a request's head.
const GREETING: Duration = Duration::from_secs(10);
/// How long sending a piece may take: the importer may wait for its disk.
const STALL: Duration = Duration::from_secs(10 * 60);
/// Longest head of a request, in bytes.
const LONGEST_HEAD: usize = 8 << 10;
/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;

/// A disk, and the files that identify its receiver.
#[derive(Debug)]
pub struct Sender {
    disk: File,
    length: u64,
    keys: PathBuf,
    receiver: PathBuf,
}

/// The request in a head.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// The disk from this byte on.
    From(u64),
    /// Any other request.
    Refused(&'static str),
}

impl Sender {
    /// Opens the disk.
    ///
    /// # Errors
    /// There is none.
    pub fn open(places: &Places) -> Result<Self, Failure> {
        let (disk, length) = local::open(places)?;
        Ok(Sender { disk, length, keys: places.keys.clone(), receiver: places.receiver.clone() })
    }

    /// TLS for the present importer.
    fn tls(&self) -> Result<Arc<ServerConfig>, Failure> {
        keys::server(&self.keys, &keys::of_receiver(&self.receiver)?)
    }

    /// Serves until there was no request for `idle_timeout`.
    ///
    /// # Errors
    /// None, except when the process ends.
    pub async fn serve(self, listener: TcpListener, idle_timeout: Duration) -> Result<(), Failure> {
        let (sender, room) = (Arc::new(self), Arc::new(Semaphore::new(MOST_CONNECTIONS)));
        let (asked, mut seen) = mpsc::channel::<()>(MOST_CONNECTIONS);
        let accept = connections(&listener, &room, |stream| {
            let (sender, asked) = (sender.clone(), asked.clone());
            async move { sender.greet(stream, &asked).await }
        });
        let idle = async {
            while timeout(idle_timeout, seen.recv()).await.is_ok() {}
            info!("no requests any more");
        };
        tokio::select! {
            () = accept => {}
            () = idle => {}
        }
        Ok(())
    }

    async fn greet(&self, stream: TcpStream, asked: &mpsc::Sender<()>) {
        let tls = match self.tls() {
            Ok(tls) => tls,
            Err(failure) => return warn!("no connection can be accepted: {failure}"),
        };
        match timeout(GREETING, TlsAcceptor::from(tls).accept(stream)).await {
            Ok(Ok(stream)) => self.connection(stream, asked).await,
            Ok(Err(error)) => warn!(%error, "a connection is refused"),
            Err(_) => {}
        }
    }

    async fn connection(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin, asked: &mpsc::Sender<()>) {
        let Ok(Some(head)) = timeout(GREETING, head(&mut stream)).await else { return };
        let sent = match self.asked(&head) {
            Asked::From(start) => {
                info!(start, length = self.length, "the disk is sent");
                self.send(&mut stream, start, asked).await
            }
            Asked::Refused(status) => {
                warn!(status, "a request is refused");
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.map_err(|error| error.to_string())
            }
        };
        let ended = match sent {
            Ok(()) => stream.shutdown().await.map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        if let Err(why) = ended {
            warn!(why, "a connection ended early");
        }
    }

    /// Reads a head. Pure.
    fn asked(&self, head: &str) -> Asked {
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default();
        let mut start = Some(0);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("range") {
                let value = value.trim().strip_prefix("bytes=").and_then(|value| value.strip_suffix('-'));
                start = value.and_then(|value| value.parse().ok());
            }
        }
        if line != format!("GET {DISK_PATH} HTTP/1.1") {
            return Asked::Refused("404 Not Found");
        }
        match start {
            Some(start) if start <= self.length => Asked::From(start),
            _ => Asked::Refused("416 Range Not Satisfiable"),
        }
    }

    async fn send(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        start: u64,
        asked: &mpsc::Sender<()>,
    ) -> Result<(), String> {
        let rest = self.length - start;
        let head = if start == 0 {
            format!("HTTP/1.1 200 OK\r\nContent-Length: {rest}\r\n")
        } else {
            let last = self.length.saturating_sub(1);
            format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: {rest}\r\nContent-Range: bytes {start}-{last}/{}\r\n",
                self.length
            )
        };
        let head = format!("{head}Content-Type: application/octet-stream\r\nConnection: close\r\n\r\n");
        write(stream, head.as_bytes()).await?;
        let mut at = start;
        while at < self.length {
            // A running transfer counts as activity.
            let _ = asked.try_send(());
            let disk = self.disk.try_clone().map_err(|error| format!("read the disk: {error}"))?;
            let count = usize::try_from(PIECE.min(self.length - at)).unwrap_or_default();
            let read = spawn_blocking(move || {
                let mut piece = vec![0; count];
                disk.read_exact_at(&mut piece, at).map(|()| piece)
            });
            let piece = read.await.map_err(|error| format!("read the disk: {error}"))?;
            let piece = piece.map_err(|error| format!("read the disk: {error}"))?;
            write(stream, &piece).await?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), String> {
    match timeout(STALL, async { stream.write_all(bytes).await }).await {
        Ok(written) => written.map_err(|error| format!("send: {error}")),
        Err(_) => Err(format!("send: nothing was taken for {} s", STALL.as_secs())),
    }
}

/// The head of a request, without the empty line; `None` where it is incomplete or too long.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = vec![];
    loop {
        if let Some(end) = head.windows(4).position(|end| end == b"\r\n\r\n") {
            head.truncate(end);
            return String::from_utf8(head).ok();
        }
        if head.len() > LONGEST_HEAD || stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
}
