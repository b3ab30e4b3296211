//! Which labels the node should have, and what has to change. Pure.

use std::collections::BTreeMap;

use barevirt_api::names::{
    CPU_FEATURE_LABEL, CPU_MODEL_LABEL, CPU_MODEL_MIGRATION_LABEL, CPU_TIMER_LABEL, CPU_VENDOR_LABEL,
    HOST_MODEL_FEATURE_LABEL, HOST_MODEL_LABEL, HYPERV_LABEL, MACHINE_TYPE_LABEL, OBSOLETE_HOST_MODEL_LABEL,
    REALTIME_LABEL, SEV_ES_LABEL, SEV_LABEL, SEV_SNP_LABEL, TDX_LABEL,
};
use barevirt_api::settings::CpuModels;
use serde_json::{Value, json};

use super::facts::Facts;

/// Labels and prefixes of labels that only this module manages.
const OURS: [&str; 10] = [
    CPU_MODEL_LABEL,
    CPU_MODEL_MIGRATION_LABEL,
    CPU_FEATURE_LABEL,
    CPU_VENDOR_LABEL,
    CPU_TIMER_LABEL,
    HOST_MODEL_LABEL,
    HOST_MODEL_FEATURE_LABEL,
    HYPERV_LABEL,
    MACHINE_TYPE_LABEL,
    OBSOLETE_HOST_MODEL_LABEL,
];
const OURS_WHOLE: [&str; 5] = [REALTIME_LABEL, SEV_LABEL, SEV_ES_LABEL, SEV_SNP_LABEL, TDX_LABEL];

fn is_ours(label: &str) -> bool {
    OURS_WHOLE.contains(&label) || OURS.iter().any(|prefix| label.starts_with(prefix))
}

/// The labels that are true for this node.
pub(super) fn labels(facts: &Facts, models: &CpuModels) -> BTreeMap<String, String> {
    let Facts { capabilities, hyperv, tsc, realtime } = facts;
    let mut labels: BTreeMap<String, String> = BTreeMap::new();
    let mut mark = |label: String| labels.insert(label, "true".to_owned());
    for (prefix, list) in [
        (CPU_MODEL_LABEL, &capabilities.usable_models),
        (CPU_MODEL_MIGRATION_LABEL, &capabilities.known_models),
    ] {
        for model in list.iter().filter(|model| !models.is_obsolete(model)) {
            mark(format!("{prefix}{model}"));
        }
    }
    for (prefix, list) in [
        (CPU_FEATURE_LABEL, &capabilities.features),
        (HOST_MODEL_FEATURE_LABEL, &capabilities.host_model_features),
        (MACHINE_TYPE_LABEL, &capabilities.machine_types),
    ] {
        for name in list {
            mark(format!("{prefix}{name}"));
        }
    }
    for name in hyperv {
        mark(format!("{HYPERV_LABEL}{name}"));
    }
    if !capabilities.vendor.is_empty() {
        mark(format!("{CPU_VENDOR_LABEL}{}", capabilities.vendor));
    }
    if let Some(model) = &capabilities.host_model {
        mark(format!("{HOST_MODEL_LABEL}{model}"));
        if models.names_obsolete(model) {
            mark(OBSOLETE_HOST_MODEL_LABEL.to_owned());
        }
    }
    for (label, is) in [
        (REALTIME_LABEL, *realtime),
        (SEV_LABEL, capabilities.sev),
        (SEV_ES_LABEL, capabilities.sev_es),
        (SEV_SNP_LABEL, capabilities.sev_snp),
        (TDX_LABEL, capabilities.tdx),
    ] {
        if is {
            mark(label.to_owned());
        }
    }
    if let Some(tsc) = tsc {
        labels.insert(format!("{CPU_TIMER_LABEL}tsc-frequency"), tsc.hertz.to_string());
        labels.insert(format!("{CPU_TIMER_LABEL}tsc-scalable"), tsc.scalable.to_string());
    }
    labels
}

