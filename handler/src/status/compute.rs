//! Computes the status that a VMI should have, from its present status and its launcher's report. Pure: the
//! time is a parameter.
//!
//! The controller owns the phases before `Scheduled`; the rest is written here. Fields whose value is unknown
//! keep their value, so a handler that has just started does not revert what the previous one reported.
//! Conditions of other types are not changed.

use barevirt_api::migratable;
use barevirt_api::names::{
    CONDITION_ACCESS_CREDENTIALS, CONDITION_AGENT_CONNECTED, CONDITION_PAUSED, CONDITION_READY,
    CONDITION_SYNCHRONIZED, CONDITION_UNSUPPORTED_AGENT, PHASE_FAILED, PHASE_RUNNING, PHASE_SUCCEEDED,
    REASON_GUEST_NOT_RUNNING, REASON_PAUSED_BY_USER, REASON_PAUSED_IO_ERROR, REASON_SYNC_FAILED,
    is_final_phase,
};
use barevirt_api::settings::Bindings;
use barevirt_api::v1::{
    Condition, GuestOsInfo, Machine, VirtualMachineInstance, VirtualMachineInstanceStatus, merge_condition,
    record_phase_transition,
};
use barevirt_protocol::v1::{Credentials, GuestFacts, GuestOs, LauncherStatus, Pause, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::interfaces::{self, Interface};
use crate::migration;
use crate::pods::Readiness;

/// Message of `Paused=True`, as in KubeVirt.
const PAUSED_BY_USER: &str = "VMI was paused by user";
/// Message of `Paused=True` after a disk error.
const PAUSED_IO_ERROR: &str = "VMI was paused, low-level IO error detected";
/// The status' value for frozen file systems.
const FROZEN: &str = "frozen";

/// What the handler knows about a VMI and its launcher.
#[derive(Debug, Clone, Copy)]
pub struct LauncherView<'a> {
    /// The launcher's last status; `None` without a connection.
    pub launcher: Option<&'a LauncherStatus>,
    /// The interfaces; `None` before they are prepared.
    pub interfaces: Option<&'a [Interface]>,
    /// Why the specification could not be applied for some time.
    pub failure: Option<&'a str>,
    /// Whether the launcher has the current specification, and its status is newer than that.
    pub is_current: bool,
    /// The pod's readiness, if the guest has a readiness probe or the pod is being deleted.
    pub readiness: Option<&'a Readiness>,
    /// Network binding plugins.
    pub bindings: &'a Bindings,
}

/// The status that the VMI should have.
pub fn compute(
    vmi: &VirtualMachineInstance,
    seen: LauncherView<'_>,
    now: &Time,
) -> VirtualMachineInstanceStatus {
    let mut status = vmi.status.clone().unwrap_or_default();
    if status.phase.as_deref().is_some_and(is_final_phase) {
        return status;
    }
    let card = seen.launcher.and_then(card_trouble);
    synchronized(&mut status.conditions, seen.failure.or(card.as_deref()), now);
    let Some(launcher) = seen.launcher else { return status };
    if is_undecided(&status, launcher) {
        return status;
    }
    match launcher.phase() {
        Phase::Running => running(&mut status, launcher, readiness(vmi, seen.readiness), now),
        Phase::Paused => paused(&mut status, launcher, now),
        Phase::Succeeded => ended(&mut status, PHASE_SUCCEEDED, launcher, now),
        Phase::Failed => ended(&mut status, PHASE_FAILED, launcher, now),
        // While the guest starts there is nothing to report yet, and while it stops the result follows.
        Phase::Unspecified | Phase::Waiting | Phase::Starting | Phase::Stopping => {}
    }
    if status.phase.as_deref() == Some(PHASE_RUNNING) {
        movable(&mut status, vmi, seen.bindings, now);
        if let Some(size) = &launcher.size {
            super::size::report(&mut status, &vmi.spec, size, now);
        }
        super::volumes::report_started(&mut status.volume_status, vmi);
        super::volumes::report(&mut status.volume_status, vmi, launcher, seen.is_current);
        super::volumes::report_growth(&mut status.volume_status, launcher);
        super::volumes::report_moved(&mut status, vmi, launcher);
        super::volumes::report_made(&mut status.volume_status, vmi, launcher);
        let guest = launcher.guest.as_ref();
        if let Some(interfaces) = seen.interfaces {
            let told = guest.map(|guest| guest.interfaces.as_slice()).unwrap_or_default();
            status.interfaces = interfaces::report(&status.interfaces, interfaces, &launcher.cards, told);
        }
        if let Some(os) = guest.and_then(|guest| os(guest.os.as_ref()?)) {
            status.guest_os_info = Some(os);
        }
        status.fs_freeze_status =
            guest.is_some_and(|GuestFacts { frozen, .. }| *frozen).then(|| FROZEN.to_owned());
        if !launcher.machine_type.is_empty() {
            status.machine = Some(Machine { type_: Some(launcher.machine_type.clone()) });
        }
    }
    status
}

