//! `make weaken`: each protection of `e2e/weaken.yaml` is taken out, and its test has to fail. Prints a table.

use anyhow::{Result, ensure};
use barevirt_e2e::command::repository;
use barevirt_e2e::weaken::copy::{Copy, Seen};
use barevirt_e2e::weaken::list::{self, Protection};
use clap::Parser;
use std::process::ExitCode;

/// Takes protections out, one at a time, and runs their tests.
#[derive(Debug, Parser)]
struct Options {
    /// Only those in whose test or file one of these words is.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let mut list = list::read(&std::fs::read_to_string(repository().join("e2e/weaken.yaml"))?)?;
    if !options.only.is_empty() {
        list.retain(|each| {
            options.only.iter().any(|word| each.test.contains(word) || each.file.contains(word))
        });
    }
    ensure!(!list.is_empty(), "no protection has one of these words");
    // Of one program together: what is put back is compiled with the next edit.
    list.sort_by(|one, other| (one.test().ok(), &one.file).cmp(&(other.test().ok(), &other.file)));

    let copy = Copy::of_head()?;
    // First all as the commit has it: each program is compiled once for all of its tests.
    let mut whole = Vec::new();
    for each in &list {
        whole.push(or_problem(each, copy.with(each)));
    }
    let mut unprotected = 0;
    for (each, with) in list.iter().zip(whole) {
        let without = match with {
            Some(Seen::Passed) => or_problem(each, copy.without(each)),
            other => other,
        };
        let word = match (with, without) {
            (None, _) | (_, None) => "CANNOT BE RUN",
            (Some(Seen::Passed), Some(Seen::Failed)) => "protected",
            (Some(Seen::Passed), Some(Seen::Passed)) => "NOT PROTECTED",
            (Some(Seen::Passed), Some(Seen::NotCompiled)) => "does not compile without it",
            _ => "fails as it is",
        };
        unprotected += usize::from(word != "protected");
        println!("{word:<14} {}\n               {} {}", each.without_it, each.file, each.test);
    }
    println!(
        "{} of {} protections have a test that fails without them",
        list.len() - unprotected,
        list.len()
    );
    Ok(if unprotected == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was seen; nothing where that cannot be said, which ends no run of the others.
fn or_problem(of: &Protection, seen: Result<Seen>) -> Option<Seen> {
    seen.map_err(|problem| eprintln!("{}: {problem:#}", of.test)).ok()
}
