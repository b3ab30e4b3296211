//! Carrying out a plan for an instance.

use super::plan::{self, Action, Plan};
use super::subject;
use crate::cluster::Cluster;
use crate::error::{Category, Error, response};
use crate::expectations::{Key, Kind};
use crate::shell::{FIELD_MANAGER, call, call_opt};
use crate::write;
use barevirt_api::names::{CREATED_BY_LABEL, REASON_FAILED_CREATE};
use barevirt_api::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde_json::Value;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Does what the plan says; the time of the next look.
pub(super) async fn apply(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    plan: Plan,
) -> Result<Option<Duration>, Error> {
    for action in plan.actions {
        match action {
            Action::CreatePod(pod) => {
                if !create_pod(cluster, vmi, &pod).await? {
                    return Ok(Some(Duration::from_millis(200)));
                }
            }
            Action::DeletePod { name, uid, grace } => delete_pod(cluster, vmi, &name, uid, grace).await?,
            Action::Patch(body) => patch(cluster, vmi, &body).await?,
        }
    }
    for note in plan.notes {
        cluster.notes.tell(note, vmi.object_ref(&()));
    }
    Ok(plan.again)
}

/// Creates the pod, unless the instance changed since it was observed: then false.
async fn create_pod(cluster: &Cluster, vmi: &VirtualMachineInstance, pod: &Pod) -> Result<bool, Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), pod.name_any());
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), &namespace);
    let fresh = call_opt("get", || subject(vmi), vmis.get_metadata(&vmi.name_any())).await?;
    if fresh.is_none_or(|fresh| {
        fresh.metadata.uid != vmi.metadata.uid
            || fresh.metadata.resource_version != vmi.metadata.resource_version
    }) {
        return Ok(false);
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
    let pod_subject = || format!("pod {namespace}/{name}");
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let write = cluster.expectations.begin(Key::new(Kind::Pod, &namespace, &name), Instant::now());
    let version = match call("create", pod_subject, pods.create(&params, pod)).await {
        Ok(created) => created.metadata.resource_version,
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {
            let existing = call("get", pod_subject, pods.get(&name)).await?;
            if existing.labels().get(CREATED_BY_LABEL) != vmi.metadata.uid.as_ref() {
                let owner = existing.owner_references().first();
                let owner = owner.map_or("nothing".to_owned(), |o| format!("{} {}", o.kind, o.name));
                return Err(Error::Foreign { subject: pod_subject(), owner });
            }
            existing.metadata.resource_version
        }
        Err(error) => {
            if error.category() == Category::Refused {
                tell_refusal(cluster, vmi, &error).await?;
            }
            return Err(error);
        }
    };
    write.done(version.as_deref());
    info!(namespace, vmi = vmi.name_any(), pod = name, "created the launcher pod");
    Ok(true)
}

/// Quota, Pod Security, a name that does not exist: the user is told on the instance.
async fn tell_refusal(cluster: &Cluster, vmi: &VirtualMachineInstance, error: &Error) -> Result<(), Error> {
    let message = format!("Error creating pod: {}", error.message());
    let plan = plan::refused(vmi, REASON_FAILED_CREATE, &message, Timestamp::now());
    for action in plan.actions {
        if let Action::Patch(body) = action {
            patch(cluster, vmi, &body).await?;
        }
    }
    for note in plan.notes {
        cluster.notes.tell(note, vmi.object_ref(&()));
    }
    warn!(vmi = subject(vmi), error = error.message(), "the launcher pod was refused");
    Ok(())
}

async fn delete_pod(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    name: &str,
    uid: String,
    grace: u32,
) -> Result<(), Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let params = DeleteParams {
        grace_period_seconds: Some(grace),
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default()
    };
    write::delete::<Pod>(cluster, &namespace, name, &params).await?;
    info!(namespace, vmi = vmi.name_any(), pod = name, grace, "deleted the launcher pod");
    Ok(())
}

async fn patch(cluster: &Cluster, vmi: &VirtualMachineInstance, body: &Value) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    write::patch::<VirtualMachineInstance>(cluster, "patch", &namespace, &name, body).await?;
    let status = &body["status"];
    if let Some(phase) = status["phase"].as_str() {
        let reason = status["reason"].as_str().unwrap_or_default();
        info!(namespace, vmi = name, phase, reason, "phase changed");
    }
    Ok(())
}
