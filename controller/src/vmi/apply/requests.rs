//! Requests that several actions make.

use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use crate::vmi::action::{Action, Plan};
use crate::vmi::status::made_for;
use crate::vmi::subject::subject;
use crate::write::{self, FIELD_MANAGER};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::error::response;
use barevirt_component::request::{Error, call, call_opt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::Value;
use std::time::Instant;
use tracing::info;

/// Whether the instance is still as it was observed.
pub(crate) async fn is_current(cluster: &Cluster, vmi: &VirtualMachineInstance) -> Result<bool, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), &namespace);
    let fresh = call_opt("get", || subject(vmi), vmis.get_metadata(&vmi.name_any())).await?;
    Ok(fresh.is_some_and(|fresh| {
        fresh.metadata.uid == vmi.metadata.uid
            && fresh.metadata.resource_version == vmi.metadata.resource_version
    }))
}

/// Creates a pod; returns its UID from the API server's answer, or `None` where the instance already has a pod of that name.
pub(crate) async fn make_pod(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    pod: &Pod,
) -> Result<Option<String>, Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), pod.name_any());
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
    let pod_subject = || format!("pod {namespace}/{name}");
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let write = cluster.expectations.begin(Key::new(Kind::Pod, &namespace, &name), Instant::now());
    let (version, made) = match call("create", pod_subject, pods.create(&params, pod)).await {
        Ok(created) => (created.metadata.resource_version, created.metadata.uid),
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {
            let existing = call("get", pod_subject, pods.get(&name)).await?;
            if made_for(&existing) != vmi.metadata.uid.as_deref() {
                let owner = existing.owner_references().first();
                let owner = owner.map_or("nothing".to_owned(), |o| format!("{} {}", o.kind, o.name));
                return Err(Error::Foreign { subject: pod_subject(), owner });
            }
            (existing.metadata.resource_version, None)
        }
        Err(error) => return Err(error),
    };
    write.done(version.as_deref());
    Ok(made)
}

/// Carries out a plan that only reports: patches and events.
pub(super) async fn tell(cluster: &Cluster, vmi: &VirtualMachineInstance, plan: Plan) -> Result<(), Error> {
    for action in plan.actions {
        if let Action::Patch(body) = action {
            patch(cluster, vmi, &body).await?;
        }
    }
    for note in plan.notes {
        cluster.notes.tell(note, vmi.object_ref(&()));
    }
    Ok(())
}

/// Applies a merge patch to the instance, and logs a change of its phase.
pub(super) async fn patch(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    body: &Value,
) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    write::patch::<VirtualMachineInstance>(cluster, "patch", &namespace, &name, body).await?;
    let status = &body["status"];
    if let Some(phase) = status["phase"].as_str() {
        let reason = status["reason"].as_str().unwrap_or_default();
        info!(namespace, vmi = name, phase, reason, "phase changed");
    }
    Ok(())
}
