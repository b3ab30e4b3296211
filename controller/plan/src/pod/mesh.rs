//! What a service mesh reads on a launcher pod. Pure.
//!
//! Istio redirects the connections of a pod's processes to its sidecar. The packets of a guest behind masquerade come by the
//! pod's bridge instead, so Istio has to know that bridge.

use barevirt_api::mesh;
use barevirt_api::valid::ValidVmi;
use std::collections::BTreeMap;

/// Adds the label by which the pod gets a sidecar or none, as its instance says, and the annotations that name the bridge. As
/// in KubeVirt, a pod has these without a sidecar, too: a namespace may have all its pods get one.
pub(super) fn mark(
    vmi: &ValidVmi,
    labels: &mut BTreeMap<String, String>,
    annotations: &mut BTreeMap<String, String>,
) {
    if let Some(word) = mesh::label(vmi.vmi().metadata.annotations.as_ref()) {
        labels.insert(mesh::INJECT.to_owned(), word.to_owned());
    }
    if vmi.interfaces().iter().any(|valid| valid.interface.masquerade.is_some()) {
        for name in mesh::REROUTED {
            // Who names links by hand names this one among them.
            annotations.entry(name.to_owned()).or_insert_with(|| mesh::BRIDGE.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Labels and annotations of the pod of an instance with one interface.
    fn marks(binding: &str, annotations: &Value) -> [BTreeMap<String, String>; 2] {
        let vmi = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "annotations": annotations},
            "spec": {
                "domain": {"memory": {"guest": "128Mi"},
                    "devices": {"interfaces": [{"name": "default", binding: {}}]}},
                "networks": [{"name": "default", "pod": {}}],
            },
        });
        let vmi = ValidVmi::new(serde_json::from_value(vmi).unwrap());
        let vmi = vmi.unwrap_or_else(|causes| panic!("{causes:?}"));
        let (mut labels, mut annotations) = (BTreeMap::new(), BTreeMap::new());
        annotations.extend(vmi.vmi().metadata.annotations.clone().unwrap_or_default());
        mark(&vmi, &mut labels, &mut annotations);
        [labels, annotations]
    }

    #[test]
    fn a_mesh_learns_of_the_bridge_of_a_guest_behind_masquerade() {
        let [old, new] = mesh::REROUTED;
        let bridge = "k6t-eth0".to_owned();
        let [labels, annotations] = marks("masquerade", &json!({}));
        assert_eq!(
            (labels, annotations.get(old), annotations.get(new)),
            (BTreeMap::new(), Some(&bridge), Some(&bridge))
        );
        // A name that was given stays.
        let [_, annotations] = marks("masquerade", &json!({old: "k6t-eth0,br1"}));
        assert_eq!((annotations[old].as_str(), &annotations[new]), ("k6t-eth0,br1", &bridge));
        // Other guests' connections come by sockets, or not by the pod at all.
        for binding in ["passtBinding", "bridge"] {
            assert_eq!(marks(binding, &json!({})), [BTreeMap::new(), BTreeMap::new()], "{binding}");
        }
    }

    #[test]
    fn a_pod_gets_a_sidecar_by_its_label_as_its_instance_says() {
        for word in ["true", "false"] {
            let [labels, _] = marks("passtBinding", &json!({mesh::INJECT: word}));
            assert_eq!(labels, BTreeMap::from([(mesh::INJECT.to_owned(), word.to_owned())]));
        }
    }
}
