//! What to do about an instance. Pure: the same observation gives the same plan.

pub use super::action::{Action, Plan};
use super::claims::Claims;
use super::first_consumer::{self, Consumer, Step};
use super::hotplug::{self, Attachments};
use super::phase;
use super::progress::{runs, stuck_container, unschedulable};
use super::reach;
use super::refusal::{self, Refusal};
use super::resize;
use super::state::{self, State};
use super::verdict::{Verdict, bounded};
use crate::config::Config;
use crate::merge;
use crate::node::NodeState;
use crate::notes::Note;
use crate::pod;
use barevirt_api::names::{
    COMPUTE_CONTAINER, CONDITION_POD_SCHEDULED, CONDITION_PROVISIONING, CONDITION_READY,
    CONDITION_SYNCHRONIZED, CREATED_BY_LABEL, NODE_NAME_LABEL, PHASE_FAILED, PHASE_PENDING, PHASE_RUNNING,
    PHASE_SCHEDULED, PHASE_SCHEDULING, PHASE_WAITING_FOR_SYNC, REASON_FAILED_CREATE,
    REASON_FAILED_DATA_VOLUME_IMPORT, REASON_GUEST_NOT_RUNNING, REASON_NODE_UNRESPONSIVE,
    REASON_NOT_GUARANTEED, REASON_POD_NOT_EXISTS, REASON_STOPPED, REASON_SUCCESSFUL_CREATE,
    REASON_SUCCESSFUL_DELETE, REASON_SYNC_FAILED, REFUSED_PODS_ANNOTATION, VMI_FINALIZER, is_final_phase,
};
use barevirt_api::v1::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceStatus, merge_condition, record_phase_transition,
};
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use barevirt_plan::pod::reach::Reach;
use barevirt_plan::template;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a pod may take before `Scheduling` is worth a write. Creation times are whole seconds, rounded down: three
/// seconds at least.
const PATIENCE: Duration = Duration::from_secs(4);
/// How soon a claim that was created is looked at.
const AFTER_CLAIM: Duration = Duration::from_millis(50);
/// How often a claim is looked at that cannot be mounted yet.
const CLAIM_PATIENCE: Duration = Duration::from_secs(1);
/// How often settings are looked at that keep an instance from its pod.
const SETTINGS_PATIENCE: Duration = Duration::from_secs(10);
/// How long a pod may outlive its instance's last phase, so that the launcher ends by itself.
const LINGER: Duration = Duration::from_secs(10);
/// What the Ready condition says until the handler knows better. VMs repeat it word by word, which saves them a write.
pub const NOT_RUNNING_MESSAGE: &str = "Guest VM is not reported as running";

/// All that a plan depends on.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The instance.
    pub vmi: VirtualMachineInstance,
    /// The pod that has the name of its launcher.
    pub pod: Option<Pod>,
    /// Other pods that were created for it, attachment pods among them; looked for when it is being deleted.
    pub strays: Vec<Pod>,
    /// The node of the pod.
    pub node: Option<NodeState>,
    /// The claim with what it keeps, where it needs one and does not run yet.
    pub state: Option<State>,
    /// Claims that its disks are on, while it does not run yet.
    pub claims: Claims,
    /// The pod that goes before its own where claims wait for one, while it does not run yet and once it has ended.
    pub consumer: Consumer,
    /// Where volumes can be reached, where its pod is to be made and not all can be reached from everywhere.
    pub reaches: Vec<Reach>,
    /// What is there for volumes that come and go, while it runs and once it has ended.
    pub attachments: Attachments,
    /// Its address on vsock, where it wants one and does not run yet.
    pub context_id: Option<u32>,
    /// Settings.
    pub config: Config,
    /// Wall clock, for time stamps and ages in seconds.
    pub now: Timestamp,
}

/// Decides.
pub fn plan(observed: &Observed) -> Plan {
    if observed.vmi.metadata.deletion_timestamp.is_some() {
        return take_down(observed);
    }
    if is_final_phase(phase(&observed.vmi)) {
        return clean_up(observed);
    }
    match &observed.pod {
        None => without_pod(observed),
        Some(pod) if !is_ours(pod, &observed.vmi) => name_is_taken(observed, pod),
        Some(pod) => match Verdict::of(pod) {
            Some(verdict) => Refusal::of(&observed.vmi, pod)
                .and_then(|refusal| replace(observed, pod, &refusal))
                .unwrap_or_else(|| end(observed, &verdict)),
            None => with_living_pod(observed, pod),
        },
    }
}

