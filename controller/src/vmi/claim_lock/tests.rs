//! Who gets a device: single cases, then random orders of events with caches that lag behind.

mod world;

use self::world::{Event, INSTANCES, World, events};
use super::*;
use barevirt_api::names::CONDITION_VOLUMES_CHANGE;
use barevirt_api::v1::merge_condition;
use barevirt_plan::pod::attachment;
use barevirt_plan::volume_migration::turn::tell;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

fn vmi(uid: &str, phase: &str, second: u32, disk: &Value, come: bool) -> VirtualMachineInstance {
    let mut disk = disk.clone();
    disk["name"] = json!("data");
    serde_json::from_value(json!({
        "metadata": {"name": format!("vm-{uid}"), "uid": uid,
            "creationTimestamp": format!("2026-01-01T00:{:02}:{:02}Z", second / 60, second % 60)},
        "spec": {
            "domain": {"devices": {"disks": [disk]}},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data", "hotpluggable": come}}],
        },
        "status": {"phase": phase},
    }))
    .unwrap()
}

/// An instance with such an entry about its volume.
fn with_entry(mut vmi: VirtualMachineInstance, phase: &str, reason: &str) -> VirtualMachineInstance {
    let access = Access::of(&vmi.spec, "data", vmi.spec.volumes[0].claim().unwrap());
    let pod = attachment::name(vmi.metadata.uid.as_deref().unwrap(), "data", "data", access, None);
    let entry = json!([{"name": "data", "target": "", "phase": phase, "reason": reason,
        "persistentVolumeClaimInfo": {"claimName": "data"}, "hotplugVolume": {"attachPodName": pod}}]);
    vmi.status.as_mut().unwrap().volume_status = serde_json::from_value(entry).unwrap();
    vmi
}

fn own() -> Value {
    json!({"disk": {"bus": "virtio"}})
}

fn shared() -> Value {
    json!({"disk": {"bus": "virtio"}, "shareable": true})
}

fn read() -> Value {
    json!({"disk": {"bus": "virtio", "readonly": true}})
}

/// Whether an instance may start.
fn start(vmi: &VirtualMachineInstance, other: VirtualMachineInstance) -> Option<String> {
    let devices: Vec<Opened<'_>> = opened(vmi).collect();
    taken(vmi, &devices, [other])
}

/// Whether a running instance may get its volume.
fn plug(vmi: &VirtualMachineInstance, other: VirtualMachineInstance) -> Option<String> {
    let claim = vmi.spec.volumes[0].claim().unwrap();
    let device = Opened { claim: claim.name, access: Access::of(&vmi.spec, "data", claim) };
    withheld(vmi, "data", device, [other])
}

#[test]
fn running_guests_then_older_guests_hold_a_claim() {
    let of = |second: u32, mine: &Value, phase: &str, theirs: &Value| {
        start(&vmi("b", "Pending", 5, mine, false), vmi("a", phase, second, theirs, false))
    };
    let (own, shared, read) = (own(), shared(), read());
    let told = of(9, &own, "Running", &own).unwrap();
    assert!(told.starts_with("PVC data is a device that VMI vm-a writes to"), "{told}");
    assert!(of(9, &own, "Scheduling", &own).is_some());
    assert!(of(1, &own, "Pending", &own).is_some());
    assert!(of(5, &own, "Pending", &own).is_some(), "by its UID");
    // One that was made in the same second may have started before this one could be seen, unless it says that it waits.
    let mut other = vmi("c", "Pending", 5, &own, false);
    let mine = vmi("b", "Pending", 5, &own, false);
    assert!(start(&mine, other.clone()).is_some());
    let condition = Condition::new(CONDITION_SYNCHRONIZED, false, REASON_CLAIM_IN_USE, "");
    other.status.as_mut().unwrap().conditions.push(condition);
    assert_eq!(start(&mine, other), None);
    assert_eq!(of(9, &own, "Pending", &own), None);
    for ended in ["Succeeded", "Failed"] {
        assert_eq!(of(1, &own, ended, &own), None);
    }
    assert_eq!(of(1, &shared, "Running", &shared), None);
    assert!(of(1, &own, "Running", &shared).is_some() && of(1, &shared, "Running", &own).is_some());
    for (mine, theirs, does) in [(&read, &own, "writes to"), (&own, &read, "reads")] {
        let told = of(9, mine, "Scheduling", theirs).unwrap();
        assert!(told.starts_with(&format!("PVC data is a device that VMI vm-a {does}")), "{told}");
        assert!(of(1, mine, "Pending", theirs).is_some());
        assert_eq!(of(9, mine, "Pending", theirs), None);
    }
    for (mine, theirs) in [(&read, &read), (&read, &shared), (&shared, &read)] {
        assert_eq!(of(1, mine, "Running", theirs), None);
    }
}

