//! The guest that a metric is about.

use std::collections::BTreeMap;

use barevirt_api::sizing;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;

use crate::network::guest;

/// Prefix of an instance's labels in metrics, as in KubeVirt.
const LABEL: &str = "kubernetes_vmi_label_";
/// Most labels of an instance that become labels of metrics, because users may set any number.
const MOST_LABELS: usize = 64;

/// One guest, with the labels of all its samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    node: String,
    namespace: String,
    name: String,
    labels: BTreeMap<String, String>,
    /// Memory of the guest, in bytes.
    pub memory: Option<u64>,
    /// Taps of its interfaces: the interface's name in the spec, and a possible name of the tap in the pod.
    pub taps: Vec<(String, String)>,
}

impl Subject {
    /// The subject for an instance.
    pub fn of(vmi: &VirtualMachineInstance) -> Self {
        let given = vmi.metadata.labels.iter().flatten().take(MOST_LABELS);
        let taps = ValidVmi::new(vmi.clone()).ok().map(|valid| guest::taps(&valid));
        Self {
            node: vmi.status.as_ref().and_then(|status| status.node_name.clone()).unwrap_or_default(),
            namespace: vmi.metadata.namespace.clone().unwrap_or_default(),
            name: vmi.metadata.name.clone().unwrap_or_default(),
            // Two labels may get the same name. The last one counts, because a sample must not have a label
            // twice.
            labels: given.map(|(key, value)| (label(key), value.clone())).collect(),
            memory: sizing::guest_memory_bytes(&vmi.spec),
            taps: taps.unwrap_or_default(),
        }
    }

    /// All labels.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = [
            ("node", self.node.as_str()),
            ("namespace", self.namespace.as_str()),
            ("name", self.name.as_str()),
        ];
        own.into_iter().chain(self.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())))
    }
}

/// The key of a label in the form that Prometheus accepts.
fn label(key: &str) -> String {
    let letters = key.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' });
    LABEL.chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_are_those_of_the_instance_once_each() {
        let mut labels = json!({"kubevirt.io/nodeName": "one", "a.b": "1", "a-b": "2"});
        for number in 0..100 {
            labels[format!("z{number}")] = json!("x");
        }
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "web", "labels": labels},
            "spec": {
                "domain": {
                    "memory": {"guest": "64Mi"}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}]}
                },
                "networks": [{"name": "default", "pod": {}}],
            },
            "status": {"nodeName": "one"},
        }))
        .unwrap();
        let subject = Subject::of(&vmi);
        let told: Vec<(&str, &str)> = subject.labels().collect();
        assert_eq!(told[..3], [("node", "one"), ("namespace", "shop"), ("name", "web")]);
        assert!(told.contains(&("kubernetes_vmi_label_kubevirt_io_nodeName", "one")), "{told:?}");
        let both = told.iter().filter(|(name, _)| *name == "kubernetes_vmi_label_a_b").count();
        assert_eq!((both, told.len()), (1, 3 + MOST_LABELS - 1));
        assert_eq!(subject.memory, Some(64 << 20));
        assert_eq!(subject.taps, [("default".to_owned(), "tap0".to_owned())]);
    }
}
