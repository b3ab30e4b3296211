//! Plans a pool. Pure: the same observation gives the same plan.

use super::action::Action;
use super::heal::{self, Health};
use super::observed::{BURST, Machine, Observed};
use super::{generation, machine, revision, selection, state};
use barevirt_api::names::{RUN_STRATEGY_MANUAL, RUN_STRATEGY_RERUN_ON_FAILURE};
use barevirt_api::pool::{VirtualMachinePool, VirtualMachineTemplateSpec};
use barevirt_api::v1::VirtualMachineInstance;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use std::time::Duration;

/// When to look again while an update waits for machines to be ready; there are events as well.
const WAIT: Duration = Duration::from_secs(3);

/// Independent actions, and when to look again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Carried out concurrently.
    pub actions: Vec<Action>,
    /// When to look again without an event.
    pub again: Option<Duration>,
}

impl Plan {
    fn of(actions: Vec<Action>) -> Self {
        Plan { actions, again: None }
    }

    fn no_later_than(mut self, pause: Option<Duration>) -> Self {
        self.again = self.again.into_iter().chain(pause).min();
        self
    }
}

/// Plans the next actions.
pub fn plan(observed: &Observed) -> Plan {
    let pool = &observed.pool;
    if pool.metadata.deletion_timestamp.is_some() {
        return Plan::of(state::part(observed));
    }
    let mut settled = state::settle(observed);
    if !observed.is_sane() {
        return Plan::of(settled);
    }
    let released = observed.machines.iter().filter(|one| !one.is_deleting() && !observed.selects(one));
    settled.extend(released.map(|machine| Action::Release(Box::new(machine.vm.clone()))));
    // First it is settled which machines count.
    if !settled.is_empty() || pool.spec.paused == Some(true) {
        return Plan::of(settled);
    }
    let held = state::hold(observed);
    if !held.is_empty() {
        return Plan::of(held);
    }
    let health: Vec<(&Machine, Health)> = observed
        .machines
        .iter()
        .filter(|machine| !machine.is_deleting())
        .map(|machine| (machine, heal::of(observed, machine)))
        .collect();
    let hopeless: Vec<Action> = health
        .iter()
        .filter(|(_, health)| *health == Health::Hopeless)
        .map(|(machine, _)| state::take_away(pool, machine))
        .collect();
    if !hopeless.is_empty() {
        return Plan::of(hopeless);
    }
    let recheck = health
        .iter()
        .filter_map(|(_, health)| match health {
            Health::Failing(left) => Some(*left),
            Health::Well | Health::Hopeless => None,
        })
        .min();
    scale(observed).or_else(|| relax(observed)).unwrap_or_else(|| update(observed)).no_later_than(recheck)
}

