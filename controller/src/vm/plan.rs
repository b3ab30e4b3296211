//! Plans a machine. Pure: the same observation gives the same step.

use super::data_volumes::INTERVAL;
use super::{back_off, expansion, instancetype, revision};
use crate::ownership;
use barevirt_api::names::{
    ACTION_START, CONDITION_MANUAL_RECOVERY_REQUIRED, PHASE_FAILED, PHASE_WAITING_FOR_SYNC,
    RUN_STRATEGY_ALWAYS, RUN_STRATEGY_HALTED, RUN_STRATEGY_MANUAL, RUN_STRATEGY_ONCE,
    RUN_STRATEGY_RERUN_ON_FAILURE, RUN_STRATEGY_WAIT_AS_RECEIVER, VM_FINALIZER, is_final_phase,
};
use barevirt_api::networks::PLUGGED_CARDS_SERVED;
use barevirt_api::settings::ReferencePolicy;
use barevirt_api::v1::{Condition, Interface, Network, VirtualMachine, VirtualMachineInstance};
use barevirt_plan::data_volumes::{DataVolumes, Work};
use barevirt_plan::live_update::Live;
use barevirt_plan::revision::Drift;
use barevirt_plan::volume_migration::{Move, needs_recovery};
use barevirt_plan::{cards, requests, template};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;
use std::time::Duration;

/// Why a machine cannot wait for its guest; KubeVirt's words.
const NOT_A_RECEIVER: &str = "Found non receiver VMI while VM is receiver";

/// Finalizer that the API server adds when an object is deleted and its dependents are to stay.
const ORPHAN: &str = "orphan";

/// Everything that a step depends on.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The machine.
    pub vm: VirtualMachine,
    /// The instance of that name, whatever its owner.
    pub vmi: Option<VirtualMachineInstance>,
    /// How the machine differs from its instance.
    pub drift: Drift,
    /// The part of the difference that its instance takes over while it runs.
    pub live: Live,
    /// The step for volumes that move to other claims with its guest.
    pub volumes: Move,
    /// The DataVolumes of its templates.
    pub data_volumes: DataVolumes,
    /// What becomes of the instance type and the preference that it names.
    pub references: ReferencePolicy,
    /// How long its guest has been migrating; zero where it does not.
    pub moving_for: Duration,
    /// The present time, for back-off.
    pub now: Timestamp,
}

/// The owner of the instance with the machine's name.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// There is none.
    None,
    /// The machine.
    Ours,
    /// No controller.
    Orphan,
    /// Another owner: kind and name.
    Foreign(String),
}

impl Observed {
    /// The owner of the instance.
    pub fn claim(&self) -> Claim {
        let Some(vmi) = &self.vmi else { return Claim::None };
        let controller = ownership::controller(&vmi.metadata);
        match controller {
            None => Claim::Orphan,
            Some(owner) if Some(&owner.uid) == self.vm.metadata.uid.as_ref() => Claim::Ours,
            Some(owner) => Claim::Foreign(format!("{} {}", owner.kind, owner.name)),
        }
    }

    /// The instance, where the machine owns it.
    pub fn own_vmi(&self) -> Option<&VirtualMachineInstance> {
        self.vmi.as_ref().filter(|_| self.claim() == Claim::Ours)
    }
}

/// A step on the cluster. Status is reported after each.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing to do until something changes.
    Rest,
    /// Only report: the next step depends on the stored status.
    Report,
    /// Nothing to do for this time.
    Wait(Duration),
    /// The instance of that name blocks the machine, for this reason.
    Blocked(String),
    /// Add the finalizer that admission should have added.
    Hold,
    /// Give the template these cards and networks: new cards have their MAC addresses, and unplugged cards are removed once
    /// the instance does not have them any more.
    Cards(Vec<Interface>, Vec<Network>),
    /// Keep an annotation of the ending instance for the next one.
    Remember(String, String),
    /// Keep copies of the instance type and the preference that the machine names.
    Record,
    /// Write the values of both into the machine.
    Expand,
    /// Make the DataVolumes of templates, and adopt those without an owner.
    Provide(Work),
    /// A quota leaves no space for the claim of a template: name of the DataVolume, and why.
    OverQuota(String, String),
    /// Remove the finalizer: nothing is left of the machine.
    Release,
    /// Adopt the orphan of that name.
    Adopt,
    /// Switch a halted machine on: a start with options was requested.
    SwitchOn,
    /// Record the machine's generation on the instance.
    Note(i64),
    /// Apply a change to the instance: a merge patch of its specification, and the generation that it then has.
    Update(Box<Value>, Option<i64>),
    /// Change the instance, whose volumes move to other claims or stay: a merge patch.
    Move(Box<Value>),
    /// Abort the migration that moves the guest with its volumes: they are to stay.
    GiveUp,
    /// Volumes cannot be changed like this, for this reason.
    Stuck(&'static str),
    /// Create the instance.
    Start(Box<VirtualMachineInstance>),
    /// Delete the instance with this UID.
    Stop(String),
}

