//! A TCP connection between a pod and a guest while the guest moves, or while something is disturbed: the guest sends numbers,
//! and the pod notes when each arrives.

use crate::Console;
use crate::container::Container;
use crate::namespace::Namespace;
use crate::networks;
use crate::wait::SOON;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

/// The pod at the other end.
pub const POD: &str = "listener";
/// What a guest has on the network of its card, for IPv4 and IPv6.
const ON_CARD: [OnCard; 2] = [
    OnCard { guest: "10.80.0.200", prefix: 24, range: "10.80.0.0/24", last: "10.80.0.99" },
    OnCard { guest: "fd80::200", prefix: 64, range: "fd80::/64", last: "fd80::99" },
];
/// The longest time that may pass without a number, on a busy machine.
const LONGEST_GAP: Duration = Duration::from_secs(20);
/// Where the guest sends its numbers.
pub const PORT: u16 = 9000;
/// The guest's network and card.
const CARD: &str = "lan";
/// MAC address of the card, from which alone the network takes packets.
const MAC: &str = "02:00:00:77:00:10";

/// The guest's address, and the range from which the pod's is chosen.
struct OnCard {
    guest: &'static str,
    prefix: u8,
    range: &'static str,
    last: &'static str,
}

/// What the pod has received.
#[derive(Debug)]
pub struct Received {
    /// How many numbers, each once and in order.
    pub numbers: usize,
    /// The longest time between two of them.
    pub longest_gap: Duration,
}

impl Received {
    /// Checks that the connection was not interrupted for long.
    ///
    /// # Errors
    /// When it was.
    pub fn has_no_long_gap(&self) -> Result<()> {
        let gap = self.longest_gap;
        ensure!(gap < LONGEST_GAP, "there was no number for {gap:?}");
        Ok(())
    }
}

/// Gives a manifest a second card, on a network of both nodes.
///
/// # Errors
/// When the definition of the network is refused.
pub fn with_card(namespace: &Namespace, manifest: &mut Value) -> Result<()> {
    networks::with_card(namespace, manifest, CARD, MAC)
}

/// Starts the pod, and the connection from it to the card of the guest at that console, which is logged in.
///
/// # Errors
/// When the pod does not run, or the first numbers do not arrive.
pub fn begin(namespace: &Namespace, console: &mut Console) -> Result<()> {
    begin_on_card(namespace, &[POD], console)
}

/// The same from pods of these names: the first one connects by IPv4, a second one by IPv6.
///
/// # Errors
/// When a pod does not run, or the first numbers do not arrive.
pub fn begin_on_card(namespace: &Namespace, pods: &[&str], console: &mut Console) -> Result<()> {
    console.ok("ip link set eth1 up", SOON)?;
    for (name, OnCard { guest, prefix, range, last }) in pods.iter().zip(ON_CARD) {
        // Each node has a list of its own of the addresses in use, so each pod has a range of its own.
        let ranges = json!([[{ "subnet": range, "rangeEnd": last }]]);
        networks::define(namespace, name, &json!({ "ipam": { "type": "host-local", "ranges": ranges } }))?;
        let mut pod = listener(name, guest);
        pod["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": name });
        // The guest does not answer at an IPv6 address until it knows that no other station has it.
        let is_settled = "until ! ip -6 addr show dev eth1 | grep -q tentative; do sleep 0.2; done";
        console.ok(&format!("ip addr add {guest}/{prefix} dev eth1 && {is_settled}"), SOON)?;
        connect(namespace, name, &pod, console)?;
    }
    Ok(())
}

/// Starts a pod of that name, and the connection from it to the guest at that console, which is logged in. The guest is
/// reached at `address`.
///
/// # Errors
/// When the pod does not run, or the first numbers do not arrive.
pub fn begin_at(namespace: &Namespace, pod: &str, console: &mut Console, address: &str) -> Result<()> {
    connect(namespace, pod, &listener(pod, address), console)
}

