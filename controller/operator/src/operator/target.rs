//! The installation that the `KubeVirt` object asks for. If a part of it is not possible, that part is reported and nothing
//! is written: what was installed stays.

use crate::Images;
use barevirt_api::v1::{CustomizeComponents, KubeVirt, KubeVirtSpec, NodePlacement};
use barevirt_api::validate::kinds::kubevirt::MANUAL;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Facts about the operator itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Own {
    /// Namespace of the installation.
    pub namespace: String,
    /// Images of the operator's own version.
    pub images: Images,
    /// Digests of images of that version, by name, where they are given: then a new build under the same tag is a new
    /// revision.
    pub digests: BTreeMap<String, String>,
    /// Version of the operator.
    pub version: String,
    /// Architecture that the operator runs on, by Kubernetes' name.
    pub architecture: String,
    /// Address of an alert's page, with `%s` for the alert.
    pub runbooks: String,
}

/// The wanted installation.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Images and their pull policy.
    pub images: Images,
    /// Digests, as far as they are known for these images.
    pub digests: BTreeMap<String, String>,
    /// Secrets with credentials for the registry.
    pub pull_secrets: Vec<String>,
    /// Number of pods of virt-api and of virt-controller.
    pub replicas: u32,
    /// Nodes of virt-api and virt-controller.
    pub infra: Option<NodePlacement>,
    /// Nodes of virt-handler.
    pub workloads: Option<NodePlacement>,
    /// Patches and flags.
    pub customize: CustomizeComponents,
    /// Values of the labels part-of, version and component, if given.
    pub product: Product,
    /// Definition of the network for migrations, as a handler's pod names it; if `None`, the pods' network is used.
    pub migration_network: Option<String>,
    /// Whether the roles for users are part of Kubernetes' own roles.
    pub aggregate_roles: bool,
    /// Whether the ready-made instance types and preferences are installed.
    pub instancetypes: bool,
    /// The monitoring stack to look for.
    pub monitoring: Monitoring,
}

/// The monitoring stack to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitoring {
    /// Service account of Prometheus.
    pub account: String,
    /// Namespaces in which it is looked for, in this order.
    pub namespaces: Vec<String>,
    /// Namespace in which Prometheus looks for scrape targets; the account's namespace by default.
    pub objects_in: Option<String>,
    /// Whether any of this was set.
    pub is_asked_for: bool,
    /// Address of an alert's page, with `%s` for the alert.
    pub runbooks: String,
}

impl Monitoring {
    /// KubeVirt's defaults: the names of well-known stacks.
    fn of(spec: &KubeVirtSpec, own: &Own) -> Self {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (account, namespace) = (given(&spec.monitor_account), given(&spec.monitor_namespace));
        Monitoring {
            is_asked_for: account.is_some() || namespace.is_some(),
            account: account.unwrap_or_else(|| MONITOR_ACCOUNT.to_owned()),
            namespaces: namespace
                .map_or_else(|| MONITOR_NAMESPACES.map(str::to_owned).into(), |namespace| vec![namespace]),
            objects_in: given(&spec.service_monitor_namespace),
            runbooks: own.runbooks.clone(),
        }
    }
}

/// The product's labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Product {
    /// `app.kubernetes.io/part-of`.
    pub name: Option<String>,
    /// `app.kubernetes.io/version`.
    pub version: Option<String>,
    /// `app.kubernetes.io/component`.
    pub component: Option<String>,
}

/// A refused field, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Refused {
    /// Path of the field.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
}

impl Refused {
    /// A refusal of that field for that reason.
    pub fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Refused { field: field.into(), why: why.into() }
    }
}

/// Default number of replicas of virt-api and virt-controller.
const REPLICAS: u32 = 2;
/// Default account of Prometheus.
const MONITOR_ACCOUNT: &str = "prometheus-k8s";
/// Default namespaces of Prometheus.
const MONITOR_NAMESPACES: [&str; 2] = ["openshift-monitoring", "monitoring"];

