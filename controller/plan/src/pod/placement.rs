//! Nodes that the pod may be placed on: those that have what the guest asks for, according to the labels that handlers
//! write. The rules are KubeVirt's, also under emulation.

use crate::config::Config;
use barevirt_api::names::{
    CPU_FEATURE_LABEL, CPU_MANAGER_LABEL, CPU_MODEL_LABEL, CPU_VENDOR_LABEL, HYPERV_LABEL,
    MACHINE_TYPE_LABEL, OBSOLETE_HOST_MODEL_LABEL, REALTIME_LABEL, SCHEDULABLE_LABEL,
};
use barevirt_api::v1::{FeatureHyperv, FeatureState};
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
};
use std::collections::BTreeMap;

/// CPU models that are not a model of QEMU: they are the node's own.
const OF_THE_HOST: [&str; 2] = ["host-model", "host-passthrough"];

/// Labels that the node must have. The instance's own replace those of the installation, and what the guest needs replaces
/// both.
pub(super) fn node_selector(vmi: &ValidVmi, config: &Config) -> BTreeMap<String, String> {
    let spec = vmi.spec();
    let mut selector = config.settings.pods.node_selectors.clone();
    selector.extend(spec.node_selector.clone().unwrap_or_default());
    let architecture = spec.architecture.as_deref().unwrap_or(barevirt_api::defaults::ARCHITECTURE);
    selector.insert("kubernetes.io/arch".to_owned(), architecture.to_owned());

    let mut need = |label: String| selector.insert(label, "true".to_owned());
    need(SCHEDULABLE_LABEL.to_owned());
    need(format!("{MACHINE_TYPE_LABEL}{}", vmi.machine_type()));
    if !OF_THE_HOST.contains(&vmi.cpu_model()) {
        need(format!("{CPU_MODEL_LABEL}{}", vmi.cpu_model()));
    }
    let cpu = spec.domain.cpu.clone().unwrap_or_default();
    for feature in &cpu.features {
        if matches!(feature.policy.as_deref(), None | Some("" | "require")) {
            need(format!("{CPU_FEATURE_LABEL}{}", feature.name));
        }
    }
    if cpu.dedicated_cpu_placement == Some(true) {
        need(CPU_MANAGER_LABEL.to_owned());
    }
    if cpu.realtime.is_some() {
        need(REALTIME_LABEL.to_owned());
    }
    let hyperv = spec.domain.features.as_ref().and_then(|features| features.hyperv.as_ref());
    if let Some(hyperv) = hyperv.filter(|_| config.settings.gates.is_on("HypervStrictCheck")) {
        enlightenments(hyperv).for_each(|name| drop(need(format!("{HYPERV_LABEL}{name}"))));
        if is_on(hyperv.evmcs.as_ref()) {
            need(format!("{CPU_VENDOR_LABEL}Intel"));
        }
    }
    selector
}

/// A feature that is named is on, unless it says otherwise.
fn is_on(state: Option<&FeatureState>) -> bool {
    state.is_some_and(|state| state.enabled != Some(false))
}

/// Enlightenments that need support in the node's kernel, by the names of their labels.
fn enlightenments(hyperv: &FeatureHyperv) -> impl Iterator<Item = &'static str> + use<> {
    let tlbflush = hyperv.tlbflush.as_ref().is_some_and(|tlbflush| tlbflush.enabled != Some(false));
    let synictimer = hyperv.synictimer.as_ref().is_some_and(|timer| timer.enabled != Some(false));
    [
        ("vpindex", is_on(hyperv.vpindex.as_ref())),
        ("runtime", is_on(hyperv.runtime.as_ref())),
        ("reset", is_on(hyperv.reset.as_ref())),
        ("synic", is_on(hyperv.synic.as_ref())),
        ("synictimer", synictimer),
        ("frequencies", is_on(hyperv.frequencies.as_ref())),
        ("reenlightenment", is_on(hyperv.reenlightenment.as_ref())),
        ("tlbflush", tlbflush),
        ("ipi", is_on(hyperv.ipi.as_ref())),
    ]
    .into_iter()
    .filter_map(|(name, on)| on.then_some(name))
}

