//! Machines, instances and nodes as they change: one answer that does not end, a line of JSON for each change.
//!
//! ```text
//!   for each kind:  list -> {"op":"reset"} {"op":"set"}... {"op":"synced"} -> watch -> {"op":"set"} or {"op":"gone"}
//!                    ^                                                          |
//!                    +--- too old, or broken: {"op":"failed"} and a pause ------+
//! ```
//!
//! An empty line says that the connection is alive.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::io::AsyncBufReadExt;
use futures::{StreamExt, stream};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::answer::{self, Answer};
use super::ask::{ANSWER, Cluster};
use crate::session;

/// Most objects of a kind.
const MOST: usize = 5000;
/// Lines that wait for the browser.
const WAITING: usize = 256;
/// How long a browser may take to accept a line.
const BROWSER: Duration = Duration::from_secs(30);
/// How long one watch lasts, and how long it may last in any case.
const WATCH_SECONDS: u64 = 240;
const WATCH: Duration = Duration::from_secs(WATCH_SECONDS + 30);
/// How often the browser gets a message that the connection is alive.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// Pause between two attempts, which grows each time.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A kind that is shown.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Machine,
    Instance,
    Node,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Instance => "instance",
            Self::Node => "node",
        }
    }

    fn path(self, cluster: &Cluster, query: &str) -> String {
        match self {
            Self::Machine => cluster.list_path("virtualmachines", query),
            Self::Instance => cluster.list_path(session::INSTANCES, query),
            Self::Node => format!("/api/v1/nodes?{query}"),
        }
    }
}

/// The browser's end of the stream.
struct Browser(mpsc::Sender<Bytes>);

/// The browser has closed the page, or no longer reads.
struct Disconnected;

impl Browser {
    async fn say(&self, line: &Value) -> Result<(), Disconnected> {
        self.send(format!("{line}\n")).await
    }

    async fn send(&self, line: String) -> Result<(), Disconnected> {
        match timeout(BROWSER, self.0.send(line.into())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Disconnected),
        }
    }
}

/// The streamed answer with all changes.
pub(super) fn answer(cluster: Arc<Cluster>) -> Answer {
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let browser = Browser(sender);
        let follow = |kind| follow(&cluster, kind, &browser);
        // Each ends only when the browser is gone: then all end.
        tokio::select! {
            Disconnected = follow(Kind::Machine) => {}
            Disconnected = follow(Kind::Instance) => {}
            Disconnected = follow(Kind::Node) => {}
            Disconnected = stay_alive(&browser) => {}
        }
    });
    let lines = stream::unfold(receiver, async |mut receiver| {
        let line = receiver.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(line)), receiver))
    });
    answer::with_headers(StatusCode::OK, "application/x-ndjson", StreamBody::new(lines).boxed_unsync())
}

async fn stay_alive(browser: &Browser) -> Disconnected {
    loop {
        if let Err(gone) = browser.send("\n".to_owned()).await {
            return gone;
        }
        sleep(ALIVE_EVERY).await;
    }
}

async fn follow(cluster: &Cluster, kind: Kind, browser: &Browser) -> Disconnected {
    let mut pause = PAUSE;
    loop {
        let failed = match once(cluster, kind, browser).await {
            Ok(Err(gone)) => return gone,
            Ok(Ok(())) => {
                pause = PAUSE;
                continue;
            }
            Err(error) => json!({"kind": kind.word(), "op": "failed", "message": format!("{error:#}")}),
        };
        if let Err(gone) = browser.say(&failed).await {
            return gone;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Lists once, and watches from there until the API server wants a new list. The inner result says whether
/// the browser is still connected.
async fn once(cluster: &Cluster, kind: Kind, browser: &Browser) -> anyhow::Result<Result<(), Disconnected>> {
    let list = cluster.get(&kind.path(cluster, &format!("limit={MOST}"))).await;
    let mut list = list.map_err(|failure| anyhow::anyhow!(failure.message))?;
    let mut version = text(&list["metadata"]["resourceVersion"]);
    let more = !text(&list["metadata"]["continue"]).is_empty();
    let Value::Array(items) = list["items"].take() else { bail!("the API server's list has no items") };
    let reset = json!({"kind": kind.word(), "op": "reset"});
    let set = |object| json!({"kind": kind.word(), "op": "set", "object": trimmed(kind, object)});
    let synced = json!({"kind": kind.word(), "op": "synced", "cut": more});
    for line in std::iter::once(reset).chain(items.into_iter().map(set)).chain([synced]) {
        if let Err(gone) = browser.say(&line).await {
            return Ok(Err(gone));
        }
    }
    loop {
        let query = format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}"
        );
        let request = Request::get(kind.path(cluster, &query)).body(Vec::new())?;
        let opened = timeout(ANSWER, cluster.client().request_stream(request)).await;
        let mut lines =
            opened.context("the API server did not answer in time")?.map_err(session::plain)?.lines();
        loop {
            // A watch without events ends after this time, and is opened again.
            let Ok(line) = timeout(WATCH, lines.next()).await else { break };
            let Some(line) = line.transpose().context("watch")? else { break };
            let mut event: Value = serde_json::from_str(&line).context("read a change")?;
            let object = event["object"].take();
            let seen = text(&object["metadata"]["resourceVersion"]);
            let op = match event["type"].as_str().unwrap_or_default() {
                "ADDED" | "MODIFIED" => "set",
                "DELETED" => "gone",
                "BOOKMARK" => {
                    version = seen;
                    continue;
                }
                // The version is too old: a new list.
                _ if object["code"] == 410 => return Ok(Ok(())),
                _ => bail!("{}", text(&object["message"])),
            };
            version = seen;
            let line = json!({"kind": kind.word(), "op": op, "object": trimmed(kind, object)});
            if let Err(gone) = browser.say(&line).await {
                return Ok(Err(gone));
            }
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What the lists of the page show of an object. Pure.
fn trimmed(kind: Kind, mut object: Value) -> Value {
    let mut metadata = object["metadata"].take();
    let keep = ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "labels"];
    if let Value::Object(metadata) = &mut metadata {
        metadata.retain(|field, _| keep.contains(&field.as_str()));
    }
    let mut status = object["status"].take();
    let spec = object["spec"].take();
    let spec = match kind {
        Kind::Machine => {
            json!({"running": spec["running"], "runStrategy": spec["runStrategy"], "instancetype": spec["instancetype"]})
        }
        Kind::Instance => Value::Null,
        Kind::Node => json!({"unschedulable": spec["unschedulable"], "taints": spec["taints"]}),
    };
    if let (Kind::Node, Value::Object(status)) = (kind, &mut status) {
        status.retain(|field, _| field != "images");
    }
    json!({"metadata": metadata, "spec": spec, "status": status})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_get_what_they_show() {
        let object = json!({
            "metadata": {"name": "a", "namespace": "b", "managedFields": [1], "annotations": {"c": "d"}},
            "spec": {"runStrategy": "Always", "template": {"spec": {"volumes": ["secret"]}}},
            "status": {"printableStatus": "Running", "images": ["i"]},
        });
        let machine = trimmed(Kind::Machine, object.clone());
        assert_eq!(machine["metadata"], json!({"name": "a", "namespace": "b"}));
        assert_eq!(machine["spec"]["runStrategy"], "Always");
        assert!(!machine.to_string().contains("secret"), "{machine}");
        assert_eq!(trimmed(Kind::Instance, object.clone())["status"]["printableStatus"], "Running");
        assert_eq!(trimmed(Kind::Node, object)["status"].get("images"), None);
    }
}
