//! Reads which CPUs the kubelet has given to a container exclusively, from the state file of its CPU manager
//! (`cpu_manager_state` in its folder).
//!
//! The class and the requests of a pod do not show this: without the policy `static`, or with a fraction of a
//! CPU, the container shares its CPUs. The kubelet's file lists each container that has exclusive CPUs, by
//! the UID of its pod.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use barevirt_api::names::COMPUTE_CONTAINER;
use serde_json::Value;

/// The kubelet's file.
pub const STATE_FILE: &str = "cpu_manager_state";
/// Longest state file that is read, in bytes.
pub const STATE_MAX: u64 = 1 << 20;

/// CPUs that the launcher's container of this pod has exclusively; empty if the kubelet lists none.
pub fn cpus(kubelet: &Path, pod_uid: &str) -> BTreeSet<u32> {
    let mut text = String::new();
    let read =
        File::open(kubelet.join(STATE_FILE)).and_then(|file| file.take(STATE_MAX).read_to_string(&mut text));
    if read.is_err() {
        return BTreeSet::new();
    }
    let state: Value = serde_json::from_str(&text).unwrap_or_default();
    if state["policyName"] != "static" {
        return BTreeSet::new();
    }
    list(state["entries"][pod_uid][COMPUTE_CONTAINER].as_str().unwrap_or_default()).unwrap_or_default()
}

/// A list as the kernel and the kubelet write it: `0-3,8`.
pub fn list(text: &str) -> Option<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // No machine has more CPUs. A range from a broken file is not expanded.
        if last > 1 << 16 {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelet_says_which_cpus_are_a_containers_own() {
        let kubelet = tempfile::tempdir().unwrap();
        assert!(cpus(kubelet.path(), "u1").is_empty());
        let write = |policy: &str| {
            let text = format!(
                r#"{{"policyName":"{policy}","defaultCpuSet":"0,4-7","entries":{{"u1":{{"compute":"1-2,3"}},"u2":{{"other":"3"}}}}}}"#
            );
            std::fs::write(kubelet.path().join(STATE_FILE), text).unwrap();
        };
        write("static");
        assert_eq!(cpus(kubelet.path(), "u1"), [1, 2, 3].into());
        assert!(cpus(kubelet.path(), "u2").is_empty() && cpus(kubelet.path(), "u3").is_empty());
        write("none");
        assert!(cpus(kubelet.path(), "u1").is_empty());
    }

    #[test]
    fn lists_are_read_or_refused_as_a_whole() {
        assert_eq!(list("0-2,5\n"), Some([0, 1, 2, 5].into()));
        assert_eq!(list(""), Some(BTreeSet::new()));
        for text in ["a", "1-", "0-4294967295"] {
            assert_eq!(list(text), None, "{text}");
        }
    }
}
