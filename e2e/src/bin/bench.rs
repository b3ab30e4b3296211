//! `make bench`: figures against a budget, in `target/bench.json` and as a table. A missed budget is
//! reported, and does not fail the run.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use barevirt_e2e::bench::{
    Figures, Rounds, disk, import, launch, migrate, moves, neighbours, network, plug, proxies, scale, size,
    start, streams, table, taps, upload,
};
use barevirt_e2e::command::repository;
use barevirt_e2e::in_namespace_within;
use clap::{Parser, ValueEnum};

/// Longest time of a part on the cluster: all turns beside neighbours take half an hour on slow processors.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// Measures Barevirt against raw QEMU and plain pods.
#[derive(Debug, Parser)]
struct Options {
    /// Folder of the programs to measure: those of the images.
    #[arg(long, default_value = "target/x86_64-unknown-linux-musl/image")]
    programs: PathBuf,
    /// How many instances it gets.
    #[arg(long)]
    instances: Option<usize>,
    /// How many guests neighbours disturb.
    #[arg(long)]
    neighbours: Option<usize>,
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
    /// A guest's disk against raw QEMU's; needs no cluster.
    Disk,
    /// A migration against two raw QEMUs; needs no cluster.
    Migrate,
    /// Raw QEMUs' own TLS against TLS in proxies; needs no cluster, and is measured only if it is named.
    Proxies,
    /// An import against `curl` and `qemu-img`; needs no cluster.
    Import,
    /// Guests' networks against raw QEMU's; needs no cluster.
    Taps,
    /// Starts on the cluster.
    Start,
    /// Consoles and forwarded ports on the cluster.
    Streams,
    /// From guest to guest on the cluster.
    Network,
    /// Cards and disks that come to running guests on the cluster, against raw QEMU's.
    Plug,
    /// Guests that change nodes, and a node that is drained.
    Moves,
    /// Guests beside neighbours that disturb.
    Neighbours,
    /// Many instances on an API server without nodes, with the cluster's definitions.
    Scale,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let wanted = |part| options.only.is_empty() || options.only.contains(&part);
    let mut rounds = if options.once { Rounds::ONCE } else { Rounds::FULL };
    rounds.instances = options.instances.unwrap_or(rounds.instances);
    rounds.neighbours = options.neighbours.unwrap_or(rounds.neighbours).max(1);
    let mut figures = Figures::new();
    let program = |name: &str| repository().join(&options.programs).join(name);
    let launcher = program("virt-launcher");
    let importer = program("virt-importer");
    if wanted(Part::Size) {
        size::measure(&mut figures)?;
    }
    if wanted(Part::Launch) {
        eprintln!("bench: the launcher against raw QEMU");
        launch::measure(&launcher, rounds.launches, &mut figures)?;
    }
    if wanted(Part::Disk) {
        eprintln!("bench: a guest's disk against raw QEMU's");
        disk::measure(&launcher, rounds.disks, &mut figures)?;
    }
    if wanted(Part::Migrate) {
        eprintln!("bench: a migration against raw QEMUs");
        migrate::measure(&launcher, rounds.migrations, &mut figures)?;
    }
    // It compares what we decided between, and measures nothing of Barevirt.
    if options.only.contains(&Part::Proxies) {
        eprintln!("bench: a migration with TLS in QEMUs against TLS in proxies");
        proxies::measure(&launcher, rounds.migrations, &mut figures)?;
    }
    if wanted(Part::Import) {
        eprintln!("bench: an import against curl and qemu-img");
        import::measure(&importer, rounds.imports, &mut figures)?;
        eprintln!("bench: an upload against cp");
        upload::measure(&importer, rounds.imports, &mut figures)?;
    }
    if wanted(Part::Taps) {
        eprintln!("bench: guests' networks against raw QEMU's");
        taps::measure(&launcher, rounds, &mut figures)?;
    }
    let parts: Vec<_> =
        [Part::Start, Part::Streams, Part::Network, Part::Plug, Part::Moves, Part::Neighbours, Part::Scale]
            .into_iter()
            .filter(|part| wanted(*part))
            .collect();
    let programs = Programs { launcher, controller: program("virt-controller") };
    if options.once {
        // The values do not matter here, only that the measurements work.
        let running: Vec<_> = parts
            .into_iter()
            .map(|part| {
                thread::spawn({
                    let programs = programs.clone();
                    move || on_the_cluster(part, rounds, programs)
                })
            })
            .collect();
        for part in running {
            figures.extend(part.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
    } else {
        for part in parts {
            figures.extend(on_the_cluster(part, rounds, programs.clone()));
        }
    }
    if !options.once {
        let path = repository().join("target/bench.json");
        let json = serde_json::to_string_pretty(&figures)?;
        std::fs::write(&path, format!("{json}\n")).with_context(|| format!("write {}", path.display()))?;
    }
    print!("{}", table(&figures));
    Ok(())
}

/// Programs beside those of the cluster.
#[derive(Clone)]
struct Programs {
    launcher: PathBuf,
    controller: PathBuf,
}

fn on_the_cluster(part: Part, rounds: Rounds, programs: Programs) -> Figures {
    let (name, says) = match part {
        Part::Streams => ("bench-streams", "consoles and forwarded ports on the cluster"),
        Part::Network => ("bench-network", "from guest to guest on the cluster"),
        Part::Plug => ("bench-plug", "cards and disks that come to running guests on the cluster"),
        Part::Moves => ("bench-moves", "guests that change nodes"),
        Part::Neighbours => ("bench-neighbours", "guests beside neighbours that disturb"),
        Part::Scale => ("bench-scale", "instances on an API server without nodes"),
        _ => ("bench", "starts on the cluster"),
    };
    eprintln!("bench: {says}");
    in_namespace_within(name, LONGEST, move |namespace| {
        let mut figures = Figures::new();
        match part {
            Part::Streams => streams::measure(namespace, rounds, &mut figures)?,
            Part::Network => network::measure(namespace, rounds, &mut figures)?,
            Part::Moves => moves::measure(namespace, rounds, &mut figures)?,
            Part::Neighbours => neighbours::measure(namespace, rounds, &mut figures)?,
            Part::Plug => plug::measure(namespace, &programs.launcher, rounds.plugs, &mut figures)?,
            Part::Scale => scale::measure(namespace, &programs.controller, rounds.instances, &mut figures)?,
            _ => start::measure(namespace, rounds, &mut figures)?,
        }
        Ok(figures)
    })
}
