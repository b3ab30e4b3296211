//! `make weaken`: takes out each protection of `e2e/weaken.yaml`; its test has to fail. Prints a table.

use anyhow::{Result, ensure};
use barevirt_e2e::weaken::copy::{Copy, TestOutcome, head};
use barevirt_e2e::weaken::list::Protection;
use barevirt_e2e::weaken::record::{Assessment, Record};
use clap::Parser;
use std::process::ExitCode;
use std::time::Instant;

/// Takes protections out, one at a time, and runs their tests.
#[derive(Debug, Parser)]
struct Options {
    /// Only protections whose test or file contains one of these words.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Discards the results of earlier runs, and begins with the current commit.
    #[arg(long)]
    anew: bool,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let (copy, list, mut record) = begin(options.anew)?;
    let is_wanted = |each: &&Protection| {
        let among = |word: &String| each.test.contains(word) || each.file.contains(word);
        options.only.is_empty() || options.only.iter().any(among)
    };
    let mut wanted: Vec<&Protection> = list.iter().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "no protection has one of these words");
    // Sorted by program, so that restoring one edit is compiled together with the next edit.
    wanted.sort_by_key(|each| (each.test().ok(), each.file.clone()));

    let left: Vec<&Protection> = wanted.iter().copied().filter(|each| !record.has(each)).collect();
    println!("weaken: {} of {} are left to try, at {}", left.len(), wanted.len(), record.commit);
    for group in left.chunk_by(|one, other| program(one) == program(other)) {
        // First run all tests without an edit: the program is compiled once for them.
        let whole: Vec<_> = group.iter().map(|each| or_problem(each, copy.with(each))).collect();
        for (each, with) in group.iter().zip(whole) {
            let begun = Instant::now();
            let passes = with == Some(TestOutcome::Passed);
            let without = if passes { or_problem(each, copy.without(each)) } else { None };
            let assessment = Assessment::of(with.as_ref(), without.as_ref());
            let words = without.or(with).map_or_else(String::new, words);
            let seconds = begun.elapsed().as_secs();
            println!(
                "{assessment}: {} ({seconds} s)\n    {} {}\n    {words}",
                each.without_it, each.file, each.test
            );
            record.found.insert(each.without_it.clone(), (assessment, words));
            record.save()?;
        }
    }
    Ok(if sum_up(&wanted, &record) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Continues a run that is not complete, or begins one with the current commit.
fn begin(anew: bool) -> Result<(Copy, Vec<Protection>, Record)> {
    let head = head()?;
    if let Some(record) = Record::load().filter(|_| !anew) {
        let copy = Copy::of(&record.commit)?;
        let list = copy.list()?;
        if record.commit == head || !record.is_whole(&list) {
            return Ok((copy, list, record));
        }
    }
    let copy = Copy::of(&head)?;
    let list = copy.list()?;
    let record = Record::new(head);
    record.save()?;
    Ok((copy, list, record))
}

fn program(of: &Protection) -> &str {
    of.test().map_or("", |(program, _)| program)
}

/// The result of a test; `None` if it could not be run, in which case the other tests still run.
fn or_problem(of: &Protection, seen: Result<TestOutcome>) -> Option<TestOutcome> {
    seen.map_err(|problem| eprintln!("{}: {problem:#}", of.test)).ok()
}

fn words(seen: TestOutcome) -> String {
    if let TestOutcome::Failed(words) = seen { words } else { String::new() }
}

/// Prints the failures. Returns whether there are none.
fn sum_up(wanted: &[&Protection], record: &Record) -> bool {
    let mut good = 0;
    for each in wanted {
        match record.found.get(&each.without_it) {
            Some((assessment, _)) if assessment.is_good() => good += 1,
            Some((assessment, words)) => println!("{assessment}: {}: {words}", each.without_it),
            None => println!("{}: {}", Assessment::NotRun, each.without_it),
        }
    }
    println!("{good} of {} protections have a test that fails without them", wanted.len());
    good == wanted.len()
}
