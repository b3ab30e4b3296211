//! Writes the `KubeVirt` object's finalizer and status.

use super::Reconciler;
use crate::operator::kind::Kind;
use crate::operator::observed::Mark;
use crate::operator::report::{self, Facts, Outcome};
use crate::operator::target::Deployment;
use crate::operator::{FINALIZER, NAME};
use barevirt_api::v1::{Condition, GenerationStatus, KubeVirt, KubeVirtStatus};
use barevirt_component::notes::Note;
use barevirt_component::request::Error;
use barevirt_component::request::{call, call_opt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use tracing::info;

/// The finalizer of former versions of KubeVirt.
const FORMER_FINALIZER: &str = "foregroundDeleteKubeVirt";

impl Reconciler {
    /// Sets or removes the finalizer; returns whether it was written.
    pub(super) async fn set_finalizer(&self, kubevirt: &KubeVirt, wanted: bool) -> Result<bool, Error> {
        let kubevirt = &self.cache.newest(kubevirt);
        let mut finalizers: Vec<String> =
            kubevirt.finalizers().iter().filter(|finalizer| !is_ours(finalizer)).cloned().collect();
        if wanted {
            finalizers.push(FINALIZER.to_owned());
        }
        let (mut before, mut after) = (kubevirt.finalizers().to_vec(), finalizers.clone());
        before.sort();
        after.sort();
        if before == after {
            return Ok(false);
        }
        let patch = Patch::Merge(json!({"metadata": {
            "uid": kubevirt.metadata.uid,
            "resourceVersion": kubevirt.metadata.resource_version,
            "finalizers": finalizers,
        }}));
        let api = kubevirts(&self.client, kubevirt);
        let name = kubevirt.name_any();
        let params = PatchParams { field_manager: Some(NAME.to_owned()), ..PatchParams::default() };
        let written =
            call_opt("write finalizers of", || subject(kubevirt), api.patch(&name, &params, &patch)).await?;
        if let Some(written) = written {
            self.cache.put_kubevirt(kubevirt, written);
        }
        Ok(true)
    }

    /// Writes the status if it differs; returns whether it did.
    pub(super) async fn report(
        &self,
        kubevirt: &KubeVirt,
        outcome: &Outcome,
        target: Option<&Deployment>,
    ) -> Result<bool, Error> {
        // The outcome is about the generation that the pass saw: a later change is not observed yet.
        let generation = kubevirt.metadata.generation;
        let kubevirt = &self.cache.newest(kubevirt);
        let old = kubevirt.status.clone().unwrap_or_default();
        let architecture = kubevirt
            .spec
            .configuration
            .as_ref()
            .and_then(|configuration| configuration.architecture_configuration.as_ref())
            .and_then(|configuration| configuration.default_architecture.clone())
            .unwrap_or_else(|| self.own.architecture.clone());
        let facts = Facts {
            target: target.cloned(),
            generation,
            operator_version: self.own.version.clone(),
            architecture,
            generations: if target.is_some() { self.generations() } else { old.generations.clone() },
        };
        let new = report::status(&old, outcome, &facts, &Time(Timestamp::now()));
        if new == old {
            return Ok(false);
        }
        let mut object = kubevirt.clone();
        object.status = Some(new.clone());
        let api = kubevirts(&self.client, kubevirt);
        let name = kubevirt.name_any();
        let params = PostParams { field_manager: Some(NAME.to_owned()), ..PostParams::default() };
        let written =
            call("write status of", || subject(kubevirt), api.replace_status(&name, &params, &object));
        self.cache.put_kubevirt(kubevirt, written.await?);
        self.tell(kubevirt, &old, &new);
        Ok(true)
    }

    /// Logs each changed condition, and emits an event for it.
    fn tell(&self, kubevirt: &KubeVirt, old: &KubeVirtStatus, new: &KubeVirtStatus) {
        for condition in &new.conditions {
            let before = Condition::find(&old.conditions, &condition.type_);
            if before.is_some_and(|before| {
                (&before.status, &before.reason) == (&condition.status, &condition.reason)
            }) {
                continue;
            }
            let reason = condition.reason.clone().unwrap_or_default();
            let message = condition.message.clone().unwrap_or_default();
            info!(
                condition = condition.type_,
                status = condition.status,
                reason,
                message,
                "condition changed"
            );
            let failed = condition.reason.as_deref() == Some("DeploymentFailed")
                && Condition::find(&new.conditions, report::SYNCHRONIZED).is_none();
            let warning =
                condition.type_ == report::SYNCHRONIZED || condition.type_ == report::DEGRADED && failed;
            if warning || condition.type_ == report::AVAILABLE {
                let note =
                    if warning { Note::warning(reason, message) } else { Note::normal(reason, message) };
                self.notes.tell(note, kubevirt.object_ref(&()));
            }
        }
        if old.phase != new.phase {
            info!(from = old.phase, to = new.phase, "phase changed");
        }
    }

    /// The generations in which we left the objects that KubeVirt's status lists.
    fn generations(&self) -> Vec<GenerationStatus> {
        self.left
            .iter()
            .filter_map(|(identity, left)| match (identity.kind, &left.mark) {
                (
                    Kind::Deployment
                    | Kind::DaemonSet
                    | Kind::CustomResourceDefinition
                    | Kind::MutatingWebhookConfiguration
                    | Kind::ValidatingWebhookConfiguration,
                    Mark::Generation(generation),
                ) => Some(GenerationStatus {
                    group: identity.kind.group().to_owned(),
                    resource: identity.kind.plural().to_owned(),
                    namespace: identity.namespace.clone(),
                    name: identity.name.clone(),
                    last_generation: *generation,
                    hash: Some(left.hash.clone()),
                }),
                _ => None,
            })
            .collect()
    }
}

fn kubevirts(client: &Client, kubevirt: &KubeVirt) -> Api<KubeVirt> {
    Api::namespaced(client.clone(), &kubevirt.namespace().unwrap_or_default())
}

fn subject(kubevirt: &KubeVirt) -> String {
    format!("KubeVirt {}/{}", kubevirt.namespace().unwrap_or_default(), kubevirt.name_any())
}

/// Whether it is a finalizer of this version of the operator, or of a former one.
pub(super) fn is_ours(finalizer: &str) -> bool {
    finalizer == FINALIZER || finalizer == FORMER_FINALIZER
}
