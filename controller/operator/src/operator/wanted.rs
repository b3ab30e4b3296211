//! An object that should be in the cluster: its stage, its contents and their hash.

use super::kind::{Identity, Kind};
use serde_json::Value;

/// Stages of an installation; see [`super::plan`] for their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Custom resource definitions.
    Definitions,
    /// Service accounts and their rights.
    Rights,
    /// Objects that components need: services, policies, budgets.
    Basics,
    /// virt-api.
    Api,
    /// virt-controller, and other deployments.
    Controllers,
    /// virt-handler.
    Handler,
    /// Webhooks and aggregated APIs, which virt-api answers.
    Admission,
    /// Instance types and preferences.
    ReadyMade,
    /// Objects for other operators; nothing waits for them.
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

    /// Whether its objects have pods.
    pub fn has_pods(self) -> bool {
        matches!(self, Stage::Api | Stage::Controllers | Stage::Handler)
    }
}

/// An object that should exist.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its identity.
    pub identity: Identity,
    /// Its stage.
    pub stage: Stage,
    /// Hash of its contents.
    pub hash: String,
    /// Its contents.
    pub body: Value,
    /// Its first form, until one of its pods is ready, if it replaces pods on all nodes.
    pub canary: Option<Form>,
}

impl Wanted {
    /// Whether it tells the API server which authorities to trust when it calls us.
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
