//! Runs the tests of the workspace: `make unit`, `make e2e` and `make test-long` call it.

use anyhow::{Context, Result, anyhow, bail, ensure};
use barevirt_e2e::installation;
use barevirt_e2e::runner::libtest::{self, Outcome};
use barevirt_e2e::runner::programs::{self, Program};
use barevirt_e2e::runner::report;
use barevirt_e2e::runner::selection::{Selection, Tier};
use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// How many programs of tests without a cluster run at once: most of their tests wait.
const UNIT_PROGRAMS: usize = 2;

#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    command: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Begins a run: removes the times of the former run.
    Begin,
    /// Tests that need no cluster.
    Unit(How),
    /// Tests on the cluster.
    EndToEnd {
        #[command(flatten)]
        how: How,
        /// The long tests instead of the others.
        #[arg(long)]
        long: bool,
        /// Only tests whose path contains one of these words, separated by commas; also long ones.
        #[arg(long, value_delimiter = ',', value_parser = clap::builder::NonEmptyStringValueParser::new())]
        only: Vec<String>,
        /// Only these test programs.
        #[arg(long, value_delimiter = ',')]
        program: Vec<String>,
        /// All test programs but these.
        #[arg(long, value_delimiter = ',', conflicts_with = "program")]
        skip: Vec<String>,
        /// Only those of areas whose packages changed since this revision.
        #[arg(long, value_name = "REVISION")]
        changed: Option<String>,
    },
    /// Ends a run: prints where the time went, and fails if too many tests needed a second try.
    Report,
}

#[derive(Args, Debug)]
struct How {
    /// How often a test may be run before it counts as failed.
    #[arg(long, env = "TEST_TRIES", default_value_t = 1)]
    tries: usize,
    /// How many tests run at once.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() -> Result<ExitCode> {
    let passed = match Options::parse().command {
        What::Begin => report::begin().map(|()| true)?,
        What::Unit(how) => unit(how.tries)?,
        What::EndToEnd { how, long, only, program, skip, changed } => {
            let selection =
                Selection::new(if long { Tier::Long } else { Tier::Short }, &only, changed.as_deref())?;
            let among = |name: &str| {
                !skip.iter().any(|each| each == name)
                    && (program.is_empty() || program.iter().any(|each| each == name))
            };
            end_to_end(&how, &selection, changed.is_some(), among)?
        }
        What::Report => {
            let (table, too_flaky) = report::finish()?;
            if too_flaky {
                println!("tests: more than one test in two hundred needed a second try");
            }
            println!("{table}");
            !too_flaky
        }
    };
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn unit(tries: usize) -> Result<bool> {
    let programs = programs::build()?.into_iter().filter(|program| !program.end_to_end).collect();
    run(programs, &How { tries, threads: 2 }, UNIT_PROGRAMS, |_| true)
}

/// Runs the selected tests of those programs on the cluster. It is no error that nothing is selected if what
/// has changed decides.
fn end_to_end(
    how: &How,
    selection: &Selection,
    by_change: bool,
    among: impl Fn(&str) -> bool,
) -> Result<bool> {
    let programs: Vec<_> = programs::build()?.into_iter().filter(|program| program.end_to_end).collect();
    let mut all = Vec::new();
    for program in &programs {
        all.extend(libtest::list(program)?.into_iter().map(|name| format!("{}::{name}", program.name)));
    }
    let stale: Vec<_> = selection.stale(&all).collect();
    ensure!(stale.is_empty(), "e2e/long.txt lists tests that are not there: {}", stale.join(", "));
    if !all.iter().any(|name| selection.wants(name)) {
        if by_change {
            println!("tests: nothing has changed that an area of the end-to-end tests is about");
            return Ok(true);
        }
        bail!("no test has that name");
    }
    let programs = programs.into_iter().filter(|program| among(&program.name)).collect();
    installation::wait_available()
        .context("tests on the cluster need an installation: make cluster-up cluster-sync")?;
    // One disturbs the cluster of the other.
    run(programs, how, 1, |name| selection.wants(name))
}

/// Runs the wanted tests of each program, of `at_once` programs at a time. Returns whether all passed in the end.
fn run(
    programs: Vec<Program>,
    how: &How,
    at_once: usize,
    wants: impl Fn(&str) -> bool + Sync,
) -> Result<bool> {
    let left = Mutex::new(programs.into_iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let in_turn = || -> Result<bool> {
        let mut passed = true;
        while let Some(program) = next() {
            passed &= run_program(&program, how, &wants)?;
        }
        Ok(passed)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(in_turn)).collect();
        let mut passed = true;
        for thread in threads {
            passed &= thread.join().map_err(|_| anyhow!("a thread that runs tests has panicked"))??;
        }
        Ok(passed)
    })
}

/// Runs the wanted tests of one program. Returns whether all passed in the end.
fn run_program(program: &Program, how: &How, wants: impl Fn(&str) -> bool) -> Result<bool> {
    let names: Vec<_> = libtest::list(program)?
        .into_iter()
        .filter(|name| wants(&format!("{}::{name}", program.name)))
        .collect();
    if names.is_empty() {
        return Ok(true);
    }
    let begun = Instant::now();
    let mut outcomes = libtest::run(program, &names, how.threads)?;
    let first: Vec<_> = failed(&outcomes);
    for _ in 1..how.tries {
        let again = failed(&outcomes);
        if again.is_empty() {
            break;
        }
        println!("tests: once more, of {}: {}", program.name, again.join(" "));
        outcomes.retain(|outcome| outcome.passed);
        outcomes.extend(libtest::run(program, &again, how.threads)?);
    }
    let last = failed(&outcomes);
    let second_try: Vec<_> = first.into_iter().filter(|name| !last.contains(name)).collect();
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "tests of {}: {} passed, {} failed, {seconds:.1} s",
        program.name,
        outcomes.len() - last.len(),
        last.len()
    );
    report::add(&program.name, seconds, &outcomes, &second_try)?;
    Ok(last.is_empty())
}

fn failed(outcomes: &[Outcome]) -> Vec<String> {
    outcomes.iter().filter(|outcome| !outcome.passed).map(|outcome| outcome.name.clone()).collect()
}
