//! Metrics of the controllers' queues, and how often each instance was reconciled, under KubeVirt's names.
//!
//! ```text
//!   event ──► added ─(waiting, each object once)─► begun ─(running)─► its guard is dropped
//!   again, after a pause that its reconciliation asked for ──► begun, and due when the pause was over
//! ```
//!
//! The queues are kube's, which has no metrics; this module records what enters and leaves them.

use barevirt_component::metrics::names::{
    Metric, QUEUE_ADDS, QUEUE_DEPTH, QUEUE_LONGEST, QUEUE_RETRIES, QUEUE_UNFINISHED, QUEUE_WAIT, QUEUE_WORK,
    VMI_SYNCS,
};
use barevirt_component::metrics::{Metrics, begin};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Name of a queue.
type Name = [(&'static str, &'static str); 1];
/// Namespace and name of an object.
type Key = (String, String);

/// The metrics of all queues of this process.
#[derive(Clone, Debug)]
pub struct Backlogs {
    /// Machines.
    pub vms: Backlog,
    /// Instances.
    pub vmis: Backlog,
    /// Replica sets.
    pub sets: Backlog,
    /// Pools.
    pub pools: Backlog,
    /// Migrations.
    pub vmims: Backlog,
    /// Instances that may have to leave their node.
    pub evacuations: Backlog,
}

/// One queue.
#[derive(Clone, Debug)]
pub struct Backlog {
    name: Name,
    objects: Arc<Mutex<Objects>>,
    adds: Counter,
    retries: Counter,
    wait: Histogram,
    work: Histogram,
}

#[derive(Debug, Default)]
struct Objects {
    /// Since when each object waits to be reconciled.
    waiting: HashMap<Key, Instant>,
    /// Since when each object is being reconciled.
    running: HashMap<Key, Instant>,
    /// How often each object has been reconciled.
    begun: HashMap<Key, u64>,
}

impl Backlogs {
    /// Empty queues, whose metrics are exported from now on.
    pub fn exported(metrics: &mut Metrics) -> Self {
        let counts = |metrics: &mut Metrics, metric: &Metric| {
            let family = Family::<Name, Counter>::default();
            metrics.register(metric, family.clone());
            family
        };
        let times = |metrics: &mut Metrics, metric: &Metric| {
            // From ten nanoseconds, each ten times the former, as in KubeVirt.
            let histogram = || Histogram::new(exponential_buckets(1e-8, 10.0, 10));
            let family = Family::<Name, Histogram, fn() -> Histogram>::new_with_constructor(histogram);
            metrics.register(metric, family.clone());
            family
        };
        let (adds, retries) = (counts(metrics, &QUEUE_ADDS), counts(metrics, &QUEUE_RETRIES));
        let (wait, work) = (times(metrics, &QUEUE_WAIT), times(metrics, &QUEUE_WORK));
        let one = |name| {
            let name = [("name", name)];
            Backlog {
                objects: Arc::default(),
                adds: (*adds.get_or_create(&name)).clone(),
                retries: (*retries.get_or_create(&name)).clone(),
                wait: (*wait.get_or_create(&name)).clone(),
                work: (*work.get_or_create(&name)).clone(),
                name,
            }
        };
        let backlogs = Backlogs {
            vms: one("virt-controller-vm"),
            vmis: one("virt-controller-vmi"),
            sets: one("virt-controller-replicaset"),
            pools: one("virt-controller-pool"),
            vmims: one("virt-controller-migration"),
            evacuations: one("virt-controller-evacuation"),
        };
        metrics.collect(backlogs.clone());
        backlogs
    }
}

impl Backlog {
    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object has been queued.
    pub fn added(&self, namespace: &str, name: &str) {
        self.objects().waiting.entry((namespace.to_owned(), name.to_owned())).or_insert_with(|| {
            self.adds.inc();
            Instant::now()
        });
    }

    /// An object is gone: it will not be reconciled.
    pub fn dropped(&self, namespace: &str, name: &str) {
        let (key, mut objects) = ((namespace.to_owned(), name.to_owned()), self.objects());
        objects.waiting.remove(&key);
        objects.begun.remove(&key);
    }

    /// A reconciliation has begun; it lasts as long as the returned guard lives.
    pub fn begun(&self, namespace: &str, name: &str) -> Running {
        let (key, now) = ((namespace.to_owned(), name.to_owned()), Instant::now());
        let mut objects = self.objects();
        let waited = objects.waiting.remove(&key).map_or_else(
            || {
                // Only its own reconciliation asked for it.
                self.adds.inc();
                Duration::ZERO
            },
            |since| now.duration_since(since),
        );
        self.wait.observe(waited.as_secs_f64());
        objects.running.insert(key.clone(), now);
        let begun = objects.begun.entry(key.clone()).or_default();
        *begun = begun.saturating_add(1);
        Running { backlog: self.clone(), key }
    }

