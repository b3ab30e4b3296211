//! The problems, and what to do about them.

use std::collections::BTreeSet;

/// Lines of a file without its tests, above which it holds more than one idea.
pub const MAX_FILE_LINES: usize = 400;

/// A circle that was found.
#[derive(Debug)]
pub struct FoundCircle {
    /// The crate that it is in.
    pub name: String,
    /// Its files, from the folder of the workspace.
    pub files: BTreeSet<String>,
}

/// The problems: a circle that is not in `known`, a line of `known` without a circle, a file that is too
/// long.
///
/// A line of `known` is `crate: file file file`; text after `#` is a comment.
pub fn problems(circles: &[FoundCircle], known: &str, files: &[(String, usize)]) -> Vec<String> {
    let lines: Vec<(&str, BTreeSet<String>)> = known
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .filter_map(|line| line.split_once(": "))
        .map(|(name, files)| (name.trim(), files.split_whitespace().map(str::to_owned).collect()))
        .collect();
    let holds = |line: &(&str, BTreeSet<String>), circle: &FoundCircle| {
        line.0 == circle.name && circle.files.is_subset(&line.1)
    };
    let new = circles.iter().filter(|circle| !lines.iter().any(|line| holds(line, circle))).map(|circle| {
        format!(
            "{}: {} files import each other in a circle: move what several of them need into a module below them, \
             or turn one of the steps above around",
            circle.name,
            circle.files.len()
        )
    });
    let gone = lines.iter().filter(|line| !circles.iter().any(|circle| holds(line, circle))).map(|line| {
        format!(
            "{}: a circle of the known ones is gone: take its line out of e2e/src/module_circles/known.txt",
            line.0
        )
    });
    let long = files.iter().filter(|(_, lines)| *lines > MAX_FILE_LINES).map(|(file, lines)| {
        format!("{file}: {lines} lines without tests, {MAX_FILE_LINES} are allowed: split it by idea")
    });
    new.chain(gone).chain(long).collect()
}