#[test]
fn a_guest_reads_a_claim_whose_disk_is_ephemeral() {
    let over = |uid: &str, phase: &str| {
        let mut vmi = vmi(uid, phase, 1, &own(), false);
        let volume = json!([{"name": "data", "ephemeral": {"persistentVolumeClaim": {"claimName": "data"}}}]);
        vmi.spec.volumes = serde_json::from_value(volume).unwrap();
        vmi
    };
    let told = start(&vmi("b", "Pending", 5, &own(), false), over("a", "Running")).unwrap();
    assert!(told.starts_with("PVC data is a device that VMI vm-a reads"), "{told}");
    assert!(start(&over("b", "Pending"), vmi("a", "Running", 5, &own(), false)).is_some());
    assert_eq!(start(&over("b", "Pending"), over("a", "Running")), None);
}

#[test]
fn a_plugged_volume_waits_for_every_guest_that_has_its_device() {
    let b = |disk: &Value| vmi("b", "Running", 5, disk, true);
    let a = |phase: &str, disk: &Value| vmi("a", phase, 9, disk, false);
    for phase in ["Pending", "Scheduling", "Running"] {
        let told = plug(&b(&own()), a(phase, &own())).unwrap();
        assert!(told.starts_with("PVC data is a device that VMI vm-a writes to"), "{told}");
    }
    assert_eq!(plug(&b(&own()), a("Succeeded", &own())), None);
    assert!(plug(&b(&own()), a("Running", &read())).is_some_and(|told| told.contains("vm-a reads")));
    assert!(plug(&b(&read()), a("Running", &own())).is_some());
    for theirs in [read(), shared()] {
        assert_eq!(plug(&b(&read()), a("Running", &theirs)), None);
    }
    assert_eq!(plug(&b(&shared()), a("Running", &shared())), None);
    assert!(plug(&b(&shared()), a("Running", &own())).is_some());
    // The instance's own pods, as in a migration, are no others.
    assert_eq!(plug(&b(&own()), b(&own())), None);
}

#[test]
fn an_entry_reserves_its_claim_until_the_disk_is_released() {
    let other = |phase: &str, reason: &str| with_entry(vmi("a", "Running", 9, &own(), true), phase, reason);
    for (phase, reason, has) in [
        ("Bound", "PVCNotReady", true),
        ("Bound", "FailedCreate", true),
        ("Bound", REASON_CLAIM_IN_USE, false),
        ("AttachedToNode", "SuccessfulCreate", true),
        ("Ready", "VolumeReady", true),
        ("Detaching", "", true),
        ("UnMountedFromPod", "VolumeUnMountedFromPod", false),
    ] {
        let plugs = plug(&vmi("b", "Running", 5, &own(), true), other(phase, reason));
        assert_eq!(plugs.is_some(), has, "{phase} {reason}");
        let starts = start(&vmi("b", "Pending", 5, &own(), false), other(phase, reason));
        assert_eq!(starts.is_some(), has, "{phase} {reason}");
        // Once it is not wanted any more, too.
        let mut unwanted = other(phase, reason);
        unwanted.spec.volumes.clear();
        unwanted.spec.domain.devices.disks.clear();
        assert_eq!(
            start(&vmi("b", "Pending", 5, &own(), false), unwanted).is_some(),
            has,
            "{phase} {reason}"
        );
    }
    let sharing = with_entry(vmi("a", "Running", 9, &shared(), true), "Ready", "VolumeReady");
    assert_eq!(plug(&vmi("b", "Running", 5, &shared(), true), sharing.clone()), None);
    assert!(plug(&vmi("b", "Running", 5, &own(), true), sharing).is_some());
}

