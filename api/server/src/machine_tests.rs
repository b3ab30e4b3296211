//! The result of each call under each run strategy.

use super::*;
use barevirt_component::certificates;
use http_body_util::Full;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;

fn vm(strategy: &str) -> VirtualMachine {
    let mut vm = VirtualMachine { metadata: metadata("vm-uid"), ..VirtualMachine::default() };
    match strategy {
        "true" | "false" => vm.spec.running = Some(strategy == "true"),
        other => vm.spec.run_strategy = Some(other.to_owned()),
    }
    vm
}

fn vmi(phase: &str) -> VirtualMachineInstance {
    let mut vmi =
        VirtualMachineInstance { metadata: metadata("vmi-uid"), ..VirtualMachineInstance::default() };
    vmi.status.get_or_insert_default().phase = Some(phase.to_owned());
    vmi
}

fn metadata(uid: &str) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    serde_json::from_value(json!({ "name": "web", "uid": uid })).unwrap()
}

fn decided(
    action: MachineAction,
    strategy: &str,
    vmi: Option<VirtualMachineInstance>,
    options: &str,
) -> Result<Vec<Change>, String> {
    let options = super::options(options.as_bytes()).unwrap();
    decide(action, &vm(strategy), vmi.as_ref(), &options).map_err(|refusal| refusal.message)
}

#[test]
fn start_of_a_halted_machine_changes_the_field_it_uses() {
    let by_running = decided(MachineAction::Start, "false", None, "").unwrap();
    let Change::Machine(patch) = &by_running[0] else { panic!("{by_running:?}") };
    assert_eq!(patch[1], json!({ "op": "replace", "path": "/spec/running", "value": true }));
    let by_strategy = decided(MachineAction::Start, "Halted", None, "").unwrap();
    let Change::Machine(patch) = &by_strategy[0] else { panic!("{by_strategy:?}") };
    assert_eq!(patch[1], json!({ "op": "replace", "path": "/spec/runStrategy", "value": "Always" }));
}

