//! An upload into virt-importer, over mutual TLS as virt-api sends it, against `cp` of the same file onto the same disk.

use super::import::{Network, ROOT, WITHIN};
use super::{Figure, Figures};
use crate::command::succeed;
use crate::running::Running;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Size of the image, in MiB. It does not compress.
const MEBIBYTES: u64 = 256;
const POLL: Duration = Duration::from_millis(20);
const SOON: Duration = Duration::from_secs(30);

/// Makes an authority, the pod's certificate, and that of virt-api.
const KEYS: &str = r#"
set -e
cd "$1"
key="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
openssl req -x509 $key -keyout ca.key -out ca.crt -subj /CN=bench -days 2 2>/dev/null
openssl req -x509 $key -keyout keys/tls.key -out keys/tls.crt -subj /CN=pod -addext subjectAltName=DNS:pod -days 2 2>/dev/null
openssl req $key -keyout api.key -out api.csr -subj /CN=virt-api 2>/dev/null
echo extendedKeyUsage=clientAuth >api.ext
openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out api.crt -days 2 -extfile api.ext 2>/dev/null
"#;

/// Measures `upload`, with that many pairs of runs.
pub fn measure(importer: &Path, runs: usize, figures: &mut Figures) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for name in ["over", "root", "claim", "keys"] {
        fs::create_dir(folder.path().join(name))?;
    }
    succeed(Command::new("sh").args(["-c", KEYS, "sh"]).arg(folder.path()), None)?;
    let make = format!("head -c {MEBIBYTES}M /dev/urandom >\"$1/image\"");
    succeed(Command::new("sh").args(["-c", &make, "sh"]).arg(folder.path()), None)?;
    let network = Network::start()?;
    let (mut ours, mut raws) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        ours.push(upload(&network, importer, folder.path())?);
        let disk = folder.path().join("claim/disk.img");
        succeed(Command::new("cmp").args([&folder.path().join("image"), &disk]), None)?;
        fs::remove_file(&disk)?;
        let script = r#"cp "$1/image" "$1/claim/disk.img" && sync "$1/claim/disk.img" "$1/claim""#;
        let begun = Instant::now();
        succeed(Command::new("sh").args(["-c", script, "sh"]).arg(folder.path()), None)?;
        raws.push(begun.elapsed().as_secs_f64());
        fs::remove_file(&disk)?;
    }
    figures.insert("upload".to_owned(), Figure::compared(&ours, &raws, "s"));
    Ok(())
}

/// Seconds from the request until the claim is filled.
fn upload(network: &Network, importer: &Path, folder: &Path) -> Result<f64> {
    let authorities = fs::read_to_string(folder.join("ca.crt")).context("read ca.crt")?;
    let job = json!({ "source": { "upload": { "authorities": authorities } }, "size": MEBIBYTES << 20 });
    let mut command = network.command("unshare");
    command.args(["--mount", "--", "sh", "-c", ROOT, "sh"]).arg(folder).arg(importer);
    command.env("IMPORT", job.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = Running(command.spawn().context("start the importer")?);
    let curl = |more: &[&str]| {
        let mut curl = network.command("curl");
        curl.current_dir(folder).args(["-sSkf", "--cert", "api.crt", "--key", "api.key"]).args(more);
        curl.arg("https://127.0.0.1:8443/v1beta1/upload");
        curl
    };
    let started = Instant::now();
    while !curl(&["-I"]).stdout(Stdio::null()).stderr(Stdio::null()).status()?.success() {
        ensure!(started.elapsed() < SOON, "the importer takes no upload within {SOON:?}");
        thread::sleep(POLL);
    }
    let begun = Instant::now();
    // Without waiting for leave to send.
    succeed(&mut curl(&["-H", "Expect:", "-T", "image"]), None)?;
    let seconds = begun.elapsed().as_secs_f64();
    while running.try_wait()?.is_none() {
        ensure!(begun.elapsed() < WITHIN, "the importer has not ended within {WITHIN:?}");
        thread::sleep(POLL);
    }
    Ok(seconds)
}
