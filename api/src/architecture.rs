//! Processor architectures, and the machine types that guests of each may have.

use crate::v1::VirtualMachineInstanceSpec;

/// Architecture of guests that name none.
pub const DEFAULT: &str = "amd64";

/// The architecture of a specification.
pub(crate) fn of(spec: &VirtualMachineInstanceSpec) -> &str {
    spec.architecture.as_deref().filter(|text| !text.is_empty()).unwrap_or(DEFAULT)
}

/// Patterns of machine types, as KubeVirt writes them; none for an unknown architecture.
pub(crate) fn machine_types(architecture: &str) -> &'static [&'static str] {
    match architecture {
        "amd64" => &["q35*", "pc-q35*"],
        "arm64" => &["virt*"],
        "s390x" => &["s390-ccw-virtio*"],
        _ => &[],
    }
}

/// Whether guests of amd64 may have this machine type.
pub fn is_machine_type_of_amd64(text: &str) -> bool {
    is_machine_type(text, machine_types("amd64"))
}

/// Whether the pattern fits a machine type that guests of amd64 may have: `*` stands for any text.
pub fn may_be_machine_type_of_amd64(pattern: &str) -> bool {
    let known = |b: u8| is_known(b) || b == b'*';
    let start = pattern.split('*').next().unwrap_or_default();
    let open = pattern.contains('*');
    !pattern.is_empty()
        && pattern.len() <= 64
        && pattern.bytes().all(known)
        && machine_types("amd64").iter().any(|ours| {
            let ours = ours.trim_end_matches('*');
            start.starts_with(ours) || (open && ours.starts_with(start))
        })
}

/// Whether the pattern fits the text: `*` stands for any text.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    // The earliest match of each part leaves the most text for the parts after it.
    for part in parts {
        let Some((_, after)) = left.split_once(part) else { return false };
        left = after;
    }
    left.ends_with(end)
}

/// Only characters that cannot add anything to QEMU's command line.
fn is_known(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')
}

/// Whether one of the patterns fits.
pub(crate) fn is_machine_type(text: &str, patterns: &[&str]) -> bool {
    text.is_empty()
        || (text.len() <= 64
            && text.bytes().all(is_known)
            && patterns.iter().any(|pattern| fits(pattern, text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, text, expected) in [
            ("q35*", "q35", true),
            ("q35*", "pc-q35", false),
            ("*", "", true),
            ("pc-*-10.0", "pc-q35-10.0", true),
            ("pc-*-10.0", "pc-q35-10.1", false),
            ("a*b*b", "ab", false),
            ("a*b*b", "abb", true),
            ("pc-q35-9.2", "pc-q35-9.2", true),
            ("pc-q35-9.2", "pc-q35-9.2x", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn patterns_that_match_no_machine_type_are_recognised() {
        for pattern in ["q35*", "pc-q35*", "*", "pc*", "pc-q35-9.2", "p*9", "q35"] {
            assert!(may_be_machine_type_of_amd64(pattern), "{pattern}");
        }
        for pattern in ["", "pc-i440fx*", "pc", "virt*", "q35,usb=on", "[q]35", "q?5"] {
            assert!(!may_be_machine_type_of_amd64(pattern), "{pattern}");
        }
    }
}
