//! Shared parts of the tests in this directory.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use virt_launcher::migration::disks::Copyable;
use virt_launcher::process::Command;
use virt_launcher::supervisor::Launch;

/// Polls until the condition is true; fails with the text about it.
pub async fn eventually(what: &str, within: Duration, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether the process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// QEMU with firmware and without a disk, emulated: it boots nothing, and does not react to the power button.
pub struct Bare {
    pub launch: Launch,
    pub people: UnixStream,
    pub serial: UnixStream,
}

fn pair() -> (UnixStream, OwnedFd) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (UnixStream::from_std(ours).unwrap(), OwnedFd::from(theirs))
}

pub fn bare(extra: &[&str]) -> Bare {
    let (monitor, control) = pair();
    let (people, for_people) = pair();
    let (serial, console) = pair();
    let mut arguments: Vec<String> = [
        "-machine",
        "q35,graphics=off",
        "-accel",
        "tcg,tb-size=16",
        "-m",
        "64",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-S",
        "-chardev",
        "socket,id=control,fd=3",
        "-mon",
        "chardev=control,mode=control",
        "-chardev",
        "socket,id=people,fd=4",
        "-mon",
        "chardev=people,mode=control",
        "-chardev",
        "socket,id=serial0,fd=5",
        "-device",
        "isa-serial,chardev=serial0",
    ]
    .map(str::to_owned)
    .into();
    arguments.extend(extra.iter().map(|&argument| argument.to_owned()));
    let command = Command {
        program: PathBuf::from("qemu-system-x86_64"),
        arguments,
        descriptors: vec![(3, control), (4, for_people), (5, console)],
        domain: None,
    };
    let launch = Launch {
        command,
        tpm: None,
        monitor,
        answers_within: Duration::from_secs(60),
        pins: None,
        real_time: None,
        cards: Vec::new(),
        host_cards: virt_launcher::migration::host_cards::HostCards::default(),
        acpi: true,
        paused: false,
        agent_port: "agent0".to_owned(),
        incoming: None,
        keys: std::env::temp_dir(),
        disks: Copyable::default(),
    };
    Bare { launch, people, serial }
}