/// The same from a pod on that node, which is also on a network of the test bed if one is named.
///
/// # Errors
/// When the pod does not run, or the first numbers do not arrive.
pub fn begin_on(
    namespace: &Namespace,
    pod: &str,
    (node, network): (&str, Option<&str>),
    console: &mut Console,
    address: &str,
) -> Result<()> {
    let mut manifest = listener(pod, address);
    manifest["spec"]["nodeName"] = json!(node);
    if let Some(network) = network {
        manifest["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": network });
    }
    connect(namespace, pod, &manifest, console)
}

/// A pod that connects to that address once it is asked to.
fn listener(name: &str, address: &str) -> Value {
    // At the end of its input, nc would end the connection.
    let notes = format!(
        "sleep 100000 | nc {address} {PORT} | while read n; do read now rest </proc/uptime; echo $now $n; done >/tmp/received"
    );
    let script = format!("until [ -e /tmp/begin ]; do sleep 0.2; done; {notes}; exec sleep 3600");
    crate::pods::pod(name, &["sh", "-c", &script])
}

fn connect(namespace: &Namespace, name: &str, pod: &Value, console: &mut Console) -> Result<()> {
    namespace.apply(pod)?;
    namespace.wait("pod", name, "to run", SOON, |pod| pod["status"]["phase"] == "Running")?;
    let count = "(n=0; while true; do n=$((n+1)); echo $n; sleep 0.05; done)";
    // The pod tries once, so the guest has to listen before.
    let listens = format!("until grep -q ':{PORT:04X} .* 0A ' /proc/net/tcp*; do sleep 0.2; done");
    console.ok(&format!("{{ {count} | nc -l -p {PORT} >/dev/null 2>&1 & }}; {listens}"), SOON)?;
    inside(namespace, name, "touch /tmp/begin")?;
    crate::wait::until_true("the first numbers to arrive", SOON, || {
        Ok(received_by(namespace, name)?.numbers > 20)
    })
}

/// What has arrived until now.
///
/// # Errors
/// When a number is missing or came twice.
pub fn received(namespace: &Namespace) -> Result<Received> {
    received_by(namespace, POD)
}

/// What the pod of that name has received until now.
///
/// # Errors
/// When a number is missing or came twice.
pub fn received_by(namespace: &Namespace, pod: &str) -> Result<Received> {
    read(&inside(namespace, pod, "cat /tmp/received 2>/dev/null || true")?)
}

/// Waits until the pod of that name receives more numbers.
///
/// # Errors
/// When no more arrive, or one is missing or came twice.
pub fn goes_on(namespace: &Namespace, pod: &str) -> Result<()> {
    let before = received_by(namespace, pod)?.numbers;
    crate::wait::until_true(&format!("more numbers to arrive in {pod}"), SOON, || {
        Ok(received_by(namespace, pod)?.numbers > before + 20)
    })
}

/// What a command says in the pod of that name, where it has to succeed.
fn inside(namespace: &Namespace, pod: &str, script: &str) -> Result<String> {
    let output = Container::of(&namespace.need("pod", pod)?)?.sh(script)?;
    ensure!(output.code == 0, "{script} fails in {pod}: {}", output.text());
    Ok(output.stdout)
}

/// Reads lines of seconds and numbers. The last line may be incomplete.
fn read(text: &str) -> Result<Received> {
    let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let mut received = Received { numbers: 0, longest_gap: Duration::ZERO };
    let mut last: Option<Duration> = None;
    for line in complete.lines() {
        let (seconds, number) = line.split_once(' ').with_context(|| format!("{line:?} is not a note"))?;
        let at = Duration::try_from_secs_f64(seconds.parse()?)?;
        received.numbers += 1;
        ensure!(
            number.parse::<usize>()? == received.numbers,
            "{number} comes as number {}",
            received.numbers
        );
        received.longest_gap =
            received.longest_gap.max(last.map_or(Duration::ZERO, |last| at.saturating_sub(last)));
        last = Some(at);
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_number_is_found_and_gaps_are_measured() {
        let received = read("10.50 1\n10.55 2\n12.05 3\n12.1").unwrap();
        assert_eq!((received.numbers, received.longest_gap), (3, Duration::from_millis(1500)));
        assert_eq!(read("").unwrap().numbers, 0);
        assert!(read("10.50 1\n10.55 3\n").is_err());
        assert!(read("10.50 1\n10.55 1\n").is_err());
    }
}
