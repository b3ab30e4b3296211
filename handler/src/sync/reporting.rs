//! What a VM's task writes to the API server: its status, and events.

use std::sync::Arc;

use barevirt_api::names::REASON_GUEST_PANICKED;
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use barevirt_component::error::namespace_ends;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::Event;
use kube::{Api, Resource};
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::session::Session;
use super::{API_DEADLINE, Task, TaskError};
use crate::FIELD_MANAGER;
use crate::status::{events, patch};

impl Task {
    /// Writes the status, and events about what has changed.
    pub(super) async fn report(
        &mut self,
        vmi: &Arc<VirtualMachineInstance>,
        wanted: &VirtualMachineInstanceStatus,
    ) -> Result<(), TaskError> {
        let report = self.session.as_ref().map(Session::report);
        let launcher = report.as_ref().and_then(|report| report.status.as_ref());
        let layout = launcher.map(|status| status.pci_layout.as_str());
        let before = vmi.status.clone().unwrap_or_default();
        let smaller = launcher.map(|launcher| events::smaller_disks(&before, wanted, launcher));
        let Some(patch) = patch::patch(vmi, wanted, layout.unwrap_or_default()) else { return Ok(()) };
        let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
        let name = vmi.metadata.name.as_deref().unwrap_or_default();
        let api: Api<VirtualMachineInstance> = Api::namespaced(self.context.client.clone(), namespace);
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let body = Patch::Merge(&patch);
        self.limits.patches.take(Instant::now());
        let answer = timeout(API_DEADLINE, api.patch(name, &params, &body)).await;
        let after =
            answer.map_err(|_| TaskError::ApiDeadline)?.map_err(|error| TaskError::Api(Box::new(error)))?;
        let deleting = vmi.metadata.deletion_timestamp.is_some();
        let mut events = events::transitions(&before, wanted, deleting);
        events.extend(smaller.unwrap_or_default());
        events.extend(events::not_movable(vmi.spec.eviction_strategy.as_deref(), &before, wanted));
        if before.phase != wanted.phase {
            info!(phase = wanted.phase, reason = wanted.reason, "phase reported");
        }
        if events.iter().any(|event| event.reason == REASON_GUEST_PANICKED) {
            self.context.panics.count(namespace, name);
        }
        let seen = self.inputs.borrow().vmi.metadata.resource_version.clone();
        self.patched = Some((seen, Arc::new(after)));
        self.publish(vmi, events).await;
        Ok(())
    }

    /// Publishes events. A failure is logged, and there is no retry.
    pub(super) async fn publish(&mut self, vmi: &VirtualMachineInstance, events: Vec<Event>) {
        let reference = vmi.object_ref(&());
        for event in events {
            if !self.limits.events.take(Instant::now()) {
                debug!(reason = event.reason, "event dropped: there were too many");
                continue;
            }
            let published = timeout(API_DEADLINE, self.context.recorder.publish(&event, &reference)).await;
            match published {
                Ok(Ok(())) => {}
                // A namespace that is being deleted accepts no events.
                Ok(Err(error)) if namespace_ends(&error) => {
                    debug!(reason = event.reason, "namespace accepts no events");
                }
                Ok(Err(error)) => warn!(reason = event.reason, %error, "event not published"),
                Err(_) => warn!(reason = event.reason, "event not published in time"),
            }
        }
    }
}
