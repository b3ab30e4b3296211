//! The times of a run: `target/times.json`, `target/flaky.json` and a table.
//!
//! `.ci/timed` writes a line for each step to `target/steps.tsv` during the run; this module writes the times
//! of tests.

use super::libtest::Outcome;
use crate::command::repository;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;

/// How many of the slowest tests are shown.
const SLOWEST: usize = 20;
/// One test in this number may need a second try.
const FLAKY_ONE_IN: usize = 200;

/// A whole run, in the form of `times.json`. All times are in seconds.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Times {
    /// Compilations, images, the cluster, in their order. A name with a slash is part of the step behind it.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// Test programs, in their order.
    #[serde(default)]
    pub programs: Vec<Step>,
    /// All tests; for a test that was tried twice, the last try.
    #[serde(default)]
    pub tests: Vec<Step>,
    /// Tests that failed first and then passed.
    #[serde(default)]
    pub second_try: Vec<String>,
    /// Tests that failed.
    #[serde(default)]
    pub failed: Vec<String>,
    /// Whether this run is in `flaky.json` already: CI reports a failed run twice.
    #[serde(default)]
    pub counted: bool,
}

/// Something with a name, and how long it took.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Step {
    /// What it is.
    pub name: String,
    /// Seconds.
    pub seconds: f64,
    /// Seconds of processor time of all its processes, if it was measured. Steps run side by side, so this says what a step costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<f64>,
}

impl Step {
    fn new(name: impl Into<String>, seconds: f64) -> Self {
        Step { name: name.into(), seconds, processor: None }
    }
}

/// How often each test needed a second try, over all runs that kept the file.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Flaky {
    runs: u64,
    tests: BTreeMap<String, u64>,
}

impl Flaky {
    /// Counts a run, unless it is counted already.
    fn count(&mut self, times: &mut Times) {
        if std::mem::replace(&mut times.counted, true) {
            return;
        }
        self.runs += 1;
        for name in &times.second_try {
            *self.tests.entry(name.clone()).or_default() += 1;
        }
    }
}

fn target(name: &str) -> PathBuf {
    repository().join("target").join(name)
}

/// A missing file counts as the default value.
fn read<T: Default + for<'a> Deserialize<'a>>(name: &str) -> Result<T> {
    match fs::read(target(name)) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("read target/{name}")),
        Err(_) => Ok(T::default()),
    }
}

fn write(name: &str, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    fs::write(target(name), format!("{text}\n")).with_context(|| format!("write target/{name}"))
}

/// Adds the results of a program's tests.
///
/// # Errors
/// When `times.json` cannot be read or written.
pub fn add(program: &str, seconds: f64, outcomes: &[Outcome], second_try: &[String]) -> Result<()> {
    // Two programs may end at once, also of two runs side by side. The lock ends with the file.
    let lock = File::create(target("times.lock")).context("open target/times.lock")?;
    lock.lock().context("lock target/times.lock")?;
    let mut times: Times = read("times.json")?;
    times.programs.push(Step::new(program, seconds));
    for outcome in outcomes {
        let name = format!("{program}::{}", outcome.name);
        if !outcome.passed {
            times.failed.push(name.clone());
        }
        times.tests.push(Step::new(name, outcome.seconds));
    }
    times.second_try.extend(second_try.iter().map(|name| format!("{program}::{name}")));
    write("times.json", &times)
}

