//! Number of created machines: KubeVirt's count, which counts machines that this process has admitted. As in
//! KubeVirt, it includes machines that another webhook refuses afterwards.

use barevirt_component::metrics::Metrics;
use barevirt_component::metrics::names::VMS_CREATED;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// The counter, by namespace.
#[derive(Clone, Debug, Default)]
pub struct Created(Family<[(&'static str, String); 1], Counter>);

impl Created {
    /// A counter that `metrics` exports.
    pub fn exported(metrics: &mut Metrics) -> Self {
        let created = Created::default();
        metrics.register(&VMS_CREATED, created.0.clone());
        created
    }

    /// Counts one machine.
    pub(super) fn count(&self, namespace: &str) {
        self.0.get_or_create(&[("namespace", namespace.to_owned())]).inc();
    }
}
