//! Carries out an instance's plan.

mod beside;
pub(crate) mod requests;

use self::beside::{Made, Role};
use self::requests::{is_current, make_pod, patch, tell};
use super::action::{Action, Plan};
use super::subject::subject;
use super::{kept, resize, state, status};
use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use crate::write;
use crate::write::FIELD_MANAGER;
use barevirt_api::names::{COMPUTE_CONTAINER, REASON_FAILED_CREATE, REASON_SYNC_FAILED};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::error::response;
use barevirt_component::request::{Category, Error};
use barevirt_component::request::{call, call_opt};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceRequirements};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// When to look again after a pod could not be resized: its end, or a change, is an event.
const REFUSED: Duration = Duration::from_secs(60);

/// When to retry a refused pod beside the launcher.
const REFUSED_BESIDE: Duration = Duration::from_secs(30);
/// When to look again at an instance that has changed meanwhile.
const CHANGED: Duration = Duration::from_millis(200);

/// Name of pods beside the launcher in events; KubeVirt's words.
const CONSUMER: &str = "WaitForFirstConsumer temporary pod";
const ATTACHMENT: &str = "attachment pod";

/// Carries out the plan; returns when to look again.
pub(super) async fn apply(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    plan: Plan,
) -> Result<Option<Duration>, Error> {
    let mut again = plan.again;
    for action in plan.actions {
        match action {
            Action::CreateClaim(claim) => create_claim(cluster, vmi, &claim).await?,
            Action::DeleteClaim { name, uid } => delete_claim(cluster, vmi, &name, uid).await?,
            Action::SettleState(moved) => kept::settle(cluster, vmi, &moved).await?,
            Action::CreatePod(pod) => {
                if let Some(again) = create_pod(cluster, vmi, &pod).await? {
                    return Ok(Some(again));
                }
            }
            Action::Release { name, uid, grace } => {
                beside::delete(cluster, vmi, CONSUMER, &name, uid, Some(grace)).await?;
            }
            // A refused pod does not delay other volumes.
            Action::Provision { pod, volume } => {
                match beside::make(cluster, vmi, &pod, Role::Consumer(volume.as_deref())).await? {
                    Made::There => {}
                    Made::Refused => again = again.into_iter().chain([REFUSED_BESIDE]).min(),
                    Made::Changed => return Ok(Some(CHANGED)),
                }
            }
            Action::Attach { pod, volume } => {
                match beside::make(cluster, vmi, &pod, Role::Attachment(&volume)).await? {
                    Made::There => {}
                    Made::Refused => again = again.into_iter().chain([REFUSED_BESIDE]).min(),
                    Made::Changed => return Ok(Some(CHANGED)),
                }
            }
            Action::Detach { name, uid, wanted } => {
                if !is_current(cluster, vmi).await? {
                    return Ok(Some(CHANGED));
                }
                beside::delete(cluster, vmi, ATTACHMENT, &name, uid, None).await?;
                if !wanted {
                    cluster.pauses.end(&vmi.namespace().unwrap_or_default(), &name);
                }
            }
            Action::DeletePod { name, uid, grace } => delete_pod(cluster, vmi, &name, uid, grace).await?,
            Action::EndPod { name, uid } => {
                // The kubelet ends a pod whose time has passed, and keeps it.
                let body = json!({"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": 1}});
                let namespace = vmi.namespace().unwrap_or_default();
                write::patch::<Pod>(cluster, "end", &namespace, &name, &body).await?;
                info!(vmi = subject(vmi), pod = name, "the launcher pod is to end and stays");
            }
            Action::ResizePod { name, uid, resources } => {
                if let Some(again) = resize_pod(cluster, vmi, &name, &uid, &resources).await? {
                    return Ok(Some(again));
                }
            }
            Action::AnnotatePod { name, uid, annotation, value } => {
                let body = json!({"metadata": {"uid": uid, "annotations": {annotation: &value}}});
                let namespace = vmi.namespace().unwrap_or_default();
                write::patch::<Pod>(cluster, "patch", &namespace, &name, &body).await?;
                info!(vmi = subject(vmi), pod = name, annotation, value, "annotation of the launcher pod");
            }
            Action::Patch(body) => patch(cluster, vmi, &body).await?,
        }
    }
    for note in plan.notes {
        cluster.notes.tell(note, vmi.object_ref(&()));
    }
    Ok(again)
}

