//! Volumes that move to other claims with their guest: steps and status of the machine.

use super::*;
use crate::vm::Move;

/// A machine whose volume is to be on this claim.
fn machine(claim: &str, status: Value) -> VirtualMachine {
    let mut machine = vm("Always", status);
    machine.spec.update_volumes_strategy = Some("Migration".to_owned());
    machine.spec.template.spec.volumes =
        serde_json::from_value(json!([{"name": "root", "persistentVolumeClaim": {"claimName": claim}}]))
            .unwrap();
    machine
}

fn moves(mut vmi: VirtualMachineInstance) -> VirtualMachineInstance {
    let status = vmi.status.as_mut().unwrap();
    let moved = json!([{"volumeName": "root", "sourcePVCInfo": {"claimName": "a"},
        "destinationPVCInfo": {"claimName": "b"}}]);
    status.migrated_volumes = serde_json::from_value(moved).unwrap();
    status.conditions = serde_json::from_value(json!([{"type": "VolumesChange", "status": "True"}])).unwrap();
    vmi
}

fn needs_recovery(status: &VirtualMachineStatus) -> bool {
    status.conditions.iter().any(|told| told.type_ == "ManualRecoveryRequired" && told.is_true())
}

#[test]
fn volume_changes_are_applied_and_reported() {
    let running = Some(ran(vmi("i1", "Running")));
    let with = |volumes: Move| {
        let machine = machine("b", json!({}));
        let observed = Observed { volumes, drift: Drift::Generation, ..observed(machine, running.clone()) };
        let status = compute(&observed, running.as_ref(), &Outcome::Quiet);
        let told = status.conditions.into_iter().find(|told| told.type_ == "RestartRequired");
        (plan(&observed), told.and_then(|told| told.message))
    };
    let body = Box::new(json!({"spec": {}}));
    assert_eq!(with(Move::Apply(body.clone())), (Step::Move(body), None));
    assert_eq!(with(Move::GiveUp), (Step::GiveUp, None));
    assert_eq!(with(Move::Blocked("why")), (Step::Stuck("why"), None));
    // The instance is not of this generation yet.
    assert_eq!(with(Move::Wait), (Step::Rest, None));
    assert_eq!(with(Move::Restart("why".to_owned())), (Step::Rest, Some("why".to_owned())));
}

#[test]
fn a_guest_that_ends_while_its_volumes_move_is_not_started_on_either_claim_by_itself() {
    let fresh = machine("b", json!({"runStrategy": "Always"}));
    let running = moves(ran(vmi("i1", "Running")));
    let status = report(&fresh, Some(running));
    assert!(status.volume_update_state.is_some());
    assert!(!needs_recovery(&status));
    let before = VirtualMachine { status: Some(status), ..fresh };

    // Reported before the instance is deleted.
    let ended = moves(ran(vmi("i1", "Failed")));
    assert_eq!(step(&before, Some(ended.clone())), Step::Report);
    assert_eq!(step(&before, None), Step::Report);
    let status = report(&before, Some(ended.clone()));
    assert!(needs_recovery(&status));
    let told = VirtualMachine { status: Some(status), ..before.clone() };
    assert_eq!(step(&told, Some(ended)), stop("i1"));
    assert_eq!(step(&told, None), Step::Rest);
    assert!(needs_recovery(&report(&told, None)));

    // The former claim is named again.
    let mut back = told;
    back.spec.template.spec.volumes = machine("a", json!({})).spec.template.spec.volumes;
    assert!(matches!(step(&back, None), Step::Start(_)));
    let status = report(&back, None);
    assert!(!needs_recovery(&status) && status.volume_update_state.is_none());
}

#[test]
fn a_start_by_hand_after_such_an_end_follows_once_the_claims_are_chosen() {
    let mut machine = machine("b", json!({"runStrategy": "Manual"}));
    machine.spec.run_strategy = Some("Manual".to_owned());
    machine.status = Some(report(&machine, Some(moves(ran(vmi("i1", "Running"))))));
    let ended = moves(ran(vmi("i1", "Failed")));
    machine.status = Some(report(&machine, Some(ended.clone())));
    // It stays as a record until somebody wants another one.
    assert_eq!(step(&machine, Some(ended.clone())), Step::Rest);
    let requests = json!([{"action": "Stop", "uid": "i1"}, {"action": "Start"}]);
    machine.status.as_mut().unwrap().state_change_requests = serde_json::from_value(requests).unwrap();
    assert_eq!(step(&machine, Some(ended.clone())), stop("i1"));
    machine.status = Some(report(&machine, Some(deleting(ended))));
    machine.status = Some(report(&machine, None));
    assert_eq!(step(&machine, None), Step::Rest);
    let status = machine.status.as_ref().unwrap();
    let left: Vec<&str> =
        status.state_change_requests.iter().map(|request| request.action.as_str()).collect();
    assert_eq!((left, needs_recovery(status)), (vec!["Start"], true));

    // The new claim is to be used as it is.
    machine.spec.update_volumes_strategy = None;
    let Step::Start(next) = step(&machine, None) else { panic!("no start") };
    assert_eq!(next.spec.volumes[0].persistent_volume_claim.as_ref().unwrap().claim_name, "b");
    assert!(!needs_recovery(&report(&machine, None)));
}
