//! The kinds of objects in an installation, and identities of objects.

use kube::core::ApiResource;
use serde_json::Value;
use std::fmt;

/// A kind that we install.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Kind {
    CustomResourceDefinition,
    ServiceAccount,
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
    Service,
    PodDisruptionBudget,
    NetworkPolicy,
    Deployment,
    DaemonSet,
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
    ApiService,
    ClusterInstancetype,
    ClusterPreference,
    ServiceMonitor,
    PrometheusRule,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 20] = [
        Kind::CustomResourceDefinition,
        Kind::ServiceAccount,
        Kind::ClusterRole,
        Kind::ClusterRoleBinding,
        Kind::Role,
        Kind::RoleBinding,
        Kind::ValidatingAdmissionPolicy,
        Kind::ValidatingAdmissionPolicyBinding,
        Kind::Service,
        Kind::PodDisruptionBudget,
        Kind::NetworkPolicy,
        Kind::Deployment,
        Kind::DaemonSet,
        Kind::MutatingWebhookConfiguration,
        Kind::ValidatingWebhookConfiguration,
        Kind::ApiService,
        Kind::ClusterInstancetype,
        Kind::ClusterPreference,
        Kind::ServiceMonitor,
        Kind::PrometheusRule,
    ];

    /// Group, version, name and plural.
    fn words(self) -> (&'static str, &'static str, &'static str, &'static str) {
        const RBAC: &str = "rbac.authorization.k8s.io";
        const ADMISSION: &str = "admissionregistration.k8s.io";
        const MONITORING: &str = crate::monitoring::GROUP;
        const INSTANCETYPE: &str = "instancetype.kubevirt.io";
        match self {
            Kind::CustomResourceDefinition => {
                ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
            }
            Kind::ServiceAccount => ("", "v1", "ServiceAccount", "serviceaccounts"),
            Kind::ClusterRole => (RBAC, "v1", "ClusterRole", "clusterroles"),
            Kind::ClusterRoleBinding => (RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings"),
            Kind::Role => (RBAC, "v1", "Role", "roles"),
            Kind::RoleBinding => (RBAC, "v1", "RoleBinding", "rolebindings"),
            Kind::ValidatingAdmissionPolicy => {
                (ADMISSION, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies")
            }
            Kind::ValidatingAdmissionPolicyBinding => {
                (ADMISSION, "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings")
            }
            Kind::Service => ("", "v1", "Service", "services"),
            Kind::PodDisruptionBudget => ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
            Kind::NetworkPolicy => ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
            Kind::Deployment => ("apps", "v1", "Deployment", "deployments"),
            Kind::DaemonSet => ("apps", "v1", "DaemonSet", "daemonsets"),
            Kind::MutatingWebhookConfiguration => {
                (ADMISSION, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
            }
            Kind::ValidatingWebhookConfiguration => {
                (ADMISSION, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations")
            }
            Kind::ApiService => ("apiregistration.k8s.io", "v1", "APIService", "apiservices"),
            Kind::ClusterInstancetype => (
                INSTANCETYPE,
                "v1beta1",
                "VirtualMachineClusterInstancetype",
                "virtualmachineclusterinstancetypes",
            ),
            Kind::ClusterPreference => (
                INSTANCETYPE,
                "v1beta1",
                "VirtualMachineClusterPreference",
                "virtualmachineclusterpreferences",
            ),
            Kind::ServiceMonitor => (MONITORING, "v1", "ServiceMonitor", "servicemonitors"),
            Kind::PrometheusRule => (MONITORING, "v1", "PrometheusRule", "prometheusrules"),
        }
    }

    /// API group, empty for the core.
    pub fn group(self) -> &'static str {
        self.words().0
    }

    /// Its name in manifests.
    pub fn name(self) -> &'static str {
        self.words().2
    }

    /// Its name in paths and roles.
    pub fn plural(self) -> &'static str {
        self.words().3
    }

    /// Whether its objects are in namespaces.
    pub fn is_namespaced(self) -> bool {
        match self {
            Kind::ServiceAccount
            | Kind::Role
            | Kind::RoleBinding
            | Kind::Service
            | Kind::PodDisruptionBudget
            | Kind::NetworkPolicy
            | Kind::Deployment
            | Kind::DaemonSet
            | Kind::ServiceMonitor
            | Kind::PrometheusRule => true,
            Kind::CustomResourceDefinition
            | Kind::ClusterRole
            | Kind::ClusterRoleBinding
            | Kind::ValidatingAdmissionPolicy
            | Kind::ValidatingAdmissionPolicyBinding
            | Kind::MutatingWebhookConfiguration
            | Kind::ValidatingWebhookConfiguration
            | Kind::ApiService
            | Kind::ClusterInstancetype
            | Kind::ClusterPreference => false,
        }
    }

    /// Whether its objects control pods.
    pub fn has_pods(self) -> bool {
        matches!(self, Kind::Deployment | Kind::DaemonSet)
    }

    /// The resource description for a client.
    pub fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = self.words();
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }

    /// The kind with that API version and name.
    pub fn find(api_version: &str, kind: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|known| {
            let resource = known.resource();
            resource.api_version == api_version && resource.kind == kind
        })
    }
}

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace, where its kind has them.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl Identity {
    /// The identity of a manifest, if its kind is one of ours.
    pub fn of(object: &Value) -> Option<Identity> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(Identity {
            kind: Kind::find(object["apiVersion"].as_str()?, object["kind"].as_str()?)?,
            namespace: text(&object["metadata"]["namespace"]),
            name: text(&object["metadata"]["name"])?,
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind.name())?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}
