//! What the child says on stderr: into the log line by line, and its end kept for the verdict.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;

/// Bytes kept for the verdict.
const KEPT: usize = 2048;

/// Longest line that the log is given, in bytes.
const LONGEST_LINE: usize = 1024;

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
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        tail.push(&chunk[..count]);
        for byte in &chunk[..count] {
            match byte {
                b'\n' => log(&mut line, &program),
                byte if line.len() < LONGEST_LINE => line.push(*byte),
                _ => {}
            }
        }
    }
    log(&mut line, &program);
}

fn log(line: &mut Vec<u8>, program: &str) {
    if !line.is_empty() {
        tracing::info!(program, line = %String::from_utf8_lossy(line), "a child says");
        line.clear();
    }
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
