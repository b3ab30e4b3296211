//! Connects one program of this machine to a stream through a loopback port: a VNC viewer, or the client of a USB device.

use std::net::IpAddr;

use anyhow::Context;
use futures::{SinkExt, StreamExt};
use hyper::body::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

use crate::session::{self, INSTANCES, Session};
use crate::stream::{self, Socket, StreamEnd};

/// Most bytes that the other side may send before the program connects: its greeting.
const GREETING: usize = 4096;

/// The stream of an instance's subresource.
pub(crate) async fn open(session: &Session, vmi: &str, subresource: &str) -> anyhow::Result<Socket> {
    let path = session::path(&session.namespace, INSTANCES, vmi, subresource);
    let opened = match stream::open(session, &path).await {
        Ok(Ok(socket)) => Ok(socket),
        Ok(Err(refusal)) => Err(anyhow::anyhow!(refusal)),
        Err(error) => Err(error),
    };
    opened.with_context(|| format!("can't access VMI {vmi}"))
}

/// The port that the program connects to; 0 takes a free one.
pub(crate) async fn listen(address: IpAddr, port: u16) -> anyhow::Result<TcpListener> {
    TcpListener::bind((address, port)).await.with_context(|| format!("open {address} port {port}"))
}

/// Waits for the visitor, the program that connects to the port. The stream, which `what` names in errors, is
/// kept alive meanwhile; the inner error is its end. The visitor first gets the bytes that the stream has already sent.
pub(crate) async fn wait(
    mut socket: Socket,
    listener: &TcpListener,
    what: &str,
) -> anyhow::Result<Result<(Socket, TcpStream), StreamEnd>> {
    let mut greeting: Vec<u8> = Vec::new();
    let mut ping = tokio::time::interval(stream::PING_EVERY);
    let mut visitor = loop {
        tokio::select! {
            accepted = listener.accept() => break accepted.context("accept a connection")?.0,
            message = socket.next(), if greeting.len() < GREETING => match message {
                Some(Ok(Message::Binary(bytes))) => greeting.extend_from_slice(&bytes),
                Some(Ok(Message::Close(frame))) => return Ok(Err(StreamEnd::Closed(frame))),
                None => return Ok(Err(StreamEnd::Closed(None))),
                Some(Err(error)) => return Ok(Err(StreamEnd::Broken(error.into()))),
                Some(Ok(_)) => {}
            },
            _ = ping.tick() => {
                if let Err(error) = socket.send(Message::Ping(Bytes::new())).await {
                    return Ok(Err(StreamEnd::Broken(error.into())));
                }
            }
        }
    };
    // A failure only costs latency.
    let _ = visitor.set_nodelay(true);
    visitor.write_all(&greeting).await.with_context(|| format!("pass on what {what} said"))?;
    Ok(Ok((socket, visitor)))
}

/// Ends at ctrl-c.
pub(crate) async fn until_interrupted(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::select! {
        done = work => done,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}
