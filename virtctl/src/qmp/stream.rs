//! A stream of QMP: greeting and negotiation, then lines in both directions.

use std::time::Duration;

use anyhow::{Context, bail};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, interval_at, timeout};
use tokio_tungstenite::tungstenite::Message;

use crate::reconnect::{self, End, Follow, Gone, Place};
use crate::session::Session;
use crate::stream::{self, PING_EVERY, Socket};

/// Longest line taken.
const LONGEST: usize = 16 << 20;
/// How long greeting and negotiation may take.
const BEGIN: Duration = Duration::from_secs(20);

/// A message from QEMU.
#[derive(Debug, PartialEq)]
pub(super) enum QmpMessage {
    Event(Value),
    /// `return` or `error`, with its id.
    Answer(Value),
}

/// An open stream.
pub(super) struct Lines {
    socket: Socket,
    partial: Partial,
    ping: Interval,
}

impl Lines {
    /// Opens it and negotiates.
    pub(super) async fn open(session: &Session, path: &str) -> anyhow::Result<Self> {
        let socket = stream::open(session, path).await?.map_err(anyhow::Error::msg)?;
        let ping = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        let mut lines = Self { socket, partial: Partial::default(), ping };
        timeout(BEGIN, lines.begin()).await.context("no greeting of the monitor came in time")??;
        Ok(lines)
    }

    async fn begin(&mut self) -> anyhow::Result<()> {
        let greeting = self.line().await?.context("the stream ended before the greeting")?;
        if greeting.get("QMP").is_none() {
            bail!("the other side does not speak QMP");
        }
        self.say(&json!({"execute": "qmp_capabilities", "id": 0})).await?;
        // An event may come first.
        while let Some(line) = self.line().await? {
            if line.get("return").is_some() {
                return Ok(());
            }
            if let Some(error) = line.get("error") {
                bail!(super::words::error(error));
            }
        }
        bail!("the stream ended before it began")
    }

    /// Sends a command.
    pub(super) async fn say(&mut self, line: &Value) -> anyhow::Result<()> {
        let bytes = format!("{line}\n").into_bytes();
        Ok(self.socket.send(Message::Binary(bytes.into())).await?)
    }

    /// The next message; nothing at the end. May be cancelled and called again.
    pub(super) async fn hear(&mut self) -> anyhow::Result<Option<QmpMessage>> {
        Ok(self.line().await?.map(|line| {
            if line.get("event").is_some() { QmpMessage::Event(line) } else { QmpMessage::Answer(line) }
        }))
    }

    async fn line(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(line) = self.partial.take()? {
                return Ok(Some(line));
            }
            tokio::select! {
                message = self.socket.next() => match message {
                    Some(Ok(Message::Binary(bytes))) => self.partial.push(&bytes)?,
                    Some(Ok(Message::Text(text))) => self.partial.push(text.as_bytes())?,
                    Some(Ok(Message::Close(_))) | None => return Ok(None),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error).context("the stream broke off"),
                },
                _ = self.ping.tick() => self.socket.send(Message::Ping(Vec::new().into())).await?,
            }
        }
    }
}

/// A stream that is opened again when its guest has moved.
pub(super) struct Monitor<'a> {
    session: &'a Session,
    vmi: &'a str,
    path: &'a str,
    place: Place,
    /// The open stream.
    pub(super) lines: Lines,
}

impl<'a> Monitor<'a> {
    /// Opens it for the first time.
    pub(super) async fn open(session: &'a Session, vmi: &'a str, path: &'a str) -> anyhow::Result<Self> {
        let place = Place::find(session, vmi).await;
        let lines = Lines::open(session, path).await?;
        Ok(Self { session, vmi, path, place, lines })
    }

    /// The name of the instance.
    pub(super) fn vmi(&self) -> &'a str {
        self.vmi
    }

    /// After its end: opens it again if the guest has moved. Returns the guest's node, or nothing.
    pub(super) async fn again(&mut self) -> Option<String> {
        let Self { session, vmi, path, .. } = *self;
        // Servers end every stream of a monitor in the same way.
        let gone = Gone { place: self.place.clone(), end: End::Ended, follow: Follow::Moves };
        let open = || async { Lines::open(session, path).await.ok() };
        let (lines, place) = reconnect::again(session, vmi, &gone, || {}, open).await?;
        (self.lines, self.place) = (lines, place);
        Some(self.place.node.clone())
    }
}

/// Bytes of an incomplete line.
#[derive(Debug, Default)]
struct Partial(Vec<u8>);

impl Partial {
    fn push(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if self.0.len() + bytes.len() > LONGEST {
            bail!("a line of the monitor has more than {LONGEST} bytes");
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn take(&mut self) -> anyhow::Result<Option<Value>> {
        let Some(end) = self.0.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line: Vec<u8> = self.0.drain(..=end).collect();
        Ok(Some(serde_json::from_slice(&line).context("a line of the monitor is not JSON")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_in_any_cut() {
        let mut partial = Partial::default();
        let mut seen = Vec::new();
        for byte in b"{\"a\":1}\n{\"b\":2}\n{\"c\"" {
            partial.push(&[*byte]).unwrap();
            seen.extend(partial.take().unwrap());
        }
        assert_eq!(seen, [json!({"a": 1}), json!({"b": 2})]);
        assert!(partial.push(&vec![b'x'; LONGEST]).is_err());
        let mut garbage = Partial::default();
        garbage.push(b"nonsense\n").unwrap();
        assert!(garbage.take().is_err());
    }
}
