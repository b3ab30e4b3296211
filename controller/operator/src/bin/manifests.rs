//! Writes what `kubectl apply` installs.

use anyhow::Context;
use barevirt_install::{Images, strategy, yaml};
use clap::Parser;
use std::path::PathBuf;

/// Writes what `kubectl apply` installs.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Folder that barevirt.yaml is written to; standard output when not given.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Registry of the images, perhaps with a path in it.
    #[arg(long, default_value = "localhost")]
    registry: String,
    /// Tag of the images.
    #[arg(long, default_value = "devel")]
    tag: String,
    /// When nodes pull the images.
    #[arg(long, default_value = "IfNotPresent", value_parser = ["Always", "IfNotPresent", "Never"])]
    pull_policy: String,
}

fn main() -> anyhow::Result<()> {
    let Options { out, registry, tag, pull_policy } = Options::parse();
    let text = yaml::print(&strategy(&Images { registry, tag, pull_policy }))?;
    match out {
        None => print!("{text}"),
        Some(folder) => {
            let file = folder.join("barevirt.yaml");
            std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
            std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        }
    }
    Ok(())
}
