//! Whether a running instance needs another pod for its networks. Pure.

use super::super::status::age;
use super::{INTERVAL, note, reported_link};
use barevirt_api::names::{CONDITION_MIGRATION_REQUIRED, REASON_MIGRATION_DUE, REASON_MIGRATION_PENDING};
use barevirt_api::networks::{self, SOURCE_DOMAIN, SOURCE_MULTUS};
use barevirt_api::v1::{
    Condition, NetworkInterfaceStatus, VirtualMachineInstance, VirtualMachineInstanceStatus, merge_condition,
};
use barevirt_plan::pod::networks::{Noted, is_of, noted};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// How long networks may take that are added while the guest runs; after that the guest needs another pod. KubeVirt's.
pub(super) const PLUGS: Duration = Duration::from_secs(15);

fn reported<'a>(status: &'a VirtualMachineInstanceStatus, name: &str) -> Option<&'a NetworkInterfaceStatus> {
    status.interfaces.iter().find(|entry| entry.name.as_deref() == Some(name))
}

/// Why a card is not as the instance wants it.
enum Waiting {
    /// It may still be attached to this pod.
    Here(String),
    /// It needs another pod.
    Elsewhere(String),
}

fn waiting(
    vmi: &VirtualMachineInstance,
    links: &[Noted],
    status: &VirtualMachineInstanceStatus,
) -> Option<Waiting> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    networks::secondary(&vmi.spec).find_map(|(network, card)| {
        let (name, entry) = (&network.name, reported(status, &network.name));
        let source = |source: &str| {
            entry.is_some_and(|entry| networks::is_reported_by(entry.info_source.as_deref(), source))
        };
        let definition =
            network.multus.as_ref().map(|multus| multus.network_name.as_str()).unwrap_or_default();
        if networks::is_absent(card) {
            let lingers = source(SOURCE_MULTUS) && !source(SOURCE_DOMAIN);
            return lingers
                .then(|| Waiting::Here(format!("network {name} is still attached to the launcher pod")));
        }
        if entry.is_none() && card.sriov.is_some() {
            return Some(Waiting::Elsewhere(format!(
                "network {name} ({definition}) is for an SR-IOV card, which comes with another launcher pod"
            )));
        }
        if entry.is_none() {
            return Some(Waiting::Here(format!(
                "network {name} ({definition}) is not attached to the launcher pod"
            )));
        }
        let noted = reported_link(vmi, links, network)?;
        (!noted.definition.is_empty() && !is_of(noted, namespace, definition)).then(|| {
            Waiting::Elsewhere(format!(
                "network {name} is {definition} now, and the launcher pod is attached to {}",
                noted.definition
            ))
        })
    })
}

/// What is left of the time that networks may take.
fn left(known: Option<&Condition>, now: Timestamp) -> Duration {
    let since = known.and_then(|known| known.last_transition_time.as_ref()).map_or(now, |since| since.0);
    PLUGS.saturating_sub(age(since, now))
}

/// Whether the instance needs another pod, so that it matters whether the definitions of its networks exist.
pub(in crate::vmi) fn is_overdue(vmi: &VirtualMachineInstance, pod: &Pod, now: Timestamp) -> bool {
    if networks::secondary(&vmi.spec).next().is_none() {
        return false;
    }
    let mut status = vmi.status.clone().unwrap_or_default();
    note(vmi, pod, &mut status.interfaces);
    let known = Condition::find(&status.conditions, CONDITION_MIGRATION_REQUIRED);
    match waiting(vmi, &noted(pod).unwrap_or_default(), &status) {
        None => false,
        Some(Waiting::Elsewhere(_)) => true,
        Some(Waiting::Here(_)) => known.is_some_and(Condition::is_true) || left(known, now).is_zero(),
    }
}

/// Sets whether the instance has to migrate to get its networks; returns when to look again. `fault` is what is wrong with the
/// networks' definitions.
pub(super) fn migration(
    vmi: &VirtualMachineInstance,
    pod: &Pod,
    fault: Option<String>,
    now: Timestamp,
    status: &mut VirtualMachineInstanceStatus,
) -> Option<Duration> {
    let links = noted(pod).unwrap_or_default();
    let known = Condition::find(&status.conditions, CONDITION_MIGRATION_REQUIRED).cloned();
    let Some(waiting) = waiting(vmi, &links, status) else {
        Condition::remove(&mut status.conditions, CONDITION_MIGRATION_REQUIRED);
        return None;
    };
    let left = left(known.as_ref(), now);
    let was_due = known.as_ref().filter(|known| known.is_true());
    let (due, why) = match waiting {
        Waiting::Elsewhere(why) => (true, why),
        Waiting::Here(why) => (was_due.is_some() || left.is_zero(), why),
    };
    // What it waited for first stays its reason, but a definition may come or go.
    if was_due.is_some_and(|told| !told.message.as_deref().unwrap_or_default().starts_with(&why)) {
        return None;
    }
    let reason = if due { REASON_MIGRATION_DUE } else { REASON_MIGRATION_PENDING };
    let missing = fault.filter(|_| due);
    let message = missing.as_ref().map_or_else(|| why.clone(), |missing| format!("{why}: {missing}"));
    let condition = Condition::new(CONDITION_MIGRATION_REQUIRED, due, reason, message);
    merge_condition(&mut status.conditions, condition, &Time(now));
    if !due {
        // Transition times are whole seconds, rounded down.
        return Some(left.max(Duration::from_secs(1)));
    }
    // No event reports that a definition was created.
    missing.map(|_| INTERVAL)
}
