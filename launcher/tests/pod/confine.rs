//! Confinement: the reach of a QEMU that a guest has taken over, and that of other processes towards the
//! launcher.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use barevirt_protocol::grpc;
use barevirt_protocol::v1::{QmpRequest, ScreenshotRequest};
use serde_json::{Value, json};

use super::support::eventually;
use super::{Pod, SOON, Watch, sync, vmi};

/// Replaces QEMU: tries each access, reports the successful ones by QEMU's name, and becomes QEMU.
const BROKEN_OUT: &str = r#"#!/bin/sh
did=
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then did="$did-$name"; fi; }
connect() { perl -MIO::Socket::UNIX -e 'exit(IO::Socket::UNIX->new(Peer => $ARGV[0]) ? 0 : 1)' "$1"; }
try library cat /etc/ld.so.cache
try disk dd if="$POD/ephemeral/scratch.empty.qcow2" count=1
try secret cat "$POD/secrets/seed/userdata"
try log cat "$POD/private/serial0.log"
try list ls "$POD/ephemeral"
try make touch "$POD/private/file"
try replace rm "$POD/private/qmp.sock"
try word sh -c "echo wrong >>'$POD/termination-log'"
try monitor connect "$POD/private/qmp.sock"
try handler connect "$POD/sockets/launcher-sock"
try signal kill -0 "$PPID"
try trace readlink "/proc/$PPID/cwd"
try namespace unshare --user true
exec qemu-system-x86_64 "$@" -name "guest=tried$did"
"#;

#[tokio::test]
async fn a_compromised_qemu_reaches_only_its_own_files() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("qemu");
    // The script exists before the launcher, because the launcher may only execute programs that it was
    // started with.
    std::fs::write(&script, "").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let pod = Pod::start(&["--qemu", script.to_str().unwrap()]).await;
    let root = pod.directory.path().display().to_string();
    std::fs::write(&script, BROKEN_OUT.replace("$POD", &root)).unwrap();
    std::fs::create_dir_all(pod.at("secrets/seed")).unwrap();
    std::fs::write(pod.at("secrets/seed/userdata"), "hush").unwrap();
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    client.sync(sync(1)).await.unwrap();
    let _helper = pod.root_disk().await;
    watch.running().await;
    let command = br#"{"execute": "query-name"}"#.to_vec();
    let request = grpc::request(QmpRequest { command, deadline_ms: 5000 }, SOON);
    let answer: Value =
        serde_json::from_slice(&client.qmp(request).await.unwrap().into_inner().answer).unwrap();
    assert_eq!(answer["return"]["name"], "tried-library-disk");
}

#[tokio::test]
async fn a_machine_of_many_devices_runs_within_its_confinement() {
    let pod = Pod::start(&[]).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let mut object = vmi();
    object["spec"]["domain"]["firmware"] = json!({"bootloader": {"efi": {"secureBoot": false}}});
    let devices = &mut object["spec"]["domain"]["devices"];
    devices["tpm"] = json!({});
    devices["rng"] = json!({});
    devices["clientPassthrough"] = json!({});
    devices["downwardMetrics"] = json!({});
    devices["sound"] = json!({"name": "sound", "model": "ich9"});
    devices["watchdog"] = json!({"name": "dog", "i6300esb": {"action": "reset"}});
    devices["inputs"] = json!([{"name": "tablet", "type": "tablet", "bus": "usb"}]);
    let mut wanted = sync(1);
    wanted.get_mut().vmi = object.to_string().into_bytes();
    client.sync(wanted).await.unwrap();
    let _helper = pod.root_disk().await;
    watch.running().await;
    // The TPM has made its state; QEMU has made its sockets; the display is written into memory from the
    // launcher.
    let state = pod.at("private/tpm");
    let has_state = || std::fs::read_dir(&state).is_ok_and(|files| files.count() > 0);
    eventually("the TPM keeps something", SOON, has_state).await;
    assert!(pod.at("private/qemu/usb3.sock").exists());
    let picture = client.screenshot(grpc::request(ScreenshotRequest { move_cursor: true }, SOON)).await;
    assert!(!picture.unwrap().into_inner().png.is_empty());
}

#[tokio::test]
async fn the_launcher_has_no_memory_to_show_and_gives_system_calls_up() {
    // As in a pod, it is not root: the owner of its files in /proc shows whether other processes of its user
    // may read them.
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("virt-launcher");
    std::fs::copy(env!("CARGO_BIN_EXE_virt-launcher"), &program).unwrap();
    let open = |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    open(directory.path());
    let mut command = Command::new(&program);
    command.args(["pod", "--name", "test", "--namespace", "default", "--uid", super::UID]);
    for (option, name) in [("--sockets", "sockets"), ("--private", "private"), ("--ephemeral-disks", "disks")]
    {
        let at = directory.path().join(name);
        std::fs::create_dir(&at).unwrap();
        open(&at);
        command.arg(option).arg(at);
    }
    command.arg("--container-disks").arg(directory.path().join("disks/launcher.sock"));
    command.arg("--termination-log").arg(directory.path().join("log"));
    if nix::unistd::getuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let mut launcher = command.stdout(Stdio::null()).spawn().unwrap();
    eventually("it listens", SOON, || directory.path().join("private/qmp.sock").exists()).await;
    let at = format!("/proc/{}", launcher.id());
    let owner = std::fs::metadata(format!("{at}/environ")).unwrap().uid();
    let status = std::fs::read_to_string(format!("{at}/status")).unwrap();
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    assert_eq!(owner, 0);
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
}
