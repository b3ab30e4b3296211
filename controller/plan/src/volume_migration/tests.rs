//! When volumes move and when they do not, and the state afterwards.

use super::*;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

fn now() -> Time {
    Time(Timestamp::from_second(5).unwrap())
}

fn volume(name: &str, claim: &str) -> Value {
    json!({"name": name, "persistentVolumeClaim": {"claimName": claim}})
}

/// A machine whose volumes are on these claims.
fn vm(strategy: &str, claims: &[(&str, &str)]) -> VirtualMachine {
    let volumes: Vec<Value> = claims.iter().map(|(name, claim)| volume(name, claim)).collect();
    serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"updateVolumesStrategy": strategy,
            "template": {"spec": {"domain": {"devices": {}}, "volumes": volumes}}},
    }))
    .unwrap()
}

/// Its instance, whose disks are on these claims.
fn vmi(claims: &[(&str, &str)]) -> VirtualMachineInstance {
    let volumes: Vec<Value> = claims.iter().map(|(name, claim)| volume(name, claim)).collect();
    let disks: Vec<Value> =
        claims.iter().map(|(name, _)| json!({"name": name, "disk": {"bus": "virtio"}})).collect();
    let told: Vec<Value> = claims
        .iter()
        .map(|(name, claim)| {
            let info = json!({"claimName": claim, "accessModes": ["ReadWriteOnce"]});
            json!({"name": name, "target": "vda", "persistentVolumeClaimInfo": info})
        })
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"domain": {"devices": {"disks": disks}}, "volumes": volumes},
        "status": {"phase": "Running", "volumeStatus": told},
    }))
    .unwrap()
}

fn info(claim: &str) -> PersistentVolumeClaimInfo {
    PersistentVolumeClaimInfo { claim_name: Some(claim.to_owned()), ..PersistentVolumeClaimInfo::default() }
}

