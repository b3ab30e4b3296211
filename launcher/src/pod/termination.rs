//! The termination message for Kubernetes: one line of JSON.

use std::path::Path;

use serde_json::json;

use crate::guest_end::GuestEnd;

/// Longest message, in bytes: the kubelet accepts 4096 bytes in total.
const LONGEST: usize = 2048;

/// Writes how the guest ended. A failure is only logged, because the exit code still shows part of it.
pub fn write(path: &Path, end: &GuestEnd) {
    if let Err(error) = std::fs::write(path, line(end)) {
        tracing::warn!(%error, path = %path.display(), "cannot write the termination message");
    }
}

fn line(end: &GuestEnd) -> String {
    let mut message = end.message.clone();
    if message.len() > LONGEST {
        let cut = (0..=LONGEST).rev().find(|cut| message.is_char_boundary(*cut)).unwrap_or(0);
        message.truncate(cut);
        message.push_str(" ...");
    }
    let line = json!({"phase": end.phase(), "reason": end.reason, "message": message});
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn one_line_that_fits() {
        let end = GuestEnd::failed("QemuFailed", "é\n\"".repeat(5000));
        let line = line(&end);
        assert!(line.len() < 4096 && line.ends_with("}\n") && line.matches('\n').count() == 1);
        let written: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&written["phase"], &written["reason"]), (&json!("Failed"), &json!("QemuFailed")));
    }
}
