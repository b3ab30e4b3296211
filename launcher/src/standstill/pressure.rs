//! Whether a cgroup lacks CPU, memory or I/O.
//!
//! cgroup v2 counts the time for which tasks wait (pressure stall information). v1 does not, so for v1 the
//! counts of throttling and failures are reported, together with the node's own pressure if the kernel
//! provides it.

use std::fmt;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// Longest text that is read from one file.
const LONGEST: usize = 400;

/// The kernel's values by file. Empty if there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Source of the values, and lines as the kernel writes them.
    pub said: Vec<(&'static str, String)>,
}

/// Files of v2.
const V2: [(&str, &str); 3] = [
    ("cpu of the pod's cgroup", "cpu.pressure"),
    ("memory of the pod's cgroup", "memory.pressure"),
    ("io of the pod's cgroup", "io.pressure"),
];
/// Files of v1.
const V1: [(&str, &str); 4] = [
    ("cpu of the pod's cgroup (v1: periods, and those throttled)", "cpu/cpu.stat"),
    ("memory in use, bytes (v1)", "memory/memory.usage_in_bytes"),
    ("memory that may be used, bytes (v1)", "memory/memory.limit_in_bytes"),
    ("times memory was refused (v1)", "memory/memory.failcnt"),
];
/// Files of the node.
const NODE: [(&str, &str); 3] =
    [("cpu of the node", "cpu"), ("memory of the node", "memory"), ("io of the node", "io")];

/// Reads the available values: `cgroups` is the mount point of the cgroups, `node` the directory of the
/// node's own pressure.
#[must_use]
pub fn read(cgroups: &Path, node: &Path) -> Pressure {
    let all = |base: &Path, files: &[(&'static str, &str)]| {
        files.iter().filter_map(|(what, file)| Some((*what, line(&base.join(file))?))).collect::<Vec<_>>()
    };
    let mut said = all(cgroups, &V2);
    if said.is_empty() {
        said = all(cgroups, &V1);
        said.extend(all(node, &NODE));
    }
    Pressure { said }
}

fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line: String = text.trim().replace('\n', "; ").chars().take(LONGEST).collect();
    (!line.is_empty()).then_some(line)
}

impl Pressure {
    pub(super) fn as_json(&self) -> Value {
        self.said.iter().map(|(what, line)| ((*what).to_owned(), json!(line))).collect()
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.said.is_empty() {
            return f.write_str("The kernel does not report pressure here.");
        }
        f.write_str("Pressure:")?;
        self.said.iter().try_for_each(|(what, line)| write!(f, "\n  {what}: {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_is_the_cgroups_own_v1_is_what_there_is_and_nothing_is_said_to_be_nothing() {
        let (cgroups, node) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let seen = || read(cgroups.path(), node.path());
        assert_eq!(seen().to_string(), "The kernel does not report pressure here.");
        fs::write(node.path().join("cpu"), "some avg10=1.00\n").unwrap();
        fs::create_dir(cgroups.path().join("cpu")).unwrap();
        fs::write(cgroups.path().join("cpu/cpu.stat"), "nr_periods 5\nnr_throttled 3\nthrottled_time 9\n")
            .unwrap();
        let text = seen().to_string();
        assert!(text.contains("nr_periods 5; nr_throttled 3; throttled_time 9"), "{text}");
        assert!(text.contains("cpu of the node: some avg10=1.00"), "{text}");
        fs::write(cgroups.path().join("memory.pressure"), "some avg10=2.00\nfull avg10=0.50\n").unwrap();
        assert_eq!(
            seen().to_string(),
            "Pressure:\n  memory of the pod's cgroup: some avg10=2.00; full avg10=0.50"
        );
        assert_eq!(seen().as_json()["memory of the pod's cgroup"], "some avg10=2.00; full avg10=0.50");
    }
}
