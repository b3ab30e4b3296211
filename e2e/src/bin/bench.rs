//! `make bench`: figures against a budget, in `target/bench.json` and as a table. A missed budget fails nothing: it is
//! reported as missed.

use std::path::PathBuf;

use anyhow::{Context, Result};
use barevirt_e2e::bench::{Figures, launch, size, start, table};
use barevirt_e2e::command::repository;
use barevirt_e2e::in_namespace;
use clap::Parser;

/// Measures Barevirt against raw QEMU and plain pods.
#[derive(Debug, Parser)]
struct Options {
    /// The launcher to measure.
    #[arg(long, default_value = "target/x86_64-unknown-linux-musl/image/virt-launcher")]
    launcher: PathBuf,
    /// Only what needs no cluster.
    #[arg(long)]
    no_cluster: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut figures = Figures::new();
    size::measure(&mut figures)?;
    eprintln!("bench: the launcher against raw QEMU");
    launch::measure(&repository().join(&options.launcher), &mut figures)?;
    if !options.no_cluster {
        eprintln!("bench: starts on the cluster");
        in_namespace("bench", |namespace| start::measure(namespace, &mut figures));
    }
    let path = repository().join("target/bench.json");
    let json = serde_json::to_string_pretty(&figures)?;
    std::fs::write(&path, format!("{json}\n")).with_context(|| format!("write {}", path.display()))?;
    print!("{}", table(&figures));
    Ok(())
}
