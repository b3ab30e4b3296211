//! What is done for a claim that a client is to send an image into, where there is no CDI. Pure.
//!
//! ```text
//!   claim with storage.upload.target --bound--> pod --ready--> pod.ready=true --succeeds--> pod.phase=Succeeded, pod is deleted
//!                                                 \-- starts again: pod.restarts, and why
//!   DataVolume with source upload --> such a claim; the DataVolume's phase follows the claim's annotations
//! ```
//!
//! The claim is decisive, as with CDI: a user may annotate a claim without a DataVolume. Its annotations are CDI's: the
//! sending client waits for them, and a CDI that is installed later reads in them which claims are filled.
//!
//! A claim that asks for an import or a copy by annotations is told of: only CDI fills such claims.
//!
//! A claim that a pod uses is left alone until that pod has ended: a disk that a guest has open is not overwritten.

mod pod;
mod target;

pub use self::target::Target;
use super::claim::{self, annotated, changed, is_block};
use super::facts::{Event, Installation, MOST_RESTARTS, Step};
use super::importer::{self, End, Running};
use super::job::{ARCHIVE, IMAGE};
use super::only_cdi::unserved;
use super::stage::{given_up, is_of};
use crate::data_volumes::status::{FAILED, SUCCEEDED};
use barevirt_api::cdi::{annotation, populator};
use barevirt_import_job::Content;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use std::collections::BTreeMap;
use std::time::Duration;

/// Event: a pod uses the claim.
const IN_USE: &str = "UploadTargetInUse";
/// Event: the claim asks for something that is not served.
const NOT_SERVED: &str = "UploadNotServed";

/// Event: the claim asks for an import or a copy that only CDI makes.
const IMPORT_NOT_SERVED: &str = "ImportNotServed";

/// How often a claim is looked at that cannot be filled yet: what blocks it is not watched.
const AGAIN: Duration = Duration::from_secs(5);

/// The plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The first step.
    pub step: Option<Step>,
    /// Whether its pod is to be made with [`pod`], which needs the authorities of the clients that it accepts.
    pub opens: bool,
    /// An event to emit.
    pub event: Option<Event>,
    /// When to look again, where no watch reports a change.
    pub again: Option<Duration>,
}

/// Whether a claim is an upload target; all other claims are ignored.
pub fn is_target(annotations: &BTreeMap<String, String>) -> bool {
    annotations.contains_key(annotation::UPLOAD)
}

/// Plans the next steps.
pub fn plan(target: &Target) -> Plan {
    let claim = &target.claim;
    if claim.metadata.deletion_timestamp.is_some() {
        // The pod is deleted with it.
        return Plan::default();
    }
    if let Some(message) = unserved(claim) {
        let why = [
            (annotation::RUNNING, "false"),
            (annotation::REASON, IMPORT_NOT_SERVED),
            (annotation::MESSAGE, &message),
        ];
        let step = patch(claim, &why);
        let event = step.is_some().then_some(Event { warning: true, reason: IMPORT_NOT_SERVED, message });
        return Plan { step, event, ..Plan::default() };
    }
    let own = target.pod.as_ref().filter(|pod| is_of(pod.owner_references(), claim));
    let remove = || own.filter(|pod| pod.metadata.deletion_timestamp.is_none()).and_then(|pod| pod.uid());
    // It is filled through another claim, also if a client has asked for an upload into this one.
    let settled =
        matches!(annotated(claim, annotation::PHASE), Some(SUCCEEDED | FAILED)) || populator(claim).is_some();
    let is_done = annotated(claim, annotation::PHASE) == Some(SUCCEEDED);
    if is_done && is_target(claim.annotations()) && claim::pod_stays(claim.annotations()) {
        return Plan::default();
    }
    if !is_target(claim.annotations()) || settled {
        return Plan { step: remove().map(Step::RemovePod), ..Plan::default() };
    }
    if let Err(message) = content(claim) {
        return refused(claim, NOT_SERVED, message, None);
    }
    match (own, &target.pod) {
        (Some(pod), _) => follow(claim, pod),
        (None, Some(pod)) => {
            let message = format!("pod {} is not of this claim: delete it", pod.name_any());
            refused(claim, "ErrPodNotOwned", message, Some(AGAIN))
        }
        // The pod was deleted while it worked: the waiting client learns that the upload starts again.
        (None, None) if annotated(claim, annotation::PHASE) == Some("Running") => {
            let restarts = (restarts(claim) + 1).to_string();
            Plan { step: patch(claim, &lost(&restarts, "its pod was deleted")), ..Plan::default() }
        }
        // Its class may wait for a pod: the upload's pod binds it only where the claim says so.
        (None, None)
            if claim::phase(claim) != Some("Bound") && annotated(claim, annotation::BIND).is_none() =>
        {
            Plan::default()
        }
        (None, None) => match &target.used_by {
            Some(pod) => {
                let message = format!("claim {} is used by pod {pod}", claim.name_any());
                refused(claim, IN_USE, message, Some(AGAIN))
            }
            None => Plan { opens: true, ..Plan::default() },
        },
    }
}

/// What the client is to send, or why the claim does not take it.
fn content(claim: &PersistentVolumeClaim) -> Result<Content, String> {
    match annotated(claim, annotation::CONTENT) {
        None | Some("" | IMAGE) => Ok(Content::Disk),
        Some(ARCHIVE) if is_block(claim) => {
            Err("spec.volumeMode is Block: an archive needs a claim with a file system".to_owned())
        }
        Some(ARCHIVE) => Ok(Content::Archive),
        Some(other) => Err(format!("{} is {other}: it can be {IMAGE} or {ARCHIVE}", annotation::CONTENT)),
    }
}

