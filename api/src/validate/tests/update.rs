use super::*;

#[test]
fn reserved_labels_are_for_components() {
    let labelled = instance(with(
        right(),
        "/metadata/labels",
        json!({"kubevirt.io/nodeName": "n", "kubevirt.io/vm": "x"}),
    ));
    let causes = vmi_create(&labelled, Requester::User, &Gates::default());
    assert_eq!(causes.len(), 1);
    assert_eq!(causes[0].field, "metadata.labels");
    assert!(
        causes[0]
            .message
            .contains("creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited")
    );
    assert!(vmi_create(&labelled, Requester::Component, &Gates::default()).is_empty());
    let plain = instance(right());
    assert_eq!(vmi_update(&plain, &labelled, Requester::User, &Gates::default()).len(), 1);
    assert!(vmi_update(&plain, &labelled, Requester::Component, &Gates::default()).is_empty());
    let template = json!({"metadata": {"labels": {"kubevirt.io/nodeName": "n"}}, "spec": right()["spec"]});
    let causes =
        vm(&machine(json!({"running": true, "template": template})), Requester::User, &Gates::default());
    assert_eq!(causes[0].field, "spec.template.metadata.labels");
}

#[test]
fn a_specification_does_not_change() {
    let old = instance(right());
    let mut new = old.clone();
    assert!(vmi_update(&old, &new, Requester::User, &Gates::default()).is_empty());
    new.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
    assert!(vmi_update(&old, &new, Requester::User, &Gates::default()).is_empty());
    new.spec.hostname = Some("other".into());
    for requester in [Requester::User, Requester::Component] {
        let causes = vmi_update(&old, &new, requester, &Gates::default());
        assert_eq!(causes[0].message, "update of VMI object is restricted");
        assert_eq!(causes[0].kind.reason(), "FieldValueNotSupported");
    }
}

#[test]
fn status_is_written_by_components_only() {
    let old = instance(with(right(), "/status", json!({"phase": "Running"})));
    let new = instance(with(right(), "/status", json!({"phase": "Failed"})));
    let phase = |requester| protected_status(&old, &new, requester).unwrap().phase.clone().unwrap();
    assert_eq!(phase(Requester::User), "Running");
    assert_eq!(phase(Requester::Component), "Failed");
}

#[test]
fn a_handler_changes_what_is_on_its_node() {
    let on = |node: &str| instance(with(right(), "/status", json!({"nodeName": node})));
    assert!(handler_update(&on("a"), &on("a"), Some("a")).is_empty());
    assert!(
        handler_update(&on("b"), &on("b"), Some("a"))[0]
            .message
            .contains("only allowed to modify VMIs it owns")
    );
    assert!(
        handler_update(&on("a"), &on("b"), Some("a"))[0].message.contains("not allowed to set target node")
    );
    assert!(handler_update(&on("a"), &on("a"), None)[0].message.contains("missing node name"));
    assert!(!handler_update(&instance(right()), &instance(right()), Some("a")).is_empty());
}

