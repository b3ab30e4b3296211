//! Feature gates: names, and whether each is on.
//!
//! The names and their states are KubeVirt's, so that manifests and scripts go on working. The gate of a
//! feature that is always on changes nothing. The gate of a feature that this version does not have yet only
//! changes the message with which its fields are refused.

use std::collections::BTreeSet;

/// The maturity of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Off unless switched on.
    Alpha,
    /// On unless switched off.
    Beta,
    /// Always on.
    General,
    /// Known by name; switching it on or off has no effect.
    Gone,
}

/// A change of the specification plugs and unplugs volumes, and CD drives may be empty.
pub const DECLARATIVE_HOTPLUG_VOLUMES: &str = "DeclarativeHotplugVolumes";
/// The former gate of hotpluggable volumes, which KubeVirt still supports.
const HOTPLUG_VOLUMES: &str = "HotplugVolumes";

/// Every gate that KubeVirt registers.
pub const GATES: &[(&str, State)] = &[
    ("AlignCPUs", State::Alpha),
    ("AutoResourceLimitsGate", State::General),
    ("BochsDisplayForEFIGuests", State::General),
    ("CPUManager", State::Alpha),
    ("CPUNodeDiscovery", State::General),
    ("ClusterProfiler", State::General),
    ("CommonInstancetypesDeploymentGate", State::General),
    ("ConfigurableHypervisor", State::Alpha),
    ("ContainerPathVolumes", State::Alpha),
    ("CrossArchitectureVirtualization", State::Alpha),
    ("DecentralizedLiveMigration", State::Beta),
    (DECLARATIVE_HOTPLUG_VOLUMES, State::Beta),
    ("DisableCustomSELinuxPolicy", State::General),
    ("DisableMDEVConfiguration", State::Gone),
    ("DockerSELinuxMCSWorkaround", State::Gone),
    ("DownwardMetrics", State::Alpha),
    ("DynamicPodInterfaceNaming", State::General),
    ("EnableVirtioFsConfigVolumes", State::General),
    ("EnableVirtioFsStorageVolumes", State::Alpha),
    ("ExpandDisks", State::General),
    ("ExperimentalIgnitionSupport", State::Alpha),
    ("ExperimentalVirtiofsSupport", State::Gone),
    ("ExternalNetResourceInjection", State::Beta),
    ("FirmwareAutoSelection", State::Alpha),
    ("GPU", State::General),
    ("GPUsWithDRA", State::Beta),
    ("GraceIOVirtualization", State::Alpha),
    ("HostDevices", State::Alpha),
    ("HostDevicesWithDRA", State::Beta),
    ("HostDisk", State::Alpha),
    ("HotplugNICs", State::General),
    (HOTPLUG_VOLUMES, State::Alpha),
    ("HypervStrictCheck", State::Alpha),
    ("IOMMUFD", State::Alpha),
    ("ImageVolume", State::Beta),
    ("IncrementalBackup", State::Alpha),
    ("InstancetypeReferencePolicy", State::General),
    ("KubevirtSeccompProfile", State::Beta),
    ("LibvirtHooksServerAndClient", State::General),
    ("LiveMigration", State::General),
    ("LiveUpdateNADRef", State::General),
    ("Macvtap", State::Gone),
    ("MigrationDowntimeTuning", State::Alpha),
    ("MigrationPriorityQueue", State::General),
    ("MigrationStallDetection", State::Alpha),
    ("MultiArchitecture", State::Gone),
    ("NUMA", State::General),
    ("NetworkBindingPlugins", State::General),
    ("NetworkDevicesWithDRA", State::Alpha),
    ("NodeRestriction", State::Beta),
    ("NonRoot", State::General),
    ("OCIExport", State::Alpha),
    ("ObjectGraph", State::Alpha),
    ("OptOutRoleAggregation", State::Beta),
    ("PCINUMAAwareTopology", State::Alpha),
    ("PSA", State::General),
    ("PanicDevices", State::General),
    ("Passt", State::Gone),
    ("PasstBinding", State::Beta),
    ("PasstIPStackMigration", State::Gone),
    ("PersistentReservation", State::General),
    ("Plugins", State::Alpha),
    ("PodSecondaryInterfaceNamingUpgrade", State::Beta),
    ("PortRangesSpec", State::Alpha),
    ("RebootPolicy", State::Beta),
    ("ReservedOverheadMemlock", State::Alpha),
    ("Root", State::Alpha),
    ("SRIOVLiveMigration", State::General),
    ("SecureExecution", State::General),
    ("Sidecar", State::Alpha),
    ("Snapshot", State::Beta),
    ("Template", State::Beta),
    ("UtilityVolumes", State::Alpha),
    ("VGPULiveMigration", State::Alpha),
    ("VMExport", State::General),
    ("VMLiveUpdateFeatures", State::General),
    ("VMPersistentState", State::General),
    ("VMStatsCollector", State::Alpha),
    ("VSOCK", State::Alpha),
    ("VideoConfig", State::General),
    ("VmiMemoryOverheadReport", State::General),
    ("VolumeMigration", State::General),
    ("VolumesUpdateStrategy", State::General),
    ("WorkloadEncryptionSEV", State::Beta),
    ("WorkloadEncryptionTDX", State::Alpha),
];