#[test]
fn of_two_that_wait_the_older_instance_is_first() {
    let waits = |uid: &str, second| {
        with_entry(vmi(uid, "Running", second, &own(), true), "Bound", REASON_CLAIM_IN_USE)
    };
    let told = plug(&waits("b", 5), waits("a", 1)).unwrap();
    assert_eq!(told, "PVC data is a device that VMI vm-a waits for, too");
    assert_eq!(plug(&waits("b", 5), waits("a", 9)), None);
    // What it has reserved is not taken from it, and an instance that ends waits for nothing.
    let reserved = with_entry(vmi("b", "Running", 5, &own(), true), "Bound", "PVCNotReady");
    assert_eq!(plug(&reserved, waits("a", 1)), None);
    let mut ends = waits("a", 1);
    ends.metadata.deletion_timestamp = ends.metadata.creation_timestamp.clone();
    assert_eq!(plug(&waits("b", 5), ends), None);
}

#[test]
fn a_claim_that_a_moving_volume_leaves_is_held_until_it_has_moved() {
    let mut moving = vmi("a", "Running", 9, &own(), false);
    moving.spec.volumes[0].persistent_volume_claim.as_mut().unwrap().claim_name = "new".to_owned();
    assert_eq!(start(&vmi("b", "Pending", 5, &own(), false), moving.clone()), None);
    let moved = json!([{"volumeName": "data", "sourcePVCInfo": {"claimName": "data"},
        "destinationPVCInfo": {"claimName": "new"}}]);
    moving.status.as_mut().unwrap().migrated_volumes = serde_json::from_value(moved).unwrap();
    assert!(start(&vmi("b", "Pending", 5, &own(), false), moving.clone()).is_some());
    assert!(plug(&vmi("b", "Running", 5, &own(), true), moving).is_some());
    // Also the claim that it moves to, by a volume that was plugged in.
    let moved = json!([{"volumeName": "data", "sourcePVCInfo": {"claimName": "old"},
        "destinationPVCInfo": {"claimName": "data"}}]);
    let mut comes = vmi("a", "Running", 9, &own(), true);
    assert_eq!(start(&vmi("b", "Pending", 5, &own(), false), comes.clone()), None);
    comes.status.as_mut().unwrap().migrated_volumes = serde_json::from_value(moved).unwrap();
    assert!(start(&vmi("b", "Pending", 5, &own(), false), comes).is_some());
}

/// An instance whose volume moves to the device; one of mode Filesystem has none.
fn moving(mut vmi: VirtualMachineInstance, mode: &str) -> VirtualMachineInstance {
    let moved = json!([{"volumeName": "data", "sourcePVCInfo": {"claimName": "old"},
        "destinationPVCInfo": {"claimName": "data", "volumeMode": mode}}]);
    let status = vmi.status.as_mut().unwrap();
    status.migrated_volumes = serde_json::from_value(moved).unwrap();
    let condition = Condition::new(CONDITION_VOLUMES_CHANGE, true, "", "migrate volumes");
    merge_condition(&mut status.conditions, condition, &Time(Timestamp::UNIX_EPOCH));
    vmi
}

/// The instance once it gives way for this reason, or has taken that back.
fn giving_way(mut vmi: VirtualMachineInstance, why: Option<&str>) -> VirtualMachineInstance {
    tell(vmi.status.as_mut().unwrap(), why, &Time(Timestamp::UNIX_EPOCH));
    vmi
}

/// An instance that says that it waits because of that one.
fn told(mut vmi: VirtualMachineInstance, why: String) -> VirtualMachineInstance {
    let condition = Condition::new(CONDITION_SYNCHRONIZED, false, REASON_CLAIM_IN_USE, why);
    vmi.status.as_mut().unwrap().conditions = vec![condition];
    vmi
}