/// A component may change a running guest within the rules of hotplug.
#[test]
fn hotplug_rules() {
    let status = json!({"volumeStatus": [
        {"name": "root", "target": "vda"}, {"name": "seed", "target": "sda"}, {"name": "scratch", "target": "sdb"},
    ]});
    let old = with(right(), "/status", status);
    let old = with(old, "/spec/domain/memory/maxGuest", json!("1Gi"));
    let old = with(old, "/spec/domain/cpu/maxSockets", json!(8));
    let old = with(old, "/spec/utilityVolumes", json!([{"name": "u", "claimName": "u"}]));
    let disks = "spec.domain.devices.disks";
    let plug = |disk: Value| {
        vec![
            ("/spec/volumes/-", json!({"name": "new", "dataVolume": {"name": "new", "hotpluggable": true}})),
            ("/spec/domain/devices/disks/-", disk),
        ]
    };
    let scsi = |name: &str| ("/spec/domain/devices/disks/-", json!({"name": name, "disk": {"bus": "scsi"}}));
    let fixed = |name: &str| ("/spec/volumes/-", json!({"name": name, "dataVolume": {"name": name}}));
    let restricted = "update of VMI object is restricted";
    for (changes, field, message) in [
        (
            vec![("/spec/domain/cpu/maxSockets", json!(9))],
            "spec.domain.cpu.maxSockets",
            "CPU topology maxSockets changed",
        ),
        (
            vec![("/spec/domain/memory/maxGuest", json!("2Gi"))],
            "spec.domain.memory.maxGuest",
            "Memory maxGuest changed",
        ),
        (
            vec![("/spec/volumes", json!([])), ("/spec/domain/devices/disks", json!([]))],
            "spec.volumes",
            "Number of permanent volumes has changed",
        ),
        (
            vec![("/spec/domain/devices/disks", json!([]))],
            "spec.volumes",
            "mismatch between volumes declared (3) and required (0)",
        ),
        (
            vec![("/spec/volumes/0/containerDisk/image", json!("other"))],
            "spec.volumes[0]",
            "permanent volume root, changed",
        ),
        (
            vec![("/spec/domain/devices/disks/0/serial", json!("other"))],
            disks,
            "permanent disk root, changed",
        ),
        (
            vec![("/spec/volumes/-", json!({"name": "new", "emptyDisk": {"capacity": "1Gi"}})), scsi("new")],
            "spec.volumes[3]",
            "volume new is not a PVC or DataVolume",
        ),
        (vec![fixed("new")], "spec.volumes", "mismatch between volumes declared (4) and required (3)"),
        (vec![scsi("new")], "spec.volumes", "mismatch between volumes declared (3) and required (4)"),
        (vec![fixed("new"), scsi("other")], disks, "disk new does not exist"),
        (
            plug(json!({"name": "new", "disk": {"bus": "sata"}})),
            disks,
            "Hotplug configuration for disk [new] requires bus to be 'scsi' or 'virtio'. [sata] is not permitted.",
        ),
        (
            plug(json!({"name": "new", "lun": {"bus": "virtio"}})),
            disks,
            "Hotplug configuration for LUN [new] requires bus to be 'scsi'. [virtio] is not permitted.",
        ),
        (
            plug(json!({"name": "new", "cdrom": {"bus": "sata"}})),
            disks,
            "Hotplug configuration for [new] requires diskDevice of type 'disk' or 'lun' to be used.",
        ),
        (
            plug(json!({"name": "new", "disk": {"bus": "scsi"}, "dedicatedIOThread": true})),
            disks,
            "Hotplug configuration for [new] requires virtio bus for IOThreads.",
        ),
        (
            vec![("/spec/utilityVolumes/0/claimName", json!("v"))],
            "spec.utilityVolumes[0]",
            "utility volume u has changed",
        ),
        (
            vec![("/spec/utilityVolumes/-", json!({"name": "v", "claimName": ""}))],
            "spec.utilityVolumes[1].claimName",
            "UtilityVolume PVC 'claimName' must be set",
        ),
        (
            vec![("/spec/utilityVolumes/-", json!({"name": "", "claimName": "v"}))],
            "spec.utilityVolumes[1].name",
            "UtilityVolume 'name' must be set",
        ),
        (
            vec![("/spec/utilityVolumes/-", json!({"name": "root", "claimName": "v"}))],
            "spec.utilityVolumes[1].name",
            "spec.utilityVolumes[1] conflicts with spec.volumes[0]. UtilityVolume names must be unique across both volumes and utilityVolumes.",
        ),
        // The first volume cannot be unplugged again, and a drive can only be there from the start.
        (vec![fixed("new"), scsi("new")], "spec", restricted),
        (
            plug(json!({"name": "new", "disk": {"bus": "virtio"}, "errorPolicy": "wait"})),
            "spec.domain.devices.disks[3].errorPolicy",
            "spec.domain.devices.disks[3].errorPolicy has invalid value \"wait\"",
        ),
        (
            vec![("/spec/domain/cpu/sockets", json!(99))],
            "spec.domain.cpu.sockets",
            "Number of sockets in CPU topology is greater than the maximum sockets allowed",
        ),
    ] {
        let new = changes.iter().fold(old.clone(), |object, (at, value)| with(object, at, value.clone()));
        let (old, new) = (instance(old.clone()), instance(new));
        let causes = vmi_update(&old, &new, Requester::Component, &Gates::default());
        assert_eq!(causes.len(), 1, "{changes:?}: {causes:#?}");
        assert_eq!((causes[0].field.as_str(), causes[0].message.as_str()), (field, message));
        let by_user = vmi_update(&old, &new, Requester::User, &Gates::default());
        assert_eq!(by_user.len(), 1);
        assert_eq!(by_user[0].message, restricted);
    }
}

