//! The work of a VM's task for a guest that migrates.

use std::sync::Arc;
use std::time::Duration;

use barevirt_api::settings::Bindings;
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use barevirt_component::certificates;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::ListParams;
use tokio::time::timeout;
use tracing::info;

use super::{API_DEADLINE, Context, Task, TaskError};
use crate::migration;
use crate::migration::address::Reached;
use crate::migration::arrivals::Arrivals;
use crate::migration::source_pod;
use crate::pods::LauncherPod;
use crate::status::compute;

/// How long to wait for a source before its pod is checked.
const WORD: Duration = Duration::from_secs(2);
/// How long a source has to end a cancelled migration, if its pod seems to run: its node may be off.
const SILENT: Duration = Duration::from_secs(60);

/// State for guests that migrate.
#[derive(Debug, Clone)]
pub struct Migration {
    /// Guests that may arrive here.
    pub arrivals: Arrivals,
    /// The certificate that is presented to handlers of other nodes.
    pub own: Arc<certificates::Client>,
    /// The address at which handlers of other nodes reach this one.
    pub reached: Reached,
}

impl Migration {
    /// State of a handler to whose node no guest migrates.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        let (shown, trusted) = (tokio::sync::watch::channel(None).1, tokio::sync::watch::channel(None).1);
        let policy = tokio::sync::watch::channel(certificates::TlsPolicy::default()).1;
        let own = certificates::Client::follow(shown, trusted, policy);
        Self { arrivals: Arrivals::default(), own, reached: Reached::default() }
    }
}

impl Context {
    /// Network binding plugins that the installation has.
    pub(super) fn bindings(&self) -> Bindings {
        self.installation.get().map(|reading| reading.settings.bindings.clone()).unwrap_or_default()
    }

    /// The same, for the cards of this instance. If plugins connect some, the settings are waited for: a plugin that is not
    /// known yet would be taken for one that was removed.
    pub(super) async fn bindings_for(&self, vmi: &VirtualMachineInstance) -> Bindings {
        if vmi.spec.domain.devices.interfaces.iter().any(|interface| interface.binding.is_some()) {
            // Without them, cards that the guest has stay as they are, and others are tried again.
            let _ = timeout(API_DEADLINE, self.installation.ready()).await;
        }
        self.bindings()
    }
}

impl Task {
    /// The status that the VMI should have, as far as this node determines it.
    pub(super) fn wanted(
        &self,
        vmi: &VirtualMachineInstance,
        pod: Option<&LauncherPod>,
        seen: compute::LauncherView<'_>,
        now: &Time,
    ) -> VirtualMachineInstanceStatus {
        let node = self.context.node.as_str();
        let launcher = seen.launcher;
        if let Some((uid, _)) = migration::plan::incoming(vmi, node) {
            let listens = self.session.as_ref().is_some_and(|session| session.awaits(uid));
            // Without a known address no guest migrates to this node.
            let address = listens.then(|| self.context.migration.reached.now()).flatten();
            let address = address.map(|address| address.to_string());
            let target = migration::status::Target {
                node,
                address: address.as_deref().unwrap_or_default(),
                launcher,
                listens: address.is_some(),
                pod: pod.map(|pod| pod.uid.as_str()),
            };
            let status = migration::status::target(vmi, target, now);
            if status.node_name.as_deref() != Some(node) {
                return status;
            }
            // The guest is here: one write reports this and its state.
            let arrived = VirtualMachineInstance { status: Some(status), ..vmi.clone() };
            return compute::compute(&arrived, seen, now);
        }
        let mut wanted = compute::compute(vmi, seen, now);
        if let Some(launcher) = launcher {
            let refused =
                migration::plan::outgoing(vmi, node).and_then(|(_, uid)| self.session.as_ref()?.refused(uid));
            migration::status::source(&mut wanted, vmi, node, launcher, refused, now);
        }
        wanted
    }

    /// Lets a guest run that is completely here, if its source has ended without letting it run.
    pub(super) async fn claim(
        &mut self,
        vmi: &VirtualMachineInstance,
        uid: &str,
        source: &str,
    ) -> Result<(), TaskError> {
        self.source_has_ended(vmi, uid, source).await?;
        let Some(session) = &mut self.session else { return Ok(()) };
        session.claim(uid, source_pod::is_paused(vmi)).await?;
        info!(migration = uid, "the source has ended: the guest continues here");
        Ok(())
    }

    /// Ends a guest that cannot get the rest of its memory, because its source has ended.
    pub(super) async fn orphan(
        &mut self,
        vmi: &VirtualMachineInstance,
        uid: &str,
        source: &str,
    ) -> Result<(), TaskError> {
        self.source_has_ended(vmi, uid, source).await?;
        let Some(session) = &self.session else { return Ok(()) };
        session.source_ended(uid).await?;
        info!(migration = uid, "the source has ended, and the guest here lacks some of its memory");
        Ok(())
    }

    /// Gives up a guest that comes by a cancelled migration: at once if the source has ended, else after a while. A guest
    /// that still runs there goes on there.
    pub(super) async fn abandon(
        &mut self,
        vmi: &VirtualMachineInstance,
        uid: &str,
        source: &str,
    ) -> Result<(), TaskError> {
        let is_silent = self.session.as_mut().is_some_and(|session| session.waited(uid) >= SILENT);
        if !is_silent {
            let ended = self.source_has_ended(vmi, uid, source).await;
            ended.map_err(|error| {
                if matches!(error, TaskError::Source) { TaskError::NotCancelled } else { error }
            })?;
        }
        let Some(session) = &self.session else { return Ok(()) };
        session.abandon(uid).await?;
        info!(migration = uid, "the guest does not arrive: its launcher here ends");
        Ok(())
    }

    /// # Errors
    /// If the source's pod may still run, or is not known.
    async fn source_has_ended(
        &mut self,
        vmi: &VirtualMachineInstance,
        uid: &str,
        source: &str,
    ) -> Result<(), TaskError> {
        let (name, of) = source_pod::named(vmi, source);
        if self.session.as_mut().is_none_or(|session| session.waited(uid) < WORD) {
            return Err(TaskError::Source);
        }
        let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        let one = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = timeout(API_DEADLINE, pods.list(&one)).await.map_err(|_| TaskError::ApiDeadline)?;
        let found = found.map_err(|error| TaskError::Api(Box::new(error)))?;
        if source_pod::is_gone(found.items.first(), of) { Ok(()) } else { Err(TaskError::Source) }
    }
}