fn found_claims(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> BTreeMap<String, VolumeClaims> {
    let all = changed(&vm.spec.template.spec, vmi).into_iter().map(|(name, (from, to))| {
        let found =
            VolumeClaims { source: Some(info(from)), destination: Some(info(to)), ..VolumeClaims::default() };
        (name.to_owned(), found)
    });
    all.collect()
}

fn planned(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Move {
    plan(vm, vmi, &found_claims(vm, vmi), &now())
}

/// The instance after the patch.
fn applied(vmi: &VirtualMachineInstance, step: Move) -> VirtualMachineInstance {
    let Move::Apply(patch) = step else { panic!("{step:?}") };
    let mut json = serde_json::to_value(vmi).unwrap();
    merge::apply(&mut json, &patch);
    serde_json::from_value(json).unwrap()
}

fn restart(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> String {
    match planned(vm, vmi) {
        Move::Restart(why) => why,
        other => panic!("{other:?}"),
    }
}

fn volumes_change(vmi: &VirtualMachineInstance) -> Option<(String, String, String)> {
    let found = Condition::find(&vmi.status.as_ref()?.conditions, CONDITION_VOLUMES_CHANGE)?.clone();
    Some((found.status, found.reason.unwrap_or_default(), found.message.unwrap_or_default()))
}

fn claims(vmi: &VirtualMachineInstance) -> Vec<&str> {
    vmi.spec.volumes.iter().map(|volume| claim(volume).unwrap()).collect()
}

fn condition(status: &str, reason: &str, message: &str) -> Option<(String, String, String)> {
    Some((status.to_owned(), reason.to_owned(), message.to_owned()))
}

#[test]
fn a_volume_moves_where_the_strategy_says_so() {
    let instance = vmi(&[("root", "a")]);
    for strategy in ["", "Replacement"] {
        assert_eq!(planned(&vm(strategy, &[("root", "b")]), &instance), Move::Nothing);
    }
    let machine = vm("Migration", &[("root", "b")]);
    assert_eq!(planned(&vm("Migration", &[("root", "a")]), &instance), Move::Nothing);
    let mut waits = instance.clone();
    waits.status.as_mut().unwrap().phase = Some("Scheduled".to_owned());
    assert_eq!(planned(&machine, &waits), Move::Nothing);

    let moves = applied(&instance, planned(&machine, &instance));
    assert_eq!(claims(&moves), ["b"]);
    assert_eq!(volumes_change(&moves), condition("True", "", "migrate volumes"));
    let told = &moves.status.as_ref().unwrap().migrated_volumes;
    assert_eq!(told[0].volume_name, "root");
    assert_eq!(
        (&told[0].source_pvc_info, &told[0].destination_pvc_info),
        (&Some(info("a")), &Some(info("b")))
    );
    // One patch is enough.
    assert_eq!(planned(&machine, &moves), Move::Nothing);
    assert_eq!(kept(&machine, Some(&moves)).len(), 1);
}

#[test]
fn the_former_claim_can_be_named_again_and_nothing_else() {
    let instance = vmi(&[("root", "a"), ("data", "c")]);
    let machine = vm("Migration", &[("root", "b"), ("data", "d")]);
    let moves = applied(&instance, planned(&machine, &instance));
    for (others, expected) in [
        (&[("root", "x"), ("data", "d")], Move::Blocked(ONLY_BACK)),
        (&[("root", "a"), ("data", "d")], Move::Blocked(ONLY_BACK)),
    ] {
        assert_eq!(planned(&vm("Migration", others), &moves), expected);
    }
    let former = [("root", "a"), ("data", "c")];
    for strategy in ["Migration", "Replacement"] {
        let back = applied(&moves, planned(&vm(strategy, &former), &moves));
        assert_eq!(claims(&back), ["a", "c"]);
        assert!(back.status.as_ref().unwrap().migrated_volumes.is_empty());
        assert_eq!(volumes_change(&back), condition("False", "VolumesChangeCancellation", ""));
        assert!(kept(&vm(strategy, &former), Some(&back)).is_empty());
    }
    // Not while the guest migrates.
    let mut goes = moves;
    let state = json!({"migrationUid": "m", "sourceNode": "a"});
    goes.status.as_mut().unwrap().migration_state = serde_json::from_value(state).unwrap();
    assert_eq!(planned(&vm("Migration", &former), &goes), Move::GiveUp);
    let over = json!({"migrationUid": "m", "completed": true, "endTimestamp": "2026-01-01T00:00:00Z"});
    goes.status.as_mut().unwrap().migration_state = serde_json::from_value(over).unwrap();
    assert_eq!(claims(&applied(&goes, planned(&vm("Migration", &former), &goes))), ["a", "c"]);
}

#[test]
fn nothing_begins_while_the_guest_is_on_its_way() {
    let mut instance = vmi(&[("root", "a")]);
    let state = json!({"migrationUid": "m", "sourceNode": "a"});
    instance.status.as_mut().unwrap().migration_state = serde_json::from_value(state).unwrap();
    assert_eq!(planned(&vm("Migration", &[("root", "b")]), &instance), Move::Wait);
}

#[test]
fn a_claim_that_is_not_there_is_waited_for() {
    let (machine, instance) = (vm("Migration", &[("root", "b")]), vmi(&[("root", "a")]));
    let none = BTreeMap::new();
    let told = applied(&instance, plan(&machine, &instance, &none, &now()));
    let why = "One of the destination volumes doesn't exist: the pvc b doesn't exist";
    assert_eq!((volumes_change(&told), claims(&told)), (condition("False", "", why), vec!["a"]));
    assert_eq!(plan(&machine, &told, &none, &now()), Move::Wait);
    assert_eq!(claims(&applied(&told, planned(&machine, &told))), ["b"]);
    let former = vm("Migration", &[("root", "a")]);
    let forgotten = applied(&told, planned(&former, &told));
    assert_eq!((volumes_change(&forgotten), planned(&former, &forgotten)), (None, Move::Nothing));
    let mut filled = machine.clone();
    filled.spec.template.spec.volumes =
        serde_json::from_value(json!([{"name": "root", "dataVolume": {"name": "b"}}])).unwrap();
    let told = applied(&instance, plan(&filled, &instance, &none, &now()));
    assert!(volumes_change(&told).unwrap().2.ends_with("the datavolume b doesn't exist"));
}

#[test]
fn volumes_that_cannot_be_copied_need_a_restart() {
    let machine = vm("Migration", &[("root", "b"), ("data", "c")]);
    let instance = vmi(&[("root", "a"), ("data", "d")]);
    let with = |change: fn(&mut VirtualMachineInstance)| {
        let mut instance = instance.clone();
        change(&mut instance);
        restart(&machine, &instance)
    };
    let invalid = "invalid volumes to update with migration:";
    assert_eq!(
        with(|vmi| vmi.spec.domain.devices.disks[0].shareable = Some(true)),
        format!("{invalid} shareable: [root]")
    );
    let lun = |vmi: &mut VirtualMachineInstance| {
        let disks = json!([{"name": "root", "lun": {}}, {"name": "data", "disk": {}, "shareable": true}]);
        vmi.spec.domain.devices.disks = serde_json::from_value(disks).unwrap();
    };
    assert_eq!(with(lun), format!("{invalid} shareable: [data] luns: [root]"));
    let filesystem = |vmi: &mut VirtualMachineInstance| {
        vmi.spec.domain.devices.filesystems =
            serde_json::from_value(json!([{"name": "data", "virtiofs": {}}])).unwrap();
    };
    assert_eq!(with(filesystem), format!("{invalid} filesystems: [data]"));
    let plugged = |vmi: &mut VirtualMachineInstance| {
        vmi.spec.volumes[1].persistent_volume_claim.as_mut().unwrap().hotpluggable = Some(true);
    };
    assert_eq!(with(plugged), format!("{invalid} hotplugged: [data]"));
    let drive = |vmi: &mut VirtualMachineInstance| {
        let disks = json!([{"name": "root", "cdrom": {"bus": "sata"}}, {"name": "data", "disk": {}}]);
        vmi.spec.domain.devices.disks = serde_json::from_value(disks).unwrap();
    };
    assert_eq!(with(drive), format!("{invalid} read-only: [root]"));
    let stays = |vmi: &mut VirtualMachineInstance| {
        let told = Condition::new(CONDITION_STORAGE_LIVE_MIGRATABLE, false, "NotMigratable", "X: why");
        vmi.status.as_mut().unwrap().conditions.push(told);
    };
    assert_eq!(with(stays), "cannot migrate the volumes as the VMI isn't migratable: X: why");
}

#[test]
fn a_volume_that_was_plugged_in_moves_if_the_guest_has_it() {
    let hot = |volumes: &mut Vec<Volume>| {
        volumes[0].persistent_volume_claim.as_mut().unwrap().hotpluggable = Some(true);
    };
    let mut machine = vm("Migration", &[("data", "b")]);
    hot(&mut machine.spec.template.spec.volumes);
    let mut instance = vmi(&[("data", "a")]);
    hot(&mut instance.spec.volumes);
    let with = |phase: &str| {
        let mut instance = instance.clone();
        let entry = &mut instance.status.as_mut().unwrap().volume_status[0];
        entry.phase = Some(phase.to_owned());
        entry.hotplug_volume = Some(Default::default());
        instance
    };
    for phase in ["Bound", "AttachedToNode", "Detaching"] {
        assert!(!concerns(&machine, &with(phase)), "{phase}: it is exchanged without a migration");
        assert_eq!(planned(&machine, &with(phase)), Move::Nothing, "{phase}");
    }
    let instance = with("Ready");
    let mut outdated = instance.clone();
    outdated.metadata.labels = Some([(OUTDATED_LAUNCHER_LABEL.to_owned(), String::new())].into());
    assert!(restart(&machine, &outdated).ends_with("the plugged volume data: migrate the VM first"));
    let moves = applied(&instance, planned(&machine, &instance));
    assert_eq!(claims(&moves), ["b"]);
    assert_eq!(moves.status.as_ref().unwrap().migrated_volumes[0].source_pvc_info, Some(info("a")));
    // And back.
    machine.spec.template.spec.volumes[0].persistent_volume_claim.as_mut().unwrap().claim_name =
        "a".to_owned();
    let back = applied(&moves, planned(&machine, &moves));
    assert_eq!(claims(&back), ["a"]);
    assert!(back.status.as_ref().unwrap().migrated_volumes.is_empty());
}

#[test]
fn every_claim_of_one_node_is_to_move_and_to_one_that_nobody_uses() {
    let instance = vmi(&[("root", "a"), ("data", "d")]);
    let one = vm("Migration", &[("root", "b"), ("data", "d")]);
    assert_eq!(
        restart(&one, &instance),
        "cannot migrate the VM. The volume data is RWO and not included in the migration volumes"
    );
    let mut shared = instance.clone();
    let told = &mut shared.status.as_mut().unwrap().volume_status[1];
    told.persistent_volume_claim_info.as_mut().unwrap().access_modes = vec!["ReadWriteMany".to_owned()];
    assert!(matches!(planned(&one, &shared), Move::Apply(_)));
    // The state of its TPM has a claim of its own.
    let mut kept = shared.clone();
    let all = &mut kept.status.as_mut().unwrap().volume_status;
    let mut state = all[0].clone();
    state.name = STATE_VOLUME.to_owned();
    state.persistent_volume_claim_info.as_mut().unwrap().claim_name = Some("kept".to_owned());
    all.push(state);
    assert!(matches!(planned(&one, &kept), Move::Apply(_)));
    // Two volumes that exchange their claims.
    let exchanged = vm("Migration", &[("root", "d"), ("data", "a")]);
    assert!(restart(&exchanged, &instance).ends_with("The claim d of volume root is used by volume data"));
    let both = vm("Migration", &[("root", "x"), ("data", "x")]);
    assert!(restart(&both, &instance).contains("The claim x of volume root is used by volume data"));
    let both = vm("Migration", &[("root", "x"), ("data", "y")]);
    let mut found = found_claims(&both, &instance);
    found.get_mut("data").unwrap().user = Some("virtual machine instance other".to_owned());
    let Move::Restart(why) = plan(&both, &instance, &found, &now()) else { panic!() };
    assert!(why.ends_with("The claim y of volume data is used by virtual machine instance other"), "{why}");
}

#[test]
fn only_what_moves_or_has_moved_is_no_reason_for_a_restart() {
    let spec = |strategy: &str, claim: &str| vm(strategy, &[("root", claim)]).spec;
    let differs = |then: &str, now: VirtualMachineSpec, has: &str| {
        let mut was = spec("", then);
        take_over(&mut was, &now, &vmi(&[("root", has)]));
        was.template != now.template
    };
    assert!(differs("a", spec("Replacement", "b"), "a"));
    assert!(!differs("a", spec("Migration", "b"), "a"));
    // It has moved, and the strategy has changed since.
    assert!(!differs("a", spec("Replacement", "b"), "b"));
    assert!(differs("a", spec("Replacement", "a"), "b"));
    let mut reads = spec("Migration", "b");
    reads.template.spec.volumes[0].persistent_volume_claim.as_mut().unwrap().read_only = Some(true);
    assert!(differs("a", reads, "a"));
}

#[test]
fn a_guest_that_ends_in_a_volume_migration_waits_for_the_users_choice_of_claims() {
    let machine = |strategy: &str, claim: &str, conditions: Value| {
        let mut machine = vm(strategy, &[("root", claim)]);
        let moved = json!([{"volumeName": "root", "sourcePVCInfo": {"claimName": "a"},
            "destinationPVCInfo": {"claimName": "b"}}]);
        machine.status = serde_json::from_value(json!({
            "conditions": conditions, "volumeUpdateState": {"volumeMigrationState": {"migratedVolumes": moved}},
        }))
        .unwrap();
        machine
    };
    let on_its_way = json!([{"type": "VolumesChange", "status": "True"}]);
    let told = json!([{"type": "ManualRecoveryRequired", "status": "True"}]);
    let moves = {
        let instance = vmi(&[("root", "a")]);
        applied(&instance, planned(&vm("Migration", &[("root", "b")]), &instance))
    };
    let mut ended = moves.clone();
    ended.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    let mut arrived = ended.clone();
    arrived.status.as_mut().unwrap().migrated_volumes.clear();
    for (machine, vmi, lost) in [
        (machine("Migration", "b", on_its_way.clone()), Some(&moves), false),
        (machine("Migration", "b", on_its_way.clone()), Some(&ended), true),
        (machine("Migration", "b", on_its_way.clone()), None, true),
        (machine("Migration", "b", told.clone()), None, true),
        (machine("Migration", "b", told.clone()), Some(&ended), true),
        (machine("Migration", "a", told.clone()), None, false),
        (machine("Replacement", "b", told), None, false),
        // It had moved before it ended.
        (machine("Migration", "b", on_its_way), Some(&arrived), false),
        (machine("Migration", "b", json!([])), None, false),
    ] {
        assert_eq!(needs_recovery(&machine, vmi), lost, "{machine:?}");
    }
}
