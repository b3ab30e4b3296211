//! Identifiers inside QEMU. They are made only from the names in the manifest, so that a restart, a hotplug
//! or a migration finds the same device under the same id.
//!
//! QEMU requires a letter first and allows letters, digits, `-`, `.` and `_`; node names have at most 31
//! bytes. Names of disks and interfaces can be longer, and never contain a dot. A name that does not fit is
//! cut and gets a suffix of a dot and eight hex digits of its SHA-256, so it cannot collide with another
//! name.

use sha2::{Digest, Sha256};

/// Longest node name that QEMU accepts (its buffer has 32 bytes with the terminating zero).
const NODE_NAME_MAX: usize = 31;

/// `<role>-<name>`, at most [`NODE_NAME_MAX`] bytes long.
pub(crate) fn node(role: &str, name: &str) -> String {
    fit(role, name, NODE_NAME_MAX)
}

/// `<role>-<name>` for devices, whose ids may be as long as any name of the API.
pub(crate) fn device(role: &str, name: &str) -> String {
    fit(role, name, 96)
}

fn fit(role: &str, name: &str, max: usize) -> String {
    let clean: String = name
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || "-_".contains(letter) { letter } else { '.' })
        .collect();
    let whole = format!("{role}-{clean}");
    if clean == name && whole.len() <= max {
        return whole;
    }
    let digest = Sha256::digest(name.as_bytes());
    let suffix: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let keep = max.saturating_sub(suffix.len() + 1).min(whole.len());
    // `clean` is ASCII, so any index is a boundary.
    format!("{}.{suffix}", &whole[..keep])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_names_are_kept() {
        assert_eq!(node("file", "rootdisk"), "file-rootdisk");
        assert_eq!(device("nic", "default"), "nic-default");
    }

    #[test]
    fn long_names_are_truncated_and_stay_distinct() {
        let first = node("overlay", &format!("{}-one", "x".repeat(59)));
        let second = node("overlay", &format!("{}-two", "x".repeat(59)));
        assert_eq!(first.len(), NODE_NAME_MAX);
        assert_ne!(first, second);
    }

    proptest! {
        #[test]
        fn ids_are_well_formed_and_distinct(a in "\\PC{0,70}", b in "\\PC{0,70}") {
            let (first, second) = (node("file", &a), node("file", &b));
            prop_assert!(first.len() <= NODE_NAME_MAX);
            prop_assert!(first.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter)));
            prop_assert_eq!(a == b, first == second);
        }
    }
}
