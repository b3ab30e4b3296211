//! Networks of guests on taps that virt-handler makes: speed from guest to guest, against QEMUs started by hand on
//! taps that it made for them; and the time to make a pod's network, against its steps alone.
//!
//! ```text
//!   launcher: client ── tap, eth0 ─┐                 ┌─ eth0, tap ── QEMU by hand: client
//!   launcher: server ── tap, eth0 ─┴─ node: bridge ──┴─ eth0, tap ── QEMU by hand: server
//! ```
//!
//! All four guests run, and the two sides take turns. The guests of QEMUs by hand have no DHCP server, so they are given
//! their addresses at the console.

use super::network::{FETCHED, MEBIBYTES, fetch, ping, round_trip, serve};
use super::pod::{Pod, Prepared as Made, SOON};
use super::raw::{Control, Raw};
use super::{Figure, Figures, Rounds};
use crate::command::repository;
use crate::wait::BOOT;
use crate::{Console, guest};
use anyhow::{Context, Result, bail, ensure};
use barevirt_api::masquerade::{IPV4, IPV6};
use barevirt_api::names::LAUNCHER_UID;
use barevirt_protocol::names::STREAM_SERIAL0;
use command_fds::{CommandFdExt, FdMapping};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use virt_handler::network::addresses::MacAddress;
use virt_handler::network::apply::Descriptors;
use virt_handler::network::nft::Nftables;
use virt_handler::network::state::{Binding, Masquerade, Wanted};
use virt_handler::network::{Prepared, apply, guest as card, netns, observe, plan, prepare};

/// The budget of speed, relative to QEMUs started by hand.
const LEAST: f64 = 0.98;
/// Network of the pods; the node has its first address.
const NETWORK: &str = "10.244.9";
const UIDS: [&str; 2] = ["6b8d0f2c-0000-4000-8000-000000000003", "6b8d0f2c-0000-4000-8000-000000000004"];
/// Pods whose address can be used for another one.
const MOST_PODS: usize = 250;

/// Measures `tap_masquerade`, `tap_bridge`, `_rtt` of both, and `network_setup_masquerade`, `network_setup_bridge`.
/// Needs root.
pub fn measure(launcher: &Path, rounds: Rounds, figures: &mut Figures) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        for (name, binding) in [("masquerade", masquerade()), ("bridge", Binding::Bridge)] {
            set_up(name, &binding, rounds.set_ups, figures).await?;
            speed(launcher, name, &binding, rounds.fetches, figures).await?;
        }
        Ok(())
    })
}

fn masquerade() -> Binding {
    Binding::Masquerade(Masquerade { ipv4: IPV4, ipv6: IPV6, ports: Vec::new(), has_sidecar: false })
}

/// The only card of a guest on its pod's network.
fn wanted(binding: &Binding) -> Wanted {
    Wanted {
        interface: "default".to_owned(),
        network: "default".to_owned(),
        index: 0,
        candidates: vec!["eth0".to_owned()],
        tap_owner: u32::try_from(LAUNCHER_UID).unwrap_or(u32::MAX),
        queues: 1,
        mac: matches!(binding, Binding::Masquerade(_)).then_some(MacAddress([0x02, 0, 0, 0, 0, 7])),
        binding: binding.clone(),
        alone: false,
    }
}

/// How long the network of a pod takes.
async fn set_up(name: &str, binding: &Binding, rounds: usize, figures: &mut Figures) -> Result<()> {
    let mut node = Node::make()?;
    let (mut ours, mut steps) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let pod = node.pod()?;
        let begun = Instant::now();
        let made = prepare(pod, vec![wanted(binding)], BTreeSet::new()).await?;
        ours.push(milliseconds(begun.elapsed()));
        drop(made);
        let (pod, wanted) = (node.pod()?, wanted(binding));
        steps.push(milliseconds(netns::run(pod, move || steps_alone(&wanted)).await??));
    }
    figures.insert(format!("network_setup_{name}"), Figure::compared(&ours, &steps, "ms"));
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// How long the steps of a plan take, and the connections to the kernel that they need: without reading what is there,
/// planning, and reading the result.
fn steps_alone(wanted: &Wanted) -> Result<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let begun = Instant::now();
        let (connection, netlink, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        let translates = matches!(wanted.binding, Binding::Masquerade(_));
        let nftables = translates.then(Nftables::open).transpose()?;
        let connected = begun.elapsed();
        let cards = [wanted.clone()];
        let before = observe::observe(&netlink, nftables.as_ref(), &cards, &BTreeSet::new()).await?;
        let steps = plan::plan(wanted, &before)?;
        let begun = Instant::now();
        // The end of its tap does not count.
        let opened = apply::apply(&netlink, nftables.as_ref(), steps).await?;
        let time = connected + begun.elapsed();
        drop(opened);
        Ok(time)
    })
}

