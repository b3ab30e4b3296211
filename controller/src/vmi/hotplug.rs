//! Hotplug of volumes: a pod for each, and its state in the status.
//!
//! ```text
//!            claim bound           its pod runs                 (handler)
//!   Pending ─────────────> Bound ──────────────> AttachedToNode ─────────> Ready
//!      │ not wanted          │                          │ not wanted               │
//!      │                     │                          └────────> Detaching <─────┘
//!      │                     │                                         │ (handler)
//!      └──────> pod deleted, entry removed <──────────────── UnMountedFromPod
//! ```
//!
//! A pod's name is derived from instance, volume and claim. It is written to the status before the pod is made, so that no
//! pod is forgotten in any case, and it shows whether an entry is about the claim that is wanted now: a volume on another
//! claim is added only when the former one has gone.
//!
//! A claim that is a device gets a pod once no other guest is in the way ([`super::claim_lock`]): an entry with the reason
//! `ClaimInUse` waits, any other reserves the claim until the launcher has released the disk.
//!
//! A claim that waits for a pod before it is filled gets a pod only for that, on the guest's node; that pod is gone before
//! the pod with the disk is made.
//!
//! A migrating guest takes its disks along: the pods that offer them on the target node are made before the guest is handed
//! over ([`target`]). Meanwhile nothing is planned here, and after the arrival entries name the pods on the new node. A
//! volume that is to move to another claim stays on the former one until its guest has moved.
//!
//! Once a disk was offered, the launcher may have it: from then on only the handler knows when the guest has released it,
//! and no running pod is deleted before. A pod that ended by itself is replaced, and the guest keeps its disk meanwhile.

pub(super) mod attachments;
mod claim;
pub(super) mod target;
pub(super) mod volumes;

use self::attachments::PodState;
use self::claim::{state_by_claim, usable};
use self::volumes::{Stage, Wanted, entries, pod_of, wanted};
use super::action::{Action, Plan};
use super::claims::{self, Found};
use super::consumer::{is_first_consumer, release};
use super::instance_end::bounded;
use super::observed::Observed;
use super::progress;
use super::status;
use barevirt_api::names::{
    REASON_CLAIM_IN_USE, REASON_FAILED_CREATE, REASON_HOTPLUG_FAILED, REASON_MISSING_ATTACHMENT_POD,
    REASON_SUCCESSFUL_CREATE, VOLUME_ATTACHED, VOLUME_DETACHING,
};
use barevirt_api::v1::{VirtualMachineInstance, VolumeStatus};
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use barevirt_component::notes::Note;
use barevirt_plan::pod::claims::Mode;
use barevirt_plan::pod::{attachment, first_consumer as consumer};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::json;
use std::time::Duration;

/// How often an obstacle is looked at again.
const INTERVAL: Duration = Duration::from_secs(10);

/// The plan for a running instance and its launcher.
pub(super) fn plan(observed: &Observed, launcher: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let wanted = wanted(vmi);
    if wanted.is_empty() && entries(vmi).next().is_none() {
        return Plan::default();
    }
    let mut work = Work { observed, launcher, valid: None, actions: vec![], plan: Plan::default() };
    let mut status = vmi.status.clone().unwrap_or_default();
    let mut kept = Vec::new();
    for mut entry in std::mem::take(&mut status.volume_status) {
        let pod = pod_of(vmi, &entry);
        if let Some(noted) = &mut entry.hotplug_volume {
            noted.attach_pod_name = pod;
        }
        let stays = match &entry.hotplug_volume {
            None => true,
            Some(noted) => {
                let same = wanted.iter().find(|wanted| {
                    wanted.name == entry.name && noted.attach_pod_name.as_ref() == Some(&wanted.pod)
                });
                match same {
                    Some(wanted) if Stage::of(&entry) != Stage::Left => {
                        work.keep(wanted, &mut entry);
                        true
                    }
                    same => work.leave(&mut entry, same.is_some()),
                }
            }
        };
        if stays {
            kept.push(entry);
        }
    }
    for wanted in &wanted {
        let known = kept.iter_mut().find(|entry| entry.name == wanted.name);
        if known.as_ref().is_some_and(|entry| entry.hotplug_volume.is_some()) {
            // It was handled above, or the former one has not gone yet.
            continue;
        }
        let mut entry = known
            .as_deref()
            .cloned()
            .unwrap_or_else(|| VolumeStatus { name: wanted.name.to_owned(), ..VolumeStatus::default() });
        work.keep(wanted, &mut entry);
        match known {
            Some(known) => *known = entry,
            // The handler keeps entries in the order of their names.
            None => kept.insert(kept.partition_point(|known| known.name < entry.name), entry),
        }
    }
    status.volume_status = kept;
    let Work { actions, mut plan, .. } = work;
    // The status is written first: it names the pods that are made, and keeps those that the handler still needs.
    match status::status_patch(vmi, json!({}), &status) {
        Some(patch) => plan.actions.push(patch),
        None => plan.actions.extend(actions),
    }
    plan
}

