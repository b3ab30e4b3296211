//! Plans an instance. Pure: the same observation gives the same plan.

use super::action::{Action, Plan};
use super::beside;
use super::filesystems;
use super::first_consumer::{self, Step};
use super::instance_end::InstanceEnd;
use super::moving;
use super::networks;
use super::observed::Observed;
use super::others::is_moving;
use super::overhead;
use super::progress::{runs, stuck_container, unschedulable};
use super::proof;
use super::reach;
use super::refusal::{self, Refusal};
use super::removal::{clean_up, delete_pod, take_down};
use super::running;
use super::state;
use super::status::{
    NOT_RUNNING_MESSAGE, TAKEN_NAME_INTERVAL, age, change, enter, is_ours, not_running, note_trouble, patch,
    status_patch, taken,
};
use crate::config::Config;
use crate::node::NodeState;
use crate::pod;
use barevirt_api::names::{
    COMPUTE_CONTAINER, CONDITION_POD_SCHEDULED, CONDITION_PROVISIONING, CONDITION_SYNCHRONIZED,
    NODE_NAME_LABEL, PHASE_FAILED, PHASE_PENDING, PHASE_RUNNING, PHASE_SCHEDULED, PHASE_SCHEDULING,
    PHASE_WAITING_FOR_SYNC, REASON_FAILED_CREATE, REASON_FAILED_DATA_VOLUME_IMPORT, REASON_GUEST_NOT_RUNNING,
    REASON_MISSING_VIRTIOFS_CONTAINERS, REASON_NETWORK_NOT_ATTACHED, REASON_NODE_UNRESPONSIVE,
    REASON_NOT_GUARANTEED, REASON_POD_NOT_EXISTS, REASON_STOPPED, REASON_SUCCESSFUL_CREATE,
    REASON_SYNC_FAILED, REFUSED_PODS_ANNOTATION, VMI_FINALIZER, is_final_phase,
};
use barevirt_api::v1::{Condition, merge_condition};
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use barevirt_component::notes::Note;
use barevirt_plan::pod::target::launcher_name;
use barevirt_plan::{phase, template};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;
use std::time::Duration;

/// How long a pod may take until `Scheduling` is written. Creation times are whole seconds, rounded down, so this is at
/// least three seconds.
const SCHEDULING_DELAY: Duration = Duration::from_secs(4);
/// How soon a new claim is looked at.
const AFTER_CLAIM: Duration = Duration::from_millis(50);
/// How often a claim that cannot be mounted yet is looked at.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// How often settings that keep an instance from its pod are looked at.
const SETTINGS_INTERVAL: Duration = Duration::from_secs(10);
/// Plans the next actions.
pub(super) fn plan(observed: &Observed) -> Plan {
    if observed.vmi.metadata.deletion_timestamp.is_some() {
        return take_down(observed);
    }
    if is_final_phase(phase(&observed.vmi)) {
        return clean_up(observed);
    }
    if is_moving(&observed.vmi) {
        return moving::plan(observed);
    }
    match &observed.pod {
        None => without_pod(observed),
        Some(pod) if !is_ours(pod, &observed.vmi) => name_is_taken(observed, pod),
        Some(pod) if !proof::is_proven(observed, pod) => {
            proof::replace(observed, pod).unwrap_or_else(|| was_replaced(observed, pod))
        }
        Some(pod) => match InstanceEnd::of(pod) {
            Some(outcome) => Refusal::of(&observed.vmi, pod)
                .and_then(|refusal| replace(observed, pod, &refusal))
                .unwrap_or_else(|| end(observed, &outcome)),
            None => with_living_pod(observed, pod),
        },
    }
}

/// The pod never ran: it is deleted, so that another one can be made. `None` where that was done too often.
fn replace(observed: &Observed, pod: &Pod, refusal: &Refusal) -> Option<Plan> {
    let vmi = &observed.vmi;
    let mut noted = refusal::noted(vmi);
    if noted.contains(&refusal.uid.as_str()) {
        let left = refusal::left(noted.len(), pod, observed.now);
        if !left.is_zero() {
            return Some(Plan::default().again_in(left));
        }
        return Some(delete_pod(Plan::default(), pod, 0));
    }
    if noted.len() >= refusal::MOST {
        return None;
    }
    noted.push(&refusal.uid);
    let mut status = vmi.status.clone().unwrap_or_default();
    enter(&mut status, PHASE_PENDING, observed.now);
    let condition = Condition::new(CONDITION_SYNCHRONIZED, false, REASON_FAILED_CREATE, &refusal.message);
    merge_condition(&mut status.conditions, condition, &Time(observed.now));
    not_running(&mut status, REASON_GUEST_NOT_RUNNING, NOT_RUNNING_MESSAGE, observed.now);
    let metadata = json!({"annotations": {REFUSED_PODS_ANNOTATION: noted.join(",")}});
    // Written even if the status does not change: all pods of an instance have one name.
    let patch = patch(vmi, metadata, change(vmi, &status));
    Some(Plan::default().act(patch).tell(Note::warning(REASON_FAILED_CREATE, &refusal.message)))
}

