//! Tests against real QEMU without a machine: no firmware and no guest, ready in some tens of milliseconds.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use barevirt_qmp::{Deadline, Error, Options, Qmp, qapi};
use command_fds::{CommandFdExt, FdMapping};
use serde_json::{Value, json};
use tokio::net::UnixStream;

struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// QEMU with its monitor on one end of a socketpair. The test fails if QEMU is not installed.
fn spawn(extra: &[&str]) -> (UnixStream, Qemu) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-machine", "none", "-nodefaults", "-no-user-config", "-display", "none", "-S"])
        .args(["-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control"])
        .args(extra)
        .stderr(Stdio::piped());
    command.fd_mappings(vec![FdMapping { parent_fd: OwnedFd::from(theirs), child_fd: 3 }]).unwrap();
    let child = command.spawn().unwrap_or_else(|error| {
        panic!("qemu-system-x86_64 cannot be started ({error}): install Debian's qemu-system-x86 (make deps)")
    });
    drop(command);
    ours.set_nonblocking(true).unwrap();
    (UnixStream::from_std(ours).unwrap(), Qemu(child))
}

#[tokio::test]
async fn a_session_from_greeting_to_quit() {
    let (stream, mut qemu) = spawn(&["-name", "barevirt"]);
    let (qmp, mut events) = Qmp::open(stream, Options::default(), soon()).await.unwrap();
    assert!(!qmp.greeting().version().is_empty());
    assert!(qmp.has_oob());
    let name = qmp.execute(qapi::qmp::query_name {}, soon()).await.unwrap();
    assert_eq!(name.name.as_deref(), Some("barevirt"));
    let refused = qmp.execute_raw("no-such-command", Value::Null, soon()).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { class, .. } if class == "CommandNotFound"));
    // Only the monitor's own channel can be yanked here.
    assert_eq!(qmp.execute_oob(qapi::qmp::query_yank {}, soon()).await.unwrap().len(), 1);
    let mut seen = qmp.events();
    qmp.execute(qapi::qmp::quit {}, soon()).await.unwrap();
    let shutdown = seen.next().await.unwrap().unwrap();
    assert_eq!((shutdown.name(), shutdown.data("reason")), ("SHUTDOWN", &json!("host-qmp-quit")));
    assert!(shutdown.read::<qapi::qmp::SHUTDOWN>().is_some());
    assert_eq!(events.next().await.unwrap().unwrap(), shutdown);
    qmp.ended().await;
    assert!(qemu.0.wait().unwrap().success());
}

#[tokio::test]
async fn many_commands_in_flight_and_the_whole_schema() {
    let (stream, _qemu) = spawn(&[]);
    let (qmp, _events) = Qmp::open(stream, Options::default(), soon()).await.unwrap();
    let asks: Vec<_> = (0..50)
        .map(|_| {
            let qmp = qmp.clone();
            tokio::spawn(async move { qmp.execute(qapi::qmp::query_status {}, soon()).await.map(drop) })
        })
        .collect();
    let schema = qmp.execute_raw("query-qmp-schema", Value::Null, soon()).await.unwrap();
    assert!(schema.as_array().unwrap().len() > 1000);
    for ask in asks {
        ask.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn descriptors_arrive_with_their_command() {
    let (stream, _qemu) = spawn(&[]);
    let (qmp, _events) = Qmp::open(stream, Options::default(), soon()).await.unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[0x5a; 4096]).unwrap();
    // Several at once, behind a command that takes QEMU some time. QEMU reads ahead and keeps only the latest
    // descriptor that it has read. Each command must still get its own.
    let busy = tokio::spawn({
        let qmp = qmp.clone();
        async move { qmp.execute_raw("query-qmp-schema", Value::Null, soon()).await }
    });
    tokio::task::yield_now().await;
    let add = |set: i64| {
        let qmp = qmp.clone();
        let fd = file.as_fd().try_clone_to_owned().unwrap();
        tokio::spawn(async move {
            let command = qapi::qmp::add_fd { fdset_id: Some(set), opaque: None };
            qmp.execute_with_fds(command, &[fd.as_fd()], soon()).await
        })
    };
    for ask in (1..=8).map(add).collect::<Vec<_>>() {
        ask.await.unwrap().unwrap();
    }
    busy.await.unwrap().unwrap();
    let sets = qmp.execute(qapi::qmp::query_fdsets {}, soon()).await.unwrap();
    assert_eq!(sets.iter().map(|set| set.fds.len()).collect::<Vec<_>>(), [1; 8]);
    let node = json!({"driver": "raw", "node-name": "disk", "read-only": true,
        "file": {"driver": "file", "filename": "/dev/fdset/7"}});
    // The set holds only a writable descriptor: it can be opened for writing.
    let mut writable = node.clone();
    writable["read-only"] = json!(false);
    qmp.execute_raw("blockdev-add", writable, soon()).await.unwrap();
    let without = qapi::qmp::add_fd { fdset_id: Some(9), opaque: None };
    assert!(matches!(qmp.execute(without, soon()).await, Err(Error::Refused { .. })));
}

#[tokio::test]
async fn sigkill_is_the_end_of_the_stream_for_every_waiter() {
    let (stream, mut qemu) = spawn(&[]);
    let (qmp, mut events) = Qmp::open(stream, Options::default(), soon()).await.unwrap();
    // A stopped QEMU answers nothing; when it is killed, the wait ends.
    let pid = nix::unistd::Pid::from_raw(qemu.0.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let silent = Deadline::after(Duration::from_millis(100));
    let error = qmp.execute(qapi::qmp::query_status {}, silent).await.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }));
    let ask = tokio::spawn({
        let qmp = qmp.clone();
        async move { qmp.execute(qapi::qmp::query_status {}, soon()).await.map(drop) }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let begun = Instant::now();
    qemu.0.kill().unwrap();
    assert!(ask.await.unwrap().unwrap_err().is_closed());
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn a_bad_device_greets_and_then_says_why_on_stderr() {
    let (stream, mut qemu) = spawn(&["-device", "no-such-device"]);
    // Either the greeting or the end comes first; there is never a session.
    let error = Qmp::open(stream, Options::default(), soon()).await.unwrap_err();
    assert!(error.is_closed(), "{error}");
    let mut said = String::new();
    qemu.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("no-such-device"), "{said}");
    assert_eq!(qemu.0.wait().unwrap().code(), Some(1));
}
