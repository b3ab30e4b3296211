//! Settings of the `KubeVirt` object for virtual machines and components, with defaults filled in.

mod bindings;
mod component;
mod guest;
mod host_devices;
mod imports;
mod live_update;
mod node_disk;
mod nodes;
mod pods;
mod references;

pub use bindings::{Attachment, Bindings, LINK_REFRESH, NO_BINDINGS, Plugin};
pub use component::{Component, Rate, Rates, TLS12_SUITES, Tls, TlsVersion, VERBOSITY_LIMIT, Verbosity};
pub use guest::{Binding, CPU_MODEL, GuestDefaults, MACHINE_TYPE, SMBIOS_LIMIT, Smbios};
pub use host_devices::{HostDevices, Selector, mediated_type};
pub(crate) use host_devices::{is_pci_selector, usb_selector};
pub use imports::Imports;
pub(crate) use imports::{IMPORT_ANNOTATIONS, import_problem};
pub use live_update::LiveUpdate;
pub use node_disk::NodeDisk;
pub(crate) use node_disk::{NODE_DISK_ANNOTATIONS, node_disk_size};
pub use nodes::CpuModels;
pub use pods::{Factor, HELPER_RESOURCES, HELPERS, HelperResources, Pods, QuotaLimits, Room, Seccomp};
pub use references::ReferencePolicy;

use crate::gates::Gates;
use crate::names::EVEN_PARITY_ANNOTATION;
use crate::syntax::is_label_key;
use crate::v1::{KubeVirt, KubeVirtSpec, NodePlacement};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;

/// Key of the taint that moves guests off a node, unless the installation names another. KubeVirt's.
const DRAIN_TAINT: &str = "kubevirt.io/drain";

/// Settings of the installation for pods, guests and components.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Guests run by emulation on nodes without KVM.
    pub use_emulation: bool,
    /// Guest memory as a percentage of the memory request. KubeVirt's default is 100, its least 10.
    pub memory_overcommit: u32,
    /// Virtual CPUs for each requested CPU. KubeVirt's default is 10.
    pub cpu_allocation_ratio: u32,
    /// Pull policy for launcher images.
    pub image_pull_policy: Option<String>,
    /// Secrets in their namespaces with credentials for launcher images.
    pub image_pull_secrets: Vec<String>,
    /// Eviction strategy of instances that name none.
    pub eviction_strategy: Option<String>,
    /// Network binding plugins.
    pub bindings: Bindings,
    /// Key of the taint that moves guests off a node: `nodeDrainTaintKey` of the migrations.
    pub drain_taint: String,
    /// Defaults of guests.
    pub guest: GuestDefaults,
    /// What becomes of the instance types and preferences that machines name.
    pub references: ReferencePolicy,
    /// System information in SMBIOS that guests read.
    pub smbios: Smbios,
    /// CPU models that nodes do not offer.
    pub cpu_models: CpuModels,
    /// Devices of nodes that guests may have.
    pub host_devices: HostDevices,
    /// Settings of launcher pods.
    pub pods: Pods,
    /// How importers reach their servers.
    pub imports: Imports,
    /// Nodes of virt-handler and of pods that fill claims: `workloads.nodePlacement`.
    pub workload_nodes: NodePlacement,
    /// Feature gates.
    pub gates: Gates,
    /// How much the components log.
    pub verbosity: Verbosity,
    /// Limits on requests to the API server.
    pub rates: Rates,
    /// TLS versions and cipher suites that they accept.
    pub tls: Tls,
}

/// Sort key of an object among others of its kind: the first one decides.
pub fn seniority(metadata: &ObjectMeta) -> impl Ord + use<> {
    (
        metadata.creation_timestamp.as_ref().map(|time| time.0),
        metadata.namespace.clone(),
        metadata.name.clone(),
    )
}

/// The object that decides. There should be only one; if there are several, it is the oldest.
pub fn deciding<'a>(objects: impl IntoIterator<Item = &'a KubeVirt>) -> Option<&'a KubeVirt> {
    objects.into_iter().min_by_key(|object| seniority(&object.metadata))
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            use_emulation: false,
            memory_overcommit: 100,
            cpu_allocation_ratio: 10,
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            eviction_strategy: None,
            bindings: Bindings::default(),
            drain_taint: DRAIN_TAINT.to_owned(),
            guest: GuestDefaults::default(),
            references: ReferencePolicy::default(),
            smbios: Smbios::default(),
            cpu_models: CpuModels::default(),
            host_devices: HostDevices::default(),
            pods: Pods::default(),
            imports: Imports::default(),
            workload_nodes: NodePlacement::default(),
            gates: Gates::default(),
            verbosity: Verbosity::default(),
            rates: Rates::default(),
            tls: Tls::default(),
        }
    }
}