fn without_pod(observed: &Observed) -> Plan {
    let vmi = &observed.vmi;
    // A migration makes its pod.
    if phase(vmi) == PHASE_WAITING_FOR_SYNC {
        return Plan::default();
    }
    if phase(vmi) != PHASE_PENDING {
        let name = launcher_name(vmi);
        let message = format!("the launcher pod {name} does not exist any more");
        return end(observed, &InstanceEnd::failed(REASON_POD_NOT_EXISTS, message));
    }
    if let Some(message) = observed.claims.failure(vmi) {
        return end(observed, &InstanceEnd::failed(REASON_FAILED_DATA_VOLUME_IMPORT, message));
    }
    if !vmi.finalizers().iter().any(|finalizer| finalizer == VMI_FINALIZER) {
        // Admission adds it; without it the pod could outlive the instance.
        let mut finalizers = vmi.finalizers().to_vec();
        finalizers.push(VMI_FINALIZER.to_owned());
        return Plan::default().act(patch(vmi, json!({"finalizers": finalizers}), None));
    }
    if template::is_receiver(vmi.metadata.annotations.as_ref()) {
        let mut status = vmi.status.clone().unwrap_or_default();
        enter(&mut status, PHASE_WAITING_FOR_SYNC, observed.now);
        not_running(&mut status, REASON_GUEST_NOT_RUNNING, NOT_RUNNING_MESSAGE, observed.now);
        return Plan::default().act_if(status_patch(vmi, json!({}), &status));
    }
    match ValidVmi::new(vmi.clone()) {
        Ok(valid) => {
            let unknown = || networks::unknown_binding(vmi, &observed.config.settings.bindings);
            let without = || beside::without_passt(vmi, &observed.config);
            if let Some(message) = not_permitted(&valid, &observed.config).or_else(unknown).or_else(without) {
                return trouble(observed, CONDITION_SYNCHRONIZED, REASON_FAILED_CREATE, &message)
                    .again_in(SETTINGS_INTERVAL);
            }
            if let Some(message) = observed.definitions.refusal() {
                return trouble(observed, CONDITION_SYNCHRONIZED, REASON_FAILED_CREATE, &message)
                    .again_in(networks::INTERVAL);
            }
            let step = first_consumer::step(vmi, &observed.claims, &observed.consumer);
            if observed.claims.trouble(vmi).is_some() {
                return first_consumer::plan(observed, step, None);
            }
            if let Some(message) = filesystems::not_shared(vmi, &observed.claims) {
                return trouble(observed, CONDITION_SYNCHRONIZED, REASON_FAILED_CREATE, &message)
                    .again_in(SETTINGS_INTERVAL);
            }
            let mut pod = pod::build(&valid, &observed.config);
            pod::claims::add(&mut pod, &valid, |claim| observed.claims.mode(claim));
            pod::networks::ask(&mut pod, &observed.definitions.resources);
            let ignored = pod::reach::add(&mut pod, &observed.reaches);
            let mut plan = Plan::default();
            match state::step(vmi, observed.state.as_ref()) {
                state::Step::Nothing => {}
                state::Step::Forget(claims) => {
                    let delete = |(name, uid)| Action::DeleteClaim { name, uid };
                    plan.actions.extend(claims.into_iter().map(delete));
                }
                state::Step::Ready(claim) => pod::state::add(&mut pod, &claim),
                state::Step::Create(claim) => {
                    return Plan::default().act(Action::CreateClaim(claim)).again_in(AFTER_CLAIM);
                }
                state::Step::Wait(reason, message) => {
                    return trouble(observed, CONDITION_SYNCHRONIZED, reason, &message)
                        .again_in(CLAIM_INTERVAL);
                }
            }
            if step != Step::Nothing {
                let consumer = pod::first_consumer::before(&pod, &valid, &observed.config);
                return first_consumer::plan(observed, step, Some(consumer));
            }
            let note = Note::normal(
                REASON_SUCCESSFUL_CREATE,
                format!("Created virtual machine pod {}", pod.name_any()),
            );
            let mut plan = plan.act(Action::CreatePod(Box::new(pod))).tell(note);
            plan.notes.extend(reach::note(&ignored));
            plan.notes.extend(observed.same_addresses.iter().map(|text| networks::same_address(text)));
            plan
        }
        Err(causes) => trouble(observed, CONDITION_SYNCHRONIZED, REASON_SYNC_FAILED, &Cause::joined(&causes)),
    }
}