/// Whether the launcher's report does not describe the instance: its guest was sent to another node, and
/// whether it runs there is not known yet.
fn is_undecided(status: &VirtualMachineInstanceStatus, launcher: &LauncherStatus) -> bool {
    let Some(told) = launcher.migration.as_ref() else { return false };
    let failed = status
        .migration_state
        .as_ref()
        .is_some_and(|state| state.migration_uid.as_deref() == Some(&told.uid) && state.failed == Some(true));
    migration::plan::is_away(launcher) && !failed
}

/// The condition `Ready` of a running guest: true, or the readiness of the pod if there is a probe or the pod
/// is being deleted. `None` if the pod was not seen yet.
fn readiness(vmi: &VirtualMachineInstance, pod: Option<&Readiness>) -> Option<Condition> {
    match pod {
        // Without a probe the guest is ready until its pod goes.
        _ if vmi.spec.readiness_probe.is_none() && !pod.is_some_and(Readiness::is_terminating) => {
            Some(Condition::new(CONDITION_READY, true, "", ""))
        }
        Some(Readiness { ready, reason, message }) => {
            Some(Condition::new(CONDITION_READY, *ready, reason, message.clone()))
        }
        None => None,
    }
}

fn running(
    status: &mut VirtualMachineInstanceStatus,
    launcher: &LauncherStatus,
    ready: Option<Condition>,
    now: &Time,
) {
    // The guest's CPUs run, but the monitor has not answered yet. It will in a moment.
    if !launcher.ready {
        return;
    }
    enter(status, PHASE_RUNNING, now);
    let conditions = &mut status.conditions;
    if let Some(ready) = ready {
        merge_condition(conditions, ready, now);
    }
    Condition::remove(conditions, CONDITION_PAUSED);
    agent(conditions, launcher, now);
}

fn paused(status: &mut VirtualMachineInstanceStatus, launcher: &LauncherStatus, now: &Time) {
    let (reason, message) = match launcher.pause() {
        Pause::User => (REASON_PAUSED_BY_USER, PAUSED_BY_USER),
        Pause::IoError => (REASON_PAUSED_IO_ERROR, PAUSED_IO_ERROR),
        // Every guest is paused before its first instruction. A launcher that gives no reason later is of an
        // older version.
        Pause::Unspecified if launcher.running_since_unix_ms == 0 => return,
        Pause::Unspecified => (REASON_PAUSED_BY_USER, PAUSED_BY_USER),
    };
    enter(status, PHASE_RUNNING, now);
    let conditions = &mut status.conditions;
    let ready = Condition::new(CONDITION_READY, false, REASON_GUEST_NOT_RUNNING, "the guest is paused");
    merge_condition(conditions, ready, now);
    merge_condition(conditions, Condition::new(CONDITION_PAUSED, true, reason, message), now);
    agent(conditions, launcher, now);
}

