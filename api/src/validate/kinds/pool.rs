//! `VirtualMachinePool`.

use super::{replica_set, selector};
use crate::duration;
use crate::gates::Gates;
use crate::pool::{VirtualMachinePool, VirtualMachinePoolSelectionPolicy, VirtualMachinePoolSpec};
use crate::syntax::quoted;
use crate::validate::{self, Cause, Path, Requester, supported};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Orders in which a pool picks machines.
const ORDERS: [&str; 5] = ["AscendingOrder", "DescendingOrder", "Newest", "Oldest", "Random"];

/// Everything wrong with a new pool.
pub fn create(pool: &VirtualMachinePool, requester: Requester, gates: &Gates) -> Vec<Cause> {
    spec(&pool.spec, requester, gates)
}

/// Everything wrong with a change of a pool. A change that leaves the specification as it is always passes,
/// so that finalizers can be removed.
pub fn update(
    old: &VirtualMachinePool,
    new: &VirtualMachinePool,
    requester: Requester,
    gates: &Gates,
) -> Vec<Cause> {
    if old.spec == new.spec {
        return Vec::new();
    }
    let mut causes = spec(&new.spec, requester, gates);
    if old.spec.selector != new.spec.selector {
        causes.push(Cause::invalid(&Path::new("spec.selector"), "selector is immutable after creation."));
    }
    causes
}

fn spec(spec: &VirtualMachinePoolSpec, requester: Requester, gates: &Gates) -> Vec<Cause> {
    let path = Path::new("spec");
    let mut causes = template(spec, requester, gates);
    let field = Path::new("spec.selector");
    let labels =
        spec.virtual_machine_template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    match selector::matches(&spec.selector, labels) {
        Ok(true) => {}
        Ok(false) => causes.push(Cause::invalid(&field, "selector does not match labels.")),
        Err(why) => causes.push(Cause::invalid(&field, why)),
    }
    max_unavailable(spec, &mut causes);
    let strategies = |given: [(&'static str, bool); 3]| -> Vec<&'static str> {
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    };
    if let Some(update) = &spec.update_strategy {
        let given = strategies([
            ("unmanaged", update.unmanaged.is_some()),
            ("opportunistic", update.opportunistic.is_some()),
            ("proactive", update.proactive.is_some()),
        ]);
        only_one("spec.updateStrategy", &given, &mut causes);
    }
    if let Some(scale_in) = &spec.scale_in_strategy {
        let given = strategies([
            ("unmanaged", scale_in.unmanaged.is_some()),
            ("opportunistic", scale_in.opportunistic.is_some()),
            ("proactive", scale_in.proactive.is_some()),
        ]);
        only_one("spec.scaleInStrategy", &given, &mut causes);
    }
    let scale_in = spec.scale_in_strategy.as_ref().and_then(|strategy| strategy.proactive.as_ref());
    let update = spec.update_strategy.as_ref().and_then(|strategy| strategy.proactive.as_ref());
    for (strategy, policy) in [
        ("scaleInStrategy", scale_in.and_then(|proactive| proactive.selection_policy.as_ref())),
        ("updateStrategy", update.and_then(|proactive| proactive.selection_policy.as_ref())),
    ] {
        let Some(policy) = policy else { continue };
        selection(&path.child(strategy).child("proactive.selectionPolicy"), policy, &mut causes);
    }
    autohealing(&path.child("autohealing"), spec, &mut causes);
    replica_set::replicas(&path, spec.replicas, &mut causes);
    supported::pool(&path, spec, gates, &mut causes);
    causes
}

/// Which machines are picked first.
fn selection(path: &Path, policy: &VirtualMachinePoolSelectionPolicy, causes: &mut Vec<Cause>) {
    if let Some(order) = policy.sort_policy.as_deref().filter(|order| !ORDERS.contains(order)) {
        let message = format!("{} is not one of {}", quoted(order), ORDERS.join(", "));
        causes.push(Cause::not_supported(&path.child("sortPolicy"), message));
    }
    let Some(selectors) = &policy.selectors else { return };
    if let Some(Err(why)) = selectors.label_selector.as_ref().map(|labels| selector::matches(labels, None)) {
        causes.push(Cause::invalid(&path.child("selectors.labelSelector"), why));
    }
    let nodes = &selectors.node_selector_requirement_matcher;
    if let Err(why) = selector::node_selector_matches(nodes, None) {
        causes.push(Cause::invalid(&path.child("selectors.nodeSelectorRequirementMatcher"), why));
    }
}

fn autohealing(path: &Path, spec: &VirtualMachinePoolSpec, causes: &mut Vec<Cause>) {
    let Some(healing) = &spec.autohealing else { return };
    if healing.start_up_failure_threshold.is_some_and(|threshold| threshold < 1) {
        let field = path.child("startUpFailureThreshold");
        causes.push(Cause::invalid(&field, "must be greater than or equal to 1"));
    }
    if let Some(text) = healing.min_failing_to_start_duration.as_deref()
        && duration::parse(text).is_none()
    {
        let field = path.child("minFailingToStartDuration");
        causes.push(Cause::invalid(&field, format!("{} is not a duration such as 5m", quoted(text))));
    }
}

/// The rules of machines, with the paths of the pool's template.
fn template(spec: &VirtualMachinePoolSpec, requester: Requester, gates: &Gates) -> Vec<Cause> {
    const PLACE: &str = "spec.virtualMachineTemplate";
    let Some(machine) = &spec.virtual_machine_template.spec else {
        return vec![Cause::required(
            &Path::new(PLACE).child("spec.template"),
            "missing virtual machine template.",
        )];
    };
    validate::vm_spec(&Path::new(PLACE).child("spec"), machine, requester, gates)
}

fn max_unavailable(spec: &VirtualMachinePoolSpec, causes: &mut Vec<Cause>) {
    let wrong = match &spec.max_unavailable {
        None => None,
        Some(IntOrString::Int(number)) => {
            (*number <= 0).then(|| "maxUnavailable must be greater than 0".to_owned())
        }
        Some(IntOrString::String(text)) => match text.strip_suffix('%').map(str::parse::<i32>) {
            None => Some("maxUnavailable percentage must end with %".to_owned()),
            Some(Err(error)) => {
                Some(format!("maxUnavailable percentage value {:?} is invalid: {error}", quoted(text)))
            }
            Some(Ok(percent)) => (!(1..=100).contains(&percent))
                .then(|| format!("maxUnavailable percentage value {percent} must be between 1 and 100")),
        },
    };
    causes.extend(wrong.map(|message| Cause::invalid(&Path::new("spec.maxUnavailable"), message)));
}

fn only_one(field: &str, given: &[&str], causes: &mut Vec<Cause>) {
    if given.len() > 1 {
        let message = format!(
            "only one strategy can be configured at a time: but found {} strategies",
            given.join(", ")
        );
        causes.push(Cause::invalid(&Path::new(field), message));
    }
}
