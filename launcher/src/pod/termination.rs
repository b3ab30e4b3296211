//! The termination message for Kubernetes: one line of JSON.

use std::path::Path;

use serde_json::json;

use crate::verdict::Verdict;

/// Longest message, in bytes: the kubelet accepts 4096 bytes in total.
const LONGEST: usize = 2048;

/// Writes the verdict. A failure is only logged, because the exit code still shows part of it.
pub fn write(path: &Path, verdict: &Verdict) {
    if let Err(error) = std::fs::write(path, line(verdict)) {
        tracing::warn!(%error, path = %path.display(), "cannot write the termination message");
    }
}

fn line(verdict: &Verdict) -> String {
    let mut message = verdict.message.clone();
    if message.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push_str(" ...");
    }
    let word = json!({"phase": verdict.phase(), "reason": verdict.reason, "message": message});
    format!("{word}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn one_line_that_fits() {
        let verdict = Verdict::failed("QemuFailed", "é\n\"".repeat(5000));
        let line = line(&verdict);
        assert!(line.len() < 4096 && line.ends_with("}\n") && line.matches('\n').count() == 1);
        let word: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&word["phase"], &word["reason"]), (&json!("Failed"), &json!("QemuFailed")));
    }
}