/// Plans the next step.
pub fn plan(observed: &Observed) -> Step {
    let vm = &observed.vm;
    let held = vm.finalizers().iter().any(|finalizer| finalizer == VM_FINALIZER);
    if vm.metadata.deletion_timestamp.is_some() {
        return if held { take_down(observed) } else { Step::Rest };
    }
    if !held {
        return Step::Hold;
    }
    match observed.claim() {
        Claim::Foreign(owner) => {
            Step::Blocked(format!("virtual machine instance {} exists and belongs to {owner}", vm.name_any()))
        }
        Claim::Orphan
            if observed.vmi.as_ref().is_some_and(|vmi| vmi.metadata.deletion_timestamp.is_none()) =>
        {
            Step::Adopt
        }
        // It is being deleted; then its name is free.
        Claim::Orphan => Step::Rest,
        Claim::Ours | Claim::None => {
            let first = forgotten(observed).or_else(|| trimmed(observed));
            first.unwrap_or_else(|| recorded(observed))
        }
    }
}

/// Removes cards that have left the guest, before a start would bring them back.
fn trimmed(observed: &Observed) -> Option<Step> {
    let template = &observed.vm.spec.template.spec;
    let (interfaces, networks) = cards::trimmed(template, observed.own_vmi())?;
    PLUGGED_CARDS_SERVED.then_some(Step::Cards(interfaces, networks))
}

/// Keeps what an ending instance leaves, where the machine does not have it. At the end of the instance, so that a start
/// costs no additional write.
fn forgotten(observed: &Observed) -> Option<Step> {
    let vmi = observed.vmi.as_ref()?;
    let ending = vmi.metadata.deletion_timestamp.is_some() || is_final_phase(crate::vmi::phase(vmi));
    let left = template::remembered(vmi.metadata.annotations.as_ref())?;
    let known = template::remembered(observed.vm.metadata.annotations.as_ref());
    (ending && known != Some(left)).then(|| Step::Remember(left.0.clone(), left.1.clone()))
}

/// The step of the strategy; but before a start, or where there is nothing else to do, copies are made, or the values of what
/// is named are written out. A machine whose instance type is missing can still be stopped.
fn recorded(observed: &Observed) -> Step {
    match follow_strategy(observed) {
        Step::Rest | Step::Wait(_) | Step::Start(_)
            if expansion::is_due(&observed.vm, observed.references) =>
        {
            Step::Expand
        }
        Step::Rest | Step::Wait(_) | Step::Start(_) if !instancetype::is_recorded(&observed.vm) => {
            Step::Record
        }
        step @ (Step::Rest | Step::Wait(_) | Step::Start(_)) => match provided(observed, step) {
            Step::Rest => moved(observed).or_else(|| noted(observed)).unwrap_or(Step::Rest),
            step => step,
        },
        step => step,
    }
}

/// The step, unless the DataVolumes of templates need work or a wait first.
fn provided(observed: &Observed, step: Step) -> Step {
    let starts = matches!(step, Step::Start(_));
    let (vm, data_volumes) = (&observed.vm, &observed.data_volumes);
    if let Some(work) = data_volumes.work(vm, starts) {
        return Step::Provide(work);
    }
    if let Some((told, why)) = data_volumes.over_quota() {
        return Step::OverQuota(told.name.clone(), why.to_owned());
    }
    if starts && !data_volumes.are_ready() {
        return Step::Wait(INTERVAL);
    }
    step
}

/// The step for volumes that move to other claims.
fn moved(observed: &Observed) -> Option<Step> {
    match &observed.volumes {
        Move::Nothing | Move::Wait | Move::Restart(_) => None,
        Move::Apply(body) => Some(Step::Move(body.clone())),
        Move::GiveUp => Some(Step::GiveUp),
        Move::Blocked(why) => Some(Step::Stuck(why)),
    }
}

/// The step for a change of the machine that does not concern its instance.
fn noted(observed: &Observed) -> Option<Step> {
    let now = observed.vm.metadata.generation?;
    let alive = observed.own_vmi()?.metadata.deletion_timestamp.is_none();
    match &observed.live {
        Live::Apply { spec, whole } if alive => {
            let template = &observed.vm.spec.template.spec;
            if let Some(cards) = cards::addressed(template, observed.own_vmi()?, spec) {
                return Some(Step::Cards(cards, template.networks.clone()));
            }
            let whole = *whole && observed.volumes == Move::Nothing;
            let generation = (whole && observed.drift == Drift::Generation).then_some(now);
            return Some(Step::Update(spec.clone(), generation));
        }
        // The instance is not of this generation yet.
        Live::Apply { .. } | Live::Wait | Live::Refused(_) => return None,
        Live::Done => {}
    }
    (observed.drift == Drift::Generation
        && observed.volumes == Move::Nothing
        && alive
        && observed.own_vmi().and_then(revision::generation) != Some(now))
    .then_some(Step::Note(now))
}