/// The gates of an installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    enabled: BTreeSet<String>,
    disabled: BTreeSet<String>,
    forbids_bridge: bool,
    machine_types: Vec<String>,
}

impl Gates {
    /// Gates switched on and off by name. Unknown names are kept and have no effect.
    pub fn new(
        enabled: impl IntoIterator<Item = String>,
        disabled: impl IntoIterator<Item = String>,
    ) -> Self {
        Gates {
            enabled: enabled.into_iter().collect(),
            disabled: disabled.into_iter().collect(),
            forbids_bridge: false,
            machine_types: Vec::new(),
        }
    }

    /// The same, with the bridge binding on the pod network permitted or not
    /// (`network.permitBridgeInterfaceOnPodNetwork`): a gate that has its own field.
    #[must_use]
    pub fn with_bridge_on_pod_network(mut self, permitted: bool) -> Self {
        self.forbids_bridge = !permitted;
        self
    }

    /// Whether the bridge binding may be used on the pod network; true unless switched off.
    pub fn permits_bridge_on_pod_network(&self) -> bool {
        !self.forbids_bridge
    }

    /// The same, with the machine types that guests may name, as patterns (`emulatedMachines`); without
    /// patterns, all machine types.
    #[must_use]
    pub fn with_machine_types(mut self, patterns: Vec<String>) -> Self {
        self.machine_types = patterns;
        self
    }

    /// Patterns of the machine types that guests may name; empty if none are configured.
    pub fn machine_types(&self) -> &[String] {
        &self.machine_types
    }

    /// Whether volumes are hotplugged while a guest runs: one of two gates is enough.
    pub fn plugs_volumes(&self) -> bool {
        self.is_on(DECLARATIVE_HOTPLUG_VOLUMES) || self.is_on(HOTPLUG_VOLUMES)
    }

    /// Whether volumes are hotplugged into an instance alone, although a machine owns it.
    pub fn plugs_ephemeral_volumes(&self) -> bool {
        self.is_on(HOTPLUG_VOLUMES)
    }

    /// Every gate is on. For objects that have passed admission.
    pub fn all() -> Self {
        Gates::new(GATES.iter().map(|(name, _)| (*name).to_owned()), [])
    }

    /// Whether the gate is on: always if the feature is general, else by the list of enabled gates, then by
    /// the list of disabled gates, then by the feature's own state.
    pub fn is_on(&self, name: &str) -> bool {
        let state = GATES.iter().find(|(known, _)| *known == name).map(|(_, state)| *state);
        match state {
            Some(State::General) => true,
            Some(State::Gone) | None => false,
            Some(_) if self.enabled.contains(name) => true,
            Some(_) if self.disabled.contains(name) => false,
            Some(state) => state == State::Beta,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(enabled: &[&str], disabled: &[&str]) -> Gates {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Gates::new(owned(enabled), owned(disabled))
    }

    #[test]
    fn the_lists_come_before_the_states() {
        let none = gates(&[], &[]);
        assert!(none.is_on("LiveMigration") && none.is_on("Snapshot"));
        assert!(!none.is_on("HostDisk") && !none.is_on("Passt") && !none.is_on("Unheard"));
        let some = gates(&["HostDisk", "Passt", "Unheard"], &["Snapshot", "LiveMigration"]);
        assert!(some.is_on("HostDisk") && some.is_on("LiveMigration"));
        assert!(!some.is_on("Snapshot") && !some.is_on("Passt") && !some.is_on("Unheard"));
    }

    #[test]
    fn one_of_two_gates_enables_hotplug_of_volumes() {
        let off = &["DeclarativeHotplugVolumes"];
        assert!(gates(&[], &[]).plugs_volumes() && gates(&["HotplugVolumes"], off).plugs_volumes());
        assert!(!gates(&[], off).plugs_volumes());
        assert!(gates(&["HotplugVolumes"], off).plugs_ephemeral_volumes());
        assert!(!gates(&[], &[]).plugs_ephemeral_volumes());
    }

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(GATES.is_sorted_by(|a, b| a.0 < b.0));
    }
}