fn ended(status: &mut VirtualMachineInstanceStatus, phase: &str, launcher: &LauncherStatus, now: &Time) {
    enter(status, phase, now);
    if !launcher.reason.is_empty() {
        status.reason = Some(launcher.reason.clone());
    }
    let conditions = &mut status.conditions;
    let ready = Condition::new(CONDITION_READY, false, REASON_GUEST_NOT_RUNNING, launcher.message.clone());
    merge_condition(conditions, ready, now);
    Condition::remove(conditions, CONDITION_PAUSED);
    no_agent(conditions);
}

fn enter(status: &mut VirtualMachineInstanceStatus, phase: &str, now: &Time) {
    status.phase = Some(phase.to_owned());
    record_phase_transition(&mut status.phase_transition_timestamps, phase, now);
}

/// Whether the instance can be migrated. The types of its volumes are read from its present status.
fn movable(
    status: &mut VirtualMachineInstanceStatus,
    vmi: &VirtualMachineInstance,
    bindings: &Bindings,
    now: &Time,
) {
    merge_condition(&mut status.conditions, migratable::condition(vmi, bindings), now);
    if let Some(condition) = migratable::storage_condition(vmi, bindings) {
        merge_condition(&mut status.conditions, condition, now);
    }
    if let Some(method) = migratable::method(vmi) {
        status.migration_method = Some(method.to_owned());
    }
}

/// As in KubeVirt, these conditions exist only while the agent is connected, and while a feature of it is
/// missing.
fn agent(conditions: &mut Vec<Condition>, launcher: &LauncherStatus, now: &Time) {
    if launcher.agent_connected {
        merge_condition(conditions, Condition::new(CONDITION_AGENT_CONNECTED, true, "", ""), now);
        match launcher.guest.as_ref().map(|guest| guest.unsupported.as_str()) {
            Some("") => Condition::remove(conditions, CONDITION_UNSUPPORTED_AGENT),
            // The reason is a sentence, as in KubeVirt.
            Some(lack) => {
                let condition = Condition::new(CONDITION_UNSUPPORTED_AGENT, true, lack, "");
                merge_condition(conditions, condition, now);
            }
            None => {}
        }
    } else {
        no_agent(conditions);
    }
    if let Some(Credentials { synchronized, message }) = &launcher.credentials {
        let condition = Condition::new(CONDITION_ACCESS_CREDENTIALS, *synchronized, "", message.clone());
        merge_condition(conditions, condition, now);
    }
}

fn no_agent(conditions: &mut Vec<Condition>) {
    Condition::remove(conditions, CONDITION_AGENT_CONNECTED);
    Condition::remove(conditions, CONDITION_UNSUPPORTED_AGENT);
}

/// Why a network card differs from the specification.
fn card_trouble(launcher: &LauncherStatus) -> Option<String> {
    let card = launcher.cards.iter().find(|card| !card.trouble.is_empty())?;
    Some(format!("interface {}: {}", card.name, card.trouble))
}

/// As in KubeVirt, the condition exists only while there is a failure.
fn synchronized(conditions: &mut Vec<Condition>, failure: Option<&str>, now: &Time) {
    match failure {
        Some(message) => {
            let condition = Condition::new(CONDITION_SYNCHRONIZED, false, REASON_SYNC_FAILED, message);
            merge_condition(conditions, condition, now);
        }
        None => conditions.retain(|condition| {
            condition.type_ != CONDITION_SYNCHRONIZED
                || condition.reason.as_deref() != Some(REASON_SYNC_FAILED)
        }),
    }
}

/// `None` if the guest does not report its operating system.
fn os(told: &GuestOs) -> Option<GuestOsInfo> {
    let GuestOs { name, id, pretty_name, version, version_id, kernel_release, kernel_version, machine } =
        told;
    let said = |text: &String| (!text.is_empty()).then(|| text.clone());
    let os = GuestOsInfo {
        name: said(name),
        id: said(id),
        pretty_name: said(pretty_name),
        version: said(version),
        version_id: said(version_id),
        kernel_release: said(kernel_release),
        kernel_version: said(kernel_version),
        machine: said(machine),
    };
    (os != GuestOsInfo::default()).then_some(os)
}

#[cfg(test)]
mod tests;
