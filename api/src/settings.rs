//! What the `KubeVirt` object says about virtual machines, with defaults filled in.

use crate::defaults;
use crate::gates::Gates;
use crate::v1::{KubeVirt, KubeVirtSpec};
use crate::validate;

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
    /// What an eviction means for instances that do not say.
    pub eviction_strategy: Option<String>,
    /// What guests have that name none.
    pub guest: GuestDefaults,
    /// Feature gates.
    pub gates: Gates,
}

/// What guests have that name none, where an installation may choose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestDefaults {
    /// Machine type.
    pub machine_type: String,
    /// CPU model.
    pub cpu_model: String,
}

impl Default for GuestDefaults {
    fn default() -> Self {
        GuestDefaults {
            machine_type: defaults::MACHINE_TYPE.to_owned(),
            cpu_model: defaults::CPU_MODEL.to_owned(),
        }
    }
}

impl GuestDefaults {
    /// Those of a `KubeVirt` object: the machine type of all architectures comes before that of amd64, as in KubeVirt.
    fn from_kubevirt(spec: &KubeVirtSpec) -> Self {
        let built_in = GuestDefaults::default();
        let Some(configuration) = &spec.configuration else { return built_in };
        let amd64 = configuration.architecture_configuration.as_ref().and_then(|all| all.amd64.as_ref());
        let machine_types =
            [configuration.machine_type.as_ref(), amd64.and_then(|amd64| amd64.machine_type.as_ref())];
        let is_machine_type = |text: &&&String| !text.is_empty() && validate::is_machine_type_of_amd64(text);
        let machine_type = machine_types.iter().flatten().find(is_machine_type);
        let cpu_model = configuration
            .cpu_model
            .as_ref()
            .filter(|model| !model.is_empty() && validate::is_cpu_model(model));
        GuestDefaults {
            machine_type: machine_type.map_or(built_in.machine_type, |text| (*text).clone()),
            cpu_model: cpu_model.cloned().unwrap_or(built_in.cpu_model),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            use_emulation: false,
            memory_overcommit: 100,
            cpu_allocation_ratio: 10,
            image_pull_policy: None,
            eviction_strategy: None,
            guest: GuestDefaults::default(),
            gates: Gates::default(),
        }
    }
}

impl Settings {
    /// The settings in force: those of the oldest of the `KubeVirt` objects, where there are several; there should be one.
    pub fn current<'a>(objects: impl Iterator<Item = &'a KubeVirt>) -> Self {
        let oldest = objects.min_by_key(|object| {
            (
                object.metadata.creation_timestamp.as_ref().map(|time| time.0),
                object.metadata.namespace.clone(),
                object.metadata.name.clone(),
            )
        });
        Settings::from_kubevirt(oldest.map(|object| &object.spec))
    }

    /// The settings of a `KubeVirt` object, or the defaults where there is none. What is out of range counts as not
    /// given: this is read by running components, which cannot refuse it.
    pub fn from_kubevirt(spec: Option<&KubeVirtSpec>) -> Self {
        let defaults = Settings::default();
        let Some(spec) = spec else { return defaults };
        let developer = spec.developer();
        let network = spec.configuration.as_ref().and_then(|c| c.network.as_ref());
        let bridge = network.and_then(|network| network.permit_bridge_interface_on_pod_network);
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
            gates: Gates::new(developer.feature_gates, developer.disabled_feature_gates)
                .with_bridge_on_pod_network(bridge.unwrap_or(true)),
            image_pull_policy: spec.configuration.as_ref().and_then(|c| c.image_pull_policy.clone()),
            eviction_strategy: spec.configuration.as_ref().and_then(|c| c.eviction_strategy.clone()),
            guest: GuestDefaults::from_kubevirt(spec),
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

    #[test]
    fn guests_get_what_the_installation_says() {
        let of = |configuration: serde_json::Value| {
            let spec: KubeVirtSpec =
                serde_json::from_value(serde_json::json!({ "configuration": configuration })).unwrap();
            let guest = Settings::from_kubevirt(Some(&spec)).guest;
            (guest.machine_type, guest.cpu_model)
        };
        let both = |machine_type: &str, cpu_model: &str| (machine_type.to_owned(), cpu_model.to_owned());
        assert_eq!(of(serde_json::json!({})), both("q35", "host-model"));
        let amd64 = serde_json::json!({"amd64": {"machineType": "pc-q35-9.2"}});
        assert_eq!(
            of(serde_json::json!({"architectureConfiguration": amd64, "cpuModel": "Nehalem"})),
            both("pc-q35-9.2", "Nehalem")
        );
        assert_eq!(
            of(serde_json::json!({"machineType": "pc-q35-10.0", "architectureConfiguration": amd64})).0,
            "pc-q35-10.0"
        );
        // What no guest could have counts as not given.
        assert_eq!(
            of(serde_json::json!({"machineType": "pc-i440fx-9.0", "cpuModel": "a,b"})),
            both("q35", "host-model")
        );
    }
}
