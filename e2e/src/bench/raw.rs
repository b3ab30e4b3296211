//! QEMU started by hand, with the command line of a launcher.

use crate::command::repository;
use crate::running::Running;
use anyhow::{Context, Result, bail, ensure};
use command_fds::{CommandFdExt, FdMapping};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// QEMU's own command line as a launcher made it, and copies of the files it names.
pub(super) struct Raw {
    arguments: Vec<String>,
    disk: PathBuf,
    /// Images of volumes that do not have that one.
    others: BTreeMap<String, PathBuf>,
    tap: Option<OwnedFd>,
    folder: tempfile::TempDir,
}

impl Raw {
    /// From a launcher that has just started its guest, so that its disks are still unchanged.
    pub(super) fn of(launcher: &Running) -> Result<Self> {
        let state = std::env::temp_dir().join(format!("virt-launcher-{}", launcher.id()));
        Self::with(launcher, &state, &repository().join("target/images/guest-tiny.qcow2"))
    }

    /// The same, with its files in another folder and another image.
    pub(super) fn with(launcher: &Running, state: &Path, disk: &Path) -> Result<Self> {
        let qemu = child_of(launcher.id())?;
        let line = fs::read_to_string(format!("/proc/{qemu}/cmdline")).context("read QEMU's command line")?;
        let folder = tempfile::tempdir()?;
        copy(state, folder.path())?;
        let (from, to) = (state.display().to_string(), folder.path().display().to_string());
        let arguments = line.split_terminator('\0').skip(1).map(|word| word.replace(&from, &to)).collect();
        Ok(Self { arguments, disk: disk.to_owned(), others: BTreeMap::new(), tap: None, folder })
    }

    /// Gives it a tap of its own, and the MAC address behind it instead of the launcher's guest's.
    pub(super) fn connect(&mut self, tap: OwnedFd, mac: &str, instead_of: &str) {
        self.tap = Some(tap);
        for word in &mut self.arguments {
            *word = word.replace(instead_of, mac);
        }
    }

    /// Gives a volume another image than the root's.
    pub(super) fn set_image(&mut self, volume: &str, image: &Path) {
        self.others.insert(volume.to_owned(), image.to_owned());
    }

    /// The image that an argument of `-add-fd` is about.
    fn image_of(&self, word: &str) -> &Path {
        let volume = word.rsplit_once("opaque=volume ").map(|(_, volume)| volume);
        volume.and_then(|volume| self.others.get(volume)).unwrap_or(&self.disk)
    }

    /// The command that starts it, and its control monitor. The guest's serial port is the command's input
    /// and output if that is requested; otherwise nothing is connected to it.
    pub(super) fn command(&self, serial_is_terminal: bool) -> Result<(Command, Control)> {
        let mut command = Command::new("qemu-system-x86_64");
        let (mut control, mut serial) = (None, None);
        let (mut mappings, mut ours) = (Vec::new(), Vec::new());
        for word in &self.arguments {
            if serial_is_terminal && is_serial(word) {
                command.arg("stdio,id=serial0-socket,signal=off");
                continue;
            }
            command.arg(word);
            let tap_fd = tap_of(word);
            let Some(child_fd) = tap_fd.or_else(|| number_after(word, "fd=")) else { continue };
            let parent_fd: OwnedFd = if tap_fd.is_some() {
                self.tap.as_ref().context("QEMU's command line has a tap, and none was given")?.try_clone()?
            } else if word.contains("set=") {
                let image = self.image_of(word);
                File::open(image).with_context(|| format!("open {}", image.display()))?.into()
            } else {
                let (mine, theirs) = UnixStream::pair()?;
                if word.contains("id=monitor-control") {
                    control = Some(mine);
                } else if is_serial(word) {
                    serial = Some(mine);
                } else {
                    ours.push(mine);
                }
                theirs.into()
            };
            mappings.push(FdMapping { parent_fd, child_fd });
        }
        let stream = control.context("QEMU's command line has no control monitor")?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        command.current_dir(self.folder.path()).stdin(Stdio::null()).fd_mappings(mappings)?;
        Ok((command, Control { stream, serial, others: ours }))
    }
}

/// Our end of its monitor and of its other connections.
pub(super) struct Control {
    /// The monitor, before the negotiation of QMP.
    pub(super) stream: UnixStream,
    /// The guest's serial port, if it is not a terminal.
    pub(super) serial: Option<UnixStream>,
    /// Held open, and not read.
    pub(super) others: Vec<UnixStream>,
}

impl Control {
    /// Negotiates, and lets the guest run.
    pub(super) fn go(&self) -> Result<()> {
        let mut answers = BufReader::new(self.stream.try_clone()?).lines();
        let mut say = |text: &str, answered: fn(&Value) -> bool| -> Result<()> {
            (&self.stream).write_all(text.as_bytes())?;
            for line in &mut answers {
                if answered(&serde_json::from_str(&line.context("read from QEMU")?)?) {
                    return Ok(());
                }
            }
            bail!("QEMU ended")
        };
        say("", |message| message.get("QMP").is_some())?;
        say("{\"execute\":\"qmp_capabilities\"}\n", |message| message.get("return").is_some())?;
        say("{\"execute\":\"cont\"}\n", |message| message.get("return").is_some())
    }

    /// Carries out a command of QMP once the guest runs.
    pub(super) fn execute(&self, command: &Value) -> Result<()> {
        (&self.stream).write_all(format!("{command}\n").as_bytes())?;
        for line in BufReader::new(self.stream.try_clone()?).lines() {
            let answer: Value = serde_json::from_str(&line.context("read from QEMU")?)?;
            if answer.get("return").is_some() {
                return Ok(());
            }
            ensure!(answer.get("error").is_none(), "QEMU refuses {command}: {answer}");
        }
        bail!("QEMU ended")
    }
}

/// Whether an argument of the command line is the other end of the guest's serial port.
fn is_serial(word: &str) -> bool {
    word.starts_with("socket,id=serial0-socket,")
}

/// The number of the tap's descriptor, in the argument of `-netdev`.
fn tap_of(word: &str) -> Option<i32> {
    let backend: Value = serde_json::from_str(word).ok()?;
    if backend["type"] == "tap" { backend["fd"].as_str()?.parse().ok() } else { None }
}

/// Copies the files of a folder and its subfolders, except sockets: the process that listens on a socket
/// makes it again.
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

/// QEMU's process, which is the launcher's child.
pub(super) fn child_of(pid: u32) -> Result<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let child = children.split_whitespace().next().context("the launcher has no QEMU")?;
    Ok(child.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_may_have_another_image() {
        let (disk, folder) = ("/root".into(), tempfile::tempdir().unwrap());
        let mut raw = Raw { arguments: Vec::new(), disk, others: BTreeMap::new(), tap: None, folder };
        raw.set_image("fio", Path::new("/fio"));
        for (word, image) in [
            ("fd=3,set=10,opaque=volume root", "/root"),
            ("fd=4,set=11,opaque=volume fio", "/fio"),
            ("fd=4,set=11", "/root"),
        ] {
            assert_eq!(raw.image_of(word), Path::new(image), "{word}");
        }
    }
}
