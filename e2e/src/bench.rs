//! Measurements: what is measured, and how figures are stored.
//!
//! `make bench` writes them to `target/bench.json` and prints them. A comparison is measured in the same run, its two
//! sides taking turns, so that a busy machine slows both alike; medians are reported.

pub mod disk;
mod filler;
mod fio;
pub mod import;
pub mod launch;
pub mod migrate;
pub mod moves;
pub mod neighbours;
pub mod network;
mod noise;
mod pausing;
pub mod plug;
mod pod;
mod processor;
pub mod proxies;
mod raw;
mod raw_move;
pub mod scale;
pub mod size;
pub mod start;
pub mod streams;
pub mod taps;
pub mod upload;

use serde::Serialize;
use std::collections::BTreeMap;

/// How often each figure is measured.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Pairs of launches.
    pub launches: usize,
    /// Pairs of loads of each kind on a disk.
    pub disks: usize,
    /// Pairs of migrations on this machine.
    pub migrations: usize,
    /// Pairs of imports, and of uploads.
    pub imports: usize,
    /// Pairs of starts on the cluster.
    pub starts: usize,
    /// Boots to the prompt.
    pub boots: usize,
    /// Keys on each side.
    pub keys: usize,
    /// Downloads on each side.
    pub downloads: usize,
    /// Networks of pods that are made on each side.
    pub set_ups: usize,
    /// Pairs of cards, and of disks, that come to a running guest.
    pub plugs: usize,
    /// Pairs of fetches from one guest to another, and of pings.
    pub fetches: usize,
    /// Moves of one guest to another node.
    pub moves: usize,
    /// Guests of a node that is drained.
    pub drained: usize,
    /// Guests beside disturbing neighbours.
    pub neighbours: usize,
    /// How often these neighbours start and stop. The medians of fewer turns differ by half from run to run, because guests use
    /// all processors.
    pub turns: usize,
    /// Starts in each of these turns.
    pub turn_starts: usize,
    /// Pauses of a guest in each of these turns.
    pub turn_statuses: usize,
    /// Instances for virt-controller, a multiple of 500.
    pub instances: usize,
}

impl Rounds {
    /// Enough rounds for reliable figures.
    pub const FULL: Self = Self {
        launches: 20,
        disks: 10,
        migrations: 30,
        imports: 5,
        starts: 5,
        boots: 3,
        keys: 30,
        downloads: 5,
        set_ups: 20,
        plugs: 10,
        fetches: 5,
        moves: 5,
        drained: 10,
        neighbours: 20,
        turns: 4,
        turn_starts: 4,
        turn_statuses: 10,
        instances: 10_000,
    };
    /// Enough to see that everything can still be measured.
    pub const ONCE: Self = Self {
        launches: 1,
        disks: 1,
        migrations: 1,
        imports: 1,
        starts: 1,
        boots: 1,
        keys: 1,
        downloads: 1,
        set_ups: 1,
        plugs: 1,
        fetches: 1,
        moves: 1,
        drained: 2,
        neighbours: 2,
        turns: 1,
        turn_starts: 1,
        turn_statuses: 1,
        instances: 20,
    };
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The measured value, in `unit`.
    pub value: f64,
    /// Unit of `value` and `raw`.
    pub unit: &'static str,
    /// The value without Barevirt, in a comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw: Option<f64>,
    /// `value` divided by `raw`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The number of runs that the median is taken from.
    pub runs: usize,
    /// The budget, and whether it is met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// A limit for a figure.
#[derive(Clone, Debug, Serialize)]
pub struct Budget {
    /// In words.
    pub wanted: String,
    /// Whether it is met.
    pub met: bool,
}

/// All figures by name.
pub type Figures = BTreeMap<String, Figure>;

impl Figure {
    /// A figure without comparison.
    pub fn plain(value: f64, unit: &'static str, runs: usize) -> Self {
        Self { value: rounded(value), unit, raw: None, ratio: None, runs, budget: None }
    }

    /// The medians of two sides that were measured in turns.
    pub fn compared(values: &[f64], raws: &[f64], unit: &'static str) -> Self {
        let (value, raw) = (median(values), median(raws));
        Self {
            value: rounded(value),
            unit,
            raw: Some(rounded(raw)),
            ratio: Some(rounded(value / raw)),
            runs: values.len(),
            budget: None,
        }
    }

    /// Adds a budget.
    #[must_use]
    pub fn within(mut self, wanted: impl Into<String>, met: impl FnOnce(&Self) -> bool) -> Self {
        let met = met(&self);
        self.budget = Some(Budget { wanted: wanted.into(), met });
        self
    }
}

/// The middle value; the mean of the two middle values for an even count; zero if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The figures as a table for people.
pub fn table(figures: &Figures) -> String {
    let mut text = format!(
        "{:<24} {:>10} {:<7} {:>10} {:>7} {:>5}  {}\n",
        "figure", "value", "unit", "raw", "ratio", "runs", "budget"
    );
    for (name, figure) in figures {
        let optional = |number: Option<f64>| number.map_or_else(String::new, |number| format!("{number:.2}"));
        let budget = figure.budget.as_ref().map_or_else(String::new, |budget| {
            format!("{}: {}", if budget.met { "met" } else { "MISSED" }, budget.wanted)
        });
        text.push_str(&format!(
            "{name:<24} {:>10.2} {:<7} {:>10} {:>7} {:>5}  {budget}\n",
            figure.value,
            figure.unit,
            optional(figure.raw),
            optional(figure.ratio),
            figure.runs,
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn a_missed_budget_says_so() {
        let figure = Figure::compared(&[12.0], &[10.0], "ms").within("at most 1.1", |f| f.ratio <= Some(1.1));
        let text = table(&Figures::from([("launch".to_owned(), figure)]));
        assert!(text.contains("MISSED: at most 1.1"), "{text}");
    }
}
