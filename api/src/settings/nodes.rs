//! Settings of the CPU models that nodes offer.

use crate::v1::KubeVirtConfiguration;
use std::collections::BTreeSet;

/// KubeVirt's list of models that nodes do not offer, unless the installation has its own list. Each name
/// also stands for its first version, `<name>-v1`.
const OBSOLETE: [&str; 17] = [
    "486",
    "Conroe",
    "Opteron_G1",
    "Opteron_G2",
    "athlon",
    "core2duo",
    "coreduo",
    "kvm32",
    "kvm64",
    "n270",
    "pentium",
    "pentium2",
    "pentium3",
    "pentiumpro",
    "phenom",
    "qemu32",
    "qemu64",
];

/// CPU models that nodes do not offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuModels {
    /// The installation's own list. An empty one counts as not given, because clients of KubeVirt cannot send
    /// it.
    obsolete: BTreeSet<String>,
}

impl CpuModels {
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Self {
        // As in KubeVirt, the values have no meaning.
        CpuModels { obsolete: configuration.obsolete_cpu_models.keys().cloned().collect() }
    }

    /// Whether nodes do not offer the model.
    pub fn is_obsolete(&self, model: &str) -> bool {
        if self.obsolete.is_empty() {
            OBSOLETE.contains(&model.strip_suffix("-v1").unwrap_or(model))
        } else {
            self.obsolete.contains(model)
        }
    }

    /// Whether the installation's own list names the model. Only then a node whose own model is in the list
    /// takes no guests with `host-model`.
    pub fn names_obsolete(&self, model: &str) -> bool {
        self.obsolete.contains(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(value: Value) -> CpuModels {
        CpuModels::of_configuration(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn an_own_list_replaces_the_built_in_one() {
        let built_in = of(json!({}));
        assert!(built_in.is_obsolete("qemu64") && built_in.is_obsolete("qemu64-v1"));
        assert!(!built_in.is_obsolete("Nehalem") && !built_in.is_obsolete("Nehalem-v1"));
        assert!(!built_in.names_obsolete("qemu64"));
        assert_eq!(of(json!({"obsoleteCPUModels": {}})), built_in);
        let own = of(json!({"obsoleteCPUModels": {"Nehalem": true, "Westmere": false}}));
        assert!(own.is_obsolete("Nehalem") && own.names_obsolete("Westmere"));
        assert!(!own.is_obsolete("Nehalem-v1") && !own.is_obsolete("qemu64"));
    }
}
