//! The program as a pod runs it, with a socket on which a launcher would listen.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{IoSliceMut, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind,
    listen, recvmsg, socket,
};
use nix::unistd::Pid;

const PROGRAM: &str = env!("CARGO_BIN_EXE_container-disk");

struct Pod {
    directory: tempfile::TempDir,
}

impl Pod {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("root/disk")).unwrap();
        Self { directory }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("launcher.sock")
    }

    fn serve(&self) -> Child {
        Command::new(PROGRAM)
            .args(["serve", "--volume", "root", "--socket"])
            .arg(self.socket())
            .arg("--root")
            .arg(self.root())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn listen(&self) -> OwnedFd {
        let listener =
            socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&self.socket()).unwrap()).unwrap();
        listen(&listener, Backlog::new(4).unwrap()).unwrap();
        listener
    }
}

/// One connection's message: its text and the paths its descriptors lead to.
fn receive(connection: RawFd) -> (String, Vec<PathBuf>) {
    let mut bytes = [0; 4096];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!([RawFd; 4]);
    let message = recvmsg::<()>(connection, &mut parts, Some(&mut space), MsgFlags::empty()).unwrap();
    let mut paths = Vec::new();
    for control in message.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for descriptor in descriptors {
                paths.push(std::fs::read_link(format!("/proc/self/fd/{descriptor}")).unwrap());
                nix::unistd::close(descriptor).unwrap();
            }
        }
    }
    let length = message.bytes;
    (String::from_utf8(bytes[..length].to_vec()).unwrap(), paths)
}

fn ended(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "program did not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn stderr(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn hands_over_the_disk_and_stays_until_the_launcher_closes() {
    let pod = Pod::new();
    let disk = pod.root().join("disk/guest.img");
    std::fs::write(&disk, "12345").unwrap();
    let mut child = pod.serve();
    // The launcher starts later than the program.
    std::thread::sleep(Duration::from_millis(100));
    let listener = pod.listen();
    let connection = accept(listener.as_raw_fd()).unwrap();
    let (text, paths) = receive(connection);
    assert_eq!(text, r#"{"volume":"root","path":"/disk/guest.img","size":5}"#);
    assert_eq!(paths, [disk.canonicalize().unwrap()]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");

    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(
        child.try_wait().unwrap().is_none(),
        "SIGTERM does not end it while the launcher has the connection"
    );
    nix::unistd::close(connection).unwrap();
    assert!(ended(&mut child).success());
}

#[test]
fn the_program_sends_the_error_to_the_launcher_and_fails() {
    let pod = Pod::new();
    let listener = pod.listen();
    let mut child = pod.serve();
    let connection = accept(listener.as_raw_fd()).unwrap();
    let (text, paths) = receive(connection);
    assert_eq!(text, r#"{"volume":"root","error":"image has no disk: directory /disk is empty"}"#);
    assert!(paths.is_empty());
    nix::unistd::close(connection).unwrap();
    assert_eq!(ended(&mut child).code(), Some(1));
    assert!(stderr(&mut child).contains("image has no disk: directory /disk is empty"));
}

#[test]
fn sigterm_ends_it_while_there_is_no_launcher() {
    let pod = Pod::new();
    std::fs::write(pod.root().join("disk/guest.img"), "x").unwrap();
    let mut child = pod.serve();
    std::thread::sleep(Duration::from_millis(200));
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(ended(&mut child).code(), Some(1));
    assert!(stderr(&mut child).contains("the container was stopped before the launcher listened"));
}

#[test]
fn it_says_which_build_it_is() {
    let output = Command::new(PROGRAM).arg("--version").output().unwrap();
    let expected = format!("container-disk {}\n", container_disk::release::line());
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn copies_itself_so_that_anyone_can_run_it() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let destination = directory.path().join("container-disk");
    let run = |program: &Path, destination: &Path| {
        Command::new(program).arg("copy").arg(destination).stderr(Stdio::null()).status().unwrap()
    };
    assert!(run(Path::new(PROGRAM), &destination).success());
    assert_eq!(destination.metadata().unwrap().permissions().mode() & 0o777, 0o555);
    // A second copy, by the copy itself, as after a restart of the init container.
    assert!(run(&destination, &destination).success());
    assert_eq!(std::fs::read(&destination).unwrap(), std::fs::read(PROGRAM).unwrap());
    assert_eq!(run(Path::new(PROGRAM), Path::new("/nonexistent/x")).code(), Some(1));
    assert_eq!(Command::new(PROGRAM).stderr(Stdio::null()).status().unwrap().code(), Some(2));
}