/// Deletes pods that are not needed any more, even if a guest had their disks.
pub(super) fn remove<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Plan {
    let stay = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let remove = |pod: &'a Pod| {
        if is_first_consumer(pod) { release(pod) } else { Some(detach(pod, false)) }
    };
    Plan { actions: stay.filter_map(remove).collect(), ..Plan::default() }
}

/// A pod was refused, by a quota or by Pod Security. An entry that the handler owns is left alone: it would be overwritten.
pub(super) fn refused(vmi: &VirtualMachineInstance, volume: &str, message: &str) -> Plan {
    let message = bounded(message);
    let mut status = vmi.status.clone().unwrap_or_default();
    let entry = status.volume_status.iter_mut().find(|entry| entry.name == volume);
    if let Some(entry) =
        entry.filter(|entry| Stage::of(entry) != Stage::Taken && !is_reported_by_handler(entry))
    {
        report(entry, REASON_FAILED_CREATE, message.clone());
    }
    let actions = status::status_patch(vmi, json!({}), &status).into_iter().collect();
    Plan { actions, notes: vec![Note::warning(REASON_FAILED_CREATE, message)], again: None }
}

fn detach(pod: &Pod, wanted: bool) -> Action {
    Action::Detach { name: pod.name_any(), uid: pod.uid().unwrap_or_default(), wanted }
}

/// Whether the handler has reported why the launcher does not have the disk: its message is more exact than ours.
fn is_reported_by_handler(entry: &VolumeStatus) -> bool {
    entry.reason.as_deref() == Some(REASON_HOTPLUG_FAILED)
}

fn report(entry: &mut VolumeStatus, reason: &str, message: impl Into<String>) {
    (entry.reason, entry.message) = (Some(reason.to_owned()), Some(message.into()));
}

/// A plan under construction.
struct Work<'a> {
    observed: &'a Observed,
    launcher: &'a Pod,
    /// Whether the instance is valid; checked only when a pod is to be made.
    valid: Option<Result<ValidVmi, String>>,
    /// Actions after the status is written.
    actions: Vec<Action>,
    plan: Plan,
}

impl<'a> Work<'a> {
    fn again_in(&mut self, pause: Duration) {
        self.plan.again = Some(self.plan.again.map_or(pause, |again| again.min(pause)));
    }

    /// An entry whose volume is not wanted, or in another form; returns whether the entry stays. `again`: the same volume is
    /// wanted once more.
    fn leave(&mut self, entry: &mut VolumeStatus, again: bool) -> bool {
        let observed = self.observed;
        let noted = entry.hotplug_volume.as_ref().and_then(|noted| noted.attach_pod_name.as_deref());
        let state = observed.attachments.state(noted.unwrap_or_default(), &observed.vmi, self.launcher);
        match Stage::of(entry) {
            Stage::Leaving => {}
            Stage::Offered | Stage::Taken => {
                entry.phase = Some(VOLUME_DETACHING.to_owned());
                (entry.reason, entry.message) = (None, None);
            }
            Stage::Waiting | Stage::Left => match state {
                PodState::Absent | PodState::Foreign => match self.consumer(noted.unwrap_or_default()) {
                    PodState::Absent | PodState::Foreign => return false,
                    PodState::Serves(pod) | PodState::Starts(pod) | PodState::Ended(pod) => self.release(pod),
                },
                PodState::Serves(pod) | PodState::Starts(pod) | PodState::Ended(pod) => {
                    self.delete(pod, again);
                }
            },
        }
        true
    }

