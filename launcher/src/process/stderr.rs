//! What the child says on stderr: into the log line by line, and its end kept for the verdict.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use barevirt_qmp::quiet::Quiet;
use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;

/// Bytes kept for the verdict.
const KEPT: usize = 2048;

/// Longest line that the log is given, in bytes.
const LONGEST_LINE: usize = 1024;
/// Lines that a child may say at once, before it is heard less often.
const LINES_AT_ONCE: u32 = 64;

/// The end of what a child said, readable while it still speaks.
#[derive(Debug, Clone, Default)]
pub struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }

    /// The last lines, at most three, joined; empty when nothing was said. Not UTF-8 is made so.
    #[must_use]
    pub fn last_lines(&self) -> String {
        let bytes: Vec<u8> = self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join("; ")
    }
}

/// Reads until the end. Never stops for what it reads: neither length nor encoding.
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

/// A guest that does what its devices do not expect has QEMU say so, as often as it does it.
fn log(line: &mut Vec<u8>, program: &str, quiet: &Quiet) {
    if !line.is_empty() {
        if let Some(left_out) = quiet.line() {
            let line: String = String::from_utf8_lossy(line).chars().flat_map(shown).collect();
            tracing::info!(program, line, left_out, "a child says");
        }
        line.clear();
    }
}

/// Nothing of a line acts on the terminal of who reads the log.
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