impl Settings {
    /// The settings of a `KubeVirt` object, or the defaults without one. A value out of range counts as not
    /// given, because objects that admission would have refused are read, too.
    pub fn from_kubevirt(spec: Option<&KubeVirtSpec>) -> Self {
        let defaults = Settings::default();
        let Some(spec) = spec else { return defaults };
        let developer = spec.developer();
        let configuration = spec.configuration.clone().unwrap_or_default();
        let network = configuration.network.as_ref();
        let workloads = spec.workloads.as_ref();
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
            verbosity: Verbosity::of_configuration(&developer),
            gates: Gates::new(developer.feature_gates, developer.disabled_feature_gates)
                .with_bridge_on_pod_network(bridge.unwrap_or(true))
                .with_machine_types(guest::machine_types(&configuration)),
            guest: GuestDefaults::of_configuration(&configuration),
            bindings: Bindings::of_configuration(&configuration),
            references: ReferencePolicy::of_configuration(&configuration),
            smbios: Smbios::of_configuration(&configuration),
            cpu_models: CpuModels::of_configuration(&configuration),
            host_devices: HostDevices::of_configuration(&configuration),
            pods: Pods::of_configuration(&configuration),
            imports: defaults.imports,
            workload_nodes: workloads.and_then(|of| of.node_placement.clone()).unwrap_or_default(),
            rates: Rates::of_configuration(&configuration),
            tls: Tls::of_configuration(&configuration),
            image_pull_policy: configuration.image_pull_policy,
            image_pull_secrets: spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect(),
            eviction_strategy: configuration.eviction_strategy,
            drain_taint: configuration
                .migrations
                .and_then(|migrations| migrations.node_drain_taint_key)
                .filter(|key| is_label_key(key))
                .unwrap_or(defaults.drain_taint),
        }
    }

    /// Adds the settings in the object's annotations, for callers that have the whole object.
    #[must_use]
    pub fn annotated(mut self, annotations: Option<&BTreeMap<String, String>>) -> Self {
        let wanted = annotations.is_some_and(|annotations| annotations.contains_key(EVEN_PARITY_ANNOTATION));
        self.guest.even_parity = wanted && self.gates.is_on("AlignCPUs");
        self.pods.node_disk = NodeDisk::of_annotations(annotations);
        self.imports = Imports::of_annotations(annotations);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_what_is_given_and_ignores_what_is_out_of_range() {
        let spec: KubeVirtSpec = serde_json::from_value(json!({"configuration": {
            "imagePullPolicy": "Always", "evictionStrategy": "LiveMigrate", "migrations": {"nodeDrainTaintKey": "empty"},
            "developerConfiguration": {"useEmulation": true, "memoryOvercommit": 9, "cpuAllocationRatio": 1}}}))
        .unwrap();
        let settings = Settings::from_kubevirt(Some(&spec));
        assert_eq!(settings.workload_nodes, NodePlacement::default());
        assert!(settings.use_emulation);
        assert_eq!(settings.memory_overcommit, 100);
        assert_eq!(settings.cpu_allocation_ratio, 1);
        assert_eq!(settings.image_pull_policy.as_deref(), Some("Always"));
        assert_eq!(settings.eviction_strategy.as_deref(), Some("LiveMigrate"));
        assert_eq!(settings.drain_taint, "empty");
        assert_eq!(Settings::default().drain_taint, "kubevirt.io/drain");
        assert_eq!(Settings::from_kubevirt(None), Settings::default());
        assert_eq!(Settings::from_kubevirt(Some(&KubeVirtSpec::default())), Settings::default());
    }

    #[test]
    fn workloads_have_their_nodes() {
        let tolerations = json!([{"key": "guests", "operator": "Exists"}]);
        let workloads =
            json!({"nodePlacement": {"nodeSelector": {"guests": "yes"}, "tolerations": tolerations}});
        let spec: KubeVirtSpec =
            serde_json::from_value(json!({"workloads": workloads, "infra": {"nodePlacement": {}}})).unwrap();
        let nodes = Settings::from_kubevirt(Some(&spec)).workload_nodes;
        assert_eq!(nodes.node_selector["guests"], "yes");
        assert_eq!(nodes.tolerations[0].key.as_deref(), Some("guests"));
    }

    #[test]
    fn annotations_say_how_much_of_their_nodes_disk_guests_may_take() {
        let annotations = [("barevirt.dev/largest-image".to_owned(), "20Gi".to_owned())].into();
        let settings = Settings::default().annotated(Some(&annotations));
        assert_eq!(settings.pods.node_disk.largest_image, 20 << 30);
        assert_eq!(Settings::default().annotated(None), Settings::default());
        let annotations = [("barevirt.dev/import-addresses".to_owned(), "public".to_owned())].into();
        assert!(Settings::default().annotated(Some(&annotations)).imports.public_only);
    }

    #[test]
    fn the_oldest_decides() {
        let object = |name: &str, created: &str| -> KubeVirt {
            serde_json::from_value(json!({"spec": {}, "metadata":
                {"name": name, "namespace": "kubevirt", "creationTimestamp": created}}))
            .unwrap()
        };
        let objects = [
            object("b", "2026-01-02T00:00:00Z"),
            object("a", "2026-01-02T00:00:00Z"),
            object("c", "2026-01-03T00:00:00Z"),
        ];
        assert_eq!(deciding(&objects).and_then(|object| object.metadata.name.as_deref()), Some("a"));
        assert_eq!(deciding(&[]), None);
    }
}
