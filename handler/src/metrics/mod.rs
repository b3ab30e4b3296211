//! Metrics of the guests of this node, next to the handler's own.
//!
//! ```text
//!  scrape ─┐                 ┌─ launcher: Stats, at most GUEST        ┐
//!  scrape ─┴─► one collection┤─ /proc/<launcher>/net/dev              ├─► samples ─► text
//!                            └─ control groups of its container       ┘
//! ```
//!
//! A guest that does not answer in time is left out and counted. Scrapes at the same time, or within
//! [`FRESH`], share one collection. A scrape waits at most [`WHOLE`].

mod container;
mod network;
mod samples;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use barevirt_component::metrics::names::{GUESTS_MISSED, Kind, Metric};
use barevirt_component::metrics::{begin, guest};
use barevirt_protocol::v1::StatsResponse;
use futures::future::{BoxFuture, FutureExt, Shared};
use futures::stream::{self, StreamExt};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use self::samples::Sample;
use crate::launchers::Launcher;
use crate::registry::{Launchers, Subject};

/// Longest time for one guest. Its launcher waits for QEMU a little less.
const GUEST: Duration = Duration::from_secs(3);
/// Longest time for all guests together. The metrics server waits for five seconds.
const WHOLE: Duration = Duration::from_secs(4);
/// How many guests are queried at the same time.
const AT_A_TIME: usize = 32;
/// How long a collection is reused.
const FRESH: Duration = Duration::from_secs(1);

/// Exports the metrics of the guests of this node.
pub struct Guests {
    launchers: Launchers,
    runtime: Handle,
    collection: Mutex<Option<Collection>>,
    missed: Arc<Missed>,
}

/// Number of collections in which a guest's data was incomplete.
#[derive(Debug, Default)]
struct Missed {
    /// Its launcher did not answer.
    launcher: AtomicU64,
    /// QEMU did not answer its launcher.
    monitor: AtomicU64,
}

/// A collection that is in progress or complete.
struct Collection {
    begun: Instant,
    collected: Shared<BoxFuture<'static, Arc<Vec<Collected>>>>,
}

/// The samples of one guest.
#[derive(Debug)]
struct Collected {
    subject: Arc<Subject>,
    samples: Vec<Sample>,
}

impl fmt::Debug for Guests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guests").field("missed", &self.missed).finish_non_exhaustive()
    }
}

impl Guests {
    /// Exports the metrics of the guests in `launchers`. They are queried on `runtime`.
    pub fn new(launchers: Launchers, runtime: Handle) -> Self {
        Self { launchers, runtime, collection: Mutex::default(), missed: Arc::default() }
    }

    /// The collection that scrapes share now.
    fn collection(&self) -> Shared<BoxFuture<'static, Arc<Vec<Collected>>>> {
        let mut last = self.collection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| {
            // A collection in progress is joined; a complete one is reused for a while.
            last.collected.peek().is_none() || last.begun.elapsed() < FRESH
        }) {
            return last.collected.clone();
        }
        let begun = Instant::now();
        let work = collect(self.launchers.guests(), self.missed.clone(), begun + WHOLE);
        // The collection is its own task, so it completes, and counts, even if the scrape was cancelled.
        let task = self.runtime.spawn(work);
        let collected = async move { Arc::new(task.await.unwrap_or_default()) }.boxed().shared();
        *last = Some(Collection { begun, collected: collected.clone() });
        collected
    }
}

/// Queries all guests. Returns by `until`.
async fn collect(
    guests: Vec<(Arc<Subject>, Launcher)>,
    missed: Arc<Missed>,
    until: Instant,
) -> Vec<Collected> {
    let ask = |(subject, launcher): (Arc<Subject>, Launcher)| {
        let missed = missed.clone();
        async move {
            let by = until.min(Instant::now() + GUEST);
            // After the deadline, no other guest is queried.
            let answer = if Instant::now() < until {
                timeout_at(by, launcher.stats(GUEST)).await.ok().and_then(Result::ok)
            } else {
                None
            };
            let count = match &answer {
                None => Some(&missed.launcher),
                Some(StatsResponse { process: Some(_), machine: None, .. }) => Some(&missed.monitor),
                Some(_) => None,
            };
            if let Some(count) = count {
                count.fetch_add(1, Ordering::Relaxed);
            }
            let mut samples = answer.map(|answer| samples::guest(&subject, &answer)).unwrap_or_default();
            // These numbers come from the kernel, whatever the guest does.
            if let Ok(devices) = launcher.peer().network_devices() {
                samples.extend(samples::network(&subject, &network::devices(&devices)));
            }
            let counters = launcher.counters();
            samples.extend(container::samples(counters.throttling(), counters.memory()));
            Collected { subject, samples }
        }
    };
    stream::iter(guests).map(ask).buffer_unordered(AT_A_TIME).collect().await
}

impl Collector for Guests {
    /// Runs on a thread that may block.
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let collected = self.runtime.block_on(self.collection());
        let mut families: BTreeMap<&str, Vec<(&Subject, &Sample)>> = BTreeMap::new();
        for Collected { subject, samples } in collected.iter() {
            for sample in samples {
                families.entry(sample.metric.name).or_default().push((subject, sample));
            }
        }
        for metric in guest::ALL.iter().chain(container::ALL) {
            let Some(lines) = families.get(metric.name) else { continue };
            let mut family = begin(&mut encoder, metric)?;
            for (subject, sample) in lines {
                let own = sample.labels.iter().map(|(name, value)| (*name, value.as_str()));
                let all = subject.labels().chain(own).collect::<Vec<_>>();
                line(metric, sample.value, family.encode_family(&all)?)?;
            }
        }
        let mut family = begin(&mut encoder, &GUESTS_MISSED)?;
        for (part, count) in [("launcher", &self.missed.launcher), ("monitor", &self.missed.monitor)] {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(family.encode_family(&[("part", part)])?)?;
        }
        Ok(())
    }
}

fn line(metric: &Metric, value: f64, to: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match metric.kind {
        Kind::Counter => ConstCounter::new(value).encode(to),
        // No metric of a guest is a histogram.
        Kind::Gauge | Kind::Histogram => ConstGauge::new(value).encode(to),
    }
}
