//! Tests of what is reported about a guest, and of what does not change.

use barevirt_api::names::{CONDITION_POD_SCHEDULED, PHASE_SCHEDULED};
use barevirt_api::settings::NO_BINDINGS;
use barevirt_protocol::v1::GuestInterface;
use k8s_openapi::jiff::Timestamp;

use super::interfaces::MOST_GUEST_ONLY;
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
        is_primary: true,
        is_device: false,
        lingers: false,
    }]
}

fn seen(launcher: &LauncherStatus) -> LauncherView<'_> {
    LauncherView {
        launcher: Some(launcher),
        interfaces: None,
        failure: None,
        is_current: true,
        readiness: None,
        bindings: &NO_BINDINGS,
    }
}

#[test]
fn running_is_reported_whole_and_then_stays_the_same() {
    let (launcher, interfaces) = (launcher(Phase::Running), interfaces());
    let seen = LauncherView { interfaces: Some(&interfaces), ..seen(&launcher) };
    let status = compute(&scheduled(), seen, &at(5));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.node_name.as_deref(), Some("node01"));
    assert_eq!(status.interfaces[0].ip_address.as_deref(), Some("10.244.0.5"));
    assert_eq!(status.machine.as_ref().unwrap().type_.as_deref(), Some("pc-q35-10.0"));
    let types: Vec<_> =
        status.conditions.iter().map(|one| (one.type_.as_str(), one.status.as_str())).collect();
    assert_eq!(types[..2], [("PodScheduled", "True"), ("Ready", "True")]);
    let movable = [("LiveMigratable", "True"), ("StorageLiveMigratable", "True")];
    let not_served = [("LiveMigratable", "False")];
    assert_eq!(&types[2..], if migratable::SERVED { &movable[..] } else { &not_served });
    assert_eq!(status.migration_method.is_some(), migratable::SERVED);
    assert_eq!(status.phase_transition_timestamps.len(), 1);
    assert_eq!(compute(&vmi(status.clone()), seen, &at(99)), status);
}

#[test]
fn a_new_handler_takes_nothing_back() {
    let running = launcher(Phase::Running);
    let interfaces = interfaces();
    let status =
        compute(&scheduled(), LauncherView { interfaces: Some(&interfaces), ..seen(&running) }, &at(5));
    let nothing = LauncherView {
        launcher: None,
        interfaces: None,
        failure: None,
        is_current: true,
        readiness: None,
        bindings: &NO_BINDINGS,
    };
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
fn the_phase_of_an_ended_launcher_is_final() {
    let mut failed = launcher(Phase::Failed);
    failed.reason = "KilledBySignal".to_owned();
    failed.message = "QEMU was killed by signal 9".to_owned();
    failed.agent_connected = true;
    let status = compute(&scheduled(), seen(&failed), &at(5));
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("KilledBySignal")));
    let ready = Condition::find(&status.conditions, CONDITION_READY).unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.message.as_deref()),
        ("False", Some("QEMU was killed by signal 9"))
    );
    assert!(Condition::find(&status.conditions, CONDITION_AGENT_CONNECTED).is_none());
    // A final phase never changes, whatever is observed later.
    assert_eq!(compute(&vmi(status.clone()), seen(&launcher(Phase::Running)), &at(9)), status);
}

#[test]
fn the_conditions_paused_and_agent_connected_are_set_and_removed() {
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
        let status = compute(vmi, LauncherView { readiness, ..seen(&launcher) }, &at(5));
        assert_eq!(status.phase.as_deref(), Some("Running"));
        Condition::find(&status.conditions, CONDITION_READY)
            .map(|ready| (ready.status.clone(), ready.reason.clone().unwrap_or_default()))
    };
    let not_yet = Readiness { ready: false, reason: "ContainersNotReady".to_owned(), message: String::new() };
    let now = Readiness { ready: true, ..Readiness::default() };
    assert_eq!(ready(&probed, None), None);
    assert_eq!(ready(&probed, Some(&not_yet)), Some(("False".to_owned(), "ContainersNotReady".to_owned())));
    assert_eq!(ready(&probed, Some(&now)), Some(("True".to_owned(), String::new())));
    assert_eq!(ready(&scheduled(), None), Some(("True".to_owned(), String::new())));
    assert_eq!(ready(&scheduled(), Some(&not_yet)), Some(("True".to_owned(), String::new())));
    let leaving = Readiness { reason: "PodTerminating".to_owned(), ..Readiness::default() };
    for vmi in [&probed, &scheduled()] {
        assert_eq!(ready(vmi, Some(&leaving)), Some(("False".to_owned(), "PodTerminating".to_owned())));
    }
}

