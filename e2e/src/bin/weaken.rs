//! `make weaken`: each protection of `e2e/weaken.yaml` is taken out, and its test has to fail. Prints a table.

use anyhow::{Result, ensure};
use barevirt_e2e::weaken::copy::{Copy, Seen};
use barevirt_e2e::weaken::list;
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
    let mut list = list::read(include_str!("../../weaken.yaml"))?;
    if !options.only.is_empty() {
        list.retain(|each| {
            options.only.iter().any(|word| each.test.contains(word) || each.file.contains(word))
        });
    }
    ensure!(!list.is_empty(), "no protection has one of these words");
    // Of one file together: it is compiled less often.
    list.sort_by(|one, other| (one.test().ok(), &one.file).cmp(&(other.test().ok(), &other.file)));

    let copy = Copy::of_head()?;
    let mut unprotected = 0;
    for each in &list {
        let with = copy.with(each)?;
        let without = if with == Seen::Passed { copy.without(each)? } else { with };
        let word = match (with, without) {
            (Seen::Passed, Seen::Failed) => "protected",
            (Seen::Passed, Seen::Passed) => "NOT PROTECTED",
            (Seen::Passed, Seen::NotCompiled) => "does not compile without it",
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
