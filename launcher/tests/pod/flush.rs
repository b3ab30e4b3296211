//! A flush of a disk on a claim is an fdatasync of its file, in every cache mode. The block nodes are those of the launcher's
//! QEMU. A second QEMU has them, under strace, with a monitor that writes and flushes.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::support::{eventually, is_alive};
use super::{Pod, SOON, Watch, sync, vmi};

/// A QEMU without a machine, and its monitor. Its parent is strace.
struct Traced {
    strace: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Traced {
    fn start(trace: &Path, nodes: &[String]) -> Self {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-y", "-e", "trace=fdatasync,fsync", "-o"]).arg(trace);
        command.args(["qemu-system-x86_64", "-machine", "none", "-nodefaults", "-display", "none"]);
        command.args(["-qmp", "stdio"]);
        for node in nodes {
            command.args(["-blockdev", node]);
        }
        let mut strace = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (strace.stdin.take().unwrap(), strace.stdout.take().unwrap());
        let mut traced = Self { strace, input, output: BufReader::new(output) };
        traced.ask(&json!({"execute": "qmp_capabilities"}));
        traced
    }

    fn ask(&mut self, command: &Value) {
        writeln!(self.input, "{command}").unwrap();
        for line in (&mut self.output).lines() {
            // qemu-io reports on the same output.
            let Ok(answer) = serde_json::from_str::<Value>(&line.unwrap()) else { continue };
            if let Some(told) = answer.get("return") {
                // The monitor for people answers with text, also about an error.
                assert!(told.as_str().is_none_or(str::is_empty), "{command}: {told}");
                return;
            }
            assert!(answer.get("error").is_none(), "{command}: {answer}");
        }
        panic!("QEMU has ended");
    }

    /// A command of the monitor, or of qemu-io about the disk.
    fn command(&mut self, words: &str) {
        if ["stop", "cont"].contains(&words) {
            return self.ask(&json!({"execute": words}));
        }
        let line = format!("qemu-io disk-boot \"{words}\"");
        self.ask(&json!({"execute": "human-monitor-command", "arguments": {"command-line": line}}));
    }

    /// Ends QEMU, which then flushes nothing by itself.
    fn kill(&mut self) {
        let children = format!("/proc/{0}/task/{0}/children", self.strace.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        for child in children.split_whitespace() {
            let _ = kill(Pid::from_raw(child.parse().unwrap()), Signal::SIGKILL);
        }
        let _ = self.strace.wait();
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How often the file of the disk is synced during these commands.
fn syncs(directory: &Path, nodes: &[String], commands: &[&str]) -> usize {
    let trace = directory.join("trace");
    let mut qemu = Traced::start(&trace, nodes);
    commands.iter().for_each(|words| qemu.command(words));
    drop(qemu);
    let text = std::fs::read_to_string(trace).unwrap();
    text.lines().filter(|line| line.contains("fdatasync(") && line.contains("/boot/disk.img>")).count()
}

/// The nodes of the disk `boot`, as the launcher gives them to QEMU; its file is at `file`.
async fn planned(cache: Option<&str>, claims: &Path, file: &Path) -> Vec<String> {
    let pod = Pod::start(&["--claims", claims.to_str().unwrap()]).await;
    let mut client = pod.handler().await;
    let mut watch = Watch::open(&mut client).await;
    let mut object = vmi();
    let mut disk = json!({"name": "boot", "disk": {"bus": "virtio"}});
    if let Some(cache) = cache {
        disk["cache"] = json!(cache);
    }
    object["spec"]["domain"]["devices"]["disks"] = json!([disk]);
    object["spec"]["volumes"] = json!([{"name": "boot", "persistentVolumeClaim": {"claimName": "c"}}]);
    let info = json!({"claimName": "c", "requests": {"storage": "2Mi"}, "capacity": {"storage": "5Gi"}});
    object["status"] =
        json!({"volumeStatus": [{"name": "boot", "target": "", "persistentVolumeClaimInfo": info}]});
    let mut request = sync(1);
    request.get_mut().vmi = object.to_string().into_bytes();
    client.sync(request).await.unwrap();
    let running = watch.running().await;
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", running.qemu_pid)).unwrap();
    let words: Vec<&str> = line.split('\0').collect();
    let nodes = words.windows(2).filter(|pair| pair[0] == "-blockdev" && pair[1].contains("-boot\""));
    let nodes: Vec<String> = nodes
        .map(|pair| {
            let mut node: Value = serde_json::from_str(pair[1]).unwrap();
            if node.get("filename").is_some() {
                // The launcher's QEMU has it as an open descriptor.
                node["filename"] = json!(file);
            }
            node.to_string()
        })
        .collect();
    assert_eq!(nodes.len(), 2, "{line}");
    // It has the file locked until the last of its threads has ended.
    drop(pod);
    let inode = format!(":{} ", std::fs::metadata(file).unwrap().ino());
    let is_locked = || std::fs::read_to_string("/proc/locks").unwrap().contains(&inode);
    eventually("QEMU has ended", SOON, || !is_alive(running.qemu_pid) && !is_locked()).await;
    nodes
}

#[tokio::test]
async fn a_flush_of_a_disk_on_a_claim_is_an_fdatasync_of_its_file() {
    for cache in [None, Some("none"), Some("writethrough"), Some("writeback")] {
        let claims = tempfile::tempdir().unwrap();
        std::fs::create_dir(claims.path().join("boot")).unwrap();
        let file = claims.path().join("boot/disk.img");
        let nodes = planned(cache, claims.path(), &file).await;
        // A machine that stops flushes its disks, if anything was written since.
        let write = "write -P 7 0 4k";
        for (commands, expected) in [
            (&[write, write][..], 0),
            (&[write, "stop", "cont", "stop"], 1),
            (&[write, "stop", "cont", write, "stop"], 2),
            // Each write of a disk with writethrough is such a write.
            (&["write -f -P 7 0 4k"], 1),
        ] {
            assert_eq!(syncs(claims.path(), &nodes, commands), expected, "{cache:?} {commands:?}: {nodes:?}");
        }
    }
}