#[test]
fn conditions_of_credentials_and_agent_are_kubevirts() {
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
    let unsupported = Condition::find(&after.conditions, "AgentVersionNotSupported").unwrap();
    assert_eq!(unsupported.reason.as_deref(), Some("It cannot."));
    now.agent_connected = false;
    now.guest = None;
    let gone = compute(&vmi(after), seen(&now), &at(7));
    assert!(Condition::find(&gone.conditions, "AgentVersionNotSupported").is_none());
}

#[test]
fn the_pause_reason_is_reported_before_the_guest_ran() {
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
fn the_guests_report_adds_an_interface_name_and_no_address() {
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
            // A second interface with the same address is false information, or a bridge.
            told("eth1", "02:00:00:00:00:07", "192.0.2.1"),
        ],
        frozen: true,
        ..GuestFacts::default()
    };
    facts.interfaces.extend((0..50).map(|n| told(&format!("tap{n}"), "", "192.0.2.9")));
    now.guest = Some(facts);
    let interfaces = interfaces();
    let status = compute(&scheduled(), LauncherView { interfaces: Some(&interfaces), ..seen(&now) }, &at(5));
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

    // The agent disconnects: its reports about interfaces and freezing are removed, while facts about the
    // operating system stay.
    let gone = launcher(Phase::Running);
    let without = LauncherView { interfaces: Some(&interfaces), ..seen(&gone) };
    let after = compute(&vmi(status.clone()), without, &at(9));
    assert_eq!((after.interfaces.len(), after.interfaces[0].info_source.as_deref()), (1, Some("domain")));
    assert_eq!((after.guest_os_info, after.fs_freeze_status), (status.guest_os_info, None));
}

#[test]
fn the_status_reports_a_failed_card_change_until_it_succeeds() {
    let card = |name: &str, trouble: &str| barevirt_protocol::v1::Card {
        name: name.to_owned(),
        trouble: trouble.to_owned(),
        ..Default::default()
    };
    let mut launcher = launcher(Phase::Running);
    launcher.cards = vec![card("default", ""), card("red", "no room")];
    let status = compute(&scheduled(), seen(&launcher), &at(5));
    let condition = Condition::find(&status.conditions, CONDITION_SYNCHRONIZED).unwrap();
    assert_eq!((condition.is_true(), condition.message.as_deref()), (false, Some("interface red: no room")));
    launcher.cards.pop();
    let healed = compute(&vmi(status), seen(&launcher), &at(6));
    assert_eq!(Condition::find(&healed.conditions, CONDITION_SYNCHRONIZED), None);
}

#[test]
fn a_failure_to_synchronize_is_a_condition_while_it_lasts() {
    let failing = LauncherView {
        launcher: None,
        interfaces: None,
        failure: Some("open tap tap0"),
        is_current: true,
        readiness: None,
        bindings: &NO_BINDINGS,
    };
    let status = compute(&scheduled(), failing, &at(5));
    let condition = Condition::find(&status.conditions, CONDITION_SYNCHRONIZED).unwrap();
    assert_eq!(condition.reason.as_deref(), Some("SyncFailed"));
    assert_eq!(status.phase.as_deref(), Some("Scheduled"));
    let healed = compute(&vmi(status), LauncherView { failure: None, ..failing }, &at(6));
    assert_eq!(Some(healed), scheduled().status);
}
