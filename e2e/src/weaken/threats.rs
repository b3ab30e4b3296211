//! Compares the table of threats and protections in docs/threat-model.md with the repository and the list.
//! Only for tests.

use super::list::{self, Protection};
use crate::command::repository;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders with sources.
const SOURCES: [&str; 7] = ["api", "controller", "e2e", "handler", "launcher", "qmp", "virtctl"];

/// A row: the threat, the files that stop it, the tests that show it.
struct Row {
    threat: String,
    files: Vec<PathBuf>,
    proof: String,
}

fn rows(page: &str) -> Vec<Row> {
    let table = page.split("\n| threat |").nth(1).unwrap();
    let lines = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [threat, _, stopped, proof] = cells[..] else { panic!("not four cells: {line}") };
        let mut files: Vec<PathBuf> = Vec::new();
        for code in codes(stopped) {
            if code.contains('/') {
                files.push(code.into());
            } else if let (Some(".rs"), Some(last)) = (code.get(code.len().saturating_sub(3)..), files.last())
            {
                // A name without a folder is in the folder of the file before it.
                let beside = last.with_file_name(code);
                files.push(beside);
            }
        }
        Row { threat: threat.to_owned(), files, proof: proof.to_owned() }
    };
    lines.map(row).collect()
}

/// The code spans of a text.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Names of functions and modules, and of files without their ending.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders: Vec<PathBuf> = SOURCES.iter().map(|folder| repository().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                // Cargo marks the folders that it builds in. A module may be named target too.
                if !path.join("CACHEDIR.TAG").exists() && !path.ends_with("node_modules") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
                let text = fs::read_to_string(&path).unwrap();
                for keyword in ["fn ", "mod "] {
                    let after = text.split(keyword).skip(1);
                    let name = |rest: &str| -> String {
                        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
                    };
                    names.extend(after.map(name));
                }
            }
        }
    }
    names
}

fn page() -> String {
    fs::read_to_string(repository().join("docs/threat-model.md")).unwrap()
}

fn entries() -> Vec<Protection> {
    list::read(include_str!("../../weaken.yaml")).unwrap()
}

#[test]
fn files_and_tests_of_the_table_are_there() {
    let (names, rows) = (names(), rows(&page()));
    assert!(rows.len() > 40, "{} rows", rows.len());
    let mut wrong = Vec::new();
    for Row { threat, files, proof } in rows {
        let missing = files.iter().filter(|file| !repository().join(file).exists());
        wrong.extend(missing.map(|file| format!("{threat}: there is no {}", file.display())));
        if proof.is_empty() {
            wrong.push(format!("{threat}: nothing shows it"));
        }
        for code in codes(&proof) {
            let is_there = match code.rsplit_once("::") {
                Some((_, name)) => names.contains(name),
                None if Path::new(code).extension().is_some_and(|ending| ending == "rs") => {
                    ["", "e2e/tests"].iter().any(|root| repository().join(root).join(code).exists())
                }
                None => true,
            };
            if !is_there {
                wrong.push(format!("{threat}: there is no {code}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_protection_of_the_list_is_in_the_table() {
    let rows = rows(&page());
    let files: BTreeSet<&Path> = rows.iter().flat_map(|row| &row.files).map(PathBuf::as_path).collect();
    let is_named = |file: &str| files.iter().any(|named| Path::new(file).starts_with(named));
    let unnamed: Vec<_> =
        entries().into_iter().map(|each| each.file).filter(|file| !is_named(file)).collect();
    assert_eq!(unnamed, Vec::<String>::new());
}

#[test]
fn tests_of_the_list_are_there_and_the_page_knows_how_many() {
    let (names, entries) = (names(), entries());
    let name = |test: &str| test.rsplit("::").next().unwrap_or_default().to_owned();
    let missing: Vec<_> = entries.iter().filter(|each| !names.contains(&name(&each.test))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let count = format!("The list has {} entries.", entries.len());
    assert!(page().contains(&count), "docs/threat-model.md does not say {count:?}");
}