/// The patch that gives the node the wanted labels; `None` if it has them.
pub(super) fn patch(present: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> Option<Value> {
    let gone = present.keys().filter(|label| is_ours(label) && !wanted.contains_key(*label));
    let new = wanted.iter().filter(|(label, value)| present.get(*label) != Some(value));
    let changes: BTreeMap<&String, Value> = gone
        .map(|label| (label, Value::Null))
        .chain(new.map(|(label, value)| (label, json!(value))))
        .collect();
    (!changes.is_empty()).then(|| json!({"metadata": {"labels": changes}}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::facts::Tsc;
    use barevirt_api::settings::Settings;
    use barevirt_api::v1::KubeVirtSpec;
    use barevirt_protocol::capabilities::Capabilities;

    fn models(obsolete: &Value) -> CpuModels {
        let spec = json!({"configuration": {"obsoleteCPUModels": obsolete}});
        let spec: KubeVirtSpec = serde_json::from_value(spec).unwrap();
        Settings::from_kubevirt(Some(&spec)).cpu_models
    }

    fn facts() -> Facts {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Facts {
            capabilities: Capabilities {
                accelerator: "kvm".to_owned(),
                vendor: "AMD".to_owned(),
                known_models: names(&["EPYC", "Nehalem", "qemu64-v1"]),
                usable_models: names(&["EPYC", "qemu64-v1"]),
                features: names(&["sse4.2"]),
                host_model: Some("EPYC".to_owned()),
                host_model_features: names(&["topoext"]),
                machine_types: names(&["q35"]),
                sev: true,
                ..Capabilities::default()
            },
            hyperv: vec!["vpindex"],
            tsc: Some(Tsc { hertz: 2_500_000_000, scalable: true }),
            realtime: false,
        }
    }

    #[test]
    fn facts_become_labels() {
        let labels = labels(&facts(), &CpuModels::default());
        let list: Vec<String> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
        assert_eq!(
            list,
            [
                "cpu-feature.node.kubevirt.io/sse4.2=true",
                "cpu-model-migration.node.kubevirt.io/EPYC=true",
                "cpu-model-migration.node.kubevirt.io/Nehalem=true",
                "cpu-model.node.kubevirt.io/EPYC=true",
                "cpu-timer.node.kubevirt.io/tsc-frequency=2500000000",
                "cpu-timer.node.kubevirt.io/tsc-scalable=true",
                "cpu-vendor.node.kubevirt.io/AMD=true",
                "host-model-cpu.node.kubevirt.io/EPYC=true",
                "host-model-required-features.node.kubevirt.io/topoext=true",
                "hyperv.node.kubevirt.io/vpindex=true",
                "kubevirt.io/sev=true",
                "machine-type.node.kubevirt.io/q35=true",
            ]
        );
    }

    #[test]
    fn an_own_list_may_make_the_hosts_model_obsolete() {
        let labels = labels(&facts(), &models(&json!({"EPYC": true})));
        assert!(labels.contains_key(OBSOLETE_HOST_MODEL_LABEL));
        assert!(!labels.contains_key("cpu-model.node.kubevirt.io/EPYC"));
        assert!(labels.contains_key("cpu-model.node.kubevirt.io/qemu64-v1"));
        assert!(labels.contains_key("host-model-cpu.node.kubevirt.io/EPYC"));
    }

    #[test]
    fn only_changes_of_our_own_labels_are_written() {
        let wanted = labels(&facts(), &CpuModels::default());
        assert_eq!(patch(&wanted, &wanted), None);
        let mut present = wanted.clone();
        present.remove("cpu-model.node.kubevirt.io/EPYC");
        present.insert("cpu-timer.node.kubevirt.io/tsc-frequency".to_owned(), "1".to_owned());
        for label in ["cpu-model.node.kubevirt.io/someNonExistingCPUModel", "kubevirt.io/realtime"] {
            present.insert(label.to_owned(), "true".to_owned());
        }
        for label in ["kubevirt.io/schedulable", "kubernetes.io/arch", "kubevirt.io/seventh", "cpumanager"] {
            present.insert(label.to_owned(), "true".to_owned());
        }
        let expected = json!({"metadata": {"labels": {
            "cpu-model.node.kubevirt.io/EPYC": "true",
            "cpu-model.node.kubevirt.io/someNonExistingCPUModel": null,
            "cpu-timer.node.kubevirt.io/tsc-frequency": "2500000000",
            "kubevirt.io/realtime": null,
        }}});
        assert_eq!(patch(&present, &wanted), Some(expected));
    }
}
