//! How many machines were created: KubeVirt's count, of those that this process has admitted. That an admitted one may still be
//! refused by somebody else is part of it there, too.

use barevirt_component::metrics::Metrics;
use barevirt_component::metrics::names::VMS_CREATED;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// The count, by namespace.
#[derive(Clone, Debug, Default)]
pub struct Created(Family<[(&'static str, String); 1], Counter>);

impl Created {
    /// A count that `metrics` exports.
    pub fn exported(metrics: &mut Metrics) -> Self {
        let created = Created::default();
        metrics.register(&VMS_CREATED, created.0.clone());
        created
    }

    /// Counts one more.
    pub(super) fn count(&self, namespace: &str) {
        self.0.get_or_create(&[("namespace", namespace.to_owned())]).inc();
    }
}
