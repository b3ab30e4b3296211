//! The metrics of `/metrics`. Every name is in [`names`].

pub mod guest;
pub mod names;
mod process;

use names::{Kind, Metric};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

/// Format of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of a process.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Default for Metrics {
    /// The metrics of the process itself.
    fn default() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process::Process));
        Metrics(registry)
    }
}

impl Metrics {
    /// Exports a metric from now on.
    pub fn register(&mut self, metric: &Metric, value: impl prometheus_client::registry::Metric) {
        self.0.register(base(metric), help(metric), value);
    }

    /// A number that goes up and down; zero at the start.
    pub fn gauge(&mut self, metric: &Metric) -> Gauge {
        let gauge = Gauge::default();
        self.register(metric, gauge.clone());
        gauge
    }

    /// A number that is computed at each scrape.
    pub fn look(&mut self, metric: &'static Metric, value: impl Fn() -> f64 + Send + Sync + 'static) {
        self.collect(Asked { metric, value: Box::new(value) });
    }

    /// A constant text: the label has the text, and the value is one.
    pub fn info(&mut self, metric: &Metric, label: &'static str, text: &'static str) {
        let family = Family::<[(&'static str, &'static str); 1], Gauge>::default();
        family.get_or_create(&[(label, text)]).set(1);
        self.register(metric, family);
    }

    /// Adds a collector that is called at each scrape.
    pub fn collect(&mut self, collector: impl Collector) {
        self.0.register_collector(Box::new(collector));
    }

    /// The current text of all metrics.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.0);
        text
    }
}

struct Asked {
    metric: &'static Metric,
    value: Box<dyn Fn() -> f64 + Send + Sync>,
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").field("metric", &self.metric.name).finish_non_exhaustive()
    }
}

impl Collector for Asked {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        ConstGauge::new((self.value)()).encode(begin(&mut encoder, self.metric)?)
    }
}

/// Begins a metric in a collector.
///
/// # Errors
/// The encoder's errors.
pub fn begin<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    metric: &'static Metric,
) -> Result<MetricEncoder<'a>, std::fmt::Error> {
    let kind = match metric.kind {
        Kind::Gauge => MetricType::Gauge,
        Kind::Counter => MetricType::Counter,
        Kind::Histogram => MetricType::Histogram,
    };
    encoder.encode_descriptor(base(metric), help(metric), None, kind)
}

/// The name without the suffix that the format adds itself.
fn base(metric: &Metric) -> &'static str {
    match metric.kind {
        Kind::Gauge | Kind::Histogram => metric.name,
        Kind::Counter => metric.name.trim_end_matches("_total"),
    }
}

/// The help text without the full stop that the format adds itself.
fn help(metric: &Metric) -> &'static str {
    metric.help.trim_end_matches('.')
}

/// Names of the metrics in a text of [`Metrics::text`], for tests.
pub fn names_in(text: &str) -> std::collections::BTreeSet<String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_metrics_have_the_usual_names() {
        let mut metrics = Metrics::default();
        metrics.gauge(&names::VIRT_API_READY).set(1);
        metrics.look(&names::VIRT_HANDLER_READY, || 2.0);
        metrics.info(&names::INFO, "kubeversion", "v1");
        let text = metrics.text();
        assert!(text.contains("\nkubevirt_virt_handler_ready_status 2.0\n"), "{text}");
        assert!(text.contains("\nkubevirt_info{kubeversion=\"v1\"} 1\n"), "{text}");
        let found = names_in(&text);
        assert!(found.contains("kubevirt_virt_api_ready_status"), "{text}");
        assert!(found.iter().all(|name| names::EXPORTED.contains(&name.as_str())), "{found:?}");
        assert!(
            found.contains("process_cpu_seconds_total") && found.contains("process_open_fds"),
            "{found:?}"
        );
        assert!(text.ends_with("# EOF\n"));
    }
}
