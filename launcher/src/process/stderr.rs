//! A child's stderr: logged line by line; its end is kept for the report.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use barevirt_qmp::quiet::Quiet;
use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;

/// Bytes kept for the report.
const KEPT: usize = 2048;

/// Longest line in the log, in bytes.
const LONGEST_LINE: usize = 1024;
/// Lines of a child that are logged at once, before the rate is limited.
const LINES_AT_ONCE: u32 = 64;

/// The end of a child's stderr, readable while the child still runs.
#[derive(Debug, Clone, Default)]
pub struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }

    /// The last lines, at most three, joined; empty without any output. Invalid UTF-8 is replaced.
    #[must_use]
    pub fn last_lines(&self) -> String {
        let bytes: Vec<u8> = self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join("; ")
    }
}

/// Reads until the end. Neither length nor encoding of the output stops it.
pub(super) async fn drain(mut stderr: ChildStderr, tail: Tail, program: String) {
    let mut chunk = vec![0; 4096];
    let mut line = Vec::new();
    let quiet = Quiet::new(LINES_AT_ONCE);
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        tail.push(&chunk[..count]);
        for byte in &chunk[..count] {
            match byte {
                b'\n' => log(&mut line, &program, &quiet),
                byte if line.len() < LONGEST_LINE => line.push(*byte),
                _ => {}
            }
        }
    }
    log(&mut line, &program, &quiet);
}

/// A guest can make QEMU write messages at any rate, by unexpected use of its devices.
fn log(line: &mut Vec<u8>, program: &str, quiet: &Quiet) {
    if !line.is_empty() {
        if let Some(left_out) = quiet.line() {
            let line: String = String::from_utf8_lossy(line).chars().flat_map(shown).collect();
            tracing::info!(program, line, left_out, "a child says");
        }
        line.clear();
    }
}

/// Escapes characters that would act on the terminal of a reader of the log.
fn shown(letter: char) -> impl Iterator<Item = char> {
    let acts = letter.is_control() && letter != '\t';
    letter.escape_default().filter(move |_| acts).chain((!acts).then_some(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept_and_shown() {
        let tail = Tail::default();
        assert_eq!(tail.last_lines(), "");
        for n in 0..10_000 {
            tail.push(format!("line {n}\n").as_bytes());
        }
        tail.push(b"bad \xff byte");
        assert_eq!(tail.last_lines(), "line 9998; line 9999; bad \u{fffd} byte");
        assert!(tail.0.lock().unwrap().len() <= KEPT);
    }
}