/// The causes of a change from one instance to another.
fn changed(from: &Value, to: &Value) -> Vec<Cause> {
    vmi_update(&instance(from.clone()), &instance(to.clone()), Requester::Component, &Gates::default())
}

#[test]
fn volumes_are_plugged_and_unplugged_by_an_update() {
    let claim = |hotpluggable: Value| json!({"claimName": "data", "hotpluggable": hotpluggable});
    let plugged = |disk: Value, source: Value| {
        let volume = json!({"name": "data", "persistentVolumeClaim": source});
        with(with(right(), "/spec/volumes/-", volume), "/spec/domain/devices/disks/-", disk)
    };
    let scsi = || json!({"name": "data", "disk": {"bus": "scsi"}, "serial": "S2"});
    let without = right();
    let hot = plugged(scsi(), claim(json!(true)));
    assert_eq!(changed(&without, &hot), []);
    assert_eq!(changed(&hot, &without), []);
    let own_thread = json!({"name": "data", "disk": {"bus": "virtio"}, "dedicatedIOThread": true});
    assert_eq!(changed(&without, &plugged(own_thread, claim(json!(true)))), []);
    assert_eq!(
        vmi_update(&instance(without.clone()), &instance(hot.clone()), Requester::User, &Gates::default())
            .len(),
        1
    );

    let told = |change: Value| with(hot.clone(), "/status", json!({"volumeStatus": [change]}));
    let count = "Number of permanent volumes has changed";
    let other_claim = with(hot.clone(), "/spec/volumes/3/persistentVolumeClaim/claimName", json!("b"));
    for (from, to, message) in [
        // The volume is there from the start, according to its status or its specification.
        (told(json!({"name": "data", "target": "sda"})), without.clone(), count),
        (plugged(scsi(), claim(json!(false))), without.clone(), count),
        // A change in one step: the volume in the guest has to be unplugged first.
        (hot.clone(), other_claim, "hotplug volume data, changed"),
        (
            hot.clone(),
            with(hot.clone(), "/spec/domain/devices/disks/3/serial", json!("S3")),
            "hotplug disk data, changed",
        ),
    ] {
        let causes = changed(&from, &to);
        assert_eq!(causes.len(), 1, "{causes:?}");
        assert_eq!(causes[0].message, message);
    }
    let plugged_in = told(json!({"name": "data", "target": "sda", "hotplugVolume": {}}));
    assert_eq!(changed(&plugged_in, &without), []);
}

/// A volume can be unplugged even if newer rules would refuse the rest of the instance.
#[test]
fn an_existing_error_does_not_block_other_changes() {
    let odd = with(right(), "/spec/domain/devices/disks/0/errorPolicy", json!("wait"));
    let volume = json!({"name": "data", "dataVolume": {"name": "data", "hotpluggable": true}});
    let disk = json!({"name": "data", "disk": {"bus": "virtio"}});
    let hot = with(with(odd.clone(), "/spec/volumes/-", volume), "/spec/domain/devices/disks/-", disk);
    assert_eq!(changed(&odd, &hot), []);
    assert_eq!(changed(&hot, &odd), []);
}

