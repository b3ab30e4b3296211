//! Version of this build. `make release` sets it by environment variables of the compiler. An ordinary build
//! has the version `devel` and no commit, so that a new commit does not cause a recompilation.
//!
//! | variable | what it is |
//! |---|---|
//! | `BAREVIRT_VERSION` | the version, as `1.2.3` |
//! | `BAREVIRT_COMMIT` | the commit, 40 digits |
//! | `BAREVIRT_BUILD_DATE` | when the commit was made, as `2026-01-31T12:00:00Z`: the same for each build of it |

use std::sync::OnceLock;

/// Semantic version, without a `v`.
pub const VERSION: &str = match option_env!("BAREVIRT_VERSION") {
    Some(version) => version,
    None => concat!(env!("CARGO_PKG_VERSION"), "-devel"),
};

/// The commit that the program was built from, or `unknown`.
pub const COMMIT: &str = match option_env!("BAREVIRT_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// Time of that commit in RFC 3339, or `unknown`.
pub const DATE: &str = match option_env!("BAREVIRT_BUILD_DATE") {
    Some(date) => date,
    None => "unknown",
};

/// The version of KubeVirt whose API is served: types, names, rules and messages are those of its development
/// line at kubevirt/kubevirt d923fdb815.
pub const KUBEVIRT: &str = "v1.10";

/// [`VERSION`] in the form that tags and KubeVirt's clients use.
pub fn tag() -> &'static str {
    static TAG: OnceLock<String> = OnceLock::new();
    TAG.get_or_init(|| format!("v{VERSION}"))
}

/// The answer of a program to `--version` after its name, in one line.
pub fn line() -> &'static str {
    static LINE: OnceLock<String> = OnceLock::new();
    LINE.get_or_init(|| format!("{VERSION} (commit {COMMIT}, built {DATE}, API of KubeVirt {KUBEVIRT})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_says_what_it_is() {
        assert!(VERSION.starts_with(|first: char| first.is_ascii_digit()), "{VERSION}");
        assert_eq!(tag().strip_prefix('v'), Some(VERSION));
        for word in [VERSION, COMMIT, DATE, KUBEVIRT] {
            assert!(!word.is_empty() && line().contains(word), "{word}");
        }
        // A release has all three, another build none.
        assert_eq!(VERSION.ends_with("-devel"), COMMIT == "unknown");
        assert_eq!(COMMIT == "unknown", DATE == "unknown");
    }
}