/// The pod never ran: it makes room for another one. None where that was done often enough.
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
    // Also where the status has nothing new to say: all pods of an instance have one name.
    let patch = patch(vmi, metadata, status_change(vmi, &status));
    Some(Plan::default().act(patch).tell(Note::warning(REASON_FAILED_CREATE, &refusal.message)))
}

fn without_pod(observed: &Observed) -> Plan {
    let vmi = &observed.vmi;
    // A migration makes its pod.
    if phase(vmi) == PHASE_WAITING_FOR_SYNC {
        return Plan::default();
    }
    if phase(vmi) != PHASE_PENDING {
        let name = pod::name(&vmi.name_any(), &vmi.uid().unwrap_or_default());
        let message = format!("the launcher pod {name} does not exist any more");
        return end(observed, &Verdict::failed(REASON_POD_NOT_EXISTS, message));
    }
    if let Some(message) = observed.claims.failure(vmi) {
        return end(observed, &Verdict::failed(REASON_FAILED_DATA_VOLUME_IMPORT, message));
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
            if let Some(message) = not_permitted(&valid, &observed.config) {
                return trouble(observed, CONDITION_SYNCHRONIZED, REASON_FAILED_CREATE, &message)
                    .again_in(SETTINGS_PATIENCE);
            }
            let step = first_consumer::step(vmi, &observed.claims, &observed.consumer);
            if observed.claims.trouble(vmi).is_some() {
                return first_consumer::plan(observed, step, None);
            }
            let mut pod = pod::build(&valid, &observed.config);
            pod::claims::add(&mut pod, &valid, |claim| observed.claims.mode(claim));
            let unheard = pod::reach::add(&mut pod, &observed.reaches);
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
                        .again_in(CLAIM_PATIENCE);
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
            plan.notes.extend(reach::note(&unheard));
            plan
        }
        Err(causes) => trouble(observed, CONDITION_SYNCHRONIZED, REASON_SYNC_FAILED, &Cause::joined(&causes)),
    }
}

/// Devices of nodes that no guest may have, in KubeVirt's words.
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
        .again_in(Duration::from_secs(30))
}

/// What is told of a pod that has a name of ours.
pub(super) fn taken(name: &str) -> String {
    format!("a pod with the name {name} exists and belongs to something else")
}