/// The causes of a change of an instance's cards, in a version that supports plugging cards.
fn cards_changed(from: &Value, to: &Value) -> Vec<String> {
    let mut causes = Vec::new();
    let (old, new) = (instance(from.clone()), instance(to.clone()));
    super::super::cards::validate_when(true, &old, &new, &Gates::default(), &mut causes);
    // Whether a version supports a field at all is tested elsewhere.
    causes.retain(|cause| !is_refusal(cause));
    causes.into_iter().map(|cause| cause.to_string()).collect()
}

#[test]
fn cards_are_plugged_and_unplugged_by_an_update() {
    let card = |state: Value| with(json!({"name": "red", "bridge": {}}), "/state", state);
    let network = |definition: &str| json!({"name": "red", "multus": {"networkName": definition}});
    let with_card = |state: Value, definition: &str| {
        let object = with(right(), "/spec/networks/-", network(definition));
        with(object, "/spec/domain/devices/interfaces/-", card(state))
    };
    let (without, up) = (right(), with_card(json!(null), "a"));
    let (down, absent) = (with_card(json!("down"), "a"), with_card(json!("absent"), "a"));
    for (from, to) in [
        (&without, &up),
        (&without, &down),
        (&up, &down),
        (&down, &up),
        (&up, &absent),
        (&absent, &without),
        (&up, &with_card(json!(null), "net/b")),
    ] {
        assert_eq!(cards_changed(from, to), [""; 0], "{to}");
    }
    // A card of the node comes on the node that the guest moves to.
    let function = |state: Value| {
        let object = with(right(), "/spec/networks/-", network("a"));
        let card = with(json!({"name": "red", "sriov": {}}), "/state", state);
        with(object, "/spec/domain/devices/interfaces/-", card)
    };
    let (comes, goes) = (function(json!(null)), function(json!("absent")));
    for (from, to) in [(&without, &comes), (&comes, &goes), (&goes, &without)] {
        assert_eq!(cards_changed(from, to), [""; 0], "{to}");
    }
    let list = "spec.domain.devices.interfaces";
    let plugged = |interface: Value, network: Value| {
        let object = with(right(), "/spec/networks/-", network);
        with(object, "/spec/domain/devices/interfaces/-", interface)
    };
    let not_bridge = plugged(json!({"name": "red", "masquerade": {}}), network("a"));
    let default = json!({"name": "red", "multus": {"networkName": "a", "default": true}});
    for (from, to, told) in [
        (&up, &without, format!("{list}: interface red was removed, and was not absent")),
        (&without, &absent, format!("{list}[1]: interface red cannot be plugged into a running guest")),
        (&without, &not_bridge, format!("{list}[1]: interface red cannot be plugged")),
        (
            &without,
            &plugged(card(json!(null)), default.clone()),
            format!("{list}[1]: interface red cannot be plugged"),
        ),
        (&absent, &up, format!("{list}[1].state: interface red is on its way out")),
        (
            &up,
            &with(up.clone(), "/spec/domain/devices/interfaces/1/model", json!("e1000e")),
            format!("{list}[1]: interface red changed in more than its state"),
        ),
        (
            &up,
            &with(up.clone(), "/spec/networks/1", default),
            "spec.networks[1]: network red changed in more than its networkName".to_owned(),
        ),
        (
            &without,
            &with_card(json!(null), "A"),
            "spec.networks[1].multus.networkName must be a name".to_owned(),
        ),
    ] {
        let found = cards_changed(from, to);
        assert_eq!(found.len(), 1, "{to}: {found:?}");
        assert!(found[0].starts_with(&told), "{found:?}");
    }
}

