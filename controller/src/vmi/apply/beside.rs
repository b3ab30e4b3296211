//! Creates and deletes pods beside an instance's launcher: those that offer disks, and those that claims wait for.

use super::requests::{is_current, make_pod, tell};
use crate::cluster::Cluster;
use crate::vmi::action::Plan;
use crate::vmi::subject::subject;
use crate::vmi::{hotplug, status};
use crate::write;
use barevirt_api::names::{
    REASON_FAILED_CREATE, REASON_FAILED_DELETE, REASON_SUCCESSFUL_CREATE, REASON_SUCCESSFUL_DELETE,
};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::notes::Note;
use barevirt_component::request::{Category, Error};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use kube::{Resource, ResourceExt};
use std::time::Instant;
use tracing::{info, warn};

/// The purpose of such a pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role<'a> {
    /// It offers the disk of a volume.
    Attachment(&'a str),
    /// Claims wait for it before they are filled: the claim of a hot-plugged volume, or the launcher's claims.
    Consumer(Option<&'a str>),
}

/// The result of creating a pod.
pub(super) enum Made {
    /// It exists.
    There,
    /// It was refused; that is reported.
    Refused,
    /// The instance has changed since it was observed.
    Changed,
}

impl Role<'_> {
    /// Message about its creation; KubeVirt's words, like the next.
    fn created(self, name: &str) -> String {
        match self {
            Role::Attachment(_) => format!("Created attachment pod {name}"),
            Role::Consumer(Some(volume)) => format!("Created hotplug trigger pod for volume {volume}"),
            Role::Consumer(None) => format!("Created virtual machine pod {name}"),
        }
    }

    /// The plan that reports its refusal.
    fn refused(self, vmi: &VirtualMachineInstance, why: &str) -> Plan {
        match self {
            Role::Attachment(volume) => {
                hotplug::refused(vmi, volume, &format!("Error creating attachment pod: {why}"))
            }
            Role::Consumer(Some(volume)) => {
                let what = format!("hotplug population trigger pod for volume {volume}");
                hotplug::refused(vmi, volume, &format!("Error creating {what}: {why}"))
            }
            Role::Consumer(None) => {
                let message = format!("Error creating pod: {why}");
                status::refused(vmi, REASON_FAILED_CREATE, &message, Timestamp::now())
            }
        }
    }
}

/// Creates a pod, unless the instance has changed since it was observed.
pub(super) async fn make(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    pod: &Pod,
    role: Role<'_>,
) -> Result<Made, Error> {
    if !is_current(cluster, vmi).await? {
        return Ok(Made::Changed);
    }
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), pod.name_any());
    let made = match make_pod(cluster, vmi, pod).await {
        Ok(made) => made,
        Err(error) if error.category() == Category::Refused => {
            cluster.pauses.begin(&namespace, &name, Instant::now());
            let error = error.message();
            warn!(vmi = subject(vmi), pod = name, ?role, error, "a pod beside the launcher was refused");
            tell(cluster, vmi, role.refused(vmi, &error)).await?;
            return Ok(Made::Refused);
        }
        Err(error) => return Err(error),
    };
    cluster.pauses.begin(&namespace, &name, Instant::now());
    if made.is_some() {
        let note = Note::normal(REASON_SUCCESSFUL_CREATE, role.created(&name));
        cluster.notes.tell(note, vmi.object_ref(&()));
        info!(namespace, vmi = vmi.name_any(), pod = name, ?role, "created a pod beside the launcher");
    }
    Ok(Made::There)
}

/// Deletes a pod. `what` names it in events; `grace` replaces its own grace period, in seconds.
pub(super) async fn delete(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    what: &str,
    name: &str,
    uid: String,
    grace: Option<u32>,
) -> Result<(), Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let params = DeleteParams {
        grace_period_seconds: grace,
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default()
    };
    if let Err(error) = write::delete::<Pod>(cluster, &namespace, name, &params).await {
        if error.category() == Category::Refused {
            let note = Note::warning(REASON_FAILED_DELETE, format!("Failed to delete {what} {name}"));
            cluster.notes.tell(note, vmi.object_ref(&()));
        }
        return Err(error);
    }
    let note = Note::normal(REASON_SUCCESSFUL_DELETE, format!("Deleted {what} {name}"));
    cluster.notes.tell(note, vmi.object_ref(&()));
    info!(namespace, vmi = vmi.name_any(), pod = name, what, "deleted a pod beside the launcher");
    Ok(())
}