/// The speed from one guest to another.
async fn speed(
    launcher: &Path,
    name: &str,
    binding: &Binding,
    rounds: usize,
    figures: &mut Figures,
) -> Result<()> {
    let mut node = Node::make()?;
    let [client, server] = UIDS;
    let (client, raw_client) =
        Guest::launched(launcher, client, name, network(&mut node, binding).await?).await?;
    let (server, raw_server) =
        Guest::launched(launcher, server, name, network(&mut node, binding).await?).await?;
    let mut by_hand = Side {
        client: Guest::by_hand(raw_client, &client.network, network(&mut node, binding).await?)?,
        server: Guest::by_hand(raw_server, &server.network, network(&mut node, binding).await?)?,
    };
    let mut ours = Side { client, server };
    ours.begin(false)?;
    by_hand.begin(true)?;
    let (mut rates, mut raws, mut trips, mut raw_trips) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        raws.push(by_hand.rate()?);
        rates.push(ours.rate()?);
        raw_trips.push(by_hand.trip()?);
        trips.push(ours.trip()?);
    }
    let figure = Figure::compared(&rates, &raws, "MiB/s")
        .within("at least 0.98 of raw", |figure| figure.ratio.is_some_and(|ratio| ratio >= LEAST));
    figures.insert(format!("tap_{name}"), figure);
    let figure = Figure::compared(&trips, &raw_trips, "ms")
        .within("at most raw / 0.98", |figure| figure.ratio.is_some_and(|ratio| ratio <= 1.0 / LEAST));
    figures.insert(format!("tap_{name}_rtt"), figure);
    Ok(())
}

/// Makes a pod, and the network of its guest; also its descriptors.
async fn network(node: &mut Node, binding: &Binding) -> Result<(Wanted, Prepared, Descriptors)> {
    let mut outcome = prepare(node.pod()?, vec![wanted(binding)], BTreeSet::new()).await?;
    let (wanted, prepared) = outcome.cards.pop().context("the pod's network has no card")?;
    Ok((wanted, prepared, outcome.opened))
}

/// Two guests of one kind.
struct Side {
    client: Guest,
    server: Guest,
}

impl Side {
    /// Waits until both have booted, and starts the server.
    fn begin(&mut self, tell_addresses: bool) -> Result<()> {
        for guest in [&mut self.client, &mut self.server] {
            guest.console.login(BOOT)?;
            if tell_addresses {
                let ipv4 = guest.network.ipv4.as_ref().context("the guest has no IPv4 address")?;
                let line =
                    format!("ip link set eth0 up && ip addr add {}/{} dev eth0", ipv4.address, ipv4.prefix);
                guest.console.ok(&line, SOON)?;
                if let Some(gateway) = ipv4.gateway {
                    guest.console.ok(&format!("ip route add default via {gateway}"), SOON)?;
                }
            }
        }
        self.server.console.ok(&serve(), FETCHED).map(drop)
    }

    /// Mebibytes in a second.
    fn rate(&mut self) -> Result<f64> {
        let line = fetch(&self.server.address()?);
        let begun = Instant::now();
        self.client.console.ok(&line, FETCHED)?;
        Ok(MEBIBYTES / begun.elapsed().as_secs_f64())
    }

    /// Milliseconds there and back.
    fn trip(&mut self) -> Result<f64> {
        let line = ping(&self.server.address()?);
        round_trip(&self.client.console.ok(&line, SOON)?)
    }
}

/// A guest with its console.
struct Guest {
    console: Console,
    network: Prepared,
    _launcher: Option<Pod>,
    _by_hand: Option<(Raw, Control)>,
}

