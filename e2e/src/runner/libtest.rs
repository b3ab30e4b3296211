//! One run of a test program, followed through its output: libtest's JSON, one event per line.
//!
//! The format is unstable, but rust-toolchain.toml pins the compiler. Lines that are not events are printed
//! unchanged.

use super::programs::Program;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The result of one test.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Its path in the program.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
    /// How long it took.
    pub seconds: f64,
    /// Its output, if it failed.
    pub output: String,
}

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    of: String,
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    exec_time: f64,
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    message: String,
}

fn command(program: &Program, arguments: &[&str]) -> Command {
    let mut command = Command::new(&program.path);
    command
        .args(arguments)
        .args(["-Z", "unstable-options"])
        .current_dir(&program.folder)
        // libtest of the stable compiler needs this to accept unstable options.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null());
    command
}

/// Names of all tests of a program.
///
/// # Errors
/// When it cannot be started, or fails.
pub fn list(program: &Program) -> Result<Vec<String>> {
    let output = command(program, &["--list", "--format", "terse"])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("start {}", program.path.display()))?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Runs those tests, at most that many at once. A test that was running when the program crashed has failed.
///
/// # Errors
/// When the program cannot be started.
pub fn run(program: &Program, names: &[String], threads: usize) -> Result<Vec<Outcome>> {
    let threads = threads.to_string();
    let mut arguments = vec!["--format", "json", "--report-time", "--exact", "--test-threads", &threads];
    arguments.extend(names.iter().map(String::as_str));
    let mut child = command(program, &arguments)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", program.path.display()))?;
    let stdout = child.stdout.take().context("standard output of the tests")?;
    let mut ledger = Ledger::new(names);
    for line in BufReader::new(stdout).lines() {
        let line = line.context("read what the tests say")?;
        if let Some(outcome) = ledger.take(&line) {
            show(&program.name, outcome);
        }
    }
    let status = child.wait().context("wait for the tests")?;
    for outcome in ledger.close(&status.to_string()) {
        show(&program.name, outcome);
    }
    Ok(ledger.done)
}

fn show(program: &str, outcome: &Outcome) {
    let verdict = if outcome.passed { "ok" } else { "FAILED" };
    println!("test {program}::{} ... {verdict} <{:.1} s>", outcome.name, outcome.seconds);
    if !outcome.passed {
        println!("{}", outcome.output.trim_end());
    }
}

/// The requested tests, those that run, and those that have ended.
struct Ledger<'a> {
    open: BTreeMap<&'a str, Option<Instant>>,
    done: Vec<Outcome>,
}

impl<'a> Ledger<'a> {
    fn new(names: &'a [String]) -> Self {
        Self { open: names.iter().map(|name| (name.as_str(), None)).collect(), done: Vec::new() }
    }

    /// Processes a line; returns the test that it reports as ended.
    fn take(&mut self, line: &str) -> Option<&Outcome> {
        let Ok(event) = serde_json::from_str::<Event>(line) else {
            println!("{line}");
            return None;
        };
        if event.of != "test" {
            return None;
        }
        let name = event.name.as_str();
        match event.event.as_str() {
            "started" => {
                if let Some(begun) = self.open.get_mut(name) {
                    *begun = Some(Instant::now());
                }
                None
            }
            // The test goes on, and its end is reported later.
            "timeout" => None,
            word => {
                self.open.remove(name);
                let output = event.stdout + &event.message;
                // An ignored test proves nothing.
                let passed = word == "ok";
                self.done.push(Outcome { name: event.name, passed, seconds: event.exec_time, output });
                self.done.last()
            }
        }
    }

    /// The tests that have not ended when the program ends.
    fn close(&mut self, status: &str) -> &[Outcome] {
        let ended = self.done.len();
        for (name, begun) in std::mem::take(&mut self.open) {
            let (seconds, fate) = match begun {
                Some(begun) => (begun.elapsed().as_secs_f64(), "was running"),
                None => (0.0, "was not begun"),
            };
            let output = format!("it {fate} when the program ended ({status})");
            self.done.push(Outcome { name: name.to_owned(), passed: false, seconds, output });
        }
        &self.done[ended..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_outcomes() {
        let names = ["a".to_owned(), "b".to_owned(), "c".to_owned(), "d".to_owned()];
        let mut ledger = Ledger::new(&names);
        for line in [
            r#"{ "type": "suite", "event": "started", "test_count": 4 }"#,
            r#"{ "type": "test", "event": "started", "name": "a" }"#,
            r#"{ "type": "test", "event": "started", "name": "b" }"#,
            "plain words",
            r#"{ "type": "test", "name": "a", "event": "ok", "exec_time": 1.5 }"#,
            r#"{ "type": "test", "event": "started", "name": "c" }"#,
            r#"{ "type": "test", "name": "b", "event": "failed", "exec_time": 0.5, "stdout": "why" }"#,
        ] {
            ledger.take(line);
        }
        let unfinished: Vec<_> = ledger.close("signal: 9").iter().map(|one| one.output.clone()).collect();
        assert!(
            unfinished[0].contains("was running") && unfinished[0].contains("signal: 9"),
            "{unfinished:?}"
        );
        assert!(unfinished[1].contains("was not begun"), "{unfinished:?}");
        let told: Vec<_> =
            ledger.done.iter().map(|one| (one.name.as_str(), one.passed, one.seconds)).collect();
        assert_eq!(told[..2], [("a", true, 1.5), ("b", false, 0.5)]);
        assert!(!told[2].1 && !told[3].1);
    }
}