#[test]
fn cards_are_a_components_affair_once_they_are_served() {
    let red = |list: &str, value: Value| (format!("/spec/{list}/-"), value);
    let changes = [
        red("networks", json!({"name": "red", "multus": {"networkName": "a"}})),
        red("domain/devices/interfaces", json!({"name": "red", "bridge": {}})),
    ];
    let hot = changes.into_iter().fold(right(), |object, (at, value)| with(object, &at, value));
    let causes = changed(&right(), &hot);
    assert_eq!(causes.is_empty(), crate::networks::PLUGGED_CARDS_SERVED, "{causes:?}");
    let by_user = vmi_update(&instance(right()), &instance(hot), Requester::User, &Gates::default());
    assert_eq!(by_user[0].message, "update of VMI object is restricted");
}

#[test]
fn a_drive_stays_where_it_is() {
    let volume = json!({"name": "cd", "dataVolume": {"name": "cd", "hotpluggable": true}});
    let drive = json!({"name": "cd", "cdrom": {"bus": "sata"}});
    let empty = with(right(), "/spec/domain/devices/disks/-", drive);
    let full = with(empty.clone(), "/spec/volumes/-", volume);
    assert_eq!(changed(&empty, &full), []);
    assert_eq!(changed(&full, &empty), []);
    let causes = changed(&right(), &full);
    let message = "Hotplug configuration for [cd] requires diskDevice of type 'disk' or 'lun' to be used.";
    assert_eq!(causes[0].message, message);
    let causes = changed(&full, &right());
    assert_eq!(causes[0].message, "update of VMI object is restricted");
}

#[test]
fn only_components_change_a_running_guest() {
    let old = with(right(), "/spec/domain/cpu/maxSockets", json!(8));
    for (at, value) in [
        ("/spec/domain/cpu/sockets", json!(2)),
        ("/spec/domain/memory/guest", json!("96Mi")),
        ("/spec/nodeSelector", json!({"a": "b"})),
        ("/spec/affinity", json!({"nodeAffinity": {}})),
        ("/spec/tolerations", json!([{"key": "a", "operator": "Exists"}])),
    ] {
        let (old, new) = (instance(old.clone()), instance(with(old.clone(), at, value)));
        assert_eq!(vmi_update(&old, &new, Requester::Component, &Gates::default()), [], "{at}");
        assert_eq!(vmi_update(&old, &new, Requester::User, &Gates::default()).len(), 1, "{at}");
    }
}

#[test]
fn a_handler_sets_no_target() {
    let with_target = |node: Value| {
        instance(with(right(), "/status", json!({"nodeName": "a", "migrationState": {"targetNode": node}})))
    };
    let causes = handler_update(&with_target(Value::Null), &with_target(json!("b")), Some("a"));
    assert!(causes[0].message.contains("not allowed to set target node"));
    assert!(handler_update(&with_target(json!("b")), &with_target(json!("b")), Some("a")).is_empty());
}

#[test]
fn a_volume_moves_to_another_claim_where_the_status_says_so() {
    let on = |claim: &str, moves: bool| {
        let object = with(
            right(),
            "/spec/volumes/-",
            json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}}),
        );
        let object =
            with(object, "/spec/domain/devices/disks/-", json!({"name": "data", "disk": {"bus": "virtio"}}));
        let moved = json!([{"volumeName": "data", "sourcePVCInfo": {"claimName": "a"},
            "destinationPVCInfo": {"claimName": "b"}}]);
        let status = if moves {
            json!({"phase": "Running", "migratedVolumes": moved})
        } else {
            json!({"phase": "Running"})
        };
        with(object, "/status", status)
    };
    let causes = |old: Value, new: Value, requester| {
        vmi_update(&instance(old), &instance(new), requester, &Gates::default()).len()
    };
    // The volumes move to the new claim, and back to the old one.
    assert_eq!(causes(on("a", false), on("b", true), Requester::Component), 0);
    assert_eq!(causes(on("b", true), on("a", false), Requester::Component), 0);
    for (old, new, requester) in [
        (on("a", false), on("b", true), Requester::User),
        (on("a", false), on("b", false), Requester::Component),
        (on("a", false), on("c", true), Requester::Component),
        (on("c", true), on("b", true), Requester::Component),
    ] {
        assert_ne!(causes(old, new, requester), 0);
    }
}