impl Target {
    /// Reads the object; returns all errors at once.
    pub fn of(spec: &KubeVirtSpec, own: &Own) -> Result<Target, Vec<Refused>> {
        let mut refused = vec![];
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let images = Images {
            pull_policy: given(&spec.image_pull_policy).unwrap_or_else(|| own.images.pull_policy.clone()),
            ..own.images.overridden(given(&spec.image_registry), given(&spec.image_tag))
        };
        if given(&spec.image_tag).is_some_and(|tag| !is_tag(&tag)) {
            refused.push(Refused::new(
                "spec.imageTag",
                "must be a tag; an image by its digest is named by virt-operator's variables VIRT_..._IMAGE",
            ));
        }
        if given(&spec.image_registry)
            .is_some_and(|registry| registry.contains(['@', ' ']) || registry.ends_with('/'))
        {
            refused.push(Refused::new(
                "spec.imageRegistry",
                "must be a registry and the path before the images' names, without a slash at the end",
            ));
        }
        if !["Always", "IfNotPresent", "Never"].contains(&images.pull_policy.as_str()) {
            refused.push(Refused::new("spec.imagePullPolicy", "must be Always, IfNotPresent or Never"));
        }
        let replicas = spec.infra.as_ref().and_then(|infra| infra.replicas).map_or(REPLICAS, u32::from);
        if replicas == 0 {
            refused.push(Refused::new("spec.infra.replicas", "must be at least 1"));
        }
        let product = Product {
            name: given(&spec.product_name),
            version: given(&spec.product_version),
            component: given(&spec.product_component),
        };
        for (field, value) in [
            ("spec.productName", &product.name),
            ("spec.productVersion", &product.version),
            ("spec.productComponent", &product.component),
        ] {
            if value.as_deref().is_some_and(|value| !is_label_value(value)) {
                refused.push(Refused::new(field, "must be a valid value of a label"));
            }
        }
        if !refused.is_empty() {
            return Err(refused);
        }
        let own_build = (&images.registry, &images.tag) == (&own.images.registry, &own.images.tag);
        let placement = |config: &Option<barevirt_api::v1::ComponentConfig>| {
            config.as_ref().and_then(|config| config.node_placement.clone())
        };
        let configuration = spec.configuration.as_ref();
        let migrations = configuration.and_then(|configuration| configuration.migrations.as_ref());
        let instancetypes = configuration
            .and_then(|configuration| configuration.common_instancetypes_deployment.as_ref())
            .and_then(|deployment| deployment.enabled)
            .unwrap_or(true);
        Ok(Target {
            digests: if own_build { own.digests.clone() } else { BTreeMap::new() },
            images,
            pull_secrets: spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect(),
            replicas,
            infra: placement(&spec.infra),
            workloads: placement(&spec.workloads),
            customize: spec.customize_components.clone().unwrap_or_default(),
            product,
            migration_network: migrations.and_then(|migrations| given(&migrations.network)),
            aggregate_roles: configuration
                .and_then(|configuration| configuration.role_aggregation_strategy.as_deref())
                != Some(MANUAL),
            instancetypes,
            monitoring: Monitoring::of(spec, own),
        })
    }

    /// The identity of the installation, which the status keeps as text.
    pub fn deployment(&self, own: &Own) -> Deployment {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Config<'a> {
            namespace: &'a str,
            registry: &'a str,
            kube_virt_version: &'a str,
            operator_version: &'a str,
            image_pull_policy: &'a str,
            image_pull_secrets: &'a [String],
            digests: &'a BTreeMap<String, String>,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            images: &'a BTreeMap<String, String>,
        }
        let config = json!(Config {
            namespace: &own.namespace,
            registry: &self.images.registry,
            kube_virt_version: &self.images.tag,
            operator_version: &own.version,
            image_pull_policy: &self.images.pull_policy,
            image_pull_secrets: &self.pull_secrets,
            digests: &self.digests,
            images: &self.images.pinned,
        })
        .to_string();
        Deployment {
            id: hash(&config),
            config,
            version: self.images.tag.clone(),
            registry: self.images.registry.clone(),
        }
    }
}

/// The identity of an installation, as the status names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployment {
    /// Hash of the configuration.
    pub id: String,
    /// The configuration, JSON.
    pub config: String,
    /// Tag of its images.
    pub version: String,
    /// Registry of its images.
    pub registry: String,
}

/// A short hash of a text, only for comparisons.
pub fn hash(text: &str) -> String {
    Sha256::digest(text).iter().take(20).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether the OCI distribution specification accepts a tag.
fn is_tag(text: &str) -> bool {
    text.len() <= 128
        && !text.starts_with(['.', '-'])
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.-".contains(letter))
}

fn is_label_value(text: &str) -> bool {
    let edge = |text: Option<char>| text.is_some_and(|letter| letter.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().next_back())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
}

/// The object that counts: the oldest. Others have no effect.
pub fn deciding<'a>(objects: impl IntoIterator<Item = &'a KubeVirt>) -> Option<&'a KubeVirt> {
    objects.into_iter().min_by_key(|object| {
        (
            object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            object.metadata.namespace.clone(),
            object.metadata.name.clone(),
        )
    })
}
