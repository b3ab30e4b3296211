//! Version of this build, for programs that do without `barevirt-api`: the types of the API would make them larger. The
//! variables are those of `barevirt_api::release`; a test of the launcher compares the texts.

/// Semantic version, without a `v`.
const VERSION: &str = match option_env!("BAREVIRT_VERSION") {
    Some(version) => version,
    None => concat!(env!("CARGO_PKG_VERSION"), "-devel"),
};

/// The commit that the program was built from, or `unknown`.
const COMMIT: &str = match option_env!("BAREVIRT_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// Time of that commit in RFC 3339, or `unknown`.
const DATE: &str = match option_env!("BAREVIRT_BUILD_DATE") {
    Some(date) => date,
    None => "unknown",
};

/// The answer of a program to `--version` after its name, in one line.
#[must_use]
pub fn line() -> String {
    format!("{VERSION} (commit {COMMIT}, built {DATE})")
}
