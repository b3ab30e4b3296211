//! The speed of a guest's disk, against QEMU started by hand with the same command line and a copy of the
//! same files.
//!
//! Both guests run at once and take turns. They write to an empty disk, without their page cache.

use super::launch::start;
use super::raw::Raw;
use super::{Figure, Figures};
use crate::wait::BOOT;
use crate::{Console, guest};
use anyhow::{Context, Result};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Amount that is written and read in large pieces.
const MEBIBYTES: f64 = 64.0;
/// Pieces of 4 KiB, one after the other.
const PIECES: f64 = 500.0;
const LOAD: Duration = Duration::from_secs(120);
/// The budget, relative to QEMU started by hand.
const LEAST: f64 = 0.98;

/// Measures `disk_write`, `disk_read` and `disk_latency`.
pub fn measure(launcher: &Path, rounds: usize, figures: &mut Figures) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let manifest = folder.path().join("disk.json");
    fs::write(&manifest, instance().to_string()).context("write the manifest")?;
    let raw = Raw::of(&start(launcher, &manifest)?.0)?;
    let (mut command, control) = raw.command(true)?;
    let mut by_hand = Console::start(&mut command)?;
    drop(command);
    control.go()?;
    let mut launched =
        Console::start(Command::new(launcher).args(["run", "--tcg", "--console"]).arg(&manifest))?;
    let megabytes = |line: &str| Load { line: line.to_owned(), amount: MEBIBYTES, is_rate: true };
    let pieces = |line: &str| Load { line: line.to_owned(), amount: PIECES / 1e6, is_rate: false };
    let write = format!("dd if=/dev/zero of=/dev/vdb bs=1M count={MEBIBYTES} oflag=direct");
    for console in [&mut launched, &mut by_hand] {
        console.login(BOOT)?;
        // From here on the whole file is allocated.
        console.ok(&write, LOAD)?;
    }
    let loads = [
        ("disk_write", "MiB/s", megabytes(&write)),
        ("disk_read", "MiB/s", megabytes("dd if=/dev/vdb of=/dev/null bs=1M count=64 iflag=direct")),
        ("disk_latency", "us", pieces("dd if=/dev/zero of=/dev/vdb bs=4k count=500 oflag=direct")),
    ];
    for (name, unit, load) in loads {
        let (mut ours, mut raws) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(load.run(&mut launched)?);
            raws.push(load.run(&mut by_hand)?);
        }
        let figure = Figure::compared(&ours, &raws, unit).within("at least 0.98 of raw", |figure| {
            figure.ratio.is_some_and(|ratio| if load.is_rate { ratio >= LEAST } else { ratio <= 1.0 / LEAST })
        });
        figures.insert(name.to_owned(), figure);
    }
    Ok(())
}

/// A load in the guest.
struct Load {
    line: String,
    amount: f64,
    /// Whether the figure is an amount per second; otherwise it is seconds per piece.
    is_rate: bool,
}

impl Load {
    fn run(&self, console: &mut Console) -> Result<f64> {
        let begun = Instant::now();
        console.ok(&self.line, LOAD)?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok(if self.is_rate { self.amount / seconds } else { seconds / self.amount })
    }
}

/// The small guest with an empty disk beside its own.
fn instance() -> serde_json::Value {
    let mut manifest = guest::instance("disk");
    let spec = guest::spec_of(&mut manifest);
    spec["domain"]["devices"]["interfaces"] = json!([]);
    spec["domain"]["devices"]["autoattachPodInterface"] = json!(false);
    spec["networks"] = json!([]);
    guest::push(
        &mut spec["domain"]["devices"]["disks"],
        json!({ "name": "empty", "disk": { "bus": "virtio" } }),
    );
    guest::push(&mut spec["volumes"], json!({ "name": "empty", "emptyDisk": { "capacity": "256Mi" } }));
    manifest
}
