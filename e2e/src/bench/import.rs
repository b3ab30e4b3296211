//! An import by virt-importer against `curl` and then `qemu-img convert`: the same file of the same server onto the same disk.
//!
//! The importer refuses addresses of its own pod, and expects its claim at the pod's path. So it gets a
//! network with one more address, and its own root as an overlay over this machine's.

use super::{Figure, Figures};
use crate::command::{repository, succeed};
use crate::running::Running;
use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const IMAGE: &str = "target/images/guest-debian.qcow2";
/// A private address, as servers of images have them within an organisation.
const ADDRESS: &str = "10.250.0.1";
const RATIO: f64 = 1.1;
/// Memory budget of the importer and its children, in MiB.
const MEMORY: f64 = 64.0;
/// The longest time of a run.
pub(super) const WITHIN: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(10);

/// Sets up the importer's root: changes are kept in memory, and its claim is a folder of this machine. An upload's importer also
/// has keys.
pub(super) const ROOT: &str = r#"
set -e
mount -t tmpfs tmpfs "$1/over"
mkdir "$1/over/changed" "$1/over/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/over/changed,workdir=$1/over/work" "$1/root"
mkdir -p "$1/root/data" "$1/root/dev"
mount --bind "$1/claim" "$1/root/data"
mount -t proc proc "$1/root/proc"
touch "$1/root/dev/null"
mount --bind /dev/null "$1/root/dev/null"
cp "$2" "$1/over/changed/virt-importer"
[ ! -d "$1/keys" ] || cp -r "$1/keys" "$1/over/changed/keys"
exec chroot "$1/root" /virt-importer
"#;

/// Measures `import` and `importer_mib`, with that many pairs of runs.
pub fn measure(importer: &Path, runs: usize, figures: &mut Figures) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for name in ["over", "root", "claim"] {
        fs::create_dir(folder.path().join(name))?;
    }
    let image = repository().join(IMAGE);
    let network = Network::start()?;
    let url = network.serve(image.clone())?;
    let size = virtual_size(&image)?;
    let (mut ours, mut raws, mut memory) = (Vec::new(), Vec::new(), 0.0_f64);
    for _ in 0..runs {
        let (seconds, mib) = import(&network, importer, folder.path(), &url, size)?;
        ours.push(seconds);
        memory = memory.max(mib);
        raws.push(by_hand(&network, folder.path(), &url)?);
        let (claim, disk) = (folder.path().join("claim/disk.img"), folder.path().join("disk.img"));
        succeed(Command::new("qemu-img").arg("compare").args([&claim, &disk]), None)?;
        fs::remove_file(claim)?;
        fs::remove_file(disk)?;
    }
    let figure = Figure::compared(&ours, &raws, "s");
    let figure =
        figure.within("at most 1.1 x raw", |figure| figure.ratio.is_some_and(|ratio| ratio <= RATIO));
    figures.insert("import".to_owned(), figure);
    let figure = Figure::plain(memory, "MiB", runs).within("at most 64 MiB", |f| f.value <= MEMORY);
    figures.insert("importer_mib".to_owned(), figure);
    Ok(())
}

