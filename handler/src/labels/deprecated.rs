//! Machine types that QEMU will drop, as a metric.

use std::path::Path;

use barevirt_component::metrics::Metrics;
use barevirt_component::metrics::names::DEPRECATED_MACHINE_TYPES;
use barevirt_protocol::capabilities::Capabilities;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Exports the deprecated machine types of the node. `capabilities` is the folder of the launcher's file.
pub fn export_deprecated(metrics: &mut Metrics, capabilities: &Path, node: &str) {
    // The labeller logs why the file cannot be read.
    let Ok(known) = Capabilities::read(capabilities) else { return };
    let types = Family::<[(&'static str, String); 2], Gauge>::default();
    for name in known.deprecated_machine_types {
        types.get_or_create(&[("machine_type", name), ("node", node.to_owned())]).set(1);
    }
    metrics.register(&DEPRECATED_MACHINE_TYPES, types);
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_component::metrics::names::is_exported;
    use barevirt_protocol::capabilities::FILE;

    fn lines(file: Option<&str>) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        if let Some(text) = file {
            std::fs::write(folder.path().join(FILE), text).unwrap();
        }
        let mut metrics = Metrics::default();
        export_deprecated(&mut metrics, folder.path(), "one");
        let text = metrics.text();
        text.lines()
            .filter(|line| line.starts_with(DEPRECATED_MACHINE_TYPES.name))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn only_deprecated_machine_types_are_exported() {
        let file =
            r#"{"machineTypes": ["q35", "pc-q35-6.2"], "deprecatedMachineTypes": ["pc-q35-6.2", "a\nb"]}"#;
        assert_eq!(
            lines(Some(file)),
            [r#"kubevirt_node_deprecated_machine_types{machine_type="pc-q35-6.2",node="one"} 1"#]
        );
        assert!(is_exported(DEPRECATED_MACHINE_TYPES.name));
        assert!(lines(None).is_empty());
    }
}
