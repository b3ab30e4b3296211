//! Pages of Markdown and their contents: prose, links, headings, blocks of code. Supports only the Markdown
//! that the docs use.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Pages outside of docs/ that people read, too.
const OTHERS: [&str; 6] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "cluster-up/README.md",
    "images/README.md",
];

/// One page.
pub(super) struct Page {
    /// Its path in the repository, with slashes.
    pub(super) path: String,
    pub(super) text: String,
}

/// A block of code: indented by four spaces, or between fences.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Number of its first line of code, from 1.
    pub(super) line: usize,
    /// The info string of the fence; empty for an indented block.
    pub(super) info: String,
    pub(super) text: String,
}

/// A line of prose with its number.
pub(super) type Line<'a> = (usize, &'a str);

pub(super) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Paths of all pages in docs/, in order.
pub(super) fn paths_of_docs() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(repository().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

pub(super) fn all() -> Vec<Page> {
    let paths = paths_of_docs().into_iter().chain(OTHERS.map(str::to_owned));
    paths.map(|path| Page { text: fs::read_to_string(repository().join(&path)).unwrap(), path }).collect()
}

/// The info string of a fence at the start of a line.
fn fence(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("```")
}

/// Prose and blocks of a text.
pub(super) fn split(text: &str) -> (Vec<Line<'_>>, Vec<Block>) {
    let (mut prose, mut blocks) = (Vec::new(), Vec::new());
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line)).peekable();
    let mut before = "";
    while let Some((number, line)) = lines.next() {
        if let Some(info) = fence(line) {
            let inner: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| fence(line).is_none()).collect();
            blocks.push(Block { line: number + 1, info: info.trim().to_owned(), text: inner.join("\n") });
            before = "";
        } else if line.starts_with("    ") && before.is_empty() {
            let mut inner = vec![line.trim_end()];
            while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with("    ") || line.is_empty())
            {
                inner.push(line.trim_end());
            }
            let inner: Vec<&str> =
                inner.iter().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
            blocks.push(Block {
                line: number,
                info: String::new(),
                text: inner.join("\n").trim_end().to_owned(),
            });
            before = "";
        } else {
            prose.push((number, line));
            before = line;
        }
    }
    (prose, blocks)
}

/// What is between single backticks in a line.
pub(super) fn inline_code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Targets of all links and images of a line.
pub(super) fn targets(line: &str) -> Vec<&str> {
    let prose: Vec<&str> = line.split("](").skip(1).collect();
    prose.into_iter().filter_map(|rest| Some(rest.split_once(')')?.0)).collect()
}

/// Names by which the headings of a page can be linked, as GitHub and mdBook make them.
pub(super) fn anchors(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let (prose, _) = split(text);
    let headings = prose.into_iter().filter_map(|(_, line)| {
        let text = line.trim_start_matches('#');
        (text.len() < line.len()).then(|| text.strip_prefix(' ')).flatten()
    });
    headings
        .map(|heading| {
            let anchor = anchor(heading);
            let times = seen.entry(anchor.clone()).and_modify(|times| *times += 1).or_default();
            if *times == 0 { anchor } else { format!("{anchor}-{times}") }
        })
        .collect()
}

fn anchor(heading: &str) -> String {
    let shown = heading.trim().replace("](", "\0");
    // A heading shows only the text of a link.
    let mut text = String::new();
    for (index, part) in shown.split('\0').enumerate() {
        text += if index == 0 { part } else { part.split_once(')').map_or("", |(_, after)| after) };
    }
    let kept = text.to_lowercase().chars().collect::<Vec<_>>();
    kept.into_iter()
        .filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            _ => letter.is_alphanumeric().then_some(letter),
        })
        .collect()
}

#[test]
fn blocks_are_found_and_prose_is_what_is_left() {
    let text = "# A\n\nBefore:\n\n    virtctl start web\n\n    virtctl stop web\n\nAfter\n    no block\n\n```yaml vmi.spec\na: 1\n```\nEnd\n";
    let (prose, blocks) = split(text);
    let block = |line, info: &str, text: &str| Block { line, info: info.to_owned(), text: text.to_owned() };
    assert_eq!(
        blocks,
        [block(5, "", "virtctl start web\n\nvirtctl stop web"), block(13, "yaml vmi.spec", "a: 1")]
    );
    assert!(prose.contains(&(10, "    no block")) && prose.contains(&(15, "End")), "{prose:?}");
}

#[test]
fn links_and_headings_are_read() {
    assert_eq!(targets("see [a](b.md#c), ![d](e.png) (f) and [g](#h)."), ["b.md#c", "e.png", "#h"]);
    assert_eq!(inline_code("a `b c` d `e`").collect::<Vec<_>>(), ["b c", "e"]);
    let text = "# What `make test` does, and why?\n\n## Why\n\n## Why\n\n## [Seen](x.md) here\n\n    # no heading\n#none\n";
    assert_eq!(anchors(text), ["what-make-test-does-and-why", "why", "why-1", "seen-here"]);
}
