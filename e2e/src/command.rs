//! The commands of a user, run to their end within a deadline.

use crate::api_server;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The output and exit code of a command.
#[derive(Debug)]
pub struct Output {
    /// Exit code; -1 where a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Both outputs, to search for a message.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Default deadline of a command.
const DEADLINE: Duration = Duration::from_secs(120);

/// The repository's root.
pub fn repository() -> PathBuf {
    // Cargo says where the package is now; where it was built may be another clone that shares the target directory.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut path = PathBuf::from(package);
    path.pop();
    path
}

/// One of the scripts in `cluster-up`.
pub fn cluster_script(name: &str) -> Command {
    Command::new(repository().join("cluster-up").join(name))
}

/// `kubectl ARGUMENTS`; an error unless it succeeds.
pub fn kubectl(arguments: &[&str]) -> Result<String> {
    succeed(cluster_script("kubectl.sh").args(arguments), None)
}

/// `kubectl ARGUMENTS`, also if it fails.
pub fn try_kubectl(arguments: &[&str]) -> Result<Output> {
    run(cluster_script("kubectl.sh").args(arguments), None)
}

/// `kubectl ARGUMENTS` with that standard input, also if it fails.
pub fn try_kubectl_with(arguments: &[&str], input: &str) -> Result<Output> {
    run(cluster_script("kubectl.sh").args(arguments), Some(input))
}

/// `virtctl ARGUMENTS`; an error unless it succeeds.
pub fn virtctl(arguments: &[&str]) -> Result<String> {
    succeed(cluster_script("virtctl.sh").args(arguments), None)
}

/// `virtctl ARGUMENTS`, also if it fails.
pub fn try_virtctl(arguments: &[&str]) -> Result<Output> {
    run(cluster_script("virtctl.sh").args(arguments), None)
}

/// An object of the API server; `None` if there is no such object. The arguments are those of `kubectl get`.
pub fn object(arguments: &[&str]) -> Result<Option<Value>> {
    api_server::get(arguments)
}

/// The objects of a list, or of several: kinds are separated by commas.
pub fn objects(arguments: &[&str]) -> Result<Vec<Value>> {
    let (kinds, rest) = arguments.split_first().context("no kind is named")?;
    let mut found = Vec::new();
    for kind in kinds.split(',') {
        let list = object(&[&[kind], rest].concat())?.unwrap_or_default();
        found.extend(list["items"].as_array().cloned().unwrap_or_default());
    }
    Ok(found)
}

/// Runs a command; an error unless it succeeds.
pub fn succeed(command: &mut Command, input: Option<&str>) -> Result<String> {
    let output = run(command, input)?;
    ensure!(output.code == 0, "{command:?} failed with {}: {}", output.code, output.text().trim());
    Ok(output.stdout)
}

/// The checksum of a file of this machine.
///
/// # Errors
/// When it cannot be read.
pub fn sha256(file: &Path) -> Result<String> {
    let said = succeed(Command::new("sha256sum").arg(file), None)?;
    Ok(said.split(' ').next().unwrap_or_default().to_owned())
}

/// Runs a command to its end, within the deadline.
pub fn run(command: &mut Command, input: Option<&str>) -> Result<Output> {
    run_within(command, input, DEADLINE)
}

/// The same with another deadline.
///
/// # Errors
/// When it cannot be started, or does not end in time, in which case it is killed.
pub fn run_within(command: &mut Command, input: Option<&str>, within: Duration) -> Result<Output> {
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{command:?} cannot be started"))?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        // A command that does not read all its input reports the reason itself.
        let _ = stdin.write_all(text.as_bytes());
    }
    // Read by another thread, so that a full pipe does not block the command.
    let stdout = read_aside(child.stdout.take());
    let stderr = read_aside(child.stderr.take());
    let Some(code) = wait_for_exit(&mut child, within)? else {
        child.kill()?;
        child.wait()?;
        bail!("{command:?} has not ended within {within:?}");
    };
    let joined = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Ok(Output { code, stdout: joined(stdout), stderr: joined(stderr) })
}

fn read_aside(source: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut source) = source {
            // Output before an error is still worth showing.
            let _ = source.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The exit code, -1 for a signal; `None` if it still runs at the deadline.
pub fn wait_for_exit(child: &mut Child, within: Duration) -> Result<Option<i32>> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.code().unwrap_or(-1)));
        }
        if Instant::now() > deadline {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}