fn with_living_pod(observed: &Observed, pod: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if let Some(state) = observed.node.filter(|state| state.is_lost()) {
        let message = match state {
            NodeState::Gone => format!("node {node} is not part of the cluster any more"),
            _ => format!("node {node} is not responsive"),
        };
        return end(observed, &Verdict::failed(REASON_NODE_UNRESPONSIVE, message));
    }
    let plan = match phase(vmi) {
        PHASE_PENDING | PHASE_SCHEDULING => {
            if pod.metadata.deletion_timestamp.is_some() {
                // It will not run any more; its end decides.
                Plan::default()
            } else if runs(pod) {
                hand_over(observed, pod, node)
            } else {
                await_pod(observed, pod)
            }
        }
        _ => {
            let active = vmi.status.as_ref().map(|status| &status.active_pods);
            let uid = pod.uid().unwrap_or_default();
            if active.is_some_and(|active| !active.is_empty() && !active.contains_key(&uid)) {
                // The pod that was handed over is gone, and this one was never part of it.
                let message = format!("the launcher pod {} was replaced", pod.name_any());
                return end(observed, &Verdict::failed(REASON_POD_NOT_EXISTS, message));
            }
            if phase(vmi) == PHASE_RUNNING && pod.metadata.deletion_timestamp.is_none() {
                let plan = resize::plan(observed, pod);
                // One patch at a time; a change that was made is an event.
                if plan.actions.is_empty() { plan.and(hotplug::plan(observed, pod)) } else { plan }
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

/// The pod does not run yet: silence for a while, then what keeps it.
fn await_pod(observed: &Observed, pod: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let mut status = vmi.status.clone().unwrap_or_default();
    let mut notes = vec![];
    let mut trouble = false;
    for (condition, found) in
        [(CONDITION_POD_SCHEDULED, unschedulable(pod)), (CONDITION_SYNCHRONIZED, stuck_container(pod))]
    {
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
    if !trouble && phase(vmi) == PHASE_PENDING && age < PATIENCE {
        return Plan::default().again_in(PATIENCE.saturating_sub(age).max(Duration::from_millis(100)));
    }
    Condition::remove(&mut status.conditions, CONDITION_PROVISIONING);
    enter(&mut status, PHASE_SCHEDULING, observed.now);
    not_running(&mut status, REASON_GUEST_NOT_RUNNING, NOT_RUNNING_MESSAGE, observed.now);
    Plan { actions: status_patch(vmi, json!({}), &status).into_iter().collect(), notes, again: None }
}

/// The pod runs: from here on the node's handler is in charge. Of a pod that a webhook has given other resources a guest would
/// not get CPUs of its own.
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
    status.active_pods = [(pod.uid().unwrap_or_default(), node.to_owned())].into();
    status.qos_class = pod.status.as_ref().and_then(|status| status.qos_class.clone());
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

/// The instance reaches its last phase.
fn end(observed: &Observed, verdict: &Verdict) -> Plan {
    let vmi = &observed.vmi;
    let mut status = vmi.status.clone().unwrap_or_default();
    enter(&mut status, verdict.phase, observed.now);
    status.reason = (!verdict.reason.is_empty()).then(|| verdict.reason.clone());
    let reason = if verdict.reason.is_empty() { REASON_GUEST_NOT_RUNNING } else { &verdict.reason };
    not_running(&mut status, reason, &verdict.message, observed.now);
    let note = if verdict.phase == PHASE_FAILED {
        let text = if verdict.message.is_empty() { &verdict.reason } else { &verdict.message };
        match verdict.reason.as_str() {
            REASON_NODE_UNRESPONSIVE => {
                Note::warning(&verdict.reason, format!("The VirtualMachineInstance failed: {text}"))
            }
            REASON_FAILED_DATA_VOLUME_IMPORT => Note::warning(&verdict.reason, text),
            // KubeVirt's word, whatever it was that ended.
            _ => Note::warning(REASON_STOPPED, format!("The VirtualMachineInstance crashed: {text}")),
        }
    } else {
        Note::normal(REASON_STOPPED, "The VirtualMachineInstance was shut down.")
    };
    Plan::default().act_if(status_patch(vmi, json!({}), &status)).tell(note)
}

/// The instance has ended and stays as a record; its pod may not run on.
fn clean_up(observed: &Observed) -> Plan {
    let vmi = &observed.vmi;
    let Some(pod) = observed.pod.as_ref().filter(|pod| is_ours(pod, vmi) && Verdict::of(pod).is_none())
    else {
        // As long as the launcher ran, its guest may have had their disks.
        let left = observed.attachments.pods().chain(&observed.consumer.pod);
        return hotplug::remove(left.filter(|pod| is_ours(pod, vmi)));
    };
    let status = vmi.status.as_ref();
    let unresponsive = status.and_then(|status| status.reason.as_deref()) == Some(REASON_NODE_UNRESPONSIVE);
    let since = status
        .and_then(|status| {
            status.phase_transition_timestamps.iter().find(|stamp| stamp.phase.as_deref() == Some(phase(vmi)))
        })
        .and_then(|stamp| stamp.phase_transition_timestamp.as_ref())
        .map_or(Duration::MAX, |time| age(time.0, observed.now));
    if !unresponsive && since < LINGER {
        return Plan::default().again_in(LINGER.saturating_sub(since));
    }
    delete_pods(observed, [pod])
}

/// The instance is being deleted: first its launcher, then the pods that have its claims, then its finalizer.
fn take_down(observed: &Observed) -> Plan {
    let vmi = &observed.vmi;
    let pods = observed.pod.iter().chain(&observed.strays).filter(|pod| is_ours(pod, vmi));
    // By its name: labels can be written by those whose pods they are.
    let name = pod::name(&vmi.name_any(), &vmi.uid().unwrap_or_default());
    let has_claims = |pod: &Pod| hotplug::is_attachment(pod) || first_consumer::is_first_consumer(pod);
    let (launchers, others): (Vec<&Pod>, Vec<&Pod>) =
        pods.partition(|pod| pod.name_any() == name || !has_claims(pod));
    if !launchers.is_empty() {
        return delete_pods(observed, launchers);
    }
    if !others.is_empty() {
        return hotplug::remove(others);
    }
    let finalizers = vmi.finalizers();
    if !finalizers.iter().any(|finalizer| finalizer == VMI_FINALIZER) {
        return Plan::default();
    }
    let left: Vec<&String> = finalizers.iter().filter(|finalizer| *finalizer != VMI_FINALIZER).collect();
    Plan::default().act(patch(vmi, json!({"finalizers": left}), None))
}

fn delete_pods<'a>(observed: &Observed, pods: impl IntoIterator<Item = &'a Pod>) -> Plan {
    let vmi = &observed.vmi;
    let dead = observed.node.is_some_and(NodeState::is_known_dead);
    let given = vmi.spec.termination_grace_period_seconds;
    let given = given.unwrap_or(barevirt_api::defaults::GRACE_PERIOD_SECONDS);
    let wanted = if dead { 0 } else { pod::grace_seconds(u64::try_from(given).unwrap_or(0)) };
    let mut plan = Plan::default();
    for pod in pods {
        plan = delete_pod(plan, pod, wanted);
    }
    match observed.node {
        Some(NodeState::NotReady { left }) => plan.again_in(left),
        _ => plan,
    }
}

fn delete_pod(plan: Plan, pod: &Pod, grace: u32) -> Plan {
    let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
    let going = pod.metadata.deletion_timestamp.is_some();
    let granted = pod.metadata.deletion_grace_period_seconds.unwrap_or(i64::MAX);
    // A pod that is on its way may be hurried, never slowed down.
    if going && granted <= i64::from(grace) {
        return plan;
    }
    let note = Note::normal(REASON_SUCCESSFUL_DELETE, format!("Deleted virtual machine pod {name}"));
    let plan = plan.act(Action::DeletePod { name, uid, grace });
    if going { plan } else { plan.tell(note) }
}

/// A condition that keeps the instance where it is.
fn trouble(observed: &Observed, condition: &str, reason: &str, message: &str) -> Plan {
    let mut status = observed.vmi.status.clone().unwrap_or_default();
    let mut notes = vec![];
    note_trouble(&mut status, &mut notes, condition, reason, message, observed.now);
    let actions = status_patch(&observed.vmi, json!({}), &status).into_iter().collect();
    Plan { actions, notes, again: None }
}

/// The patch and event for a pod that was refused.
pub(super) fn refused(vmi: &VirtualMachineInstance, reason: &str, message: &str, now: Timestamp) -> Plan {
    let mut status = vmi.status.clone().unwrap_or_default();
    let mut notes = vec![];
    note_trouble(&mut status, &mut notes, CONDITION_SYNCHRONIZED, reason, message, now);
    let actions = status_patch(vmi, json!({}), &status).into_iter().collect();
    Plan { actions, notes, again: None }
}

/// Sets the condition to False; an event where the reason is news.
pub(super) fn note_trouble(
    status: &mut VirtualMachineInstanceStatus,
    notes: &mut Vec<Note>,
    condition: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let message = bounded(message);
    let known = Condition::find(&status.conditions, condition).and_then(|known| known.reason.as_deref());
    // The scheduler has an event of its own, on the pod; KubeVirt adds none.
    if known != Some(reason) && condition != CONDITION_POD_SCHEDULED {
        notes.push(Note::warning(reason, message.clone()));
    }
    merge_condition(&mut status.conditions, Condition::new(condition, false, reason, message), &Time(now));
}

fn enter(status: &mut VirtualMachineInstanceStatus, phase: &str, now: Timestamp) {
    if status.phase.as_deref() != Some(phase) {
        status.phase = Some(phase.to_owned());
        record_phase_transition(&mut status.phase_transition_timestamps, phase, &Time(now));
    }
}

fn not_running(status: &mut VirtualMachineInstanceStatus, reason: &str, message: &str, now: Timestamp) {
    let condition = Condition::new(CONDITION_READY, false, reason, message);
    merge_condition(&mut status.conditions, condition, &Time(now));
}

/// Whether a pod was made for this very instance. The owner reference goes when someone deletes the instance and orphans
/// what it owns; the label stays.
fn is_ours(pod: &Pod, vmi: &VirtualMachineInstance) -> bool {
    let Some(uid) = vmi.metadata.uid.as_deref() else { return false };
    pod.labels().get(CREATED_BY_LABEL).map(String::as_str) == Some(uid)
        || pod.owner_references().iter().any(|owner| owner.uid == uid)
}

pub(super) fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
}

/// The patch from the stored status to this one, or none where nothing differs.
pub(super) fn status_patch(
    vmi: &VirtualMachineInstance,
    metadata: Value,
    status: &VirtualMachineInstanceStatus,
) -> Option<Action> {
    status_change(vmi, status).map(|change| patch(vmi, metadata, Some(change)))
}

fn status_change(vmi: &VirtualMachineInstance, status: &VirtualMachineInstanceStatus) -> Option<Value> {
    // Our types always have a JSON form: no map in them has keys but strings.
    let old = serde_json::to_value(vmi.status.clone().unwrap_or_default()).unwrap_or_default();
    let new = serde_json::to_value(status).unwrap_or_default();
    merge::difference(&old, &new)
}

fn patch(vmi: &VirtualMachineInstance, mut metadata: Value, status: Option<Value>) -> Action {
    metadata["resourceVersion"] = json!(vmi.metadata.resource_version);
    let mut body = json!({"metadata": metadata});
    if let Some(status) = status {
        body["status"] = status;
    }
    Action::Patch(body)
}
