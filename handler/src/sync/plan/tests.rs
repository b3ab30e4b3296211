//! Tests that each step is planned when it is due, and only then.

use barevirt_api::v1::VirtualMachineInstanceStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::*;

fn vmi(phase: &str) -> VirtualMachineInstance {
    VirtualMachineInstance {
        status: Some(VirtualMachineInstanceStatus {
            phase: Some(phase.to_owned()),
            node_name: Some("node01".to_owned()),
            active_pods: [("uid-1".to_owned(), "node01".to_owned())].into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn deleted(mut vmi: VirtualMachineInstance) -> VirtualMachineInstance {
    vmi.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    vmi
}

fn pod() -> LauncherPod {
    LauncherPod {
        uid: "uid-1".to_owned(),
        name: "virt-launcher-x".to_owned(),
        container: Some("abc".to_owned()),
        addresses: Vec::new(),
        allow_emulation: true,
        deleted: false,
        readiness: None,
        links: Vec::new(),
    }
}

fn launcher(phase: Phase) -> LauncherStatus {
    LauncherStatus { phase: phase.into(), ..Default::default() }
}

const FRESH: Session<'static> = Session {
    status: None,
    lost: false,
    prepared: false,
    synced: None,
    shutdown: None,
    real_time: None,
    failed_pings: 0,
    awaits: None,
    gone: None,
};

fn next(vmi: &VirtualMachineInstance, session: Option<Session<'_>>, report: bool) -> Step {
    let pod = pod();
    plan(Observed { vmi, spec_hash: "h", pod: Some(&pod), node: "node01", session, report })
}

#[test]
fn from_scheduled_to_running() {
    let vmi = vmi(PHASE_SCHEDULED);
    let container = Container { pod_uid: "uid-1".to_owned(), id: "abc".to_owned() };
    assert_eq!(next(&vmi, None, false), Step::Connect(container));
    assert_eq!(next(&vmi, Some(FRESH), true), Step::Wait);
    let waiting = launcher(Phase::Waiting);
    let session = Session { status: Some(&waiting), ..FRESH };
    assert_eq!(next(&vmi, Some(session), false), Step::Prepare);
    let session = Session { prepared: true, ..session };
    assert_eq!(next(&vmi, Some(session), false), Step::Sync);
    let running = launcher(Phase::Running);
    let session = Session { synced: Some("h"), status: Some(&running), ..session };
    assert_eq!(next(&vmi, Some(session), true), Step::Report);
    assert_eq!(next(&vmi, Some(session), false), Step::Wait);
}

#[test]
fn realtime_comes_before_the_guest_is_said_to_run_and_once_for_each_qemu() {
    let mut vmi = vmi(PHASE_SCHEDULED);
    let mut running = launcher(Phase::Running);
    (running.ready, running.qemu_pid) = (true, 12);
    let session = Session { status: Some(&running), prepared: true, synced: Some("h"), ..FRESH };
    assert_eq!(next(&vmi, Some(session), true), Step::Report);
    vmi.spec.domain.cpu = Some(serde_json::from_value(serde_json::json!({"realtime": {}})).unwrap());
    assert_eq!(next(&vmi, Some(session), true), Step::RealTime { qemu: 12 });
    let mut waiting = launcher(Phase::Starting);
    waiting.qemu_pid = 12;
    let before = Session { status: Some(&waiting), ..session };
    assert_eq!(next(&vmi, Some(before), false), Step::Wait);
    let waiting = LauncherStatus { awaits_real_time: true, ..waiting };
    let before = Session { status: Some(&waiting), ..session };
    assert_eq!(next(&vmi, Some(before), false), Step::RealTime { qemu: 12 });
    let other = Session { real_time: Some(11), ..session };
    assert_eq!(next(&vmi, Some(other), true), Step::RealTime { qemu: 12 });
    let done = Session { real_time: Some(12), ..session };
    assert_eq!(next(&vmi, Some(done), true), Step::Report);
}

#[test]
fn changes_during_a_migration_wait_until_it_is_over() {
    let running = launcher(Phase::Running);
    let changed = Session { status: Some(&running), prepared: true, synced: Some("other"), ..FRESH };
    let unprepared = Session { prepared: false, ..changed };
    let mut vmi = vmi(PHASE_RUNNING);
    let mut moves = |from: &str, completed: bool| {
        vmi.status.as_mut().unwrap().migration_state = serde_json::from_value(serde_json::json!({
            "migrationUid": "m", "sourceNode": from, "targetNode": "node02", "completed": completed,
        }))
        .unwrap();
        [changed, unprepared].map(|session| next(&vmi, Some(session), false))
    };
    assert_eq!(moves("node01", false), [Step::Wait, Step::Wait]);
    assert_eq!(moves("node01", true), [Step::Sync, Step::Prepare]);
    assert_eq!(moves("node03", false), [Step::Sync, Step::Prepare]);
}

#[test]
fn a_series_of_failed_pings_is_reported_once() {
    let running = LauncherStatus { failed_pings: 2, ..launcher(Phase::Running) };
    let session =
        Session { status: Some(&running), prepared: true, synced: Some("h"), failed_pings: 1, ..FRESH };
    assert_eq!(next(&vmi(PHASE_RUNNING), Some(session), true), Step::ReportFailedPings(2));
    let told = Session { failed_pings: 2, ..session };
    assert_eq!(next(&vmi(PHASE_RUNNING), Some(told), true), Step::Report);
    let ending = Session { shutdown: Some(DEFAULT_GRACE_PERIOD), ..session };
    assert_eq!(next(&deleted(vmi(PHASE_RUNNING)), Some(ending), false), Step::Wait);
}

#[test]
fn nothing_happens_for_vmis_that_are_not_ours_yet_or_any_more() {
    for phase in ["", "Pending", "Scheduling", "Succeeded", "Failed", "Unknown"] {
        assert_eq!(next(&vmi(phase), None, true), Step::Wait, "{phase}");
    }
    let mut elsewhere = vmi(PHASE_SCHEDULED);
    if let Some(status) = &mut elsewhere.status {
        status.node_name = Some("node02".to_owned());
    }
    assert_eq!(next(&elsewhere, None, true), Step::Wait);
    assert_eq!(next(&elsewhere, Some(FRESH), true), Step::Disconnect);
}

#[test]
fn no_connection_before_the_container_runs() {
    let vmi = vmi(PHASE_SCHEDULED);
    let mut pod = pod();
    pod.container = None;
    let observed =
        Observed { vmi: &vmi, spec_hash: "h", pod: Some(&pod), node: "node01", session: None, report: false };
    assert_eq!(plan(observed), Step::Wait);
    assert_eq!(plan(Observed { pod: None, ..observed }), Step::Wait);
}

#[test]
fn a_deleted_vmi_is_shut_down_once_and_again_only_with_less_time() {
    let running = launcher(Phase::Running);
    let session = Session { status: Some(&running), prepared: true, synced: Some("h"), ..FRESH };
    let mut vmi = deleted(vmi(PHASE_RUNNING));
    assert_eq!(next(&vmi, Some(session), false), Step::Shutdown { grace: DEFAULT_GRACE_PERIOD });
    let session = Session { shutdown: Some(DEFAULT_GRACE_PERIOD), ..session };
    assert_eq!(next(&vmi, Some(session), false), Step::Wait);
    vmi.spec.termination_grace_period_seconds = Some(0);
    assert_eq!(next(&vmi, Some(session), false), Step::Shutdown { grace: 0 });
}

#[test]
fn a_deleted_vmi_is_not_started() {
    let waiting = launcher(Phase::Waiting);
    let session = Session { status: Some(&waiting), shutdown: Some(30), ..FRESH };
    assert_eq!(next(&deleted(vmi(PHASE_SCHEDULED)), Some(session), false), Step::Wait);
}

#[test]
fn a_guests_end_is_reported_even_when_its_launcher_is_gone() {
    let failed = launcher(Phase::Failed);
    let session = Session { status: Some(&failed), lost: true, ..FRESH };
    assert_eq!(next(&vmi(PHASE_RUNNING), Some(session), true), Step::Report);
    assert_eq!(next(&vmi("Failed"), Some(session), false), Step::Disconnect);
}

#[test]
fn an_unrequested_stop_is_left_to_the_controller() {
    let mut stopped = launcher(Phase::Succeeded);
    stopped.reason = "Stopped".to_owned();
    let session = Session { status: Some(&stopped), ..FRESH };
    let running = vmi(PHASE_RUNNING);
    assert_eq!(next(&running, Some(session), true), Step::Wait);
    assert_eq!(next(&deleted(running.clone()), Some(session), true), Step::Report);
    let pod = LauncherPod { deleted: true, ..pod() };
    let observed = Observed {
        vmi: &running,
        spec_hash: "h",
        pod: Some(&pod),
        node: "node01",
        session: Some(session),
        report: true,
    };
    assert_eq!(plan(observed), Step::Report);
    stopped.reason = "GuestShutdown".to_owned();
    let session = Session { status: Some(&stopped), ..FRESH };
    assert_eq!(next(&running, Some(session), true), Step::Report);
}

#[test]
fn a_lost_launcher_is_looked_for_again() {
    let running = launcher(Phase::Running);
    let session = Session {
        status: Some(&running),
        lost: true,
        prepared: true,
        synced: Some("h"),
        shutdown: None,
        real_time: None,
        failed_pings: 0,
        awaits: None,
        gone: None,
    };
    assert_eq!(next(&vmi(PHASE_RUNNING), Some(session), true), Step::Disconnect);
}

#[test]
fn a_guest_that_comes_is_prepared_awaited_and_claimed() {
    use barevirt_protocol::v1::{MigrationRecovery, MigrationStatus};
    let mut vmi = vmi(PHASE_RUNNING);
    if let Some(status) = &mut vmi.status {
        status.node_name = Some("node02".to_owned());
        status.migration_state = serde_json::from_value(serde_json::json!({
            "migrationUid": "m", "sourceNode": "node02", "targetNode": "node01",
        }))
        .unwrap();
    }
    assert!(matches!(next(&vmi, None, false), Step::Connect(_)));
    let mut status = launcher(Phase::Waiting);
    let session = Session { status: Some(&status), ..FRESH };
    assert_eq!(next(&vmi, Some(session), false), Step::Prepare);
    let session = Session { prepared: true, ..session };
    assert_eq!(next(&vmi, Some(session), false), Step::Await { uid: "m".to_owned() });
    let session = Session { awaits: Some("m"), ..session };
    assert_eq!(next(&vmi, Some(session), false), Step::Wait);
    let mut cancelled = vmi.clone();
    let state = cancelled.status.as_mut().and_then(|status| status.migration_state.as_mut()).unwrap();
    state.abort_requested = Some(true);
    for (state, aborted, abandons) in [
        (MigrationState::Awaited, false, false),
        (MigrationState::Receiving, false, true),
        (MigrationState::Receiving, true, false),
    ] {
        let told =
            MigrationStatus { uid: "m".to_owned(), state: state.into(), aborted, ..Default::default() };
        let status = LauncherStatus { migration: Some(told), ..status.clone() };
        let session = Session { status: Some(&status), ..session };
        assert_eq!(next(&vmi, Some(session), false), Step::Wait);
        let abandon = Step::Abandon { uid: "m".to_owned(), source: "node02".to_owned() };
        let wanted = if abandons { abandon } else { Step::Wait };
        assert_eq!(next(&cancelled, Some(session), false), wanted, "{state:?}");
    }
    let received = MigrationState::Received.into();
    status.migration = Some(MigrationStatus { uid: "m".to_owned(), state: received, ..Default::default() });
    let session = Session { status: Some(&status), prepared: true, awaits: Some("m"), ..FRESH };
    let claim = Step::Claim { uid: "m".to_owned(), source: "node02".to_owned() };
    assert_eq!(next(&vmi, Some(session), false), claim);
    let mut runs = status.clone();
    runs.set_phase(Phase::Running);
    let without_all = Session { status: Some(&runs), ..session };
    assert_eq!(next(&vmi, Some(without_all), false), Step::Wait);
    let mut broken = runs.clone();
    broken.migration.as_mut().unwrap().recovery = Some(MigrationRecovery::default());
    let orphan = Step::Orphan { uid: "m".to_owned(), source: "node02".to_owned() };
    assert_eq!(next(&vmi, Some(Session { status: Some(&broken), ..session }), false), orphan);
    assert_eq!(next(&vmi, Some(Session { lost: true, ..session }), false), Step::Disconnect);
}

#[test]
fn the_pod_of_this_node_counts() {
    let mut vmi = vmi(PHASE_RUNNING);
    if let Some(status) = &mut vmi.status {
        status.active_pods.insert("uid-0".to_owned(), "node02".to_owned());
    }
    assert_eq!(active_pod(&vmi, "node01"), Some("uid-1"));
    assert_eq!(active_pod(&vmi, "node03"), None);
}