/// Seconds, and the most memory in MiB.
fn import(network: &Network, importer: &Path, folder: &Path, url: &str, size: u64) -> Result<(f64, f64)> {
    let job = json!({ "source": { "http": { "url": url } }, "size": size });
    let mut command = network.command("unshare");
    command.args(["--mount", "--", "sh", "-c", ROOT, "sh"]).arg(folder).arg(importer);
    command.env("IMPORT", job.to_string()).stdout(Stdio::null()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut running = Running(command.spawn().context("start the importer")?);
    let mut most = BTreeMap::new();
    let status = loop {
        note_memory(running.id(), &mut most);
        if let Some(status) = running.try_wait()? {
            break status;
        }
        ensure!(begun.elapsed() < WITHIN, "the import has not ended within {WITHIN:?}");
        thread::sleep(POLL);
    };
    let seconds = begun.elapsed().as_secs_f64();
    let mut log = String::new();
    if let Some(mut stderr) = running.stderr.take() {
        stderr.read_to_string(&mut log)?;
    }
    ensure!(status.success(), "the import failed with {status}: {log}");
    Ok((seconds, most.values().sum::<f64>() / 1024.0))
}

/// Seconds for the same by hand.
fn by_hand(network: &Network, folder: &Path, url: &str) -> Result<f64> {
    let script = r#"curl -sSf -o "$1/image" "$2" && qemu-img convert -O raw "$1/image" "$1/disk.img" && sync "$1/disk.img" && rm "$1/image""#;
    let begun = Instant::now();
    succeed(network.command("sh").args(["-c", script, "sh"]).arg(folder).arg(url), None)?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Records the most memory that a process and each of its children ever had, in KiB.
fn note_memory(pid: u32, most: &mut BTreeMap<u32, f64>) {
    // A process that has ended meanwhile was recorded before.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.trim().trim_end_matches(" kB").trim().parse().ok());
    if let Some(kib) = kib {
        most.insert(pid, kib);
    }
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            note_memory(child, most);
        }
    }
}

fn virtual_size(image: &Path) -> Result<u64> {
    let told = succeed(Command::new("qemu-img").args(["info", "--output=json"]).arg(image), None)?;
    serde_json::from_str::<serde_json::Value>(&told)?["virtual-size"]
        .as_u64()
        .context("an image without a size")
}

/// A network with one address, for as long as the value lives.
pub(super) struct Network(Running);

impl Network {
    pub(super) fn start() -> Result<Self> {
        let script =
            format!("ip link set lo up && ip address add {ADDRESS}/32 dev lo && echo up && exec sleep 3600");
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut keeper = Running(command.spawn().context("make a network")?);
        let mut said = String::new();
        BufReader::new(keeper.stdout.take().context("the network's output")?).read_line(&mut said)?;
        ensure!(said.trim() == "up", "no network can be made");
        Ok(Self(keeper))
    }

    /// A command in this network.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.id())).args(["--", program]);
        command
    }

    /// Serves a file to all clients; returns its address.
    fn serve(&self, file: std::path::PathBuf) -> Result<String> {
        let space = File::open(format!("/proc/{}/ns/net", self.0.id()))?;
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            // Only this thread, with the sockets that it opens, is in that network.
            let listener = setns(space, CloneFlags::CLONE_NEWNET)
                .map_err(anyhow::Error::from)
                .and_then(|()| Ok(TcpListener::bind((ADDRESS, 0))?));
            let listener = match listener {
                Ok(listener) => listener,
                Err(error) => return tell.send(Err(error)).unwrap_or_default(),
            };
            let port = listener.local_addr().map(|address| address.port());
            let _ = tell.send(port.map_err(anyhow::Error::from));
            for stream in listener.incoming().flatten() {
                // An error means that the client closed the connection.
                let _ = answer(stream, &file);
            }
        });
        let port = told.recv().context("the server")??;
        Ok(format!("http://{ADDRESS}:{port}/disk.qcow2"))
    }
}

/// Answers every request with the file, from the requested offset on.
fn answer(stream: TcpStream, file: &Path) -> Result<()> {
    let mut from = 0;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    for line in &mut lines {
        let line = line?.to_ascii_lowercase();
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = range.trim().trim_end_matches('-').parse()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut file = File::open(file)?;
    let whole = file.metadata()?.len();
    file.seek(SeekFrom::Start(from))?;
    let head = if from == 0 {
        "200 OK".to_owned()
    } else {
        format!("206 Partial Content\r\nContent-Range: bytes {from}-{}/{whole}", whole - 1)
    };
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", whole - from)?;
    std::io::copy(&mut file, &mut stream)?;
    Ok(())
}
