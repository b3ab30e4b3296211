//! Downward metrics: the guest reads metrics of its node and its machine, in the format of vhostmd.
//!
//! ```text
//!   guest ─ GET /metrics/XML ─► virtio-serial port ─► serve ─┐
//!                                                           ├─► Source ─► Meter (QEMU, at most QUERY_TIMEOUT), /proc, /sys
//!   guest ◄─ virtio disk ◄─ file ◄─────── refresh, every 5 s ┘
//! ```
//!
//! The guest's requests are limited: one per second, each a short line. Slow answers delay only this guest,
//! and if QEMU hangs, the answer has no values.

pub mod disk;
pub mod host;
pub mod request;
pub mod xml;

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use barevirt_protocol::v1::MachineStats;
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Qmp};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::host::Host;
use self::request::Requests;
use self::xml::{Amount, Metric, Subject};
use crate::stats::{Meter, QUERY_TIMEOUT};

/// Time between two answers, as KubeVirt's.
const PACE: Duration = Duration::from_secs(1);
/// Time between two reports on the disk, as KubeVirt's.
const REFRESH: Duration = Duration::from_secs(5);
/// The answer while there are no values.
const NOTHING: &str =
    "<metrics><!-- host metrics not available --><!-- VM metrics not available --></metrics>";
/// The answer to an invalid request.
const INVALID: &str = "INVALID REQUEST\n\n";
/// Bytes read at a time.
const CHUNK: usize = 256;

/// Collects the metrics for a guest.
#[derive(Debug, Clone)]
pub struct Source {
    node: String,
    meter: Meter,
    people: watch::Receiver<Option<Qmp>>,
    /// The guest's memory if the balloon does not report it.
    memory: u64,
    version: Option<String>,
}

impl Source {
    /// A source for a guest with this much memory on this node.
    #[must_use]
    pub fn new(node: &str, meter: Meter, people: watch::Receiver<Option<Qmp>>, memory: u64) -> Self {
        Self { node: node.to_owned(), meter, people, memory, version: None }
    }

    /// The current metrics as XML; `None` while QEMU does not answer.
    pub async fn report(&mut self) -> Option<String> {
        let machine = self.meter.machine().await?;
        if self.version.is_none() {
            self.version = Some(self.ask_version().await?);
        }
        let version = self.version.as_deref().unwrap_or_default();
        let host = Host::read(Path::new("/proc"), Path::new("/sys"), jiff::Timestamp::now().as_second());
        let mut metrics = names(&self.node, version);
        metrics.extend(guest(&machine, self.memory));
        metrics.extend(host.metrics());
        Some(xml::document(&metrics))
    }

    async fn ask_version(&self) -> Option<String> {
        let qmp = self.people.borrow().clone()?;
        let answer = qmp.execute(qmp::query_version {}, Deadline::after(QUERY_TIMEOUT)).await.ok()?;
        Some(version(&answer.qemu))
    }
}

/// `query-version`, as KubeVirt writes it.
fn version(qemu: &qmp::VersionTriple) -> String {
    format!("qemu-{}.{}.{}", qemu.major, qemu.minor, qemu.micro)
}

fn names(node: &str, version: &str) -> Vec<Metric> {
    [
        ("HostName", node),
        ("HostSystemInfo", "linux"),
        // Readers of these metrics expect KubeVirt's names.
        ("VirtualizationVendor", "kubevirt.io"),
        ("VirtProductInfo", version),
    ]
    .map(|(name, value)| Metric::new(Subject::Host, name, Amount::Text(value.to_owned()), ""))
    .into()
}

fn guest(machine: &MachineStats, memory: u64) -> Vec<Metric> {
    let ran: u64 = machine.vcpus.iter().map(|cpu| cpu.run_ns).sum();
    let kibibytes = Amount::Unsigned(machine.balloon_bytes.unwrap_or(memory) / 1024);
    let of = |name, amount, unit| Metric::new(Subject::Guest, name, amount, unit);
    let processors = i64::try_from(machine.vcpus.len()).unwrap_or(i64::MAX);
    vec![
        of("TotalCPUTime", Amount::Micros(ran / 1000), "s"),
        of("ResourceProcessorLimit", Amount::Signed(processors), ""),
        of("PhysicalMemoryAllocatedToVirtualSystem", kibibytes.clone(), "KiB"),
        of("ResourceMemoryLimit", kibibytes, "KiB"),
    ]
}

