//! qmp: one command to QEMU's monitor.

use anyhow::Context;
use clap::Args;
use http::Method;
use serde_json::{Value, json};

use crate::session::{self, Session};

/// Arguments of `virtctl qmp`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Is the guest running, as QEMU sees it?\n  virtctl qmp myvm query-status\n\n  \
    # Arguments are JSON, as QEMU's reference has them:\n  \
    virtctl qmp myvm query-stats '{\"target\": \"vm\"}'")]
pub(crate) struct Qmp {
    /// Name of the virtual machine instance.
    vmi: String,
    /// QMP command, for example query-status.
    command: String,
    /// Arguments of the command, a JSON object.
    arguments: Option<String>,
}

impl Qmp {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let mut command = json!({ "execute": self.command });
        if let Some(arguments) = &self.arguments {
            let arguments: Value = serde_json::from_str(arguments).context("ARGUMENTS is not JSON")?;
            command["arguments"] = arguments;
        }
        let path = session::path(&session.namespace, "virtualmachineinstances", &self.vmi, "qmp");
        let answer = session.call_json(Method::POST, path, &command).await?;
        if let Some(error) = answer.get("error") {
            let word = |key: &str| error[key].as_str().unwrap_or("unknown").to_owned();
            anyhow::bail!("{}: {}", word("class"), word("desc"));
        }
        println!("{}", serde_json::to_string_pretty(answer.get("return").unwrap_or(&answer))?);
        Ok(())
    }
}
