//! debug: collects everything about a virtual machine instance in one archive, without secrets.
//!
//! Each part is requested by itself, with the user's own rights. A part that cannot be read is replaced by
//! the reason. A QEMU that does not answer costs one deadline: its answers are left out, but the bundle has
//! what the launcher can observe of it.

mod redact;
mod tar;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Args;
use http::{Method, Request};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::{ListParams, LogParams};
use serde_json::{Value, json};

use crate::qmp;
use crate::session::{self, Session};
use crate::waiting;

/// What QEMU is asked, in the order of the files.
const QUESTIONS: [(&str, &[&str]); 5] = [
    ("status", &["query-status", "query-version", "query-cpus-fast", "query-iothreads", "query-kvm"]),
    (
        "devices",
        &["query-pci", "query-chardev", "query-rx-filter", "x-query-virtio", "query-tpm", "query-vnc"],
    ),
    (
        "block-graph",
        &[
            "x-debug-query-block-graph",
            "query-block",
            "query-named-block-nodes",
            "query-blockstats",
            "query-jobs",
        ],
    ),
    (
        "migration",
        &["query-migrate", "query-migrate-capabilities", "query-migrate-parameters", "query-dirty-rate"],
    ),
    ("memory", &["query-memory-size-summary", "query-memory-devices", "query-memdev", "query-balloon"]),
];
/// Seconds that QEMU may take for each.
const ANSWER: u64 = 5;
/// Lines of a log.
const TAIL: i64 = 1000;

/// Arguments of `virtctl debug`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Collect a bundle for a virtual machine instance that misbehaves:\n  virtctl debug myvm\n  \
    virtctl debug myvm -o /tmp/myvm.tar")]
pub(crate) struct Debug {
    /// Name of the virtual machine instance.
    vmi: String,
    /// Archive to write; NAME-debug.tar by default.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// Parts of a bundle, by file name. A part that could not be read has the reason instead.
type Parts = Vec<(String, Result<Value, String>)>;
/// The name of a pod, and its log or why it could not be read.
type Log = (String, Result<String, String>);

impl Debug {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let vmi = self.vmi.as_str();
        let what = format!("collecting what is known of {vmi}");
        let (parts, logs) = waiting::during(&what, collect(session, vmi)).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let file = self.output.clone().unwrap_or_else(|| format!("{vmi}-debug.tar").into());
        let missing =
            parts.iter().filter_map(|(name, part)| Some(format!("{name}: {}", part.as_ref().err()?)));
        let missing: Vec<String> = missing.collect();
        std::fs::write(&file, bundle(vmi, parts, &logs, now))
            .with_context(|| format!("write {}", file.display()))?;
        for line in missing {
            eprintln!("not in the bundle: {}", line.lines().next().unwrap_or_default());
        }
        println!(
            "{} written. Cloud-init, passwords and tokens were removed; look through it before you pass it on.",
            file.display()
        );
        Ok(())
    }
}

/// All parts, and the logs of its pods.
async fn collect(session: &Session, vmi: &str) -> anyhow::Result<(Parts, Vec<Log>)> {
    let (namespace, client) = (&session.namespace, &session.client);
    let path = format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{vmi}");
    // Without it there is nothing to collect.
    let object: Value = client.request(Request::get(path).body(vec![])?).await.map_err(session::plain)?;
    let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let mut parts: Parts = vec![("vmi".into(), Ok(object))];
    let machine = format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{vmi}");
    parts.push(("vm".into(), client.request(Request::get(machine).body(vec![])?).await.map_err(plain)));

    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let launchers = pods
        .list(
            &ListParams::default().labels(&format!("kubevirt.io=virt-launcher,kubevirt.io/created-by={uid}")),
        )
        .await;
    let names: Vec<String> =
        launchers.iter().flat_map(|list| &list.items).filter_map(|pod| pod.metadata.name.clone()).collect();
    parts.push(("pods".into(), launchers.map_err(plain).and_then(|list| as_json(&list.items))));
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let events = events.list(&ListParams::default()).await.map_err(plain);
    let ours = |event: &Event| {
        let about = event.involved_object.name.as_deref().unwrap_or_default();
        about == vmi || names.iter().any(|name| name == about)
    };
    let events = events.map(|list| list.items.into_iter().filter(ours).collect::<Vec<_>>());
    parts.push(("events".into(), events.and_then(|events| as_json(&events))));

    let call = |subresource| session::path(namespace, "virtualmachineinstances", vmi, subresource);
    let report = report(session, vmi).await.map_err(|error| format!("{error:#}"));
    parts.push(("qemu".into(), report));
    parts.extend(ask(session, &call("qmp")).await);

    let mut logs = Vec::new();
    for name in names {
        let tail =
            LogParams { container: Some("compute".into()), tail_lines: Some(TAIL), ..LogParams::default() };
        let log = pods.logs(&name, &tail).await.map_err(plain);
        logs.push((name, log));
    }
    Ok((parts, logs))
}