    /// Deletes a pod, unless it is being deleted: its end is an event.
    fn delete(&mut self, pod: &Pod, wanted: bool) {
        if pod.metadata.deletion_timestamp.is_none() {
            self.actions.push(detach(pod, wanted));
        }
    }

    /// The state of the pod that goes before an attachment pod.
    fn consumer(&self, attachment: &str) -> PodState<'a> {
        let observed = self.observed;
        observed.attachments.state(&consumer::name_beside(attachment), &observed.vmi, self.launcher)
    }

    /// Deletes such a pod, unless it is being deleted.
    fn release(&mut self, pod: &Pod) {
        self.actions.extend(release(pod));
    }

    /// An entry whose volume is wanted in this form.
    fn keep(&mut self, wanted: &Wanted<'_>, entry: &mut VolumeStatus) {
        let observed = self.observed;
        let found = observed.attachments.claims.get(wanted.name);
        if let Some(claim) = found.and_then(|found| found.claim.as_ref()) {
            entry.persistent_volume_claim_info = Some(claims::info(claim));
        }
        let stage = Stage::of(entry);
        let noted = entry.hotplug_volume.get_or_insert_default();
        let is_noted = noted.attach_pod_name.as_ref() == Some(&wanted.pod);
        noted.attach_pod_name = Some(wanted.pod.clone());
        let state = observed.attachments.state(&wanted.pod, &observed.vmi, self.launcher);
        if let PodState::Serves(pod) = state {
            noted.attach_pod_uid = pod.uid();
            self.offer(wanted, entry, stage);
            return;
        }
        // Once the disk was offered, the handler needs the recorded UID, also to report that the launcher has released it.
        if stage == Stage::Waiting {
            noted.attach_pod_uid = None;
        }
        let trouble = match state {
            PodState::Absent => self.begin(wanted, entry, is_noted, found),
            PodState::Foreign => {
                self.again_in(INTERVAL);
                Some(taken(&wanted.pod))
            }
            PodState::Ended(pod) => {
                self.delete(pod, true);
                None
            }
            PodState::Starts(pod) | PodState::Serves(pod) => {
                progress::unschedulable(pod).or_else(|| progress::stuck_container(pod))
            }
        };
        let (phase, reason, message) = match stage {
            Stage::Taken => return,
            Stage::Offered if is_reported_by_handler(entry) => return,
            Stage::Waiting | Stage::Left => state_by_claim(wanted.claim.name, found, &observed.vmi),
            // The launcher may have the disk, even if the handler was to remove it.
            Stage::Offered | Stage::Leaving => {
                let message = format!("attachment pod {} does not run", wanted.pod);
                (VOLUME_ATTACHED, REASON_MISSING_ATTACHMENT_POD.to_owned(), message)
            }
        };
        entry.phase = Some(phase.to_owned());
        let (reason, message) = trouble.unwrap_or((reason, message));
        let message = bounded(&message);
        if reason == REASON_CLAIM_IN_USE && entry.reason.as_ref() != Some(&reason) {
            self.plan.notes.push(Note::warning(REASON_CLAIM_IN_USE, message.clone()));
        }
        report(entry, &reason, message);
    }

    /// The pod offers the disk.
    fn offer(&mut self, wanted: &Wanted<'_>, entry: &mut VolumeStatus, stage: Stage) {
        let message = format!("Created hotplug attachment pod {}, for volume {}", wanted.pod, wanted.name);
        match stage {
            Stage::Taken => return,
            Stage::Offered if is_reported_by_handler(entry) => return,
            Stage::Offered => {}
            Stage::Waiting | Stage::Leaving | Stage::Left => {
                self.plan.notes.push(Note::normal(REASON_SUCCESSFUL_CREATE, message.clone()));
            }
        }
        entry.phase = Some(VOLUME_ATTACHED.to_owned());
        report(entry, REASON_SUCCESSFUL_CREATE, message);
    }

    /// There is no pod: makes one if that is possible, after the pod before it if the claim waits for one; otherwise returns
    /// why not, unless the claim is the reason.
    fn begin(
        &mut self,
        wanted: &Wanted<'_>,
        entry: &VolumeStatus,
        is_noted: bool,
        found: Option<&Found>,
    ) -> Option<(String, String)> {
        let observed = self.observed;
        let waits = found.filter(|found| found.waits_for_consumer());
        if waits.is_some() {
            self.again_in(claims::INTERVAL);
        }
        match (self.consumer(&wanted.pod), waits) {
            (PodState::Foreign, Some(_)) => Some(taken(&consumer::name_beside(&wanted.pod))),
            (PodState::Serves(pod) | PodState::Starts(pod), Some(_)) => progress::unschedulable(pod),
            (PodState::Serves(pod) | PodState::Starts(pod) | PodState::Ended(pod), _) => {
                self.release(pod);
                None
            }
            (PodState::Absent, Some(waits)) => {
                self.make(wanted, entry, is_noted, waits.claim.as_ref()?, Next::Consumer)
            }
            (PodState::Absent | PodState::Foreign, None) => {
                let claim = found.and_then(|found| usable(found, &observed.vmi, wanted.claim.name));
                let Some(claim) = claim else {
                    self.again_in(claims::INTERVAL);
                    return None;
                };
                if let Some(holder) = observed.attachments.withheld.get(wanted.name) {
                    self.again_in(claims::INTERVAL);
                    return Some((REASON_CLAIM_IN_USE.to_owned(), holder.clone()));
                }
                self.make(wanted, entry, is_noted, claim, Next::Attachment)
            }
        }
    }

    /// Makes a pod, unless there was one a moment ago.
    fn make(
        &mut self,
        wanted: &Wanted<'_>,
        entry: &VolumeStatus,
        is_noted: bool,
        claim: &PersistentVolumeClaim,
        next: Next,
    ) -> Option<(String, String)> {
        let observed = self.observed;
        let name = match next {
            Next::Consumer => consumer::name_beside(&wanted.pod),
            Next::Attachment => wanted.pod.clone(),
        };
        if let Some(left) = observed.attachments.pauses.get(&name) {
            self.again_in(*left);
            return refusal(entry);
        }
        let valid = self.valid.get_or_insert_with(|| {
            ValidVmi::new(observed.vmi.clone()).map_err(|causes| Cause::joined(&causes))
        });
        let valid = match valid {
            Ok(valid) => valid,
            Err(causes) => return Some((REASON_FAILED_CREATE.to_owned(), causes.clone())),
        };
        let volume_mode = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
        let wanted = attachment::Wanted {
            volume: wanted.name,
            claim: wanted.claim,
            mode: Mode::of(volume_mode),
            size: claims::info(claim).disk_bytes(),
            exact: false,
            access: wanted.access,
        };
        let volume = wanted.volume.to_owned();
        let action = match next {
            Next::Consumer => {
                let pod = consumer::beside(valid, &wanted, self.launcher, &observed.config);
                Action::Provision { pod: Box::new(pod), volume: Some(volume) }
            }
            Next::Attachment => {
                let pod = attachment::build(valid, &wanted, self.launcher, &observed.config);
                Action::Attach { pod: Box::new(pod), volume }
            }
        };
        if is_noted {
            self.actions.push(action);
        }
        refusal(entry)
    }
}

/// The next pod of a volume.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The pod that its claim waits for.
    Consumer,
    /// The pod with its disk.
    Attachment,
}

fn taken(name: &str) -> (String, String) {
    (REASON_FAILED_CREATE.to_owned(), status::taken(name))
}

/// Why the last pod was refused: this stays until there is a pod.
fn refusal(entry: &VolumeStatus) -> Option<(String, String)> {
    let reason = entry.reason.clone().filter(|reason| reason == REASON_FAILED_CREATE)?;
    Some((reason, entry.message.clone().unwrap_or_default()))
}

#[cfg(test)]
mod tests;
