//! Links: each leads to an existing target, and SUMMARY.md to every page.

use std::collections::BTreeMap;
use std::fs;

use super::nothing_is_wrong;
use super::pages::{self, Page};
use super::sources;
use barevirt_api::advice::ADVICE;

/// The list of all pages, from which the site is made.
const SUMMARY: &str = "docs/SUMMARY.md";

/// The path in the repository to which a link of a page leads; none if it leads out of the repository.
fn resolve(page: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Why a link leads nowhere.
fn wrong(page: &Page, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (to, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = if to.is_empty() { Some(page.path.clone()) } else { resolve(&page.path, to) };
    let Some(path) = path else { return Some(format!("{link} leads out of the repository")) };
    let file = pages::repository().join(&path);
    if !file.exists() {
        return Some(format!("{link}: there is no {path}"));
    }
    let text = || fs::read_to_string(&file).unwrap_or_default();
    (!anchor.is_empty() && !pages::anchors(&text()).iter().any(|there| there == anchor))
        .then(|| format!("{link}: {path} has no heading #{anchor}"))
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut all = Vec::new();
    for page in pages::all() {
        let (prose, _) = pages::split(&page.text);
        for (number, line) in prose {
            let found = pages::targets(line).into_iter().filter_map(|link| wrong(&page, link));
            all.extend(found.map(|wrong| format!("{}:{number}: {wrong}", page.path)));
        }
    }
    nothing_is_wrong(&all);
}

#[test]
fn pages_that_refusals_name_are_there() {
    let root = Page { path: "README.md".to_owned(), text: String::new() };
    let all = ADVICE.iter().filter_map(|advice| wrong(&root, advice.page)).collect::<Vec<_>>();
    nothing_is_wrong(&all);
}

/// Whether a word in prose looks like a file or a folder of the repository: it begins with one of its
/// folders, and has an extension.
fn looks_like_a_file(word: &str, folders: &[String]) -> bool {
    let is_path = word.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-/".contains(letter));
    let Some((folder, rest)) = word.split_once('/') else { return false };
    is_path && folders.iter().any(|known| known == folder) && (rest.contains('.') || rest.ends_with('/'))
}

#[test]
fn files_that_prose_names_are_there() {
    // These exist only after a build.
    let built = ["target", "dist"];
    let folders: Vec<String> = fs::read_dir(pages::repository())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !built.contains(&name.as_str()))
        .collect();
    let mut all = Vec::new();
    for page in pages::all() {
        for (number, line) in pages::split(&page.text).0 {
            let missing = pages::inline_code(line)
                .filter(|word| looks_like_a_file(word, &folders) && !pages::repository().join(word).exists());
            all.extend(missing.map(|word| format!("{}:{number}: there is no {word}", page.path)));
        }
    }
    nothing_is_wrong(&all);
    let known = ["api".to_owned()];
    assert!(looks_like_a_file("api/src/lib.rs", &known) && looks_like_a_file("api/src/", &known));
    assert!(!looks_like_a_file("api/v1", &known) && !looks_like_a_file("api/*.txt", &known));
    assert!(!looks_like_a_file("other/a.rs", &known));
}

#[test]
fn tests_and_modules_that_prose_names_are_there() {
    let sources: String = sources::all().into_iter().map(|source| source.text).collect();
    let is_there = |name: &str| {
        ["fn", "mod"].iter().any(|word| {
            [" ", "(", ";", "<"].iter().any(|after| sources.contains(&format!("{word} {name}{after}")))
        })
    };
    let is_path = |word: &str| {
        word.contains("::")
            && word
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_:".contains(letter))
    };
    let mut all = Vec::new();
    for page in pages::all() {
        for (number, line) in pages::split(&page.text).0 {
            for word in pages::inline_code(line).filter(|word| is_path(word)) {
                let name = word.rsplit("::").next().unwrap_or_default();
                if !name.is_empty() && !is_there(name) {
                    all.push(format!("{}:{number}: there is no {word}", page.path));
                }
            }
        }
    }
    nothing_is_wrong(&all);
    assert!(is_there("tests_and_modules_that_prose_names_are_there") && is_there("links"));
    assert!(!is_there("no_such_function"));
}

#[test]
fn every_page_is_in_the_summary_once() {
    let summary = fs::read_to_string(pages::repository().join(SUMMARY)).unwrap();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for link in summary.lines().flat_map(pages::targets) {
        *times.entry(resolve(SUMMARY, link).unwrap()).or_default() += 1;
    }
    let mut all: Vec<String> = times
        .iter()
        .filter(|(_, times)| **times > 1)
        .map(|(path, _)| format!("{path} is there twice"))
        .collect();
    let docs = pages::paths_of_docs();
    let missing = docs.iter().filter(|path| *path != SUMMARY && !times.contains_key(*path));
    all.extend(missing.map(|path| format!("{path} is missing")));
    nothing_is_wrong(&all);
}

#[test]
fn a_broken_link_is_reported() {
    let page = Page { path: "docs/adr/a.md".to_owned(), text: "# Here\n".to_owned() };
    // The text of other pages is read from their files, so this test uses real files.
    assert_eq!(wrong(&page, "../../README.md"), None);
    assert_eq!(wrong(&page, "https://semver.org/"), None);
    assert!(wrong(&page, "../none.md").unwrap().contains("docs/none.md"));
    assert!(wrong(&page, "../../../x").unwrap().contains("leads out"));
    assert!(wrong(&page, "../../README.md#no-such-heading").unwrap().contains("no heading"));
}
