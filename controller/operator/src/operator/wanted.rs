//! An object that is to be in the cluster: its place in the order, its contents and their hash.

use super::kind::{Identity, Kind};
use serde_json::Value;

/// Steps of an installation; see [`super::plan`] for their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Custom resource definitions.
    Definitions,
    /// Service accounts and what they may do.
    Rights,
    /// What components need around them: services, policies, budgets.
    Basics,
    /// virt-api.
    Api,
    /// virt-controller, and what else runs as a deployment.
    Controllers,
    /// virt-handler.
    Handler,
    /// Webhooks and aggregated APIs, which are answered by virt-api.
    Admission,
    /// Instance types and preferences.
    ReadyMade,
    /// What others' operators look at; nothing waits for it.
    Monitoring,
}

impl Stage {
    pub(super) fn of(identity: &Identity) -> Stage {
        match identity.kind {
            Kind::CustomResourceDefinition => Stage::Definitions,
            Kind::ServiceAccount
            | Kind::ClusterRole
            | Kind::ClusterRoleBinding
            | Kind::Role
            | Kind::RoleBinding => Stage::Rights,
            Kind::ValidatingAdmissionPolicy
            | Kind::ValidatingAdmissionPolicyBinding
            | Kind::Service
            | Kind::PodDisruptionBudget
            | Kind::NetworkPolicy => Stage::Basics,
            Kind::Deployment if identity.name == "virt-api" => Stage::Api,
            Kind::Deployment => Stage::Controllers,
            Kind::DaemonSet => Stage::Handler,
            Kind::MutatingWebhookConfiguration | Kind::ValidatingWebhookConfiguration | Kind::ApiService => {
                Stage::Admission
            }
            Kind::ClusterInstancetype | Kind::ClusterPreference => Stage::ReadyMade,
            Kind::ServiceMonitor | Kind::PrometheusRule => Stage::Monitoring,
        }
    }

    /// Whether it consists of pods.
    pub fn has_pods(self) -> bool {
        matches!(self, Stage::Api | Stage::Controllers | Stage::Handler)
    }
}

/// An object that is to be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Which.
    pub identity: Identity,
    /// When.
    pub stage: Stage,
    /// Hash of its contents.
    pub hash: String,
    /// Its contents.
    pub body: Value,
    /// What it is first, until a pod of it is ready, where it replaces other pods on all nodes.
    pub canary: Option<Form>,
}

impl Wanted {
    /// Whether by it the API server is told whom to believe when it calls us.
    pub fn is_called(&self) -> bool {
        matches!(
            self.identity.kind,
            Kind::MutatingWebhookConfiguration | Kind::ValidatingWebhookConfiguration | Kind::ApiService
        )
    }
}

/// Contents of an object, and their hash.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// The hash.
    pub hash: String,
    /// The contents.
    pub body: Value,
}
