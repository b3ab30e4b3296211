//! From the launcher's exec to a running vCPU, against the same QEMU started with the same command line by hand.
//!
//! Both sides are told to run and answer `cont`: that answer is the end of the measurement. The launcher reads the manifest,
//! makes an overlay and a cloud-init disk and plans; the raw side finds all that ready.

use super::{Figure, Figures};
use crate::command::repository;
use crate::running::Running;
use anyhow::{Context, Result, bail};
use command_fds::{CommandFdExt, FdMapping};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MANIFEST: &str = "examples/vmi-tiny.yaml";
/// Beside QEMU, in MiB.
const PSS_BUDGET: f64 = 6.0;
/// How long after its start the launcher's memory is looked at.
const SETTLED: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// What a busy kernel may add to the launcher's own work: exec of one more program, in milliseconds.
const ALLOWED_MS: f64 = 10.0;

/// Measures `launch`, `launcher_pss_mib` and `qemu_pss_mib`, with so many pairs of runs.
pub fn measure(launcher: &Path, runs: usize, figures: &mut Figures) -> Result<()> {
    let raw = Raw::prepare(launcher)?;
    let (mut launched, mut by_hand) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let (running, milliseconds) = start(launcher)?;
        drop(running);
        launched.push(milliseconds);
        by_hand.push(raw.run()?);
    }
    let figure = Figure::compared(&launched, &by_hand, "ms");
    figures.insert(
        "launch".to_owned(),
        figure.within("at most 1.1 x raw plus 10 ms", |figure| {
            figure.raw.is_some_and(|raw| figure.value <= 1.1 * raw + ALLOWED_MS)
        }),
    );

    let (running, _) = start(launcher)?;
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

/// Starts the launcher and waits for its word that the guest runs.
fn start(launcher: &Path) -> Result<(Running, f64)> {
    let begun = Instant::now();
    let mut child = Command::new(launcher)
        .args(["-v", "run", MANIFEST, "--tcg"])
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

/// QEMU's own command line as the launcher made it, and copies of the files it names.
struct Raw {
    arguments: Vec<String>,
    disk: PathBuf,
    folder: tempfile::TempDir,
}

impl Raw {
    fn prepare(launcher: &Path) -> Result<Self> {
        let (running, _) = start(launcher)?;
        let qemu = child_of(running.id())?;
        let line = fs::read_to_string(format!("/proc/{qemu}/cmdline")).context("read QEMU's command line")?;
        let folder = tempfile::tempdir()?;
        let state = std::env::temp_dir().join(format!("virt-launcher-{}", running.id()));
        copy(&state, folder.path())?;
        let (from, to) = (state.display().to_string(), folder.path().display().to_string());
        let arguments = line.split_terminator('\0').skip(1).map(|word| word.replace(&from, &to)).collect();
        Ok(Self { arguments, disk: repository().join("target/images/guest-tiny.qcow2"), folder })
    }

    /// Milliseconds from exec to the answer to `cont`.
    fn run(&self) -> Result<f64> {
        let (mut mappings, mut ours) = (Vec::new(), Vec::new());
        let mut control = None;
        for word in &self.arguments {
            let Some(child_fd) = number_after(word, "fd=") else { continue };
            let parent_fd: OwnedFd = if word.contains("set=") {
                File::open(&self.disk)?.into()
            } else {
                let (mine, theirs) = UnixStream::pair()?;
                if word.contains("id=monitor-control") {
                    control = Some(mine);
                } else {
                    ours.push(mine);
                }
                theirs.into()
            };
            mappings.push(FdMapping { parent_fd, child_fd });
        }
        let control = control.context("QEMU's command line has no control monitor")?;
        control.set_read_timeout(Some(ANSWER_WITHIN))?;
        let begun = Instant::now();
        let mut command = Command::new("qemu-system-x86_64");
        command.args(&self.arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).fd_mappings(mappings)?;
        let _running = Running(command.spawn().context("start QEMU")?);
        drop(command);
        let mut answers = BufReader::new(control.try_clone()?).lines();
        let mut say = |text: &str, answered: fn(&Value) -> bool| -> Result<()> {
            (&control).write_all(text.as_bytes())?;
            for line in &mut answers {
                if answered(&serde_json::from_str(&line.context("read from QEMU")?)?) {
                    return Ok(());
                }
            }
            bail!("QEMU ended")
        };
        say("", |message| message.get("QMP").is_some())?;
        say("{\"execute\":\"qmp_capabilities\"}\n", |message| message.get("return").is_some())?;
        say("{\"execute\":\"cont\"}\n", |message| message.get("return").is_some())?;
        Ok(begun.elapsed().as_secs_f64() * 1000.0)
    }
}

/// Copies the files of a folder, and of those in it; sockets are made anew by who listens on them.
fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let (kind, copied) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            fs::create_dir(&copied).with_context(|| format!("make {}", copied.display()))?;
            copy(&entry.path(), &copied)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), &copied).with_context(|| format!("write {}", copied.display()))?;
        }
    }
    Ok(())
}

fn number_after(text: &str, key: &str) -> Option<i32> {
    let rest = &text[text.find(key)? + key.len()..];
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn child_of(pid: u32) -> Result<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let child = children.split_whitespace().next().context("the launcher has no QEMU")?;
    Ok(child.parse()?)
}

/// Proportional set size: memory of a process, with what it shares divided among its sharers.
fn pss_mib(pid: u32) -> Result<f64> {
    pss_of(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?)
}

/// The same from the kernel's sums over all mappings.
pub(super) fn pss_of(rollup: &str) -> Result<f64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib / 1024.0)
}