/// The instance's affinity, excluding nodes by label: nodes with an obsolete processor, where the guest would have the same
/// one; nodes with a feature that the guest forbids.
pub(super) fn affinity(vmi: &ValidVmi) -> Option<Affinity> {
    let features = vmi.spec().domain.cpu.iter().flat_map(|cpu| &cpu.features);
    let forbidden = features.filter(|feature| feature.policy.as_deref() == Some("forbid"));
    let obsolete = (vmi.cpu_model() == "host-model").then(|| OBSOLETE_HOST_MODEL_LABEL.to_owned());
    let without: Vec<NodeSelectorRequirement> = obsolete
        .into_iter()
        .chain(forbidden.map(|feature| format!("{CPU_FEATURE_LABEL}{}", feature.name)))
        .map(|key| NodeSelectorRequirement { key, operator: "DoesNotExist".to_owned(), values: None })
        .collect();
    let affinity = vmi.spec().affinity.clone();
    if without.is_empty() {
        return affinity;
    }
    let mut affinity = affinity.unwrap_or_default();
    let nodes: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required: &mut NodeSelector =
        nodes.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    // The scheduler accepts any one term, so each must have the requirement; and a term without requirements matches no
    // node.
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
        required.node_selector_terms.iter_mut().for_each(|term| add(term, &without));
    } else {
        let asking = |term: &&mut NodeSelectorTerm| {
            term.match_expressions.as_ref().is_some_and(|list| !list.is_empty())
                || term.match_fields.as_ref().is_some_and(|list| !list.is_empty())
        };
        required.node_selector_terms.iter_mut().filter(asking).for_each(|term| add(term, &without));
    }
    Some(affinity)
}

fn add(term: &mut NodeSelectorTerm, requirements: &[NodeSelectorRequirement]) {
    term.match_expressions.get_or_insert_default().extend_from_slice(requirements);
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::settings::Settings;
    use barevirt_api::v1::KubeVirtSpec;
    use serde_json::{Value, json};

    /// A valid instance with this domain, including features that are not served yet.
    fn vmi(domain: &Value, affinity: &Value) -> ValidVmi {
        let mut domain = domain.clone();
        domain["memory"] = json!({"guest": "64Mi"});
        domain["devices"] = json!({});
        let vmi = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u"},
            "spec": {"domain": domain, "affinity": affinity},
        }));
        ValidVmi::new(vmi.unwrap()).unwrap_or_else(|causes| panic!("{causes:?}"))
    }

    fn config(developer: &Value) -> Config {
        let spec: KubeVirtSpec =
            serde_json::from_value(json!({"configuration": {"developerConfiguration": developer}})).unwrap();
        Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: None,
            settings: Settings::from_kubevirt(Some(&spec)),
        }
    }

    fn selected(domain: &Value, developer: &Value) -> Vec<String> {
        let selector = node_selector(&vmi(domain, &Value::Null), &config(developer));
        selector.iter().map(|(label, value)| format!("{label}={value}")).collect()
    }

    #[test]
    fn every_guest_needs_a_node_that_takes_guests_and_has_its_machine_type() {
        assert_eq!(
            selected(&json!({}), &json!({})),
            [
                "kubernetes.io/arch=amd64",
                "kubevirt.io/schedulable=true",
                "machine-type.node.kubevirt.io/q35=true"
            ]
        );
    }

    #[test]
    fn a_named_cpu_model_selects_a_node_label() {
        let of = |model: &str| selected(&json!({"cpu": {"model": model}}), &json!({"useEmulation": true}));
        assert!(of("Nehalem").contains(&"cpu-model.node.kubevirt.io/Nehalem=true".to_owned()));
        for model in OF_THE_HOST {
            assert!(!of(model).iter().any(|label| label.starts_with(CPU_MODEL_LABEL)), "{model}");
        }
    }

    #[test]
    fn enlightenments_that_are_on_need_labels() {
        let hyperv: FeatureHyperv = serde_json::from_value(json!({
            "relaxed": {}, "vapic": {}, "vpindex": {}, "synic": {"enabled": true}, "reset": {"enabled": false},
            "synictimer": {"direct": {}}, "tlbflush": {}, "ipi": {"enabled": false},
        }))
        .unwrap();
        let names: Vec<&str> = enlightenments(&hyperv).collect();
        assert_eq!(names, ["vpindex", "synic", "synictimer", "tlbflush"]);
    }

    #[test]
    fn an_obsolete_host_is_no_place_for_its_own_model() {
        let without = json!({"key": OBSOLETE_HOST_MODEL_LABEL, "operator": "DoesNotExist"});
        let terms = |model: &str, affinity: &Value| {
            let affinity = super::affinity(&vmi(&json!({"cpu": {"model": model}}), affinity));
            let value = serde_json::to_value(affinity).unwrap();
            value["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
                .clone()
        };
        assert_eq!(terms("host-passthrough", &Value::Null), Value::Null);
        assert_eq!(terms("host-model", &Value::Null), json!([{"matchExpressions": [without]}]));
        let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
        let name = json!({"key": "metadata.name", "operator": "In", "values": ["node01"]});
        let own = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [zone]}, {"matchFields": [name]}, {}]}}});
        assert_eq!(
            terms("host-model", &own),
            json!([{"matchExpressions": [zone, without]},
                {"matchFields": [name], "matchExpressions": [without]}, {}])
        );
    }
}
