//! The time from the launcher's exec to a running vCPU, against the same QEMU started by hand with the same
//! command line.
//!
//! Both sides get the order to run and answer `cont`: that answer is the end of the measurement. The launcher reads the manifest,
//! makes an overlay and a cloud-init disk and plans; for the raw side all of this is prepared.

use super::raw::{Raw, child_of};
use super::{Figure, Figures};
use crate::command::repository;
use crate::running::Running;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(super) const MANIFEST: &str = "examples/vmi-tiny.yaml";
/// Memory budget beside QEMU, in MiB.
pub(super) const PSS_BUDGET: f64 = 6.0;
/// How long after its start the launcher's memory is measured.
const SETTLED: Duration = Duration::from_secs(5);
/// What a busy kernel may add to the launcher's own work: exec of one more program, in milliseconds.
const ALLOWED_MS: f64 = 10.0;

/// Measures `launch`, `launcher_pss_mib` and `qemu_pss_mib`, with that many pairs of runs.
pub fn measure(launcher: &Path, runs: usize, figures: &mut Figures) -> Result<()> {
    let manifest = repository().join(MANIFEST);
    let raw = Raw::of(&start(launcher, &manifest)?.0)?;
    let (mut launched, mut by_hand) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let (running, milliseconds) = start(launcher, &manifest)?;
        drop(running);
        launched.push(milliseconds);
        by_hand.push(by_hand_ms(&raw)?);
    }
    let figure = Figure::compared(&launched, &by_hand, "ms");
    figures.insert(
        "launch".to_owned(),
        figure.within("at most 1.1 x raw plus 10 ms", |figure| {
            figure.raw.is_some_and(|raw| figure.value <= 1.1 * raw + ALLOWED_MS)
        }),
    );

    let (running, _) = start(launcher, &manifest)?;
    std::thread::sleep(SETTLED);
    let launcher_pid = running.id();
    let qemu = child_of(launcher_pid)?;
    figures.insert(
        "launcher_pss_mib".to_owned(),
        Figure::plain(pss_mib(launcher_pid)?, "MiB", 1).within("at most 6 MiB", |f| f.value <= PSS_BUDGET),
    );
    figures.insert("qemu_pss_mib".to_owned(), Figure::plain(pss_mib(qemu)?, "MiB", 1));
    Ok(())
}

/// Milliseconds from exec to the answer to `cont`.
fn by_hand_ms(raw: &Raw) -> Result<f64> {
    let (mut command, control) = raw.command(false)?;
    let begun = Instant::now();
    let _running =
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start QEMU")?);
    drop(command);
    control.go()?;
    Ok(begun.elapsed().as_secs_f64() * 1000.0)
}

/// Starts the launcher and waits until it reports that the guest runs.
pub(super) fn start(launcher: &Path, manifest: &Path) -> Result<(Running, f64)> {
    start_with(launcher, &[], manifest)
}

/// The same with more arguments.
pub(super) fn start_with(launcher: &Path, arguments: &[String], manifest: &Path) -> Result<(Running, f64)> {
    let begun = Instant::now();
    let mut child = Command::new(launcher)
        .args(["-v", "run", "--tcg"])
        .args(arguments)
        .arg(manifest)
        .current_dir(repository())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", launcher.display()))?;
    let log = child.stderr.take().context("the launcher's log")?;
    let running = Running(child);
    let mut lines = BufReader::new(log).lines();
    for line in &mut lines {
        if line?.contains("to=Running") {
            let milliseconds = begun.elapsed().as_secs_f64() * 1000.0;
            std::thread::spawn(move || lines.for_each(drop));
            return Ok((running, milliseconds));
        }
    }
    bail!("the launcher ended before the guest ran")
}

/// Proportional set size: memory of a process, with shared pages divided among the processes that share them.
fn pss_mib(pid: u32) -> Result<f64> {
    pss_of(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?)
}

/// The same from the kernel's sums over all mappings.
pub(super) fn pss_of(rollup: &str) -> Result<f64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib / 1024.0)
}