/// The pod that receives the image or the archive, from clients that these authorities (PEM) have signed for.
pub fn pod(target: &Target, authorities: &str, installation: &Installation) -> Pod {
    // A claim with other content gets no pod.
    let content = content(&target.claim).unwrap_or_default();
    pod::of(target, content, authorities, installation, restarts(&target.claim))
}

fn restarts(claim: &PersistentVolumeClaim) -> i32 {
    annotated(claim, annotation::RESTARTS)
        .and_then(|text| text.parse::<i32>().ok())
        .unwrap_or_default()
        .max(0)
}

/// Reports once that the claim cannot be filled, and why.
fn refused(
    claim: &PersistentVolumeClaim,
    reason: &'static str,
    message: String,
    again: Option<Duration>,
) -> Plan {
    let wanted =
        [(annotation::READY, "false"), (annotation::REASON, reason), (annotation::MESSAGE, &message)];
    let step = patch(claim, &wanted);
    let event = step.is_some().then_some(Event { warning: true, reason, message });
    Plan { step, event, again, opens: false }
}

/// Copies the pod's state to the claim.
fn follow(claim: &PersistentVolumeClaim, pod: &Pod) -> Plan {
    let running = importer::running(pod);
    // Of the counts of a former pod and its successor, the larger one counts.
    let restarts = running.restarts.max(restarts(claim)).to_string();
    let state = |phase: &str, ready: bool, reason: &str, message: &str| {
        patch(
            claim,
            &[
                (annotation::PHASE, phase),
                (annotation::READY, if ready { "true" } else { "false" }),
                (annotation::RESTARTS, &restarts),
                (annotation::RUNNING, if running.runs { "true" } else { "false" }),
                (annotation::REASON, reason),
                (annotation::MESSAGE, message),
            ],
        )
    };
    let failed = |why: &str| {
        let step = state(FAILED, false, "Error", why);
        let message = format!("Upload into {} failed: {why}", claim.name_any());
        let event = step.is_some().then_some(Event { warning: true, reason: "UploadFailed", message });
        Plan { step, event, ..Plan::default() }
    };
    let step = match importer::ended(pod) {
        Some(End::Filled) => state(SUCCEEDED, false, "Completed", "Upload Complete"),
        Some(End::Hopeless(why)) => return failed(&why),
        Some(End::Lost(why)) if running.restarts + 1 >= MOST_RESTARTS => {
            return failed(&given_up(MOST_RESTARTS, &why));
        }
        // The next pod continues this count.
        Some(End::Lost(why)) => {
            let next = (running.restarts + 1).to_string();
            let gone = pod.metadata.deletion_timestamp.is_some();
            let remove = || pod.uid().filter(|_| !gone).map(Step::RemovePod);
            return Plan { step: patch(claim, &lost(&next, &why)).or_else(remove), ..Plan::default() };
        }
        None if running.restarts >= MOST_RESTARTS => {
            let why = running.stopped.as_deref().unwrap_or("it is not known why");
            return failed(&given_up(MOST_RESTARTS, why));
        }
        None => {
            let ready = is_ready(pod) && pod.metadata.deletion_timestamp.is_none();
            let (reason, message) = state_of(&running);
            // The client that sent the image reads why the upload ended, after the next start.
            let message = match message {
                Some(message) => message,
                None if running.restarts > 0 => annotated(claim, annotation::MESSAGE).unwrap_or_default(),
                None => "",
            };
            state(if running.runs { "Running" } else { "Pending" }, ready, reason, message)
        }
    };
    Plan { step, ..Plan::default() }
}

/// The annotations of a claim whose pod is gone.
fn lost<'a>(restarts: &'a str, why: &'a str) -> [(&'a str, &'a str); 6] {
    [
        (annotation::PHASE, "Pending"),
        (annotation::READY, "false"),
        (annotation::RESTARTS, restarts),
        (annotation::RUNNING, "false"),
        (annotation::REASON, "Error"),
        (annotation::MESSAGE, why),
    ]
}

fn state_of(running: &Running) -> (&'static str, Option<&str>) {
    match running {
        Running { runs: true, .. } => ("Pod is running", None),
        Running { unschedulable: Some(why), .. } => ("Unschedulable", Some(why)),
        Running { no_image: Some(why), .. } => ("ImagePullFailed", Some(why)),
        Running { stopped: Some(why), .. } => ("Error", Some(why)),
        Running { .. } => ("ContainerCreating", None),
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The step that gives the claim these annotations; `None` where it has them.
fn patch(claim: &PersistentVolumeClaim, wanted: &[(&str, &str)]) -> Option<Step> {
    changed(claim, wanted).map(Step::PatchClaim)
}

/// The state of an upload by the annotations of its claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum UploadState {
    /// Nothing yet.
    Nothing,
    /// The pod is open, or about to open.
    Opened(Running),
    /// It is filled.
    Filled,
    /// It was given up, and why.
    Failed(String),
}

/// The state of the upload, for the DataVolume that asked for it.
pub(super) fn upload_state(claim: &PersistentVolumeClaim) -> UploadState {
    let message = || annotated(claim, annotation::MESSAGE).unwrap_or_default().to_owned();
    match annotated(claim, annotation::PHASE) {
        Some(SUCCEEDED) => return UploadState::Filled,
        Some(FAILED) => return UploadState::Failed(message()),
        Some(_) => {}
        None if annotated(claim, annotation::BIND).is_none()
            && annotated(claim, annotation::MESSAGE).is_none() =>
        {
            return UploadState::Nothing;
        }
        None => {}
    }
    let ready = annotated(claim, annotation::READY) == Some("true");
    let stopped = Some(message()).filter(|message| !ready && !message.is_empty());
    UploadState::Opened(Running { runs: ready, restarts: restarts(claim), stopped, ..Running::default() })
}

#[cfg(test)]
mod tests;