#[test]
fn a_volume_moves_to_a_device_that_no_other_instance_has_or_may_have() {
    for come in [false, true] {
        let mover = |uid: &str, second| moving(vmi(uid, "Running", second, &own(), come), "Block");
        let mine = mover("b", 5);
        let told_by = |other: VirtualMachineInstance| held(&mine, [mine.clone(), other]);
        // Another one that moves there, whichever is older.
        assert!(told_by(mover("a", 1)).is_some() && told_by(mover("a", 9)).is_some());
        for phase in ["Pending", "Scheduling", "Running"] {
            let why = told_by(vmi("a", phase, 9, &own(), false)).unwrap();
            assert!(why.starts_with("PVC data is a device that VMI vm-a writes to"), "{why}");
        }
        assert_eq!(told_by(vmi("a", "Failed", 1, &own(), false)), None);
        let plugged = |reason| with_entry(vmi("a", "Running", 1, &own(), true), "Bound", reason);
        assert!(told_by(plugged("PVCNotReady")).is_some());
        assert_eq!(told_by(plugged(REASON_CLAIM_IN_USE)), None, "it gives way");
        // So does an instance that does not start because of this one.
        let waits = vmi("a", "Pending", 9, &own(), false);
        let why = start(&waits, mine.clone()).unwrap();
        assert_eq!(told_by(told(waits.clone(), why.clone())), None);
        let of_another = why.replace("vm-b", "vm-c");
        assert!(told_by(told(waits, of_another)).is_some());
        // A guest that only reads it counts, too.
        let reads = |phase: &str| vmi("a", phase, 9, &read(), false);
        assert!(told_by(reads("Running")).is_some_and(|why| why.contains("vm-a reads")));
        assert!(goes_first(&mine, [reads("Running")]).is_some() && told_by(reads("Pending")).is_some());
        let why = start(&reads("Pending"), mine.clone()).unwrap();
        assert_eq!(told_by(told(reads("Pending"), why)), None);
        // Files have no reservations, and other claims are none of its business.
        let files = moving(mine.clone(), "Filesystem");
        assert_eq!(held(&files, [plugged("PVCNotReady")]), Some("VMI vm-a uses PVC data".to_owned()));
        assert_eq!(held(&files, [vmi("a", "Failed", 1, &own(), false)]), None);
        assert!(held(&files, [mover("a", 1)]).is_some(), "its new disk would be that of the other one");
        assert_eq!(held(&vmi("b", "Running", 5, &own(), come), [mover("a", 1)]), None);
    }
}

#[test]
fn of_two_volumes_that_move_to_one_claim_that_of_the_older_instance_does() {
    for mode in ["Block", "Filesystem"] {
        let mover = |uid: &str, second| moving(vmi(uid, "Running", second, &own(), false), mode);
        for (old, young) in [(mover("b", 1), mover("a", 5)), (mover("a", 5), mover("b", 5))] {
            assert_eq!(goes_first(&old, [young.clone()]), None);
            let why = goes_first(&young, [young.clone(), old.clone()]).unwrap();
            assert!(why.contains(&old.name_any()) && why.contains("PVC data"), "{why}");
            // Until the younger one gives way, its guest may be on its way: neither of them begins.
            assert!(held(&old, [young.clone()]).is_some() && held(&young, [old.clone()]).is_some());
            let yields = giving_way(young.clone(), Some(&why));
            assert_eq!(held(&old, [yields.clone()]), None);
            assert_eq!(held(&yields, [old.clone()]), Some(why.clone()));
            // That an older one gives way to a third one is no reason to begin before it.
            assert!(held(&young, [giving_way(old.clone(), Some("why"))]).is_some());
            // It takes that back before it begins, even if the older one is gone.
            assert_eq!(held(&yields, []), Some(why));
            let again = giving_way(yields, None);
            assert_eq!((held(&again, []), &again), (None, &young));
        }
        let ended = moving(vmi("a", "Failed", 1, &own(), false), mode);
        assert_eq!(goes_first(&mover("b", 5), [ended]), None);
        assert_eq!(goes_first(&vmi("b", "Running", 5, &own(), false), [mover("a", 1)]), None);
    }
}

