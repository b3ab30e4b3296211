//! `make bench`: figures against a budget, in `target/bench.json` and as a table. A missed budget fails nothing: it is
//! reported as missed.

use std::path::PathBuf;

use anyhow::{Context, Result};
use barevirt_e2e::bench::{Figures, Rounds, launch, scale, size, start, streams, table};
use barevirt_e2e::command::repository;
use barevirt_e2e::in_namespace;
use clap::{Parser, ValueEnum};

/// Measures Barevirt against raw QEMU and plain pods.
#[derive(Debug, Parser)]
struct Options {
    /// The launcher to measure.
    #[arg(long, default_value = "target/x86_64-unknown-linux-musl/image/virt-launcher")]
    launcher: PathBuf,
    /// The controller to measure.
    #[arg(long, default_value = "target/x86_64-unknown-linux-musl/image/virt-controller")]
    controller: PathBuf,
    /// How many instances it gets, in five hundreds.
    #[arg(long)]
    instances: Option<usize>,
    /// Everything once, and no figures are kept: shows that all of it can still be measured.
    #[arg(long)]
    once: bool,
    /// Only these parts, instead of all.
    #[arg(long, value_enum)]
    only: Vec<Part>,
}

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Sizes of images; needs no cluster.
    Size,
    /// The launcher against raw QEMU; needs no cluster.
    Launch,
    /// Starts on the cluster.
    Start,
    /// Consoles and forwarded ports on the cluster.
    Streams,
    /// Many instances on an API server without nodes, with the cluster's definitions.
    Scale,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let wanted = |part| options.only.is_empty() || options.only.contains(&part);
    let mut rounds = if options.once { Rounds::ONCE } else { Rounds::FULL };
    rounds.instances = options.instances.unwrap_or(rounds.instances);
    let mut figures = Figures::new();
    if wanted(Part::Size) {
        size::measure(&mut figures)?;
    }
    if wanted(Part::Launch) {
        eprintln!("bench: the launcher against raw QEMU");
        launch::measure(&repository().join(&options.launcher), rounds.launches, &mut figures)?;
    }
    if wanted(Part::Start) {
        eprintln!("bench: starts on the cluster");
        figures = in_namespace("bench", move |namespace| {
            start::measure(namespace, rounds, &mut figures)?;
            Ok(figures)
        });
    }
    if wanted(Part::Streams) {
        eprintln!("bench: consoles and forwarded ports on the cluster");
        figures = in_namespace("bench-streams", move |namespace| {
            streams::measure(namespace, rounds, &mut figures)?;
            Ok(figures)
        });
    }
    if wanted(Part::Scale) {
        eprintln!("bench: {} instances on an API server without nodes", rounds.instances);
        figures = in_namespace("bench-scale", move |namespace| {
            scale::measure(namespace, &options.controller, rounds.instances, &mut figures)?;
            Ok(figures)
        });
    }
    if !options.once {
        let path = repository().join("target/bench.json");
        let json = serde_json::to_string_pretty(&figures)?;
        std::fs::write(&path, format!("{json}\n")).with_context(|| format!("write {}", path.display()))?;
    }
    print!("{}", table(&figures));
    Ok(())
}
