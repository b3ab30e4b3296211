//! `virt-launcher run` with a real guest, in a terminal, without root.
//!
//! Needs QEMU and the image of guest-tiny in `target/images`; fails if they are missing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::{Pid, Uid};

/// With emulation, on a busy machine.
const BOOT: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(30);

/// The user nobody: the test proves that root is not needed.
const NOBODY: u32 = 65534;

fn root_of_the_tree() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Copies launcher, manifest and image to a place that the user nobody can read, because a checkout may be in
/// a home directory.
fn stage() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let image = root_of_the_tree().join("target/images/guest-tiny.qcow2");
    assert!(image.exists(), "{} is missing: make images", image.display());
    let stage = tempfile::tempdir().unwrap();
    let manifest = root_of_the_tree().join("examples/vmi-tiny.yaml");
    for (from, to, mode) in [
        (Path::new(env!("CARGO_BIN_EXE_virt-launcher")), "virt-launcher", 0o755),
        (&manifest, "vmi-tiny.yaml", 0o644),
        (&image, "guest-tiny.qcow2", 0o644),
    ] {
        let to = stage.path().join(to);
        std::fs::copy(from, &to).unwrap();
        std::fs::set_permissions(&to, PermissionsExt::from_mode(mode)).unwrap();
    }
    std::fs::set_permissions(stage.path(), PermissionsExt::from_mode(0o755)).unwrap();
    stage
}

/// The launcher on its own terminal.
struct Terminal {
    launcher: Child,
    keys: File,
    screen: mpsc::Receiver<Vec<u8>>,
    seen: String,
    slave: OwnedFd,
    /// Removed together with the terminal.
    _stage: tempfile::TempDir,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

impl Terminal {
    fn run(extra: &[&str]) -> Self {
        let stage = stage();
        let pty = openpty(None, None).unwrap();
        let end = |fd: &OwnedFd| fd.try_clone().unwrap();
        if Uid::effective().is_root() {
            nix::unistd::fchown(pty.slave.as_fd(), Some(Uid::from_raw(NOBODY)), None).unwrap();
        }
        let mut command = Command::new(stage.path().join("virt-launcher"));
        command
            .arg("run")
            .arg(stage.path().join("vmi-tiny.yaml"))
            .args(["--tcg", "--images"])
            .arg(stage.path())
            .args(extra)
            .stdin(end(&pty.slave))
            .stdout(end(&pty.slave))
            .stderr(end(&pty.slave));
        if Uid::effective().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let launcher = command.spawn().unwrap();
        let keys = File::from(end(&pty.master));
        let mut master = File::from(pty.master);
        let (sender, screen) = mpsc::channel();
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = master.read(&mut chunk) {
                if sender.send(chunk[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { launcher, keys, screen, seen: String::new(), slave: pty.slave, _stage: stage }
    }

    /// Waits for a text on the screen; the output before it is discarded.
    fn expect(&mut self, text: &str, within: Duration) {
        let deadline = Instant::now() + within;
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("no {text:?} on the screen, but {:?}", self.seen),
            }
        }
    }

    fn type_in(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.launcher.id().cast_signed()), signal).unwrap();
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.slave).unwrap().local_flags.contains(LocalFlags::ICANON)
    }

    fn exit_code(&mut self) -> i32 {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                return status.code().expect("killed");
            }
            assert!(begun.elapsed() < SOON, "it does not exit: {:?}", self.seen);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_manifest_boots_to_a_prompt_and_is_left_and_shut_down() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut terminal = Terminal::run(&["--console", "-p", &format!("{port}:80")]);
    terminal.expect("tiny login: ", BOOT);
    assert!(terminal.is_raw());
    terminal.type_in("root\r");
    terminal.expect(":~# ", SOON);
    terminal.type_in("echo six times seven is $((6*7))\r");
    terminal.expect("six times seven is 42", SOON);
    // ctrl-C goes to the guest while the console is attached. The program that prints `asleep` already owns
    // the terminal: between two commands of its own, busybox's shell sometimes loses the signal.
    terminal.type_in("sh -c 'echo asleep $((1)); sleep 1000'\r");
    terminal.expect("asleep 1", SOON);
    terminal.type_in("\x03");
    terminal.expect(":~# ", SOON);
    // ctrl-] detaches, the guest continues, the terminal is restored.
    terminal.type_in("\x1d");
    terminal.expect("console is left", SOON);
    assert!(!terminal.is_raw());
    assert_eq!(hostname_over_http(port).trim(), "tiny");
    terminal.signal(Signal::SIGINT);
    terminal.expect("Shutting the guest down", SOON);
    terminal.expect("Succeeded: the guest shut down", SOON);
    assert_eq!(terminal.exit_code(), 0);
}