/// The plan for the number of machines; `None` where nothing is to be done.
fn scale(observed: &Observed) -> Option<Plan> {
    let pool = &observed.pool;
    let wanted = usize::try_from(pool.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let there = observed.machines.len();
    if there < wanted {
        let free = observed.free.iter().take((wanted - there).min(BURST));
        let made = free.map(|index| Action::Create(Box::new(machine::new(pool, *index))));
        return Some(Plan::of(made.collect()));
    }
    let strategy = pool.spec.scale_in_strategy.as_ref();
    if strategy.is_some_and(|strategy| strategy.unmanaged.is_some() || strategy.opportunistic.is_some()) {
        return None;
    }
    let living: Vec<&Machine> = observed.machines.iter().filter(|machine| !machine.is_deleting()).collect();
    // Machines that are being deleted count until they are gone.
    let surplus = living.len().saturating_sub(wanted).min(BURST);
    if surplus == 0 {
        return (there > wanted).then(Plan::default);
    }
    let policy = strategy
        .and_then(|strategy| strategy.proactive.as_ref())
        .and_then(|proactive| proactive.selection_policy.as_ref());
    let picked = selection::pick(living, policy).into_iter().take(surplus);
    let gone: Vec<Action> = picked.map(|machine| state::take_away(pool, machine)).collect();
    // Where the policy selects no machine, the number stays, and the plan goes on.
    (!gone.is_empty()).then(|| Plan::of(gone))
}

/// The plan that releases machines that are held without a reason; `None` where there are none.
fn relax(observed: &Observed) -> Option<Plan> {
    let idle = state::relax(observed);
    (!idle.is_empty()).then(|| Plan::of(idle))
}

/// The plan that brings machines and instances to the present template.
fn update(observed: &Observed) -> Plan {
    let strategy = observed.pool.spec.update_strategy.clone().unwrap_or_default();
    if strategy.unmanaged.is_some() {
        return prune(observed);
    }
    let policy = strategy.proactive.as_ref().and_then(|proactive| proactive.selection_policy.as_ref());
    let living: Vec<&Machine> = observed.machines.iter().filter(|machine| !machine.is_deleting()).collect();
    let (outdated, recent): (Vec<&Machine>, Vec<&Machine>) =
        selection::pick(living, policy).into_iter().partition(|machine| is_outdated(observed, machine));
    let changed: Vec<Action> = outdated.iter().filter_map(|machine| changed(observed, machine)).collect();
    if !changed.is_empty() {
        return Plan::of(changed);
    }
    if strategy.opportunistic.is_some() {
        return prune(observed);
    }
    let rolled = roll(observed, &recent);
    if rolled == Plan::default() { prune(observed) } else { rolled }
}

/// Whether a machine was made from another template. A generation that changed only other fields is equal.
fn is_outdated(observed: &Observed, machine: &Machine) -> bool {
    let template = generation::of(machine.vm.meta()).and_then(|revision| observed.template(revision));
    template != Some(&observed.pool.spec.virtual_machine_template)
}

/// Updates the machine to the present template. A machine without a number in its name was not made by the pool.
fn changed(observed: &Observed, machine: &Machine) -> Option<Action> {
    let name = machine.vm.name_any();
    let index = machine::index(&name)?;
    let former = generation::of(machine.vm.meta()).and_then(|revision| observed.template(revision));
    Some(Action::Update(name, machine::update(&observed.pool, &machine.vm, index, former)))
}

/// Renews instances that were made from an older template than their machines: unusable ones at once, others while enough
/// remain available.
fn roll(observed: &Observed, recent: &[&Machine]) -> Plan {
    let unavailable = observed.machines.iter().filter(|machine| !machine.is_available()).count();
    let mut left = max_unavailable(&observed.pool).saturating_sub(unavailable);
    let mut plan = Plan::default();
    for machine in recent {
        match (renewal(observed, machine), machine.is_available()) {
            (None, _) => {}
            (Some(relabel @ Action::Relabel(..)), _) => plan.actions.push(relabel),
            (Some(restart), false) => plan.actions.push(restart),
            (Some(restart), true) if left > 0 => {
                left -= 1;
                plan.actions.push(restart);
            }
            (Some(_), true) => plan = plan.no_later_than(Some(WAIT)),
        }
    }
    plan
}

/// The action that brings a machine's instance to the machine's template.
fn renewal(observed: &Observed, machine: &Machine) -> Option<Action> {
    let instance = machine.instance.as_ref().filter(|one| one.metadata.deletion_timestamp.is_none())?;
    // Without a generation the machine gets one by the next update; without its specification there is nothing to compare.
    let of_machine = generation::of(machine.vm.meta())?;
    let wanted = observed.template(of_machine)?;
    let of_instance = generation::of(instance.meta());
    if of_instance == Some(of_machine) {
        return None;
    }
    let guest = |template: &VirtualMachineTemplateSpec| {
        let spec = template.spec.clone().unwrap_or_default();
        (spec.template, spec.data_volume_templates, spec.instancetype, spec.preference)
    };
    let had = of_instance.and_then(|revision| observed.template(revision));
    if had.is_some_and(|had| guest(had) == guest(wanted)) {
        return Some(Action::Relabel(Box::new(instance.clone()), of_machine.clone()));
    }
    // An existing DataVolume is never changed.
    let data_volumes = |template: &VirtualMachineTemplateSpec| {
        template.spec.as_ref().map(|spec| spec.data_volume_templates.clone()).unwrap_or_default()
    };
    if had.is_some_and(|had| data_volumes(had) != data_volumes(wanted)) {
        return Some(Action::Replace(Box::new(machine.vm.clone())));
    }
    Some(restart(machine, instance))
}

/// A deleted instance is made again only by strategies that start machines by themselves.
fn restart(machine: &Machine, instance: &VirtualMachineInstance) -> Action {
    match machine.vm.spec.effective_run_strategy() {
        Some(RUN_STRATEGY_MANUAL | RUN_STRATEGY_RERUN_ON_FAILURE) => {
            Action::Restart(Box::new(machine.vm.clone()), instance.uid().unwrap_or_default())
        }
        _ => Action::Renew(Box::new(instance.clone())),
    }
}

/// How many machines may be unavailable at the same time; at least one, or no update would ever begin.
fn max_unavailable(pool: &VirtualMachinePool) -> usize {
    let replicas = i64::from(pool.spec.replicas.unwrap_or(1));
    let number = match &pool.spec.max_unavailable {
        None => replicas,
        Some(IntOrString::Int(number)) => i64::from(*number),
        // Admission accepts only percentages.
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|text| text.parse::<i64>().ok()).unwrap_or(100);
            replicas.saturating_mul(percent) / 100
        }
    };
    usize::try_from(number.max(1)).unwrap_or(usize::MAX)
}

/// Removes older generations once nothing uses them.
fn prune(observed: &Observed) -> Plan {
    if observed.pruned || !revision::referenced(observed).is_empty() {
        return Plan::default();
    }
    Plan::of(vec![Action::Prune])
}
