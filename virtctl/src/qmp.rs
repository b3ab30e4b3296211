//! qmp: QEMU's monitor, for one command, as a shell, to watch events, or as a socket for other tools.

mod proxy;
mod schema;
mod shell;
mod stream;
pub(crate) mod words;

use std::path::PathBuf;

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use self::stream::{Monitor, QmpMessage};
use crate::session::{self, Session};

/// Arguments of `virtctl qmp`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Is the guest running, as QEMU sees it?\n  virtctl qmp myvm query-status\n\n  \
    # Arguments as key=value, or as JSON:\n  \
    virtctl qmp myvm query-stats target=vm\n  virtctl qmp myvm query-stats '{\"target\": \"vm\"}'\n\n  \
    # A shell, with completion, help and events:\n  virtctl qmp myvm\n\n  \
    # Print events as they come:\n  virtctl qmp myvm --watch 'BLOCK_*' --watch STOP\n\n  \
    # A socket for other tools, such as QEMU's qmp-shell:\n  virtctl qmp myvm --proxy /tmp/myvm.qmp")]
pub(crate) struct Qmp {
    /// Name of the virtual machine instance.
    vmi: String,
    /// QMP command, for example query-status; without one there is a shell.
    command: Option<String>,
    /// Arguments of the command: key=value, or one JSON object.
    arguments: Vec<String>,
    /// Seconds that QEMU may take to answer, from 1 to 50.
    #[arg(long, default_value_t = 10)]
    timeout: u64,
    /// Print events of that name as they come; * at the end matches any letters. Can be repeated.
    #[arg(long, value_name = "EVENT", conflicts_with_all = ["command", "proxy"])]
    watch: Vec<String>,
    /// Listen on a unix socket at this path, for tools that use QMP.
    #[arg(long, value_name = "SOCKET", conflicts_with = "command")]
    proxy: Option<PathBuf>,
}

impl Qmp {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let path = session::path(&session.namespace, "virtualmachineinstances", &self.vmi, "qmp");
        if let Some(command) = &self.command {
            let answer =
                ask(session, &path, command, words::arguments(&self.arguments)?, self.timeout).await?;
            println!("{}", serde_json::to_string_pretty(&answer)?);
            return Ok(());
        }
        if let Some(socket) = &self.proxy {
            return proxy::run(session, &self.vmi, &path, socket).await;
        }
        let monitor = Monitor::open(session, &self.vmi, &path).await?;
        if self.watch.is_empty() { shell::run(monitor).await } else { watch(monitor, &self.watch).await }
    }
}

/// Runs one command and returns QEMU's answer.
pub(crate) async fn ask(
    session: &Session,
    path: &str,
    command: &str,
    arguments: Value,
    timeout: u64,
) -> anyhow::Result<Value> {
    let mut line = json!({ "execute": command });
    if !arguments.is_null() {
        line["arguments"] = arguments;
    }
    let answer = session.call_json(Method::POST, format!("{path}?timeoutSeconds={timeout}"), &line).await?;
    if let Some(error) = answer.get("error") {
        anyhow::bail!(words::error(error));
    }
    Ok(answer.get("return").cloned().unwrap_or(answer))
}

/// Prints events, a line each, until the guest ends.
async fn watch(mut monitor: Monitor<'_>, wanted: &[String]) -> anyhow::Result<()> {
    loop {
        match monitor.lines.hear().await {
            Ok(Some(QmpMessage::Event(event))) => {
                let name = event["event"].as_str().unwrap_or_default();
                if wanted.iter().any(|wanted| words::stands_for(wanted, name)) {
                    println!("{event}");
                }
            }
            Ok(Some(QmpMessage::Answer(_))) => {}
            ended @ (Ok(None) | Err(_)) => {
                let Some(node) = monitor.again().await else {
                    ended?;
                    eprintln!("The stream has ended: the guest is gone, or its launcher.");
                    return Ok(());
                };
                eprintln!(
                    "{} has moved to node {node}: its events are watched there; some may be missing.",
                    monitor.vmi()
                );
            }
        }
    }
}
