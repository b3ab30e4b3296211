//! The status that a VMI should have, from the one it has and what its launcher says. Pure: the time is a parameter.
//!
//! The controller owns what comes before `Scheduled`; the rest is written here. What is not known now stays as it is:
//! a handler that was just started does not take back what the former one reported. Conditions of other types are left
//! where they are.

use barevirt_api::names::{
    CONDITION_ACCESS_CREDENTIALS, CONDITION_AGENT_CONNECTED, CONDITION_LIVE_MIGRATABLE, CONDITION_PAUSED,
    CONDITION_READY, CONDITION_SYNCHRONIZED, CONDITION_UNSUPPORTED_AGENT, PHASE_FAILED, PHASE_RUNNING,
    PHASE_SUCCEEDED, REASON_GUEST_NOT_RUNNING, REASON_PAUSED_BY_USER, REASON_PAUSED_IO_ERROR,
    REASON_SYNC_FAILED, is_final_phase,
};
use barevirt_api::v1::{
    Condition, GuestOsInfo, Machine, NetworkInterfaceStatus, VirtualMachineInstance,
    VirtualMachineInstanceStatus, merge_condition, record_phase_transition,
};
use barevirt_protocol::v1::{Credentials, GuestFacts, GuestInterface, GuestOs, LauncherStatus, Pause, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::pods::Readiness;

/// Reason of `LiveMigratable=False`: this version has no migration.
const NOT_MIGRATABLE: &str = "MigrationNotSupported";
/// The same for people.
const NOT_MIGRATABLE_MESSAGE: &str = "live migration is not part of this version of Barevirt";
/// `Paused=True` for people, as KubeVirt has it.
const PAUSED_BY_USER: &str = "VMI was paused by user";
/// The same where a disk failed.
const PAUSED_IO_ERROR: &str = "VMI was paused, low-level IO error detected";
/// Who told about an interface: the definition of the machine, as KubeVirt calls it.
const DOMAIN: &str = "domain";
/// The guest agent alone, about an interface that we know nothing of.
const GUEST_AGENT: &str = "guest-agent";
/// Both.
const DOMAIN_AND_AGENT: &str = "domain, guest-agent";
/// Most interfaces that only the guest knows of, as in KubeVirt.
const MOST_GUEST_ONLY: usize = 10;
/// What the status says of file systems that are frozen.
const FROZEN: &str = "frozen";

/// What is reported of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name in the spec.
    pub name: String,
    /// The guest's MAC address.
    pub mac: String,
    /// The pod's interface.
    pub pod_interface: String,
    /// Where the guest is reached: the pod's addresses, the primary one first.
    pub addresses: Vec<String>,
    /// How many queues it has.
    pub queues: u32,
}

/// What the handler sees of a VMI.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// What the launcher said last; nothing if it is not connected to.
    pub launcher: Option<&'a LauncherStatus>,
    /// The interfaces; nothing if they were not looked at.
    pub interfaces: Option<&'a [Interface]>,
    /// Why what is asked for could not be put into effect for some time now.
    pub failure: Option<&'a str>,
    /// The launcher was told of the specification as it is, and what it says is said after that.
    pub told: bool,
    /// What the pod says of its readiness, where the guest has a probe for it.
    pub readiness: Option<&'a Readiness>,
}

