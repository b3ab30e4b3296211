//! Lists in docs/api.md that follow the code: how an instance ends, feature gates, and the refused field that serves
//! as an example.

use std::fs;

use super::nothing_is_wrong;
use super::pages;
use super::sources::{self, Source};
use barevirt_api::gates::{GATES, State};

const PAGE: &str = "docs/api.md";

fn page() -> String {
    fs::read_to_string(pages::repository().join(PAGE)).unwrap()
}

/// The part of a page below this heading.
fn below<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, after) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    after.split("\n## ").next().unwrap()
}

/// What follows each of these texts in a source.
fn after<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).map(str::trim_start)
}

/// Reasons with which launcher and controller end an instance.
fn ends(sources: &[Source]) -> Vec<String> {
    let constant = |name: &str| {
        let before = format!("const {name}: &str = \"");
        let value = sources.iter().find_map(|source| source.text.split_once(&before))?.1;
        Some(value.split_once('"')?.0.to_owned())
    };
    let ends_instances = |source: &&Source| {
        ["launcher/src/", "controller/src/"].iter().any(|folder| source.path.starts_with(folder))
    };
    let mut found = Vec::new();
    for source in sources.iter().filter(ends_instances) {
        for how in ["End::failed(", "End::succeeded("] {
            found.extend(after(source.without_tests(), how).filter_map(
                |rest| match rest.strip_prefix('"') {
                    Some(word) => Some(word.split_once('"')?.0.to_owned()),
                    None if rest.starts_with("REASON_") => constant(rest.split([',', ')']).next()?),
                    None => None,
                },
            ));
        }
    }
    found
}

#[test]
fn the_table_of_ends_has_every_reason() {
    let ends = ends(&sources::all());
    assert!(
        ["GuestShutdown", "PasstFailed", "PodNotExists"]
            .iter()
            .all(|known| ends.iter().any(|end| end == known))
    );
    let page = page();
    let table = below(&page, "How an instance ends");
    let missing = ends.iter().filter(|end| !table.contains(&format!("`{end}`")));
    nothing_is_wrong(&missing.map(|end| format!("{PAGE} does not say what {end} means")).collect::<Vec<_>>());
}

#[test]
fn the_tables_of_gates_have_every_gate_that_decides_anything() {
    let sources = sources::all();
    let decides = |gate: &str| {
        let word = format!("\"{gate}\"");
        let mut others = sources.iter().filter(|source| source.path != "api/src/gates.rs");
        others.any(|source| source.without_tests().contains(&word))
    };
    let page = page();
    let tables = below(&page, "Feature gates");
    let can_change = GATES.iter().filter(|(_, state)| matches!(state, State::Alpha | State::Beta));
    let (listed, others): (Vec<&str>, Vec<&str>) =
        can_change.map(|(name, _)| *name).partition(|name| tables.contains(&format!("`{name}`")));
    assert!(listed.contains(&"HostDisk") && others.contains(&"IOMMUFD"));
    let missing = others.into_iter().filter(|name| decides(name));
    nothing_is_wrong(
        &missing.map(|gate| format!("{PAGE} does not list the gate {gate}")).collect::<Vec<_>>(),
    );
}

#[test]
fn the_example_of_a_refused_field_is_refused() {
    let page = page();
    let (_, blocks) = pages::split(&page);
    let examples: Vec<&str> = blocks
        .iter()
        .flat_map(|block| block.text.lines())
        .filter(|line| line.contains(" is not supported yet"))
        .filter_map(|line| Some(line.split_once(": ")?.0))
        .collect();
    assert!(!examples.is_empty());
    let supported =
        fs::read_to_string(pages::repository().join("api/src/validate/supported/vmi.txt")).unwrap();
    let is_supported = |field: &str| {
        let begins = |line: &str| {
            line.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', ' ']))
        };
        supported.lines().any(begins)
    };
    assert!(is_supported("domain.devices.filesystems"));
    let wrong = examples.into_iter().filter(|field| is_supported(field.trim_start_matches("spec.")));
    nothing_is_wrong(&wrong.map(|field| format!("{PAGE}: {field} is supported")).collect::<Vec<_>>());
}
