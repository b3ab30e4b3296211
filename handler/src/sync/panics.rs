//! Counts how often guest kernels panicked on this node.

use barevirt_component::metrics::Metrics;
use barevirt_component::metrics::names::GUEST_PANICS;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Most instances that are counted separately: once counted, an instance stays for as long as this process
/// lives.
const MOST: usize = 1024;
/// The cause. QEMU's pvpanic only reports that a panic happened.
const UNKNOWN: &str = "unknown";

/// Namespace and name.
type Guest = (String, String);

/// The count for each instance.
#[derive(Clone, Debug, Default)]
pub struct Panics {
    count: Family<[(&'static str, String); 4], Counter>,
    known: Arc<Mutex<BTreeSet<Guest>>>,
}

impl Panics {
    /// A count that `metrics` exports.
    pub fn exported(metrics: &mut Metrics) -> Self {
        let panics = Panics::default();
        metrics.register(&GUEST_PANICS, panics.count.clone());
        panics
    }

    /// Counts one panic.
    pub fn count(&self, namespace: &str, name: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let guest = (namespace.to_owned(), name.to_owned());
        if known.len() >= MOST && !known.contains(&guest) {
            return;
        }
        known.insert(guest);
        drop(known);
        let labels =
            [("namespace", namespace), ("name", name), ("type", UNKNOWN), ("bugcheck_code", UNKNOWN)];
        self.count.get_or_create(&labels.map(|(label, value)| (label, value.to_owned()))).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_counted_by_guest_and_not_without_end() {
        let mut metrics = Metrics::default();
        let panics = Panics::exported(&mut metrics);
        panics.count("shop", "web");
        panics.count("shop", "web");
        for number in 0..2 * MOST {
            panics.count("shop", &format!("vm{number}"));
        }
        let text = metrics.text();
        let line = "\nkubevirt_vmi_guest_os_panic_total{namespace=\"shop\",name=\"web\",type=\"unknown\",\
                    bugcheck_code=\"unknown\"} 2\n";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.matches("kubevirt_vmi_guest_os_panic_total{").count(), MOST);
    }
}