/// The status that the VMI should have.
pub fn compute(vmi: &VirtualMachineInstance, seen: Seen<'_>, now: &Time) -> VirtualMachineInstanceStatus {
    let mut status = vmi.status.clone().unwrap_or_default();
    if status.phase.as_deref().is_some_and(is_final_phase) {
        return status;
    }
    synchronized(&mut status.conditions, seen.failure, now);
    let Some(launcher) = seen.launcher else { return status };
    match launcher.phase() {
        Phase::Running => running(&mut status, launcher, readiness(vmi, seen.readiness), now),
        Phase::Paused => paused(&mut status, launcher, now),
        Phase::Succeeded => ended(&mut status, PHASE_SUCCEEDED, launcher, now),
        Phase::Failed => ended(&mut status, PHASE_FAILED, launcher, now),
        // On its way up there is nothing to say yet, and on its way down the verdict follows.
        Phase::Unspecified | Phase::Waiting | Phase::Starting | Phase::Stopping => {}
    }
    if status.phase.as_deref() == Some(PHASE_RUNNING) {
        if let Some(size) = &launcher.size {
            super::size::report(&mut status, &vmi.spec, size, now);
        }
        super::volumes::report(&mut status.volume_status, vmi, launcher, seen.told);
        let guest = launcher.guest.as_ref();
        if let Some(interfaces) = seen.interfaces {
            status.interfaces = interfaces.iter().map(interface).collect();
            for told in guest.into_iter().flat_map(|guest| &guest.interfaces) {
                by_agent(&mut status.interfaces, told);
            }
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

/// What `Ready` says of a guest that runs: that it does, or where it has a probe, what its pod says. Nothing where the pod was
/// not seen yet.
fn readiness(vmi: &VirtualMachineInstance, pod: Option<&Readiness>) -> Option<Condition> {
    match pod {
        _ if vmi.spec.readiness_probe.is_none() => Some(Condition::new(CONDITION_READY, true, "", "")),
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
    // The guest's processors run, but the monitor has not answered yet: in a moment it will have.
    if !launcher.ready {
        return;
    }
    enter(status, PHASE_RUNNING, now);
    let conditions = &mut status.conditions;
    if let Some(ready) = ready {
        merge_condition(conditions, ready, now);
    }
    migratable(conditions, now);
    Condition::remove(conditions, CONDITION_PAUSED);
    agent(conditions, launcher, now);
}

fn paused(status: &mut VirtualMachineInstanceStatus, launcher: &LauncherStatus, now: &Time) {
    let (reason, message) = match launcher.pause() {
        Pause::User => (REASON_PAUSED_BY_USER, PAUSED_BY_USER),
        Pause::IoError => (REASON_PAUSED_IO_ERROR, PAUSED_IO_ERROR),
        // Before its first instruction every guest stands still. A launcher that gives no reason for it later on is of an
        // older version.
        Pause::Unspecified if launcher.running_since_unix_ms == 0 => return,
        Pause::Unspecified => (REASON_PAUSED_BY_USER, PAUSED_BY_USER),
    };
    enter(status, PHASE_RUNNING, now);
    let conditions = &mut status.conditions;
    let ready = Condition::new(CONDITION_READY, false, REASON_GUEST_NOT_RUNNING, "the guest is paused");
    merge_condition(conditions, ready, now);
    migratable(conditions, now);
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

fn migratable(conditions: &mut Vec<Condition>, now: &Time) {
    let condition = Condition::new(CONDITION_LIVE_MIGRATABLE, false, NOT_MIGRATABLE, NOT_MIGRATABLE_MESSAGE);
    merge_condition(conditions, condition, now);
}

/// KubeVirt has these conditions only while the agent is connected, and while it lacks something.
fn agent(conditions: &mut Vec<Condition>, launcher: &LauncherStatus, now: &Time) {
    if launcher.agent_connected {
        merge_condition(conditions, Condition::new(CONDITION_AGENT_CONNECTED, true, "", ""), now);
        match launcher.guest.as_ref().map(|guest| guest.unsupported.as_str()) {
            Some("") => Condition::remove(conditions, CONDITION_UNSUPPORTED_AGENT),
            // A sentence for a reason, as in KubeVirt.
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

/// KubeVirt has the condition only while something is wrong.
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

fn interface(seen: &Interface) -> NetworkInterfaceStatus {
    NetworkInterfaceStatus {
        ip_address: seen.addresses.first().cloned(),
        ip_addresses: seen.addresses.clone(),
        mac: Some(seen.mac.clone()),
        name: Some(seen.name.clone()),
        pod_interface_name: Some(seen.pod_interface.clone()),
        info_source: Some(DOMAIN.to_owned()),
        link_state: Some("up".to_owned()),
        queue_count: i32::try_from(seen.queues).ok(),
        ..NetworkInterfaceStatus::default()
    }
}

/// What the guest says of an interface. Of one of ours only its name in the guest: where it is reached is the pod's affair,
/// and no word of the guest adds an address to it or takes one away. Interfaces that only the guest knows are listed as such.
fn by_agent(interfaces: &mut Vec<NetworkInterfaceStatus>, told: &GuestInterface) {
    let GuestInterface { name, mac, addresses } = told;
    let ours = |one: &&mut NetworkInterfaceStatus| {
        let known = one.mac.as_deref().is_some_and(|known| known.eq_ignore_ascii_case(mac));
        known && one.info_source.as_deref() == Some(DOMAIN)
    };
    if let Some(one) = interfaces.iter_mut().find(ours) {
        one.interface_name = Some(name.clone());
        one.info_source = Some(DOMAIN_AND_AGENT.to_owned());
        return;
    }
    let guest_only = |one: &&NetworkInterfaceStatus| one.info_source.as_deref() == Some(GUEST_AGENT);
    if interfaces.iter().filter(guest_only).count() >= MOST_GUEST_ONLY {
        return;
    }
    // As in KubeVirt: the first of IPv4, else the first.
    let first = addresses.iter().find(|address| !address.contains(':')).or_else(|| addresses.first());
    interfaces.push(NetworkInterfaceStatus {
        ip_address: first.cloned(),
        ip_addresses: addresses.clone(),
        mac: (!mac.is_empty()).then(|| mac.clone()),
        interface_name: Some(name.clone()),
        info_source: Some(GUEST_AGENT.to_owned()),
        ..NetworkInterfaceStatus::default()
    });
}

/// Nothing where the guest does not say what it is.
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
mod tests {
    use barevirt_api::names::{CONDITION_POD_SCHEDULED, PHASE_SCHEDULED};
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn vmi(status: VirtualMachineInstanceStatus) -> VirtualMachineInstance {
        VirtualMachineInstance { status: Some(status), ..Default::default() }
    }

    fn scheduled() -> VirtualMachineInstance {
        vmi(VirtualMachineInstanceStatus {
            phase: Some(PHASE_SCHEDULED.to_owned()),
            node_name: Some("node01".to_owned()),
            conditions: vec![Condition::new(CONDITION_POD_SCHEDULED, true, "", "")],
            ..Default::default()
        })
    }

    fn launcher(phase: Phase) -> LauncherStatus {
        LauncherStatus {
            phase: phase.into(),
            ready: true,
            machine_type: "pc-q35-10.0".to_owned(),
            running_since_unix_ms: 1,
            ..Default::default()
        }
    }

    fn interfaces() -> [Interface; 1] {
        [Interface {
            name: "default".to_owned(),
            mac: "02:00:00:00:00:07".to_owned(),
            pod_interface: "eth0".to_owned(),
            addresses: vec!["10.244.0.5".to_owned(), "fd00::5".to_owned()],
            queues: 1,
        }]
    }

    fn seen(launcher: &LauncherStatus) -> Seen<'_> {
        Seen { launcher: Some(launcher), interfaces: None, failure: None, told: true, readiness: None }
    }

    #[test]
    fn running_is_reported_whole_and_then_stays_the_same() {
        let (launcher, interfaces) = (launcher(Phase::Running), interfaces());
        let seen = Seen { interfaces: Some(&interfaces), ..seen(&launcher) };
        let status = compute(&scheduled(), seen, &at(5));
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(status.node_name.as_deref(), Some("node01"));
        assert_eq!(status.interfaces[0].ip_address.as_deref(), Some("10.244.0.5"));
        assert_eq!(status.machine.as_ref().unwrap().type_.as_deref(), Some("pc-q35-10.0"));
        let types: Vec<_> =
            status.conditions.iter().map(|one| (one.type_.as_str(), one.status.as_str())).collect();
        assert_eq!(types, [("PodScheduled", "True"), ("Ready", "True"), ("LiveMigratable", "False")]);
        assert_eq!(status.phase_transition_timestamps.len(), 1);
        assert_eq!(compute(&vmi(status.clone()), seen, &at(99)), status);
    }

    #[test]
    fn a_new_handler_takes_nothing_back() {
        let running = launcher(Phase::Running);
        let interfaces = interfaces();
        let status = compute(&scheduled(), Seen { interfaces: Some(&interfaces), ..seen(&running) }, &at(5));
        let nothing = Seen { launcher: None, interfaces: None, failure: None, told: true, readiness: None };
        assert_eq!(compute(&vmi(status.clone()), nothing, &at(9)), status);
        assert_eq!(compute(&vmi(status.clone()), seen(&running), &at(9)), status);
    }

    #[test]
    fn on_the_way_up_and_down_nothing_is_written() {
        for phase in [Phase::Waiting, Phase::Starting, Phase::Stopping, Phase::Unspecified] {
            let launcher = launcher(phase);
            assert_eq!(Some(compute(&scheduled(), seen(&launcher), &at(5))), scheduled().status, "{phase:?}");
        }
        let mut unready = launcher(Phase::Running);
        unready.ready = false;
        assert_eq!(Some(compute(&scheduled(), seen(&unready), &at(5))), scheduled().status);
        let mut fresh = launcher(Phase::Paused);
        fresh.running_since_unix_ms = 0;
        assert_eq!(Some(compute(&scheduled(), seen(&fresh), &at(5))), scheduled().status);
    }

    #[test]
    fn the_verdict_of_the_launcher_is_final() {
        let mut failed = launcher(Phase::Failed);
        failed.reason = "KilledBySignal".to_owned();
        failed.message = "QEMU was killed by signal 9".to_owned();
        failed.agent_connected = true;
        let status = compute(&scheduled(), seen(&failed), &at(5));
        assert_eq!(
            (status.phase.as_deref(), status.reason.as_deref()),
            (Some("Failed"), Some("KilledBySignal"))
        );
        let ready = Condition::find(&status.conditions, CONDITION_READY).unwrap();
        assert_eq!(
            (ready.status.as_str(), ready.message.as_deref()),
            ("False", Some("QEMU was killed by signal 9"))
        );
        assert!(Condition::find(&status.conditions, CONDITION_AGENT_CONNECTED).is_none());
        // Nothing changes a final phase, whatever is seen later.
        assert_eq!(compute(&vmi(status.clone()), seen(&launcher(Phase::Running)), &at(9)), status);
    }

    #[test]
    fn paused_and_agent_come_and_go() {
        let mut now = launcher(Phase::Paused);
        now.agent_connected = true;
        let paused = compute(&scheduled(), seen(&now), &at(5));
        assert!(Condition::is_set(&paused.conditions, CONDITION_PAUSED));
        assert!(!Condition::is_set(&paused.conditions, CONDITION_READY));
        assert!(Condition::is_set(&paused.conditions, CONDITION_AGENT_CONNECTED));
        let running = compute(&vmi(paused), seen(&launcher(Phase::Running)), &at(6));
        assert!(Condition::find(&running.conditions, CONDITION_PAUSED).is_none());
        assert!(Condition::is_set(&running.conditions, CONDITION_READY));
        assert!(Condition::find(&running.conditions, CONDITION_AGENT_CONNECTED).is_none());
    }

    #[test]
    fn a_guest_with_a_probe_is_ready_when_its_pod_is() {
        let mut probed = scheduled();
        probed.spec.readiness_probe = Some(Default::default());
        let launcher = launcher(Phase::Running);
        let ready = |vmi: &VirtualMachineInstance, readiness: Option<&Readiness>| {
            let status = compute(vmi, Seen { readiness, ..seen(&launcher) }, &at(5));
            assert_eq!(status.phase.as_deref(), Some("Running"));
            Condition::find(&status.conditions, CONDITION_READY)
                .map(|ready| (ready.status.clone(), ready.reason.clone().unwrap_or_default()))
        };
        let not_yet =
            Readiness { ready: false, reason: "ContainersNotReady".to_owned(), message: String::new() };
        let now = Readiness { ready: true, ..Readiness::default() };
        assert_eq!(ready(&probed, None), None);
        assert_eq!(
            ready(&probed, Some(&not_yet)),
            Some(("False".to_owned(), "ContainersNotReady".to_owned()))
        );
        assert_eq!(ready(&probed, Some(&now)), Some(("True".to_owned(), String::new())));
        assert_eq!(ready(&scheduled(), None), Some(("True".to_owned(), String::new())));
    }

    #[test]
    fn credentials_and_what_the_agent_lacks_are_told_as_kubevirt_tells_them() {
        let mut now = launcher(Phase::Running);
        let offline = "Guest agent is offline".to_owned();
        now.credentials = Some(Credentials { synchronized: false, message: offline });
        let before = compute(&scheduled(), seen(&now), &at(5));
        let condition = Condition::find(&before.conditions, "AccessCredentialsSynchronized").unwrap();
        assert_eq!(
            (condition.status.as_str(), condition.message.as_deref()),
            ("False", Some("Guest agent is offline"))
        );
        now.agent_connected = true;
        now.credentials = Some(Credentials { synchronized: true, message: String::new() });
        now.guest = Some(GuestFacts { unsupported: "It cannot.".to_owned(), ..GuestFacts::default() });
        let after = compute(&vmi(before), seen(&now), &at(6));
        assert!(Condition::is_set(&after.conditions, "AccessCredentialsSynchronized"));
        let unsupported = Condition::find(&after.conditions, "UnsupportedAgent").unwrap();
        assert_eq!(unsupported.reason.as_deref(), Some("It cannot."));
        now.agent_connected = false;
        now.guest = None;
        let gone = compute(&vmi(after), seen(&now), &at(7));
        assert!(Condition::find(&gone.conditions, "UnsupportedAgent").is_none());
    }

    #[test]
    fn why_a_guest_is_paused_is_said_also_before_it_ran() {
        for (pause, reason) in [(Pause::User, "PausedByUser"), (Pause::IoError, "PausedIOError")] {
            let mut now = launcher(Phase::Paused);
            now.running_since_unix_ms = 0;
            now.set_pause(pause);
            let status = compute(&scheduled(), seen(&now), &at(5));
            let paused = Condition::find(&status.conditions, CONDITION_PAUSED).unwrap();
            assert_eq!((status.phase.as_deref(), paused.reason.as_deref()), (Some("Running"), Some(reason)));
        }
    }

    #[test]
    fn the_guest_s_word_adds_a_name_and_no_address() {
        let mut now = launcher(Phase::Running);
        let told = |name: &str, mac: &str, address: &str| GuestInterface {
            name: name.to_owned(),
            mac: mac.to_owned(),
            addresses: vec!["fe80::1".to_owned(), address.to_owned()],
        };
        let mut facts = GuestFacts {
            os: Some(GuestOs { name: "Debian".to_owned(), ..GuestOs::default() }),
            interfaces: vec![
                told("eth0", "02:00:00:00:00:07", "10.0.2.2"),
                // The same again is a lie, or a bridge.
                told("eth1", "02:00:00:00:00:07", "192.0.2.1"),
            ],
            frozen: true,
            ..GuestFacts::default()
        };
        facts.interfaces.extend((0..50).map(|n| told(&format!("tap{n}"), "", "192.0.2.9")));
        now.guest = Some(facts);
        let interfaces = interfaces();
        let status = compute(&scheduled(), Seen { interfaces: Some(&interfaces), ..seen(&now) }, &at(5));
        assert_eq!(status.interfaces.len(), 1 + MOST_GUEST_ONLY);
        let ours = &status.interfaces[0];
        assert_eq!(ours.ip_addresses, ["10.244.0.5", "fd00::5"]);
        assert_eq!(
            (ours.interface_name.as_deref(), ours.info_source.as_deref()),
            (Some("eth0"), Some("domain, guest-agent"))
        );
        let theirs = &status.interfaces[1];
        assert_eq!((theirs.name.as_deref(), theirs.ip_address.as_deref()), (None, Some("192.0.2.1")));
        assert_eq!(theirs.info_source.as_deref(), Some("guest-agent"));
        assert_eq!(status.guest_os_info.as_ref().unwrap().name.as_deref(), Some("Debian"));
        assert_eq!(status.fs_freeze_status.as_deref(), Some("frozen"));

        // The agent goes: what it said of interfaces and of freezing goes with it, what the guest is stays.
        let gone = launcher(Phase::Running);
        let without = Seen { interfaces: Some(&interfaces), ..seen(&gone) };
        let after = compute(&vmi(status.clone()), without, &at(9));
        assert_eq!((after.interfaces.len(), after.interfaces[0].info_source.as_deref()), (1, Some("domain")));
        assert_eq!((after.guest_os_info, after.fs_freeze_status), (status.guest_os_info, None));
    }

    #[test]
    fn a_failure_to_synchronize_is_a_condition_while_it_lasts() {
        let failing = Seen {
            launcher: None,
            interfaces: None,
            failure: Some("open tap tap0"),
            told: true,
            readiness: None,
        };
        let status = compute(&scheduled(), failing, &at(5));
        let condition = Condition::find(&status.conditions, CONDITION_SYNCHRONIZED).unwrap();
        assert_eq!(condition.reason.as_deref(), Some("SyncFailed"));
        assert_eq!(status.phase.as_deref(), Some("Scheduled"));
        let healed = compute(&vmi(status), Seen { failure: None, ..failing }, &at(6));
        assert_eq!(Some(healed), scheduled().status);
    }
}