/// What the launcher sees of its QEMU without asking it.
pub(crate) async fn report(session: &Session, vmi: &str) -> anyhow::Result<Value> {
    let path = session::path(&session.namespace, session::INSTANCES, vmi, "debug");
    session.call_json(Method::GET, path, &Value::Null).await
}

/// QEMU's answers. After the first time-out it is not asked again.
async fn ask(session: &Session, path: &str) -> Parts {
    let mut silent = None;
    let mut parts = Parts::new();
    for (part, commands) in QUESTIONS {
        let mut answers = serde_json::Map::new();
        for command in commands {
            let answer = match &silent {
                Some(why) => Err(String::clone(why)),
                None => {
                    qmp::ask(session, path, command, Value::Null, ANSWER).await.map_err(|e| format!("{e:#}"))
                }
            };
            if let Err(why) = &answer
                && silent.is_none()
                && why.contains("has not answered")
            {
                silent = Some(why.clone());
            }
            answers.insert((*command).to_owned(), answer.unwrap_or_else(|why| json!({ "error": why })));
        }
        parts.push((format!("qemu-{part}"), Ok(Value::Object(answers))));
    }
    parts
}

fn plain(error: kube::Error) -> String {
    format!("{:#}", session::plain(error))
}

fn as_json(objects: &impl serde::Serialize) -> Result<Value, String> {
    serde_json::to_value(objects).map_err(|error| error.to_string())
}

/// Pure: the archive, without secrets.
fn bundle(vmi: &str, parts: Parts, logs: &[Log], now: u64) -> Vec<u8> {
    let mut found = Vec::new();
    let cleaned: Vec<(String, Result<Value, String>)> = parts
        .into_iter()
        .map(|(name, part)| {
            let part = part.map(|mut value| {
                redact::object(&mut value, &mut found);
                value
            });
            (name, part)
        })
        .collect();
    let mut archive = Vec::new();
    let mut add = |name: String, text: &str| {
        tar::add(
            &mut archive,
            &format!("{vmi:.40}-debug/{name:.40}"),
            redact::text(text, &found).as_bytes(),
            now,
        );
    };
    for (name, part) in cleaned {
        match part {
            Ok(value) => add(format!("{name}.json"), &format!("{value:#}\n")),
            Err(why) => add(format!("{name}.missing.txt"), &format!("{why}\n")),
        }
    }
    for (number, (pod, log)) in logs.iter().enumerate() {
        let text = log.as_ref().map_or_else(|why| format!("could not be read: {why}\n"), Clone::clone);
        add(format!("launcher-{number}.log"), &format!("pod {pod}\n{text}"));
    }
    tar::end(&mut archive);
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_of_cloud_init_is_in_no_part_of_the_bundle() {
        let secret = "planted-in-cloud-init";
        let vmi = json!({"spec": {"volumes": [{"cloudInitNoCloud": {"userData": format!("#!/bin/sh\n{secret}\n")}}]}});
        let parts: Parts = vec![
            ("qemu".into(), Ok(json!({"commandLine": ["qemu", format!("-x {secret}")], "pid": 7}))),
            ("vmi".into(), Ok(vmi)),
            ("vm".into(), Err(format!("no such machine, {secret}"))),
        ];
        let logs = [("pod".to_owned(), Ok(format!("a line\n{secret}\n")))];
        let text = String::from_utf8_lossy(&bundle("vm", parts, &logs, 1)).into_owned();
        assert!(!text.contains(secret), "{text}");
        for wanted in
            ["vm-debug/vmi.json", "vm-debug/vm.missing.txt", "launcher-0.log", "a line", "\"pid\": 7"]
        {
            assert!(text.contains(wanted), "{wanted}");
        }
    }
}