fn take_down(observed: &Observed) -> Step {
    if observed.vm.finalizers().iter().any(|finalizer| finalizer == ORPHAN) {
        return Step::Release;
    }
    match observed.own_vmi() {
        None => Step::Release,
        Some(vmi) => stop(vmi),
    }
}

fn follow_strategy(observed: &Observed) -> Step {
    let vm = &observed.vm;
    let status = vm.status.as_ref();
    let vmi = observed.vmi.as_ref();
    let commands = status.map(|status| status.state_change_requests.as_slice()).unwrap_or_default();
    let strategy = vm.spec.effective_run_strategy().unwrap_or(RUN_STRATEGY_HALTED);
    let stored_failure = status.and_then(|status| status.start_failure.as_ref());
    let failure = back_off::record(stored_failure, strategy, vmi, observed.now);
    let phase = vmi.map(crate::vmi::phase);
    let ended = phase.is_some_and(is_final_phase);

    // The failure of an ended instance must be stored before it is deleted; otherwise it would not be counted.
    if ended && failure.as_ref() != stored_failure {
        return Step::Report;
    }
    // Neither claim is known to have all of the guest's writes.
    let is_lost = needs_recovery(vm, observed.own_vmi());
    if is_lost && !is_reported_lost(vm) {
        return Step::Report;
    }
    let start = || match back_off::left(failure.as_ref(), observed.now) {
        Some(left) => Step::Wait(left),
        None => Step::Start(Box::new(template::instance(vm))),
    };
    match (strategy, vmi) {
        (_, None) if is_lost => Step::Rest,
        // Now it is to start here. If the template itself asked it to wait, the next instance would wait, too.
        (_, Some(vmi)) if strategy != RUN_STRATEGY_WAIT_AS_RECEIVER && waits_for_nothing(vm, vmi) => {
            stop(vmi)
        }
        (RUN_STRATEGY_ALWAYS, None) => start(),
        (RUN_STRATEGY_ALWAYS, Some(vmi)) if ended || requests::stops(commands, vmi) => stop(vmi),

        (RUN_STRATEGY_RERUN_ON_FAILURE, None) => {
            // A newly chosen strategy counts as a command.
            let fresh = status.and_then(|status| status.run_strategy.as_deref()) != Some(strategy);
            if fresh || requests::starts(commands, None) { start() } else { Step::Rest }
        }
        (RUN_STRATEGY_RERUN_ON_FAILURE, Some(vmi)) if ended || requests::stops(commands, vmi) => {
            let restart_stored = commands.iter().any(|command| command.action == ACTION_START);
            if phase == Some(PHASE_FAILED) && vmi.metadata.deletion_timestamp.is_none() && !restart_stored {
                Step::Report
            } else {
                stop(vmi)
            }
        }

        (RUN_STRATEGY_MANUAL, None) if requests::starts(commands, None) => start(),
        (RUN_STRATEGY_MANUAL, Some(vmi))
            if requests::stops(commands, vmi) || (ended && requests::starts(commands, Some(vmi))) =>
        {
            stop(vmi)
        }

        // A user who deletes its instance wants another one.
        (RUN_STRATEGY_ONCE | RUN_STRATEGY_WAIT_AS_RECEIVER, None) => {
            Step::Start(Box::new(template::instance(vm)))
        }
        (RUN_STRATEGY_HALTED, None) if requests::starts(commands, None) => Step::SwitchOn,
        (RUN_STRATEGY_HALTED, Some(vmi)) => stop(vmi),

        (RUN_STRATEGY_WAIT_AS_RECEIVER, Some(vmi)) if ended => stop(vmi),
        (RUN_STRATEGY_WAIT_AS_RECEIVER, Some(vmi))
            if !template::is_receiver(vmi.metadata.annotations.as_ref()) =>
        {
            Step::Blocked(NOT_A_RECEIVER.to_owned())
        }
        _ => Step::Rest,
    }
}

/// Whether the status already says that a user has to choose the machine's claims.
fn is_reported_lost(vm: &VirtualMachine) -> bool {
    let conditions = vm.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    Condition::is_set(conditions, CONDITION_MANUAL_RECOVERY_REQUIRED)
}

/// Whether an instance waits for a migration only because the machine once did.
fn waits_for_nothing(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> bool {
    let template = vm.spec.template.metadata.as_ref();
    crate::vmi::phase(vmi) == PHASE_WAITING_FOR_SYNC
        && !template::is_receiver(template.and_then(|metadata| metadata.annotations.as_ref()))
}

fn stop(vmi: &VirtualMachineInstance) -> Step {
    match (&vmi.metadata.deletion_timestamp, &vmi.metadata.uid) {
        (None, Some(uid)) => Step::Stop(uid.clone()),
        _ => Step::Rest,
    }
}