fn hostname_over_http(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()
}

#[test]
fn a_saved_guest_disk_boots_again() {
    let kept = tempfile::tempdir().unwrap();
    std::fs::set_permissions(kept.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let image = kept.path().join("kept.qcow2");
    let log_in = |terminal: &mut Terminal| {
        terminal.expect("tiny login: ", BOOT);
        terminal.type_in("root\r");
        terminal.expect(":~# ", SOON);
    };
    let mut first = Terminal::run(&["--console", "--save", &format!("root={}", image.display())]);
    log_in(&mut first);
    first.type_in("echo wrote $((6*7)) > /root/kept && sync && echo done $((1))\r");
    first.expect("done 1", SOON);
    first.type_in("poweroff\r");
    first.expect("Volume root is saved", BOOT);
    assert_eq!(first.exit_code(), 0);
    let mut second = Terminal::run(&["--console", "--disk", &format!("root={}", image.display())]);
    log_in(&mut second);
    second.type_in("cat /root/kept\r");
    second.expect("wrote 42", SOON);
    second.type_in("poweroff\r");
    second.expect("Succeeded", BOOT);
    assert_eq!(second.exit_code(), 0);
}

#[test]
fn exit_codes_distinguish_a_wrong_manifest_from_an_incapable_host() {
    let run = |extra: &[&str], text: &str| {
        let directory = tempfile::tempdir().unwrap();
        let manifest = directory.path().join("vmi.yaml");
        std::fs::write(&manifest, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_virt-launcher"))
            .args(["run", "--tcg"])
            .args(extra)
            .arg(manifest)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let text = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: a}, spec: {domain: \
        {memory: {guest: 64Mi}, devices: {disks: [{name: root, disk: {}}]}}, volumes: [{name: root, \
        persistentVolumeClaim: {claimName: c}}]}}";
    let (code, said) = run(&[], text);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("spec.volumes[0].persistentVolumeClaim (give its image with --disk root=PATH)"),
        "{said}"
    );
    let (code, said) = run(&["--disk", "root=/nowhere.qcow2"], text);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("volume root") && said.contains("/nowhere.qcow2"), "{said}");
    assert_eq!(run(&["--no-such-flag"], text).0, Some(2));
}

#[test]
fn ctrl_c_twice_is_a_hard_stop() {
    let mut terminal = Terminal::run(&[]);
    terminal.expect("Running tiny", SOON);
    // Early in its boot the guest does not react to the power button.
    std::thread::sleep(Duration::from_secs(1));
    terminal.signal(Signal::SIGINT);
    terminal.expect("Shutting the guest down", SOON);
    let begun = Instant::now();
    terminal.signal(Signal::SIGINT);
    terminal.expect("Succeeded", SOON);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(terminal.exit_code(), 0);
}

#[test]
fn a_killed_launcher_takes_qemu_with_it() {
    let mut terminal = Terminal::run(&["--console"]);
    terminal.expect("Console of tiny", SOON);
    let children = format!("/proc/{0}/task/{0}/children", terminal.launcher.id());
    let begun = Instant::now();
    let qemu: u32 = loop {
        let list = std::fs::read_to_string(&children).unwrap();
        if let Some(pid) = list.split_whitespace().next() {
            break pid.parse().unwrap();
        }
        assert!(begun.elapsed() < SOON, "no child");
    };
    terminal.launcher.kill().unwrap();
    terminal.launcher.wait().unwrap();
    let begun = Instant::now();
    while support::is_alive(qemu) {
        assert!(begun.elapsed() < SOON, "QEMU lives on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_dry_run_prints_and_starts_nothing() {
    let manifest = root_of_the_tree().join("examples/vmi-tiny.yaml");
    let output = Command::new(env!("CARGO_BIN_EXE_virt-launcher"))
        .args(["run", "--dry-run", "--tcg", "--qemu", "/nowhere/qemu", "--images"])
        .arg(root_of_the_tree().join("target/images"))
        .arg(manifest)
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(printed.starts_with("/nowhere/qemu \\\n  -name "), "{printed}");
    assert!(printed.lines().any(|line| line.trim_start().starts_with("-accel tcg")), "{printed}");
}
