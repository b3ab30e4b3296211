//! What the `KubeVirt` object says about virtual machines, with defaults filled in.

use crate::gates::Gates;
use crate::v1::KubeVirtSpec;

/// Settings of the installation that decide about pods and guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Guests run by emulation where there is no KVM.
    pub use_emulation: bool,
    /// Guest memory as a percentage of the memory request. KubeVirt's default is 100, its least 10.
    pub memory_overcommit: u32,
    /// Virtual CPUs for each requested CPU. KubeVirt's default is 10.
    pub cpu_allocation_ratio: u32,
    /// Pull policy for launcher images.
    pub image_pull_policy: Option<String>,
    /// Feature gates.
    pub gates: Gates,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            use_emulation: false,
            memory_overcommit: 100,
            cpu_allocation_ratio: 10,
            image_pull_policy: None,
            gates: Gates::default(),
        }
    }
}

impl Settings {
    /// The settings of a `KubeVirt` object, or the defaults where there is none. What is out of range counts as not
    /// given: this is read by running components, which cannot refuse it.
    pub fn from_kubevirt(spec: Option<&KubeVirtSpec>) -> Self {
        let defaults = Settings::default();
        let Some(spec) = spec else { return defaults };
        let developer = spec.developer();
        let at_least = |value: Option<i32>, least: u32, default: u32| {
            value
                .and_then(|value| u32::try_from(value).ok())
                .filter(|value| *value >= least)
                .unwrap_or(default)
        };
        Settings {
            use_emulation: developer.use_emulation.unwrap_or(defaults.use_emulation),
            memory_overcommit: at_least(developer.memory_overcommit, 10, defaults.memory_overcommit),
            cpu_allocation_ratio: at_least(developer.cpu_allocation_ratio, 1, defaults.cpu_allocation_ratio),
            gates: Gates::new(developer.feature_gates, developer.disabled_feature_gates),
            image_pull_policy: spec.configuration.as_ref().and_then(|c| c.image_pull_policy.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_given_and_ignores_what_is_out_of_range() {
        let spec: KubeVirtSpec = serde_json::from_value(serde_json::json!({"configuration": {
            "imagePullPolicy": "Always",
            "developerConfiguration": {"useEmulation": true, "memoryOvercommit": 9, "cpuAllocationRatio": 1}}}))
        .unwrap();
        let settings = Settings::from_kubevirt(Some(&spec));
        assert!(settings.use_emulation);
        assert_eq!(settings.memory_overcommit, 100);
        assert_eq!(settings.cpu_allocation_ratio, 1);
        assert_eq!(settings.image_pull_policy.as_deref(), Some("Always"));
        assert_eq!(Settings::from_kubevirt(None), Settings::default());
    }
}
