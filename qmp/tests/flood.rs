//! A guest that floods the agent's channel: the log stays short, and a caller that waits for an answer gets
//! it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use barevirt_qmp::{Agent, Deadline, Options, Qmp};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the lines that a log at its default level would have.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut Text(&mut line));
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        (log.clone(), tracing::subscriber::set_default(log))
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

async fn hear(peer: &mut BufReader<UnixStream>) -> Value {
    let mut line = Vec::new();
    peer.read_until(b'\n', &mut line).await.unwrap();
    let start = line.iter().position(|byte| *byte == b'{').unwrap();
    serde_json::from_slice(&line[start..]).unwrap()
}

/// Objects of no known kind, with keys of any length; lines that are not JSON; and answers without a command.
fn junk() -> String {
    let key = "k".repeat(2000);
    let mut junk = String::new();
    for number in 0..500 {
        junk.push_str(&json!({format!("{key}\u{1b}{number}"): 1}).to_string());
        junk.push_str("\n]nonsense[\n{\"return\": 7}\n{\"error\": {\"class\": \"x\", \"desc\": \"y\"}}\n");
    }
    junk
}

#[tokio::test]
async fn a_guest_that_floods_the_agent_channel_causes_one_log_line_and_the_answer_still_arrives() {
    let (log, _guard) = Log::start();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut peer = BufReader::new(theirs);
    let agent = Agent::new(ours, Options::default());
    let guest = async {
        // It sends its junk, and then answers with the chosen number, as an agent does.
        let sync = hear(&mut peer).await;
        peer.write_all(junk().as_bytes()).await.unwrap();
        let answer = json!({"return": sync["arguments"]["id"]}).to_string();
        peer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        let asked = hear(&mut peer).await;
        peer.write_all(junk().as_bytes()).await.unwrap();
        peer.write_all(format!("{}\n", json!({"return": "done", "id": asked["id"]})).as_bytes())
            .await
            .unwrap();
    };
    let (answer, ()) = tokio::join!(agent.execute_raw("guest-get-host-name", Value::Null, soon()), guest);
    assert!(answer.is_ok(), "{answer:?}");
    let lines = log.lines();
    assert!((1..=2).contains(&lines.len()), "{} lines: {:.500}", lines.len(), lines.join("\n"));
    assert!(lines.iter().all(|line| line.len() < 1000 && !line.contains('\u{1b}')), "{lines:.1000?}");
}

#[tokio::test]
async fn unknown_messages_of_a_monitor_are_logged_in_one_line() {
    let (log, _guard) = Log::start();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut peer = BufReader::new(theirs);
    let monitor = async {
        peer.write_all(b"{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 0, \"major\": 10}, \"package\": \"\"}, \"capabilities\": []}}\n").await.unwrap();
        let heard = hear(&mut peer).await;
        peer.write_all(junk().as_bytes()).await.unwrap();
        peer.write_all(format!("{}\n", json!({"return": {}, "id": heard["id"]})).as_bytes()).await.unwrap();
    };
    let (opened, ()) = tokio::join!(Qmp::open(ours, Options::default(), soon()), monitor);
    assert!(opened.is_ok(), "{opened:?}");
    let lines = log.lines();
    assert!((1..=2).contains(&lines.len()), "{} lines: {:.500}", lines.len(), lines.join("\n"));
}