#[test]
fn a_start_with_the_processors_standing_still_is_a_request_that_says_so() {
    for strategy in ["Halted", "Manual"] {
        let changes = decided(MachineAction::Start, strategy, None, r#"{"paused":true}"#).unwrap();
        let [Change::MachineStatus(patch)] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!(
            patch[1]["value"]["stateChangeRequests"],
            json!([{ "action": "Start", "data": { "paused": "true" } }]),
            "{strategy}"
        );
    }
}

#[test]
fn start_of_what_runs_is_a_conflict() {
    let error = decided(MachineAction::Start, "Halted", Some(vmi("Running")), "").unwrap_err();
    assert!(error.ends_with("VM is already running"), "{error}");
    let error = decided(MachineAction::Start, "Always", None, "").unwrap_err();
    assert!(error.ends_with("Always does not support manual start requests"), "{error}");
}

#[test]
fn a_machine_with_unfinished_volume_migration_is_not_started() {
    let mut machine = vm("Manual");
    let mut told = |condition: &str, action, vmi: Option<VirtualMachineInstance>| {
        let status = json!({"conditions": [{"type": condition, "status": "True"}]});
        machine.status = serde_json::from_value(status).unwrap();
        let options = super::options(b"").unwrap();
        decide(action, &machine, vmi.as_ref(), &options).map_err(|refusal| refusal.message)
    };
    for (condition, action, vmi) in [
        ("ManualRecoveryRequired", MachineAction::Start, None),
        ("VolumesChange", MachineAction::Restart, Some(vmi("Running"))),
    ] {
        assert!(
            told(condition, action, vmi)
                .unwrap_err()
                .contains("VM recovery required: Volume migration failed")
        );
    }
    assert!(told("VolumesChange", MachineAction::Stop, Some(vmi("Running"))).is_ok());
}

#[test]
fn a_start_that_removes_the_ended_instance_may_be_requested_before_the_claims_are_chosen() {
    let none = super::options(b"").unwrap();
    let asked = |strategy: &str| {
        let mut machine = vm(strategy);
        let status = json!({"conditions": [{"type": "ManualRecoveryRequired", "status": "True"}]});
        machine.status = serde_json::from_value(status).unwrap();
        decide(MachineAction::Start, &machine, Some(&vmi("Failed")), &none)
    };
    let changes = asked("Manual").unwrap();
    let [Change::MachineStatus(patch)] = &changes[..] else { panic!("{changes:?}") };
    let expected = json!([{ "action": "Stop", "uid": "vmi-uid" }, { "action": "Start" }]);
    assert_eq!(patch[1]["value"], expected);
    // Their instances are removed without a request.
    for strategy in ["Halted", "RerunOnFailure"] {
        let refusal = asked(strategy).unwrap_err();
        assert!(refusal.message.contains("VM recovery required"), "{strategy}: {}", refusal.message);
    }
}

#[test]
fn manual_start_takes_a_finished_instance_away_first() {
    let changes = decided(MachineAction::Start, "Manual", Some(vmi("Succeeded")), "").unwrap();
    let Change::MachineStatus(patch) = &changes[0] else { panic!("{changes:?}") };
    assert_eq!(
        patch[1]["value"]["stateChangeRequests"],
        json!([{ "action": "Stop", "uid": "vmi-uid" }, { "action": "Start" }])
    );
}

#[test]
fn rerun_on_failure_is_started_by_a_request_unless_it_failed() {
    let rerun = |vmi| decided(MachineAction::Start, "RerunOnFailure", vmi, "");
    let Change::MachineStatus(patch) = &rerun(None).unwrap()[0] else { panic!("no request") };
    assert_eq!(patch[1]["value"]["stateChangeRequests"], json!([{ "action": "Start" }]));
    let Change::MachineStatus(patch) = &rerun(Some(vmi("Succeeded"))).unwrap()[0] else {
        panic!("no request")
    };
    assert_eq!(
        patch[1]["value"]["stateChangeRequests"],
        json!([{ "action": "Stop", "uid": "vmi-uid" }, { "action": "Start" }])
    );
    let error = rerun(Some(vmi("Failed"))).unwrap_err();
    assert!(error.ends_with("RerunOnFailure does not support starting VM from failed state"), "{error}");
    let stop = decided(MachineAction::Stop, "RerunOnFailure", Some(vmi("Running")), "").unwrap();
    assert!(matches!(stop[..], [Change::MachineStatus(_)]), "{stop:?}");
}

#[test]
fn those_that_take_no_commands_stop_by_their_strategy() {
    for (strategy, phase) in [("Once", "Succeeded"), ("WaitAsReceiver", "WaitingForSync")] {
        let error = decided(MachineAction::Start, strategy, Some(vmi(phase)), "").unwrap_err();
        assert!(error.ends_with(&format!("{strategy} does not support manual start requests")), "{error}");
        let error = decided(MachineAction::Restart, strategy, Some(vmi("Running")), "").unwrap_err();
        assert!(error.ends_with(&format!("{strategy} does not support manual restart requests")), "{error}");
        let stop = decided(MachineAction::Stop, strategy, Some(vmi("Running")), "").unwrap();
        let [Change::Machine(patch)] = &stop[..] else { panic!("{stop:?}") };
        assert_eq!(patch[1], json!({ "op": "replace", "path": "/spec/runStrategy", "value": "Halted" }));
    }
}

#[test]
fn only_a_stop_takes_the_place_of_pending_requests() {
    let mut machine = vm("Manual");
    machine.status = serde_json::from_value(json!({
        "stateChangeRequests": [{ "action": "Start" }], "startFailure": { "consecutiveFailCount": 2 },
    }))
    .unwrap();
    let none = super::options(b"").unwrap();
    let error = decide(MachineAction::Start, &machine, None, &none).unwrap_err();
    assert_eq!(error.code, 409);
    assert!(error.message.ends_with("stop/start already underway"), "{}", error.message);
    let running = vmi("Running");
    let changes = decide(MachineAction::Stop, &machine, Some(&running), &none).unwrap();
    let [Change::MachineStatus(patch)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(patch[1]["op"], "replace");
    assert_eq!(patch[2], json!({ "op": "remove", "path": "/status/startFailure" }));
}

#[test]
fn a_start_takes_the_place_of_a_stop_whose_guest_has_ended() {
    let mut machine = vm("Manual");
    machine.status =
        serde_json::from_value(json!({ "stateChangeRequests": [{ "action": "Stop", "uid": "x" }] })).unwrap();
    let none = super::options(b"").unwrap();
    let wanted = |vmi: Option<&VirtualMachineInstance>| {
        let changes = decide(MachineAction::Start, &machine, vmi, &none).unwrap();
        let [Change::MachineStatus(patch)] = &changes[..] else { panic!("{changes:?}") };
        let actions = patch[1]["value"].as_array().unwrap().iter().map(|request| request["action"].clone());
        actions.collect::<Vec<_>>()
    };
    assert_eq!(wanted(Some(&vmi("Succeeded"))), ["Stop", "Start"]);
    assert_eq!(wanted(None), ["Start"]);
    let error = decide(MachineAction::Restart, &machine, Some(&vmi("Running")), &none).unwrap_err();
    assert!(error.message.ends_with("stop/start already underway"), "{}", error.message);
}

#[test]
fn stop_halts_always_and_asks_manual() {
    let always = decided(MachineAction::Stop, "true", Some(vmi("Running")), "").unwrap();
    let Change::Machine(patch) = &always[0] else { panic!("{always:?}") };
    assert_eq!(patch[1]["value"], json!(false));
    let manual = decided(MachineAction::Stop, "Manual", Some(vmi("Running")), "").unwrap();
    assert!(matches!(manual[..], [Change::MachineStatus(_)]), "{manual:?}");
    let error = decided(MachineAction::Stop, "Manual", None, "").unwrap_err();
    assert!(error.ends_with("VM is not running"), "{error}");
}

#[test]
fn stop_with_a_grace_period_shortens_the_instance_s_first() {
    let changes =
        decided(MachineAction::Stop, "Always", Some(vmi("Running")), r#"{"gracePeriod":0}"#).unwrap();
    let [Change::Instance(patch), Change::Machine(_)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(patch[1], json!({ "op": "add", "path": "/spec/terminationGracePeriodSeconds", "value": 0 }));
}

#[test]
fn stop_of_a_halted_machine_only_gives_less_time() {
    let less = decided(MachineAction::Stop, "Halted", Some(vmi("Running")), r#"{"gracePeriod":1}"#).unwrap();
    assert!(matches!(less[..], [Change::Instance(_)]), "{less:?}");
    for options in ["", r#"{"gracePeriod":30}"#] {
        let error = decided(MachineAction::Stop, "Halted", Some(vmi("Running")), options).unwrap_err();
        assert!(error.ends_with("only supports manual stop requests with a shorter graceperiod"), "{error}");
    }
}

#[test]
fn restart_stops_this_instance_and_starts_the_next() {
    let changes = decided(MachineAction::Restart, "Always", Some(vmi("Running")), "").unwrap();
    let [Change::MachineStatus(patch)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(
        patch[1]["value"]["stateChangeRequests"],
        json!([{ "action": "Stop", "uid": "vmi-uid" }, { "action": "Start" }])
    );
    let forced =
        decided(MachineAction::Restart, "Always", Some(vmi("Running")), r#"{"gracePeriodSeconds":0}"#)
            .unwrap();
    assert!(matches!(forced[..], [Change::Instance(_), Change::MachineStatus(_)]), "{forced:?}");
}

#[test]
fn restart_is_refused_where_it_makes_no_sense() {
    for (strategy, vmi, options, message) in [
        ("Halted", None, "", "does not support manual restart requests"),
        ("Always", None, "", "VM is not running"),
        ("Always", Some(vmi("Failed")), "", "VM is not running"),
        ("Always", None, r#"{"gracePeriodSeconds":5}"#, "only gracePeriod=0 is supported for now"),
        ("Always", None, r#"{"gracePeriodSeconds":-1}"#, "has to be greater or equal to 0"),
    ] {
        let error = decided(MachineAction::Restart, strategy, vmi, options).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_body_that_is_not_options_is_refused() {
    assert_eq!(options(b"[1]").unwrap_err().code, 400);
    assert_eq!(options(b"").unwrap().grace_period, None);
}

/// An API server with one machine, halted. It refuses the first changes, as if they came too late because
/// another client `moves` the machine in the meantime.
async fn api_server(refused: usize, moves: bool, changes: Arc<AtomicUsize>) -> Client {
    certificates::install_provider();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = move |request: &Request<Incoming>| {
        let failure = |code: u16, reason: &str| json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason });
        match (request.method().as_str(), request.uri().path().contains("virtualmachineinstances")) {
            ("GET", true) => (404, failure(404, "NotFound")),
            ("GET", false) => {
                let mut vm = vm("Halted");
                let version = if moves { changes.load(Ordering::Relaxed) } else { 0 };
                vm.metadata.resource_version = Some(version.to_string());
                (200, serde_json::to_value(vm).unwrap())
            }
            _ if changes.fetch_add(1, Ordering::Relaxed) < refused => (422, failure(422, "Invalid")),
            _ => (200, serde_json::to_value(vm("Halted")).unwrap()),
        }
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let (code, body) = answer(&request);
                let response =
                    hyper::Response::builder().status(code).body(Full::new(Bytes::from(body.to_string())));
                std::future::ready(response)
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Client::try_from(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap()
}

#[tokio::test]
async fn a_machine_that_changes_between_look_and_change_is_looked_at_again() {
    let user = User { name: "somebody".to_owned(), groups: vec![], extra: [].into() };
    for (refused, moves, sent, code) in [
        (0, true, 1, 202),
        (1, true, 2, 202),
        (LOOKS - 1, true, LOOKS, 202),
        (LOOKS, true, LOOKS, 409),
        // The change itself is wrong.
        (LOOKS, false, 1, 409),
    ] {
        let changes = Arc::new(AtomicUsize::new(0));
        let client = api_server(refused, moves, Arc::clone(&changes)).await;
        let answer = act(&client, &user, MachineAction::Start, "ns", "web", &Bytes::new()).await;
        let found = answer.map_or_else(|refusal| refusal.code, |answer| answer.status());
        assert_eq!((found.as_u16(), changes.load(Ordering::Relaxed)), (code, sent), "{refused} {moves}");
    }
}
