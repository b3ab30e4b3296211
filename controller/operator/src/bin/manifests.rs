//! Writes what `kubectl apply` installs.

use anyhow::Context;
use barevirt_install::{Images, kubevirt, manifest, yaml};
use clap::Parser;
use std::path::PathBuf;

/// Writes what `kubectl apply` installs: barevirt-operator.yaml and barevirt-cr.yaml.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Folder that they are written to; standard output when not given.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Registry of the images and the path before their names.
    #[arg(long, default_value = "localhost/barevirt")]
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
    let files = [
        ("barevirt-operator.yaml", yaml::print(&manifest(&Images { registry, tag, pull_policy }))?),
        ("barevirt-cr.yaml", yaml::print(&[kubevirt()])?),
    ];
    for (name, text) in files {
        match &out {
            None => print!("{text}"),
            Some(folder) => {
                let file = folder.join(name);
                std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
                std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
            }
        }
    }
    Ok(())
}
