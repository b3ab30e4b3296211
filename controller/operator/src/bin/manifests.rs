//! Writes what users install: files for `kubectl apply`, and a chart for Helm.

use anyhow::{Context, ensure};
use barevirt_install::{INSTALLED, Images, catalogue, chart, is_digest, kubevirt, manifest, operator, yaml};
use clap::Parser;
use std::path::{Path, PathBuf};

/// Writes what users install: barevirt-operator.yaml, barevirt-cr.yaml and cloud-images.yaml for `kubectl apply`, and chart/
/// for Helm.
#[derive(Debug, Parser)]
#[command(name = "manifests", version = barevirt_api::release::line())]
struct Options {
    /// Folder for the files; without it, operator and object are written to standard output.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Registry of the images and the path before their names.
    #[arg(long, default_value = "localhost/barevirt")]
    registry: String,
    /// Tag of the images.
    #[arg(long, default_value = "devel")]
    tag: String,
    /// Digest by which an image is named: virt-api=sha256:...; once for each image.
    #[arg(long, value_name = "NAME=DIGEST", value_parser = digest)]
    digest: Vec<(String, String)>,
    /// Version of the chart.
    #[arg(long, default_value = chart::DEVEL)]
    chart_version: String,
    /// When nodes pull the images.
    #[arg(long, default_value = "IfNotPresent", value_parser = ["Always", "IfNotPresent", "Never"])]
    pull_policy: String,
}

fn digest(text: &str) -> Result<(String, String), String> {
    let (name, digest) = text.split_once('=').ok_or("must be NAME=DIGEST")?;
    if name != operator::NAME && !INSTALLED.contains(&name) {
        return Err(format!("there is no image {name:?}"));
    }
    if !is_digest(digest) {
        return Err(format!("{digest:?} is not sha256: and 64 hexadecimal digits"));
    }
    Ok((name.to_owned(), digest.to_owned()))
}

fn main() -> anyhow::Result<()> {
    let Options { out, registry, tag, digest, chart_version, pull_policy } = Options::parse();
    let mut images = Images { registry, tag, pull_policy, ..Images::default() };
    for (name, digest) in digest {
        let reference = format!("{}/{name}@{digest}", images.registry);
        images.pin(&name, &reference).context("--digest")?;
    }
    // If only some images were named by digest, two builds could run together.
    let pinned = images.pinned.len();
    ensure!(pinned == 0 || pinned == INSTALLED.len() + 1, "--digest is missing for some images");
    let operator = yaml::print(&manifest(&images))?;
    let object = yaml::print(&[kubevirt()])?;
    let Some(out) = out else {
        print!("{operator}{object}");
        return Ok(());
    };
    write(&out.join("barevirt-operator.yaml"), &operator)?;
    write(&out.join("barevirt-cr.yaml"), &object)?;
    write(&out.join("cloud-images.yaml"), &yaml::print(&catalogue())?)?;
    for (path, text) in chart::files(&chart_version, &images)? {
        write(&out.join("chart").join(path), &text)?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    std::fs::write(file, text).with_context(|| format!("write {}", file.display()))
}