/// Message about devices of nodes that are not permitted, in KubeVirt's words.
fn not_permitted(vmi: &ValidVmi, config: &Config) -> Option<String> {
    let permitted = &config.settings.host_devices;
    let refused = vmi.host_devices().filter(|(_, resource)| !permitted.is_permitted(resource));
    let texts: Vec<String> = refused
        .map(|(field, resource)| {
            let kind = if field.contains(".gpus[") { "GPU" } else { "HostDevice" };
            format!("{kind} {resource} is not permitted in permittedHostDevices configuration")
        })
        .collect();
    (!texts.is_empty()).then(|| format!("failed to render launch manifest: {}", texts.join(" ")))
}

fn name_is_taken(observed: &Observed, pod: &Pod) -> Plan {
    trouble(observed, CONDITION_SYNCHRONIZED, REASON_SYNC_FAILED, &taken(&pod.name_any()))
        .again_in(TAKEN_NAME_INTERVAL)
}

/// The pod that was handed over is gone; this one only has its name.
fn was_replaced(observed: &Observed, pod: &Pod) -> Plan {
    let message = format!("the launcher pod {} was replaced", pod.name_any());
    end(observed, &InstanceEnd::failed(REASON_POD_NOT_EXISTS, message))
}

fn with_living_pod(observed: &Observed, pod: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if let Some(state) = observed.node.filter(|state| state.is_lost()) {
        let message = match state {
            NodeState::Gone => format!("node {node} is not part of the cluster any more"),
            _ => format!("node {node} is not responsive"),
        };
        return end(observed, &InstanceEnd::failed(REASON_NODE_UNRESPONSIVE, message));
    }
    let plan = match phase(vmi) {
        PHASE_PENDING | PHASE_SCHEDULING => {
            if pod.metadata.deletion_timestamp.is_some() {
                // It will not run any more; its end decides.
                Plan::default()
            } else if let Some(message) = filesystems::unserved(vmi, pod) {
                hold(observed, pod, REASON_MISSING_VIRTIOFS_CONTAINERS, &message)
            } else if runs(pod) {
                match networks::unattached(observed, pod) {
                    Some((left, _)) if !left.is_zero() => Plan::default().again_in(left),
                    Some((_, message)) => hold(observed, pod, REASON_NETWORK_NOT_ATTACHED, &message),
                    None => hand_over(observed, pod, node),
                }
            } else {
                await_pod(observed, pod)
            }
        }
        _ => {
            let told = beside::plan(observed, pod);
            if !told.actions.is_empty() {
                told
            } else if phase(vmi) == PHASE_RUNNING && pod.metadata.deletion_timestamp.is_none() {
                running::plan(observed, pod)
            } else {
                Plan::default()
            }
        }
    };
    match observed.node {
        Some(NodeState::NotReady { left }) => {
            let pause = plan.again.map_or(left, |again| again.min(left));
            plan.again_in(pause)
        }
        _ => plan,
    }
}

/// The pod does not run yet: nothing is reported for a while, then what delays it.
fn await_pod(observed: &Observed, pod: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let mut status = vmi.status.clone().unwrap_or_default();
    let mut notes = vec![];
    let mut trouble = false;
    // Such a pod cannot start, and its status shows nothing.
    let undefined = observed.definitions.trouble().map(|message| (REASON_FAILED_CREATE.to_owned(), message));
    for (condition, found) in [
        (CONDITION_POD_SCHEDULED, unschedulable(pod)),
        (CONDITION_SYNCHRONIZED, stuck_container(pod).or(undefined)),
    ] {
        match found {
            Some((reason, message)) => {
                trouble = true;
                note_trouble(&mut status, &mut notes, condition, &reason, &message, observed.now);
            }
            None => Condition::remove(&mut status.conditions, condition),
        }
    }
    let created = pod.metadata.creation_timestamp.as_ref().map_or(observed.now, |time| time.0);
    let age = age(created, observed.now);
    if !trouble && phase(vmi) == PHASE_PENDING && age < SCHEDULING_DELAY {
        return Plan::default()
            .again_in(SCHEDULING_DELAY.saturating_sub(age).max(Duration::from_millis(100)));
    }
    Condition::remove(&mut status.conditions, CONDITION_PROVISIONING);
    enter(&mut status, PHASE_SCHEDULING, observed.now);
    proof::note(&mut status, pod);
    not_running(&mut status, REASON_GUEST_NOT_RUNNING, NOT_RUNNING_MESSAGE, observed.now);
    // No event reports a definition that is missing or is created.
    let again =
        vmi.spec.networks.iter().any(|network| network.multus.is_some()).then_some(networks::INTERVAL);
    Plan { actions: status_patch(vmi, json!({}), &status).into_iter().collect(), notes, again }
}

