//! Speed from guest to guest on one node, for each binding, against pods there.

use super::{Figure, Figures, Rounds};
use crate::command::kubectl;
use crate::namespace::Namespace;
use crate::wait::{BOOT, RUNNING, SOON};
use crate::{Console, guest, pods};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Amount that is fetched from the other guest.
pub(super) const MEBIBYTES: f64 = 32.0;
pub(super) const FETCHED: Duration = Duration::from_secs(120);
/// Port of the other guest's web server.
const PORT: u16 = 8080;

/// Measures `network_masquerade`, `network_bridge`, and `_rtt` of both.
pub fn measure(namespace: &Namespace, rounds: Rounds, figures: &mut Figures) -> Result<()> {
    // A pod that may ping.
    namespace.enforce("baseline")?;
    let nodes = kubectl(&["get", "nodes", "-o", "name"])?;
    let node = nodes.lines().last().context("no node")?.trim_start_matches("node/").to_owned();
    let serve = serve();
    pod(namespace, "pod-server", &node, &format!("{serve} && exec sleep 3600"))?;
    pod(namespace, "pod-client", &node, "exec sleep 3600")?;
    let server = address(namespace, "pod-server")?;
    let in_pod = |line: &str| -> Result<String> {
        let output = namespace.try_kubectl(&["exec", "pod-client", "--", "sh", "-c", line])?;
        ensure!(output.code == 0, "{line:?} failed in the pod: {}", output.text());
        Ok(output.stdout)
    };
    crate::wait::until_true("the pod to serve", SOON, || Ok(in_pod(&fetch(&server)).is_ok()))?;

    for binding in ["masquerade", "bridge"] {
        let (ours, other) = (format!("{binding}-client"), format!("{binding}-server"));
        let mut consoles = Vec::new();
        for name in [&ours, &other] {
            namespace.apply(&instance(name, binding, &node))?;
        }
        for name in [&ours, &other] {
            namespace.wait_phase(name, "Running", RUNNING)?;
            let mut console = Console::open(namespace, name)?;
            console.login(BOOT)?;
            consoles.push(console);
        }
        let [client, there] = &mut consoles[..] else { continue };
        there.ok(&serve, FETCHED)?;
        let launcher = namespace.launcher(&other)?;
        let guest = launcher["status"]["podIP"].as_str().context("the pod has no address")?.to_owned();
        let (mut rates, mut raws, mut trips, mut raw_trips) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds.fetches {
            let begun = Instant::now();
            client.ok(&fetch(&guest), FETCHED)?;
            rates.push(MEBIBYTES / begun.elapsed().as_secs_f64());
            let begun = Instant::now();
            in_pod(&fetch(&server))?;
            raws.push(MEBIBYTES / begun.elapsed().as_secs_f64());
            trips.push(round_trip(&client.ok(&ping(&guest), SOON)?)?);
            raw_trips.push(round_trip(&in_pod(&ping(&server))?)?);
        }
        for console in consoles {
            console.leave()?;
        }
        for name in [&ours, &other] {
            namespace.kubectl(&["delete", "vmi", name, "--wait=false"])?;
        }
        figures.insert(format!("network_{binding}"), Figure::compared(&rates, &raws, "MiB/s"));
        figures.insert(format!("network_{binding}_rtt"), Figure::compared(&trips, &raw_trips, "ms"));
    }
    Ok(())
}

/// Starts a web server, and makes what is fetched from it.
pub(super) fn serve() -> String {
    format!(
        "mkdir -p /tmp/www && dd if=/dev/urandom of=/tmp/www/much bs=1M count={MEBIBYTES} && httpd -p {PORT} -h /tmp/www"
    )
}

pub(super) fn fetch(address: &str) -> String {
    format!("wget -qO /dev/null http://{}:{PORT}/much", pods::host(address))
}

pub(super) fn ping(address: &str) -> String {
    format!("ping -c 10 {address}")
}

/// The mean in the output of `ping`, in milliseconds.
pub(super) fn round_trip(said: &str) -> Result<f64> {
    let line = said
        .lines()
        .find(|line| line.contains("min/avg/max"))
        .with_context(|| format!("no round trip: {said}"))?;
    let mean = line.split(" = ").nth(1).and_then(|times| times.split('/').nth(1)).context("no mean")?;
    Ok(mean.parse()?)
}

fn address(namespace: &Namespace, pod: &str) -> Result<String> {
    let pod = namespace.need("pod", pod)?;
    Ok(pod["status"]["podIP"].as_str().context("a pod without an address")?.to_owned())
}

fn pod(namespace: &Namespace, name: &str, node: &str, script: &str) -> Result<()> {
    let mut manifest = pods::pod(name, &["sh", "-c", script]);
    manifest["spec"]["nodeName"] = json!(node);
    // As root with the usual capabilities.
    manifest["spec"]["securityContext"] = json!({});
    manifest["spec"]["containers"][0]["securityContext"] = json!({});
    namespace.apply(&manifest)?;
    namespace.wait("pod", name, "to run", SOON, |pod| pod["status"]["phase"] == "Running").map(drop)
}

fn instance(name: &str, binding: &str, node: &str) -> Value {
    let mut manifest = guest::instance(name);
    let spec = guest::spec_of(&mut manifest);
    spec["domain"]["devices"]["interfaces"] = json!([{ "name": "default", binding: {} }]);
    spec["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    manifest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_a_ping_is_read() {
        let said = "10 packets transmitted\nround-trip min/avg/max = 0.331/0.512/0.9 ms\n";
        assert_eq!(round_trip(said).unwrap(), 0.512);
        assert!(round_trip("sendto: no route").is_err());
    }
}