#[test]
fn a_volume_gives_way_to_an_instance_that_has_its_new_claim() {
    for mode in ["Block", "Filesystem"] {
        let mine = moving(vmi("b", "Running", 5, &own(), false), mode);
        // The volume of an older instance has arrived, or that of a younger one, which was on its way.
        for second in [1, 9] {
            let arrived = vmi("a", "Running", second, &own(), false);
            let why = goes_first(&mine, [arrived.clone()]).unwrap();
            assert!(why.contains("vm-a") && why.contains("PVC data"), "{why}");
            assert!(held(&mine, [arrived.clone()]).is_some());
            assert_eq!(held(&giving_way(mine.clone(), Some(&why)), [arrived]), Some(why));
        }
        assert_eq!(goes_first(&mine, [vmi("a", "Succeeded", 1, &own(), false)]), None);
    }
    // Files that another volume is leaving are still written to.
    let mut leaves = moving(vmi("a", "Running", 1, &own(), false), "Filesystem");
    leaves.status.as_mut().unwrap().migrated_volumes[0].destination_pvc_info = None;
    let mut there = moving(vmi("b", "Running", 5, &own(), false), "Filesystem");
    let info = &mut there.status.as_mut().unwrap().migrated_volumes[0].destination_pvc_info;
    info.as_mut().unwrap().claim_name = Some("old".to_owned());
    assert_eq!(goes_first(&there, [leaves]), Some("VMI vm-a uses PVC old".to_owned()));
    // An instance that does not start because of the move does not have the device.
    let device = moving(vmi("b", "Running", 5, &own(), false), "Block");
    assert_eq!(goes_first(&device, [vmi("a", "Pending", 1, &own(), false)]), None);
}

#[test]
fn the_claim_that_a_volume_leaves_is_not_given_way_with_the_one_that_it_moves_to() {
    let mut mine = moving(vmi("a", "Running", 1, &own(), false), "Block");
    let mut more = mine.status.as_ref().unwrap().migrated_volumes[0].clone();
    more.destination_pvc_info.as_mut().unwrap().claim_name = Some("old".to_owned());
    mine.status.as_mut().unwrap().migrated_volumes.push(more);
    let other = giving_way(moving(vmi("b", "Running", 5, &own(), false), "Block"), Some("why"));
    let why = held(&mine, [other]).unwrap();
    assert!(why.starts_with("PVC old is a device that VMI vm-b writes to"), "{why}");
}

#[test]
fn an_instance_that_waits_names_the_oldest_of_those_that_have_its_device() {
    let mover = |uid: &str, second| moving(vmi(uid, "Running", second, &own(), false), "Block");
    let mine = vmi("b", "Pending", 9, &own(), false);
    let devices: Vec<Opened<'_>> = opened(&mine).collect();
    for others in [[mover("a", 5), mover("c", 1)], [mover("c", 1), mover("a", 5)]] {
        let why = taken(&mine, &devices, others).unwrap();
        assert!(why.contains("vm-c"), "{why}");
    }
}

#[test]
fn an_instance_that_waits_says_first_which_one_has_its_device() {
    let older = vmi("a", "Pending", 1, &own(), false);
    let mover = moving(vmi("c", "Running", 2, &own(), true), "Block");
    let mine = vmi("b", "Pending", 5, &own(), false);
    let devices: Vec<Opened<'_>> = opened(&mine).collect();
    let why = taken(&mine, &devices, [older, mover]).unwrap();
    assert!(why.contains("vm-c"), "{why}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_device_is_read_by_several_guests_or_open_in_one_and_every_guest_gets_it(events in events()) {
        let mut world = World::new();
        for event in events {
            world.step(event);
        }
        for _ in 0..INSTANCES {
            world.settle();
            let holder = world.open.iter().position(|open| *open);
            prop_assert_eq!(holder.is_some(), world.all.iter().any(Option::is_some), "{:?}", world.all);
            if let Some(holder) = holder {
                world.step(Event::Goes(holder));
            }
        }
        prop_assert!(world.all.iter().all(Option::is_none));
    }
}
