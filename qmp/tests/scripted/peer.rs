//! The other end of a connection: a monitor or a guest agent, driven by a test.

use std::time::Duration;

use barevirt_qmp::{Deadline, Options, Qmp};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

pub(super) const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10}, "package": "x"}, "capabilities": ["oob"]}}"#;

pub(super) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

pub(super) fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(60))
}

/// The monitor's side, to be driven by a test.
pub(super) struct Peer {
    pub(super) stream: BufReader<UnixStream>,
}

impl Peer {
    pub(super) fn pair() -> (UnixStream, Self) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, Self { stream: BufReader::new(theirs) })
    }

    pub(super) async fn say(&mut self, text: &str) {
        self.stream.write_all(format!("{text}\r\n").as_bytes()).await.unwrap();
    }

    pub(super) async fn hear(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.stream.read_line(&mut line).await.unwrap() > 0, "the client has gone");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    pub(super) async fn answer(&mut self, heard: &Value, value: Value) {
        self.say(&json!({"return": value, "id": heard["id"]}).to_string()).await;
    }

    /// Greets and negotiates.
    pub(super) async fn open(&mut self) {
        self.say(GREETING).await;
        let heard = self.hear().await;
        assert_eq!(heard["execute"], "qmp_capabilities");
        assert_eq!(heard["arguments"], json!({"enable": ["oob"]}));
        self.answer(&heard, json!({})).await;
    }
}

pub(super) async fn session() -> (Qmp, barevirt_qmp::Events, Peer) {
    let (ours, mut peer) = Peer::pair();
    let (opened, ()) = tokio::join!(Qmp::open(ours, Options::default(), soon()), peer.open());
    let (qmp, events) = opened.unwrap();
    (qmp, events, peer)
}

/// An agent that answers as QEMU's does, with or without ids.
pub(super) async fn agent_answer(peer: &mut Peer, ids: bool, value: impl Fn(&Value) -> Value) -> Vec<u8> {
    let mut line = Vec::new();
    assert!(peer.stream.read_until(b'\n', &mut line).await.unwrap() > 0);
    let flushed = line.first() == Some(&0xff);
    let heard: Value = serde_json::from_slice(line.strip_prefix(b"\xff").unwrap_or(&line)).unwrap();
    let mut answer = json!({"return": value(&heard)});
    if ids {
        answer["id"] = heard["id"].clone();
    }
    let mut bytes = if flushed { vec![0xff] } else { Vec::new() };
    bytes.extend(format!("{answer}\n").into_bytes());
    peer.stream.write_all(&bytes).await.unwrap();
    line
}