    /// A reconciliation failed and will be retried.
    pub fn failed(&self) {
        self.retries.inc();
    }

    /// How many objects wait and are not being reconciled.
    fn depth(&self) -> usize {
        let objects = self.objects();
        objects.waiting.keys().filter(|key| !objects.running.contains_key(*key)).count()
    }

    /// How long each running reconciliation has taken so far.
    fn running(&self) -> Vec<Duration> {
        self.objects().running.values().map(Instant::elapsed).collect()
    }
}

/// Guard of a running reconciliation.
#[derive(Debug)]
pub struct Running {
    backlog: Backlog,
    key: Key,
}

impl Drop for Running {
    fn drop(&mut self) {
        let since = self.backlog.objects().running.remove(&self.key);
        since.iter().for_each(|since| self.backlog.work.observe(since.elapsed().as_secs_f64()));
    }
}

/// A metric's value for a queue.
type Value = fn(&Backlog) -> f64;

impl Collector for Backlogs {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let told: [(&Metric, Value); 3] = [
            (&QUEUE_DEPTH, |one| f64::from(u32::try_from(one.depth()).unwrap_or(u32::MAX))),
            (&QUEUE_UNFINISHED, |one| one.running().iter().sum::<Duration>().as_secs_f64()),
            (&QUEUE_LONGEST, |one| one.running().into_iter().max().unwrap_or_default().as_secs_f64()),
        ];
        for (metric, value) in told {
            let mut family = begin(&mut encoder, metric)?;
            for one in [&self.vms, &self.vmis, &self.sets, &self.pools, &self.vmims, &self.evacuations] {
                ConstGauge::new(value(one)).encode(family.encode_family(&one.name)?)?;
            }
        }
        let mut family = begin(&mut encoder, &VMI_SYNCS)?;
        for ((namespace, name), count) in &self.vmis.objects().begun {
            let labels = [("namespace", namespace.as_str()), ("name", name.as_str())];
            ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_component::metrics::names::is_exported;

    #[test]
    fn an_object_waits_once_and_is_looked_at() {
        let mut metrics = Metrics::default();
        let backlogs = Backlogs::exported(&mut metrics);
        let told = |metric: &Metric, part: &str| -> f64 {
            let text = metrics.text();
            let start = format!("{}{part}{{name=\"virt-controller-vmi\"}} ", metric.name);
            let line = text.lines().find_map(|line| line.strip_prefix(&start));
            line.unwrap_or_else(|| panic!("no {start} in {text}")).parse().unwrap()
        };
        let queue = &backlogs.vmis;
        for name in ["a", "b", "a"] {
            queue.added("shop", name);
        }
        assert_eq!((told(&QUEUE_ADDS, ""), told(&QUEUE_DEPTH, "")), (2.0, 2.0));
        let running = queue.begun("shop", "a");
        // It changes during its reconciliation: another one follows.
        queue.added("shop", "a");
        assert_eq!((told(&QUEUE_ADDS, ""), told(&QUEUE_DEPTH, "")), (3.0, 1.0));
        assert!(told(&QUEUE_UNFINISHED, "") > 0.0 && told(&QUEUE_LONGEST, "") > 0.0);
        assert_eq!((told(&QUEUE_WAIT, "_count"), told(&QUEUE_WORK, "_count")), (1.0, 0.0));
        queue.failed();
        drop(running);
        queue.dropped("shop", "b");
        assert_eq!((told(&QUEUE_DEPTH, ""), told(&QUEUE_UNFINISHED, "")), (1.0, 0.0));
        drop(queue.begun("shop", "a"));
        // Without an event.
        drop(queue.begun("shop", "a"));
        assert_eq!((told(&QUEUE_ADDS, ""), told(&QUEUE_DEPTH, "")), (4.0, 0.0));
        assert_eq!((told(&QUEUE_WORK, "_count"), told(&QUEUE_RETRIES, "")), (3.0, 1.0));
        let synced = || {
            let text = metrics.text();
            let lines = text.lines().filter(|line| line.starts_with(VMI_SYNCS.name));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        // Machines are not instances.
        drop(backlogs.vms.begun("shop", "a"));
        assert_eq!(synced(), [r#"kubevirt_vmi_sync_total{namespace="shop",name="a"} 3"#]);
        queue.dropped("shop", "a");
        assert!(synced().is_empty());
        for name in barevirt_component::metrics::names_in(&metrics.text()) {
            assert!(is_exported(&name), "{name}");
        }
    }
}