/// Creates the pod that offers a volume's disk on another node; returns when to look again, where it was not created.
pub(crate) async fn attach(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    pod: &Pod,
    volume: &str,
) -> Result<Option<Duration>, Error> {
    Ok(match beside::make(cluster, vmi, pod, Role::Attachment(volume)).await? {
        Made::There => None,
        Made::Refused => Some(REFUSED_BESIDE),
        Made::Changed => Some(CHANGED),
    })
}

/// Creates the pod; returns when to look again, where it was not created: the instance has changed since it was observed, or
/// another object has the pod's name.
async fn create_pod(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    pod: &Pod,
) -> Result<Option<Duration>, Error> {
    if !is_current(cluster, vmi).await? {
        return Ok(Some(CHANGED));
    }
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), pod.name_any());
    match make_pod(cluster, vmi, pod).await {
        Ok(Some(uid)) => {
            cluster.created_pods.note(&uid);
            info!(namespace, vmi = vmi.name_any(), pod = name, uid, "created the launcher pod");
            Ok(None)
        }
        // The next reconciliation comes when the cache shows it.
        Ok(None) => Ok(Some(CHANGED)),
        // The cache has only pods with our labels, so no event reports the end of this one.
        Err(error @ Error::Foreign { .. }) => {
            let plan = status::refused(vmi, REASON_SYNC_FAILED, &status::taken(&name), Timestamp::now());
            tell(cluster, vmi, plan).await?;
            warn!(vmi = subject(vmi), error = %error, "the launcher's name is taken");
            Ok(Some(status::TAKEN_NAME_INTERVAL))
        }
        Err(error) => {
            if matches!(error, Error::Api { .. }) && error.category() == Category::Refused {
                report_refusal(cluster, vmi, REASON_FAILED_CREATE, "pod", &error).await?;
            }
            Err(error)
        }
    }
}

/// Creates the claim. An existing claim of its name is found at the next look, or is being deleted.
async fn create_claim(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    claim: &PersistentVolumeClaim,
) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), claim.name_any());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &namespace);
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match call("create", || format!("claim {namespace}/{name}"), claims.create(&params, claim)).await {
        Ok(_) => info!(namespace, vmi = vmi.name_any(), claim = name, "created the claim for state"),
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {}
        Err(error) => {
            if error.category() == Category::Refused {
                report_refusal(cluster, vmi, state::FAILED_CREATE, "PVC", &error).await?;
            }
            return Err(error);
        }
    }
    Ok(())
}

async fn delete_claim(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    name: &str,
    uid: String,
) -> Result<(), Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &namespace);
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default()
    };
    call_opt("delete", || format!("claim {namespace}/{name}"), claims.delete(name, &params)).await?;
    info!(
        namespace,
        vmi = vmi.name_any(),
        claim = name,
        "deleted the claim for state: nothing is kept any more"
    );
    Ok(())
}

/// Reports on the instance why the creation was refused: a quota, Pod Security, a name that does not exist.
async fn report_refusal(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    reason: &str,
    what: &str,
    error: &Error,
) -> Result<(), Error> {
    let message = format!("Error creating {what}: {}", error.message());
    tell(cluster, vmi, status::refused(vmi, reason, &message, Timestamp::now())).await?;
    warn!(vmi = subject(vmi), error = error.message(), what, "creation was refused");
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

/// Changes the resources of the launcher's container. A refusal is reported on the instance; then returns when to look
/// again.
async fn resize_pod(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    name: &str,
    uid: &str,
    resources: &ResourceRequirements,
) -> Result<Option<Duration>, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
    let body = Patch::Strategic(json!({
        "metadata": {"uid": uid},
        "spec": {"containers": [{"name": COMPUTE_CONTAINER, "resources": resources}]},
    }));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let write = cluster.expectations.begin(Key::new(Kind::Pod, &namespace, name), Instant::now());
    let request = pods.patch_subresource("resize", name, &params, &body);
    match call("resize", || format!("pod {namespace}/{name}"), request).await {
        Ok(resized) => {
            write.done(resized.metadata.resource_version.as_deref());
            info!(namespace, vmi = vmi.name_any(), pod = name, "resized the launcher pod");
            Ok(None)
        }
        // A cluster without in-place resize does not have this subresource.
        Err(error) if matches!(error.category(), Category::Refused | Category::Gone) => {
            let plan = resize::refused(vmi, &error.message(), Timestamp::now());
            tell(cluster, vmi, plan).await?;
            warn!(vmi = subject(vmi), error = error.message(), "the launcher pod was not resized");
            Ok(Some(REFUSED))
        }
        Err(error) => Err(error),
    }
}
