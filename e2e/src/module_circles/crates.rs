//! The libraries and programs of the workspace, from `cargo metadata`.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;

/// A library or a program.
#[derive(Debug)]
pub struct Crate {
    /// Its package, with the kind of target.
    pub name: String,
    /// The root file of its modules.
    pub root: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}

/// All of them, and the folder of the workspace.
pub fn all() -> Result<(PathBuf, Vec<Crate>)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .output()
        .context("run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("read cargo's metadata")?;
    let crates = metadata.packages.into_iter().flat_map(|package| {
        package.targets.into_iter().filter_map(move |target| {
            let kind = target.kind.iter().find(|kind| matches!(kind.as_str(), "lib" | "bin"))?;
            let name = match kind.as_str() {
                "lib" => package.name.clone(),
                _ => format!("{} (program {})", package.name, target.name),
            };
            Some(Crate { name, root: target.src_path })
        })
    });
    Ok((metadata.workspace_root, crates.collect()))
}
