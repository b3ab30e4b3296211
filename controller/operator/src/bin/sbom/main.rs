//! The bill of materials of one image or program, as CycloneDX: which crates are in it, and which packages of Debian.

mod bill;

use anyhow::Context;
use bill::{Bill, Subject, crates, lock, packages, tree};
use clap::Parser;
use std::path::{Path, PathBuf};

/// Prints the bill of materials of an image or a program, as CycloneDX 1.5.
#[derive(Debug, Parser)]
#[command(name = "sbom", version = barevirt_api::release::line())]
struct Options {
    /// Output of `cargo metadata --format-version 1 --filter-platform TRIPLE`.
    #[arg(long)]
    metadata: PathBuf,
    /// Output of `cargo tree --prefix none` for the packages: the crates that are linked with the packages' own features.
    #[arg(long)]
    tree: PathBuf,
    /// Cargo.lock, for the hashes of crates.
    #[arg(long)]
    lock: PathBuf,
    /// Package of this workspace whose program is contained; repeated for several.
    #[arg(long = "crate", required = true)]
    crates: Vec<String>,
    /// Lines "package version" of Debian.
    #[arg(long)]
    packages: Option<PathBuf>,
    /// Debian suite of these packages.
    #[arg(long, default_value = "trixie")]
    suite: String,
    /// Name of the image or program.
    #[arg(long)]
    name: String,
    /// Its version.
    #[arg(long)]
    release: String,
    /// When it was made, RFC 3339: the same for each build of a commit.
    #[arg(long)]
    time: String,
    /// Reference of the image, if it is one.
    #[arg(long, requires = "digest")]
    image: Option<String>,
    /// Digest of the image.
    #[arg(long)]
    digest: Option<String>,
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let metadata = serde_json::from_str(&read(&options.metadata)?)
        .with_context(|| format!("read {}", options.metadata.display()))?;
    let hashes = lock(&read(&options.lock)?);
    let linked = tree(&read(&options.tree)?);
    let mut parts = crates(&metadata, &options.crates, &linked, &hashes)?;
    if let Some(file) = &options.packages {
        parts.extend(packages(&read(file)?, &options.suite)?);
    }
    let subject = Subject {
        name: options.name,
        version: options.release,
        time: options.time,
        image: options.image.zip(options.digest),
    };
    println!("{:#}", Bill { subject, parts }.json());
    Ok(())
}
