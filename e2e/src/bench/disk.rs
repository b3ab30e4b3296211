//! The speed of a guest's disk, against QEMU started by hand with the same command line and a copy of the
//! same files.
//!
//! Both guests run at once and take turns. fio loads an empty disk, without their page cache.

use super::fio::{self, LOADS};
use super::launch::start_with;
use super::raw::Raw;
use super::{Figure, Figures};
use crate::wait::BOOT;
use crate::{Console, guest};
use anyhow::{Context, Result};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The volume with fio, and its disk in the guest, which is the last one.
const FIO: &str = "fio";
const FIO_DISK: &str = "/dev/vdc";
/// The budget, relative to QEMU started by hand.
const LEAST: f64 = 0.98;

/// Measures `disk_write`, `disk_read`, `disk_random_read` and `disk_latency`.
pub fn measure(launcher: &Path, rounds: usize, figures: &mut Figures) -> Result<()> {
    let fio_disk = fio::disk()?;
    let folder = tempfile::tempdir()?;
    let manifest = folder.path().join("disk.json");
    fs::write(&manifest, instance().to_string()).context("write the manifest")?;
    let disk = ["--disk".to_owned(), format!("{FIO}={}", fio_disk.display())];
    let mut raw = Raw::of(&start_with(launcher, &disk, &manifest)?.0)?;
    raw.set_image(FIO, &fio_disk);
    let (mut command, control) = raw.command(true)?;
    let mut by_hand = Console::start(&mut command)?;
    drop(command);
    control.go()?;
    let mut launched = Console::start(
        Command::new(launcher).args(["run", "--tcg", "--console"]).args(&disk).arg(&manifest),
    )?;
    for console in [&mut launched, &mut by_hand] {
        console.login(BOOT)?;
        fio::prepare(console, FIO_DISK)?;
    }
    for load in &LOADS {
        let (mut ours, mut raws) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(load.run(&mut launched)?);
            raws.push(load.run(&mut by_hand)?);
        }
        let figure = Figure::compared(&ours, &raws, load.unit).within("at least 0.98 of raw", |figure| {
            figure.ratio.is_some_and(|ratio| if load.is_rate { ratio >= LEAST } else { ratio <= 1.0 / LEAST })
        });
        figures.insert(load.name.to_owned(), figure);
    }
    Ok(())
}

/// The small guest with an empty disk beside its own, and that with fio.
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
    guest::push(&mut spec["domain"]["devices"]["disks"], json!({ "name": FIO, "disk": { "bus": "virtio" } }));
    guest::push(&mut spec["volumes"], json!({ "name": FIO, "containerDisk": { "image": FIO } }));
    manifest
}
