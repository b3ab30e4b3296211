//! `KubeVirt`: configuration of the installation.

use super::{Condition, DeveloperConfiguration, KubeVirtConfiguration};
use k8s_openapi::api::core::v1::{Affinity, LocalObjectReference, Toleration};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Configuration of the installation.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kubevirt.io",
    version = "v1",
    kind = "KubeVirt",
    plural = "kubevirts",
    doc = "Configuration of the installation; there is one, named kubevirt, in the namespace of the components.",
    namespaced,
    status = "KubeVirtStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "kv",
    shortname = "kvs",
    category = "all",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#
)]
pub struct KubeVirtSpec {
    /// Settings of virtual machines and of the components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<KubeVirtConfiguration>,
    /// Lifetimes of the certificates of the components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_rotate_strategy: Option<KubeVirtCertificateRotateStrategy>,
    /// Patches and flags for the installed components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customize_components: Option<CustomizeComponents>,
    /// When images of the components are pulled: `Always`, `IfNotPresent` (default) or `Never`. For launcher
    /// pods see `configuration.imagePullPolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// Secrets with registry credentials, in the namespace of the installation. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Registry and path before the image names. When not given, that of the operator's own image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_registry: Option<String>,
    /// Tag of all images, which sets the installed version. When not given, that of the operator's own image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_tag: Option<String>,
    /// Nodes and number of the control components, such as virt-api and virt-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infra: Option<ComponentConfig>,
    /// Service account of Prometheus that may read the metrics; `prometheus-k8s` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor_account: Option<String>,
    /// Namespace of Prometheus. When not given, the usual ones are tried, `openshift-monitoring` and
    /// `monitoring`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor_namespace: Option<String>,
    /// Value of the label `app.kubernetes.io/component` on installed objects; `kubevirt` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_component: Option<String>,
    /// Value of the label `app.kubernetes.io/part-of` on installed objects. No label when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_name: Option<String>,
    /// Value of the label `app.kubernetes.io/version` on installed objects. No label when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_version: Option<String>,
    /// Namespace for the ServiceMonitor object. When not given, as `monitorNamespace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_monitor_namespace: Option<String>,
    /// TCP port, as text, for status exchange in migrations between clusters; `9185` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synchronization_port: Option<String>,
    /// Deletion while machines exist: `RemoveWorkloads` (default) deletes them too,
    /// `BlockUninstallIfWorkloadsExist` refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uninstall_strategy: Option<String>,
    /// What happens to running machines whose launcher is outdated after an update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_update_strategy: Option<KubeVirtWorkloadUpdateStrategy>,
    /// Nodes where machines may run, and with them virt-handler. The number of replicas does not apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workloads: Option<ComponentConfig>,
}

impl KubeVirtSpec {
    /// The developer configuration, defaults where nothing is given.
    pub fn developer(&self) -> DeveloperConfiguration {
        self.configuration
            .as_ref()
            .and_then(|configuration| configuration.developer_configuration.clone())
            .unwrap_or_default()
    }
}

/// Observed state of the installation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtStatus {
    /// `Deploying`, `Deployed`, `Deleting` or `Deleted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Observed aspects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Version that runs.
    #[serde(rename = "observedKubeVirtVersion", default, skip_serializing_if = "Option::is_none")]
    pub observed_kube_virt_version: Option<String>,
    /// Architecture of instances that do not name one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_architecture: Option<String>,
    /// Installed objects as they were last written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub generations: Vec<GenerationStatus>,
    /// Settings of the installation that is in place, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_deployment_config: Option<String>,
    /// Checksum of the settings in place.
    #[serde(rename = "observedDeploymentID", default, skip_serializing_if = "Option::is_none")]
    pub observed_deployment_id: Option<String>,
    /// Registry of the images in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_kube_virt_registry: Option<String>,
    /// Version of the operator that wrote this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,
    /// Number of running machines whose launcher image is not the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outdated_virtual_machine_instance_workloads: Option<i32>,
    /// Where other clusters reach this one for migrations, as `address:port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub synchronization_addresses: Vec<String>,
    /// Settings of the installation being made, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_deployment_config: Option<String>,
    /// Checksum of the settings being installed. Equal to `observedDeploymentID` when done.
    #[serde(rename = "targetDeploymentID", default, skip_serializing_if = "Option::is_none")]
    pub target_deployment_id: Option<String>,
    /// Registry of the images being installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_kube_virt_registry: Option<String>,
    /// Version being installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_kube_virt_version: Option<String>,
}

