//! Speed of the streams: the time from a key on the console to its echo, and the throughput of a forwarded
//! port; each against `kubectl` with a pod.

use super::start::plain_pod;
use super::{Figure, Figures, Rounds};
use crate::command::{cluster_script, kubectl};
use crate::forward::Forward;
use crate::namespace::Namespace;
use crate::wait::{BOOT, RUNNING};
use crate::{Console, guest};
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};

/// Amount that is fetched from the guest's web server.
const MEBIBYTES: f64 = 16.0;
const ECHO: Duration = Duration::from_secs(10);

/// Measures `console_key` and `port_forward`.
pub fn measure(namespace: &Namespace, rounds: Rounds, figures: &mut Figures) -> Result<()> {
    namespace.apply(&guest::instance("bench"))?;
    namespace.wait_phase("bench", "Running", RUNNING)?;
    let mut console = Console::open(namespace, "bench")?;
    console.login(BOOT)?;
    console.ok(&format!("dd if=/dev/urandom of=/www/much bs=1M count={MEBIBYTES}"), BOOT)?;

    // On both sides only the terminal reads the keys and echoes them: the guest's terminal, and the node's
    // for the pod.
    console.send("sleep 10000\n")?;
    console.expect("sleep 10000", ECHO)?;
    let mut pod = plain_pod("plain");
    pod["spec"]["containers"][0]["tty"] = true.into();
    pod["spec"]["containers"][0]["stdin"] = true.into();
    namespace.apply(&pod)?;
    kubectl(&["-n", namespace.name(), "wait", "--timeout=120s", "--for=condition=Ready", "pod/plain"])?;
    let mut attached = Console::start(cluster_script("kubectl.sh").args([
        "attach",
        "-it",
        "pod/plain",
        "-n",
        namespace.name(),
    ]))?;
    // Keys may get lost until the stream is open.
    attached.expect("see a command prompt", RUNNING)?;
    attached.send("?")?;
    attached.expect("?", ECHO)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds.keys {
        ours.push(echo(&mut console)?);
        theirs.push(echo(&mut attached)?);
    }
    figures.insert("console_key".to_owned(), Figure::compared(&ours, &theirs, "ms"));

    let launcher = namespace.launcher("bench")?;
    let pod = format!("pod/{}", launcher["metadata"]["name"].as_str().context("a pod without a name")?);
    let forward = |script: &str, target: &str, ports: &str| {
        Forward::start(cluster_script(script).args(["port-forward", "-n", namespace.name(), target, ports]))
    };
    let ours = forward("virtctl.sh", "vmi/bench", "0:80")?;
    let theirs = forward("kubectl.sh", &pod, ":80")?;
    let (mut fast, mut reference) = (Vec::new(), Vec::new());
    for _ in 0..rounds.downloads {
        fast.push(download(&ours)?);
        reference.push(download(&theirs)?);
    }
    figures.insert("port_forward".to_owned(), Figure::compared(&fast, &reference, "MiB/s"));
    Ok(())
}

/// Milliseconds from a key to its echo.
pub(super) fn echo(console: &mut Console) -> Result<f64> {
    let begun = Instant::now();
    console.send("k")?;
    console.expect("k", ECHO)?;
    Ok(begun.elapsed().as_secs_f64() * 1000.0)
}

/// MiB a second.
fn download(forward: &Forward) -> Result<f64> {
    let begun = Instant::now();
    let answer = forward.get_bytes("/much")?;
    let seconds = begun.elapsed().as_secs_f64();
    let wanted = MEBIBYTES * 1024.0 * 1024.0;
    #[expect(clippy::cast_precision_loss, reason = "a few MiB")]
    let length = answer.len() as f64;
    ensure!(length >= wanted, "{length} bytes came of {wanted}");
    Ok(MEBIBYTES / seconds)
}