impl Guest {
    /// The guest of a launcher, and what starts its QEMU by hand.
    async fn launched(
        launcher: &Path,
        uid: &str,
        binding: &str,
        (wanted, network, descriptors): (Wanted, Prepared, Descriptors),
    ) -> Result<(Self, Raw)> {
        let disk = repository().join("target/images/guest-tiny.qcow2");
        let interfaces = vec![card::facts(&wanted, &network, &Default::default())];
        let made = Made { interfaces, descriptors, ..Made::default() };
        let pod = Pod::start(launcher, &instance(uid, binding), &disk, made).await?;
        let mut watch = pod.watch().await?;
        watch.until("running", |status| !status.machine_type.is_empty() && status.ready).await?;
        let raw = Raw::with(&pod.launcher, &pod.folder(), &disk)?;
        let serial = pod.descriptors().await?.take(STREAM_SERIAL0, SOON).await?;
        Ok((Self { console: terminal(serial)?, network, _launcher: Some(pod), _by_hand: None }, raw))
    }

    /// The guest of a QEMU by hand, with the command line of a guest on another network.
    fn by_hand(
        mut raw: Raw,
        other: &Prepared,
        (_, network, mut descriptors): (Wanted, Prepared, Descriptors),
    ) -> Result<Self> {
        let tap = descriptors.iter().position(|(name, _)| name.ends_with("/tap")).context("no tap")?;
        raw.connect(descriptors.swap_remove(tap).1, &network.mac.to_string(), &other.mac.to_string());
        let (mut command, control) = raw.command(true)?;
        let console = Console::start(&mut command)?;
        drop(command);
        control.go()?;
        Ok(Self { console, network, _launcher: None, _by_hand: Some((raw, control)) })
    }

    /// The address by which others reach it: that of its pod.
    fn address(&self) -> Result<String> {
        let mut addresses = self.network.pod_addresses.iter().filter(|address| address.is_ipv4());
        let address = addresses.next().copied();
        let own = || self.network.ipv4.as_ref().map(|ipv4| IpAddr::from(ipv4.address));
        Ok(address.or_else(own).context("the pod has no IPv4 address")?.to_string())
    }
}

/// The small guest.
fn instance(uid: &str, binding: &str) -> Value {
    let mut manifest = guest::instance("bench");
    manifest["metadata"]["uid"] = json!(uid);
    manifest["metadata"]["namespace"] = json!("default");
    let spec = guest::spec_of(&mut manifest);
    spec["domain"]["devices"]["interfaces"] = json!([{ "name": "default", binding: {} }]);
    manifest
}

/// A console on a stream: a program copies between it and a terminal.
fn terminal(stream: OwnedFd) -> Result<Console> {
    const STREAM: i32 = 3;
    let mut command = Command::new("bash");
    command.args(["-c", &format!("stty raw -echo; cat <&{STREAM} & exec cat >&{STREAM}")]);
    command.fd_mappings(vec![FdMapping { parent_fd: stream, child_fd: STREAM }])?;
    Console::start(&mut command)
}

/// A network namespace with a bridge, and those of pods, which are connected to it as a network plugin does. They end
/// with it.
struct Node {
    name: String,
    pods: Vec<String>,
}

impl Node {
    fn make() -> Result<Self> {
        let node = Self { name: format!("bench-{}", std::process::id()), pods: Vec::new() };
        let name = &node.name;
        ip(&format!("netns add {name}"))?;
        ip(&format!("-n {name} link add pods type bridge"))?;
        ip(&format!("-n {name} addr add {NETWORK}.1/24 dev pods"))?;
        ip(&format!("-n {name} link set pods up"))?;
        Ok(node)
    }

    /// Another pod with `eth0`.
    fn pod(&mut self) -> Result<OwnedFd> {
        let number = self.pods.len() + 2;
        ensure!(number < MOST_PODS, "the node has no address left for a pod");
        let (node, pod) = (self.name.clone(), format!("{}-{number}", self.name));
        ip(&format!("netns add {pod}"))?;
        self.pods.push(pod.clone());
        ip(&format!("-n {node} link add pod{number} type veth peer name eth0 netns {pod}"))?;
        ip(&format!("-n {node} link set pod{number} master pods up"))?;
        for arguments in [
            "link set lo up".to_owned(),
            format!("addr add {NETWORK}.{number}/24 dev eth0"),
            "link set eth0 up".to_owned(),
            format!("route add default via {NETWORK}.1"),
        ] {
            ip(&format!("-n {pod} {arguments}"))?;
        }
        Ok(File::open(Path::new("/run/netns").join(&pod)).context("open the pod's namespace")?.into())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for name in self.pods.iter().chain([&self.name]) {
            if let Err(problem) = ip(&format!("netns delete {name}")) {
                eprintln!("bench: {problem:#}");
            }
        }
    }
}

/// Runs `ip` with these words as arguments.
fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("run ip")?;
    if !output.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