/// The pod lacks a network or a directory of the instance, so no handler could give it to the guest.
fn hold(observed: &Observed, pod: &Pod, reason: &str, message: &str) -> Plan {
    let vmi = &observed.vmi;
    let mut status = vmi.status.clone().unwrap_or_default();
    let mut notes = vec![];
    enter(&mut status, PHASE_SCHEDULING, observed.now);
    proof::note(&mut status, pod);
    note_trouble(&mut status, &mut notes, CONDITION_SYNCHRONIZED, reason, message, observed.now);
    not_running(&mut status, REASON_GUEST_NOT_RUNNING, NOT_RUNNING_MESSAGE, observed.now);
    Plan { actions: status_patch(vmi, json!({}), &status).into_iter().collect(), notes, again: None }
}

/// The pod runs: from here on the node's handler acts. If a webhook has changed the pod's resources, a guest would not get
/// its dedicated CPUs.
fn hand_over(observed: &Observed, pod: &Pod, node: &str) -> Plan {
    let vmi = &observed.vmi;
    let mut status = vmi.status.clone().unwrap_or_default();
    let class = pod.status.as_ref().and_then(|status| status.qos_class.as_deref());
    let dedicated = vmi.spec.domain.cpu.as_ref().and_then(|cpu| cpu.dedicated_cpu_placement);
    if dedicated == Some(true) && class != Some("Guaranteed") {
        let mut notes = Vec::new();
        let (reason, message) = (REASON_NOT_GUARANTEED, "failed to guarantee pod resources");
        note_trouble(&mut status, &mut notes, CONDITION_SYNCHRONIZED, reason, message, observed.now);
        let actions = status_patch(vmi, json!({}), &status).into_iter().collect();
        return Plan { actions, notes, again: None };
    }
    enter(&mut status, PHASE_SCHEDULED, observed.now);
    status.node_name = Some(node.to_owned());
    status.vsockcid = status.vsockcid.or(observed.context_id.map(i64::from));
    state::note(observed.state.as_ref(), &mut status.volume_status);
    observed.claims.note(vmi, &mut status.volume_status);
    networks::note(vmi, pod, &mut status.interfaces);
    status.active_pods = [(pod.uid().unwrap_or_default(), node.to_owned())].into();
    status.qos_class = pod.status.as_ref().and_then(|status| status.qos_class.clone());
    overhead::note(&mut status, overhead::of_pod(pod));
    status.launcher_container_image_version = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.containers.iter().find(|container| container.name == COMPUTE_CONTAINER))
        .and_then(|compute| compute.image.clone());
    for condition in [CONDITION_POD_SCHEDULED, CONDITION_SYNCHRONIZED, CONDITION_PROVISIONING] {
        Condition::remove(&mut status.conditions, condition);
    }
    observed.claims.note_filling(&mut status.conditions, observed.now);
    not_running(&mut status, REASON_GUEST_NOT_RUNNING, NOT_RUNNING_MESSAGE, observed.now);
    let metadata = json!({"labels": {NODE_NAME_LABEL: node}});
    Plan::default().act_if(status_patch(vmi, metadata, &status))
}

/// The instance enters its final phase.
fn end(observed: &Observed, outcome: &InstanceEnd) -> Plan {
    let vmi = &observed.vmi;
    let mut status = vmi.status.clone().unwrap_or_default();
    enter(&mut status, outcome.phase, observed.now);
    status.reason = (!outcome.reason.is_empty()).then(|| outcome.reason.clone());
    let reason = if outcome.reason.is_empty() { REASON_GUEST_NOT_RUNNING } else { &outcome.reason };
    not_running(&mut status, reason, &outcome.message, observed.now);
    let note = if outcome.phase == PHASE_FAILED {
        let text = if outcome.message.is_empty() { &outcome.reason } else { &outcome.message };
        match outcome.reason.as_str() {
            REASON_NODE_UNRESPONSIVE => {
                Note::warning(&outcome.reason, format!("The VirtualMachineInstance failed: {text}"))
            }
            REASON_FAILED_DATA_VOLUME_IMPORT => Note::warning(&outcome.reason, text),
            // KubeVirt's text, whatever ended.
            _ => Note::warning(REASON_STOPPED, format!("The VirtualMachineInstance crashed: {text}")),
        }
    } else {
        Note::normal(REASON_STOPPED, "The VirtualMachineInstance was shut down.")
    };
    Plan::default().act_if(status_patch(vmi, json!({}), &status)).tell(note)
}

/// Reports a condition that keeps the instance where it is.
fn trouble(observed: &Observed, condition: &str, reason: &str, message: &str) -> Plan {
    let mut status = observed.vmi.status.clone().unwrap_or_default();
    let mut notes = vec![];
    note_trouble(&mut status, &mut notes, condition, reason, message, observed.now);
    let actions = status_patch(&observed.vmi, json!({}), &status).into_iter().collect();
    Plan { actions, notes, again: None }
}