/// Lifetime of a kind of certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertConfig {
    /// How long a certificate is valid, for example `48h`. Default `168h` for authorities and `24h` for
    /// servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// How long before its end a certificate is replaced. A fifth of its lifetime when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew_before: Option<String>,
}

/// Where a group of components runs, and how many.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentConfig {
    /// Nodes to run on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_placement: Option<NodePlacement>,
    /// Pods of each control component; 2 when not given, where virt-api follows the number of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
}

/// Changes to the installed objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomizeComponents {
    /// Command line flags to add to components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<Flags>,
    /// Patches to apply to objects of the installation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<CustomizeComponentsPatch>,
}

/// A patch for some of the installed objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomizeComponentsPatch {
    /// The patch itself, as JSON text.
    pub patch: String,
    /// Name of the object to patch, for example `virt-controller`; `*` for all of the kind.
    pub resource_name: String,
    /// Kind of the object, for example `Deployment`; upper and lower case are alike.
    pub resource_type: String,
    /// Form of the patch: `json` (RFC 6902), `merge` (RFC 7386) or `strategic` (Kubernetes).
    pub type_: String,
}

/// Command line flags by component. The key is the flag without dashes; an empty value makes a plain switch.
/// Both are put in lower case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Flags {
    /// Flags for virt-api.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub api: BTreeMap<String, String>,
    /// Flags for virt-controller.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub controller: BTreeMap<String, String>,
    /// Flags for virt-handler.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub handler: BTreeMap<String, String>,
}

/// State in which an installed object was last written, to notice changes by others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GenerationStatus {
    /// API group of the object.
    pub group: String,
    /// Checksum of the content, for objects that have no generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// `metadata.generation` of the object after the last write.
    pub last_generation: i64,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object; empty for cluster-wide ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Plural resource name, for example `deployments`.
    pub resource: String,
}

/// How the certificates of the components are issued.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtCertificateRotateStrategy {
    /// Lifetimes under an authority of the installation's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_signed: Option<KubeVirtSelfSignConfiguration>,
}

/// Lifetimes of the installation's own authority and of what it signs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtSelfSignConfiguration {
    /// Lifetime of the authority. Former ones stay trusted until they expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<CertConfig>,
    /// Deprecated: use `ca.renewBefore`, over which it wins. How long an old and a new authority are both
    /// trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_overlap_interval: Option<String>,
    /// Deprecated: use `ca.duration`, over which it wins. Lifetime of the authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_rotate_interval: Option<String>,
    /// Deprecated: use `server.duration`, over which it wins. Lifetime of server certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_rotate_interval: Option<String>,
    /// Lifetime of server and client certificates. Former ones are dropped at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<CertConfig>,
}

/// What happens to running machines whose launcher is outdated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtWorkloadUpdateStrategy {
    /// Time between two batches of evictions; `1m` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_eviction_interval: Option<String>,
    /// Machines evicted in one batch; 10 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_eviction_size: Option<i32>,
    /// `LiveMigrate`: move those that can migrate. `Evict`: evict the pods of the others, which stops or
    /// restarts them. When empty, they stay as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workload_update_methods: Vec<String>,
}

/// Nodes on which pods may run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePlacement {
    /// Rules of attraction and repulsion to nodes and other pods, together with `nodeSelector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Labels a node must have, all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints to tolerate, in addition to those tolerated already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}
