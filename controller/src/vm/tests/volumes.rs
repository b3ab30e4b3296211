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
    let is_told = |status: &VirtualMachineStatus| {
        status.conditions.iter().any(|told| told.type_ == "ManualRecoveryRequired" && told.is_true())
    };
    assert!(!is_told(&status));
    let before = VirtualMachine { status: Some(status), ..fresh };

    // Reported before the instance is deleted.
    let ended = moves(ran(vmi("i1", "Failed")));
    assert_eq!(step(&before, Some(ended.clone())), Step::Report);
    assert_eq!(step(&before, None), Step::Report);
    let status = report(&before, Some(ended.clone()));
    assert!(is_told(&status));
    let told = VirtualMachine { status: Some(status), ..before.clone() };
    assert_eq!(step(&told, Some(ended)), stop("i1"));
    assert_eq!(step(&told, None), Step::Rest);
    assert!(is_told(&report(&told, None)));

    // The former claim is named again.
    let mut back = told;
    back.spec.template.spec.volumes = machine("a", json!({})).spec.template.spec.volumes;
    assert!(matches!(step(&back, None), Step::Start(_)));
    let status = report(&back, None);
    assert!(!is_told(&status) && status.volume_update_state.is_none());
}