/// Answers the guest's requests until QEMU closes its end.
pub async fn serve(port: UnixStream, mut source: Source) {
    let mut requests = Requests::default();
    let mut next = Instant::now();
    loop {
        // Earlier requests wait in the guest.
        sleep_until(next).await;
        let request = loop {
            if let Some(request) = requests.take() {
                break request;
            }
            let mut chunk = [0; CHUNK];
            match receive(&port, &mut chunk).await {
                Ok(count @ 1..) => requests.push(&chunk[..count]),
                Ok(0) | Err(_) => return,
            }
        };
        next = Instant::now() + PACE;
        let answer = match request {
            Ok(()) => {
                let mut answer = source.report().await.unwrap_or_else(|| NOTHING.to_owned());
                // vm-dump-metrics recognizes the end by this.
                answer.push_str("\n\n");
                answer
            }
            Err(invalid) => {
                tracing::debug!(%invalid, "no request for metrics");
                INVALID.to_owned()
            }
        };
        if send(&port, answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn receive(port: &UnixStream, chunk: &mut [u8]) -> io::Result<usize> {
    loop {
        port.readable().await?;
        match port.try_read(chunk) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

async fn send(port: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        port.writable().await?;
        match port.try_write(bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Updates the disk for as long as the process lives. If values are unknown, the last report stays.
pub async fn refresh(file: File, mut source: Source) {
    let mut ticks = interval(REFRESH);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failed = false;
    loop {
        ticks.tick().await;
        let Some(report) = source.report().await else { continue };
        match disk::write(&file, &report) {
            Ok(()) => failed = false,
            Err(error) if !failed => {
                tracing::warn!(%error, "the guest's disk of metrics cannot be written");
                failed = true;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_protocol::v1::VcpuStats;
    use serde_json::json;

    #[test]
    fn a_guests_numbers() {
        let vcpu = |run_ns| VcpuStats { run_ns, ..VcpuStats::default() };
        let machine =
            MachineStats { vcpus: vec![vcpu(1_500_000_000), vcpu(2_000)], ..MachineStats::default() };
        let text = xml::document(&guest(&machine, 64 << 20));
        assert!(text.contains("<value>1.500002</value>"), "{text}");
        assert!(text.contains("<name>ResourceProcessorLimit</name>\n    <value>2</value>"), "{text}");
        assert!(text.contains("<value>65536</value>"), "{text}");
        let shrunk = MachineStats { balloon_bytes: Some(32 << 20), ..machine };
        assert!(xml::document(&guest(&shrunk, 64 << 20)).contains("<value>32768</value>"));
    }

    #[test]
    fn the_version_has_three_numbers() {
        let version = |answer| {
            serde_json::from_value::<qmp::VersionInfo>(answer).map(|answer| version(&answer.qemu)).ok()
        };
        let answer = json!({"qemu": {"micro": 2, "minor": 0, "major": 10}, "package": "Debian"});
        assert_eq!(version(answer).as_deref(), Some("qemu-10.0.2"));
        assert_eq!(version(json!({})), None);
    }

    #[tokio::test]
    async fn requests_are_answered_one_by_one_without_a_qemu_too() {
        let (_status, status) = watch::channel(crate::status::Status::default());
        let (_people, people) = watch::channel(None);
        let (_guest, guest) = watch::channel(None);
        let source = Source::new("n", Meter::new(people.clone(), status, guest), people, 0);
        let (guest, ours) = UnixStream::pair().unwrap();
        let served = tokio::spawn(serve(ours, source));
        let begun = Instant::now();
        send(&guest, b"GET /metrics/XML\n\nGET /metrics\n\n").await.unwrap();
        let mut seen = String::new();
        let mut chunk = [0; 4096];
        while !seen.ends_with(INVALID) {
            let count = receive(&guest, &mut chunk).await.unwrap();
            assert!(count > 0, "{seen}");
            seen.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
        }
        assert_eq!(seen, format!("{NOTHING}\n\n{INVALID}"));
        assert!(begun.elapsed() >= PACE, "one a second");
        drop(guest);
        served.await.unwrap();
    }
}
