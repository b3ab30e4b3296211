//! Compares our definitions with a list of types: names, types, nesting and required marks of every property, from each
//! kind down.
//!
//! ```text
//!   list (TSV) --list.rs--> types --\
//!                                    compare.rs --> differences, less those of deliberate.txt
//!   api/src/crd.rs ----> schemas --/
//! ```
//!
//! The list is not part of the repository: its path is a parameter. The repository has snapshots of our own definitions
//! (`api/src/crd/snapshots`).

mod compare;
mod deliberate;
mod list;

use anyhow::Context;
use barevirt_api::crd;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Compares our definitions with a list of types.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// File with one property per line: type, field, JSON type, required mark, separated by tabs.
    #[arg(long)]
    against: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    let Options { against } = Options::parse();
    let text = std::fs::read_to_string(&against).with_context(|| format!("read {}", against.display()))?;
    let types = list::parse(&text).with_context(|| format!("understand {}", against.display()))?;
    let mut comparison = compare::Comparison::new(&types);
    for definition in crd::all() {
        // Definitions are made of strings, numbers and lists, which always have a JSON form.
        let definition = serde_json::to_value(&definition).context("write a definition as JSON")?;
        comparison.kind(&definition);
    }
    let deliberate = deliberate::all();
    let (expected, others): (Vec<_>, Vec<_>) =
        comparison.differences.iter().partition(|difference| deliberate.iter().any(|one| one.is(difference)));
    for difference in &others {
        println!("{difference}");
    }
    // An exception that is not needed any more would hide the next mistake.
    let idle: Vec<_> = deliberate
        .iter()
        .filter(|one| !comparison.differences.iter().any(|difference| one.is(difference)))
        .collect();
    for one in &idle {
        println!("deliberate.txt: {} does not differ", one.place);
    }
    println!(
        "{} properties of {} types compared: {} differ, {} of them deliberately",
        comparison.compared,
        comparison.reached.len(),
        comparison.differences.len(),
        expected.len(),
    );
    Ok(if others.is_empty() && idle.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