/// Begins a run: removes the files of the former run.
///
/// # Errors
/// When a file cannot be removed.
pub fn begin() -> Result<()> {
    for name in ["times.json", "steps.tsv"] {
        match fs::remove_file(target(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove target/{name}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Ends a run: adds the steps to `times.json`, and the tests that needed a second try to `flaky.json`.
/// Returns the table, and whether too many tests needed a second try.
///
/// # Errors
/// When a file cannot be read or written.
pub fn finish() -> Result<(String, bool)> {
    let mut times: Times = read("times.json")?;
    let steps = fs::read_to_string(target("steps.tsv")).unwrap_or_default();
    times.steps = steps.lines().filter_map(step).collect();
    let mut flaky: Flaky = read("flaky.json")?;
    flaky.count(&mut times);
    write("flaky.json", &flaky)?;
    write("times.json", &times)?;
    Ok((table(&times, &flaky), is_too_flaky(times.second_try.len(), times.tests.len())))
}

fn step(line: &str) -> Option<Step> {
    let mut columns = line.split('\t');
    let (seconds, name) = (columns.next()?.parse().ok()?, columns.next()?);
    Some(Step { processor: columns.next().and_then(|text| text.parse().ok()), ..Step::new(name, seconds) })
}

/// A run of few tests may have one second try.
fn is_too_flaky(second_tries: usize, tests: usize) -> bool {
    second_tries > (tests / FLAKY_ONE_IN).max(1)
}

fn table(times: &Times, flaky: &Flaky) -> String {
    let mut text = String::from("where the time went, in minutes and seconds; and processor time\n");
    let minutes = |seconds: f64| {
        let whole = std::time::Duration::from_secs_f64(seconds.max(0.0)).as_secs();
        format!("{:>3}:{:02}", whole / 60, whole % 60)
    };
    let mut row = |what: &str, seconds: f64| text.push_str(&format!("  {}  {what}\n", minutes(seconds)));
    for step in &times.steps {
        let processor = step.processor.map(|seconds| format!(" ({})", minutes(seconds).trim_start()));
        row(&format!("{}{}", step.name, processor.unwrap_or_default()), step.seconds);
    }
    let (short, long): (Vec<_>, Vec<_>) = times.programs.iter().partition(|program| program.seconds < 1.0);
    for program in long {
        row(&format!("tests of {}", program.name), program.seconds);
    }
    row(&format!("tests of {} more programs", short.len()), short.iter().map(|one| one.seconds).sum());
    let mut slowest = times.tests.clone();
    slowest.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    text.push_str(&format!("the slowest of {} tests\n", times.tests.len()));
    for test in slowest.iter().take(SLOWEST) {
        text.push_str(&format!("  {:>6.1} s  {}\n", test.seconds, test.name));
    }
    text.push_str(&format!("tests that needed a second try: {}\n", times.second_try.len()));
    for name in &times.second_try {
        let often = flaky.tests.get(name).copied().unwrap_or_default();
        text.push_str(&format!("  {name} ({often} times in {} runs)\n", flaky.runs));
    }
    let passed = times.tests.len() - times.failed.len();
    text.push_str(&format!("{passed} passed, {} failed", times.failed.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_from_their_lines() {
        let read = Step { processor: Some(2.5), ..Step::new("compile: lints", 1.5) };
        assert_eq!(step("1.5\tcompile: lints\t2.5"), Some(read));
        assert_eq!(step("1.5\timages/x"), Some(Step::new("images/x", 1.5)));
        assert_eq!(step("nothing"), None);
    }

    #[test]
    fn one_test_in_two_hundred_may_need_a_second_try() {
        assert!(!is_too_flaky(1, 20) && is_too_flaky(2, 20));
        assert!(!is_too_flaky(7, 1400) && is_too_flaky(8, 1400));
    }

    #[test]
    fn a_run_that_is_reported_twice_counts_once() {
        let mut times = Times { second_try: vec!["together::a::b".to_owned()], ..Times::default() };
        let mut flaky = Flaky::default();
        for _ in 0..2 {
            flaky.count(&mut times);
        }
        assert_eq!((flaky.runs, flaky.tests["together::a::b"]), (1, 1));
    }

    #[test]
    fn the_table_ends_with_what_passed() {
        let times = Times {
            steps: vec![Step { processor: Some(119.0), ..Step::new("compile: lints", 61.0) }],
            programs: vec![Step::new("together", 600.0), Step::new("x", 0.2)],
            tests: vec![Step::new("together::a::b", 12.25), Step::new("x::c", 0.1)],
            second_try: vec!["together::a::b".to_owned()],
            failed: vec!["x::c".to_owned()],
            counted: false,
        };
        let flaky = Flaky { runs: 3, tests: BTreeMap::from([("together::a::b".to_owned(), 2)]) };
        let text = table(&times, &flaky);
        assert!(
            text.contains("    1:01  compile: lints (1:59)") && text.contains("10:00  tests of together"),
            "{text}"
        );
        assert!(text.contains("together::a::b (2 times in 3 runs)"), "{text}");
        assert!(text.ends_with("1 passed, 1 failed"), "{text}");
    }
}
