//! The launcher's part of a debug bundle: information that only the launcher has, and that needs no answer
//! from QEMU.

use std::fs;

use serde_json::{Value, json};

use crate::migration::MigrationReport;
use crate::people::journal::Journal;
use crate::standstill;

/// Options whose value may contain secrets of a user: the guest's kernel arguments, strings for its firmware.
const HIDDEN: [&str; 2] = ["-append", "-fw_cfg"];

/// QEMU's command line, its threads, its cgroup's pressure, its last events, and what limits a migration under way.
#[must_use]
pub fn report(pid: u32, version: &str, journal: &Journal, migration: Option<&MigrationReport>) -> Value {
    let (threads, pressure) = standstill::outside(pid);
    let mut report = standstill::as_json(&threads, &pressure);
    report["qemuVersion"] = json!(version);
    report["pid"] = json!(pid);
    report["commandLine"] =
        json!(command_line(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()));
    report["events"] = json!(journal.last());
    if let Some(MigrationReport { uid, bottleneck, .. }) = migration {
        report["migration"] = json!({"uid": uid, "bottleneck": bottleneck});
    }
    report
}

/// The words of a command line, without possible secrets.
fn command_line(bytes: &[u8]) -> Vec<String> {
    let words = bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let mut words: Vec<String> = words.collect();
    // A zero byte ends each word.
    words.pop();
    for at in 1..words.len() {
        let hidden = HIDDEN.contains(&words[at - 1].as_str());
        let secret = words[at - 1] == "-object" && words[at].contains("secret");
        if hidden || secret {
            words[at] = "(removed)".to_owned();
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_shown_without_what_may_be_secret() {
        let line = b"qemu\0-append\0root=/dev/vda token=hush\0-m\x0064\0-object\0{\"qom-type\":\"secret\",\"data\":\"hush\"}\0";
        let wanted = ["qemu", "-append", "(removed)", "-m", "64", "-object", "(removed)"];
        assert_eq!(command_line(line), wanted);
        assert!(command_line(b"").is_empty());
    }

    #[test]
    fn without_a_process_there_is_still_a_report() {
        let report = report(0, "", &Journal::default(), None);
        assert_eq!((&report["threads"], &report["events"]), (&json!([]), &json!([])));
    }
}
