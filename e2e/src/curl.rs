//! Requests by `curl`, with certificates and tokens that a test made.

use std::process::Command;

use anyhow::{Context, Result};

use crate::command::run;

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status; 0 without a connection.
    pub code: u16,
    /// The body, and the messages of `curl` itself.
    pub body: String,
}

/// `curl` with these settings of its configuration file, so that they are not in the process list.
///
/// # Errors
/// When `curl` cannot be started, or prints nothing.
pub fn curl(settings: &[String]) -> Result<Answer> {
    let mut text =
        String::from("silent\nshow-error\ninsecure\nmax-time = 20\nwrite-out = \"\\n%{http_code}\"\n");
    for setting in settings {
        text.push_str(setting);
        text.push('\n');
    }
    let output = run(Command::new("curl").args(["--config", "-"]), Some(&text))?;
    let (body, code) = output.stdout.rsplit_once('\n').context("curl said nothing")?;
    let code = code.trim().parse().with_context(|| format!("no status code: {}", output.text()))?;
    Ok(Answer { code, body: format!("{body}{}", output.stderr) })
}

/// A setting whose value is a text.
pub fn setting(name: &str, value: &str) -> String {
    format!("{name} = \"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}
