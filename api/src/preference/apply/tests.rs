//! One row for each preferred field: the field that it fills in, and the values that it does not change.

use super::*;
use serde_json::{Value, json};

/// Specification and annotations after the preference; the first network is the pod's, the second is not.
fn applied(preference: &Value, domain: Value, spec: Value) -> Value {
    let preference: VirtualMachinePreferenceSpec = serde_json::from_value(preference.clone()).unwrap();
    let mut whole = json!({
        "domain": domain,
        "networks": [{"name": "pod", "pod": {}}, {"name": "other", "multus": {"networkName": "n"}}],
    });
    for (name, value) in spec.as_object().unwrap() {
        whole[name] = value.clone();
    }
    if whole["domain"].get("devices").is_none() {
        whole["domain"]["devices"] = json!({});
    }
    let mut spec: VirtualMachineInstanceSpec = serde_json::from_value(whole).unwrap();
    let mut annotations = BTreeMap::from([("mine".to_owned(), "1".to_owned())]);
    apply(&preference, &mut spec, &mut annotations);
    let once = spec.clone();
    apply(&preference, &mut spec, &mut annotations);
    assert_eq!(once, spec, "twice is not the same as once");
    let mut value = serde_json::to_value(&spec).unwrap();
    value["annotations"] = json!(annotations);
    value
}

/// Each row: preference, domain before, path, value after.
fn check(rows: Vec<(Value, Value, &str, Value)>) {
    for (preference, domain, place, wanted) in rows {
        let result = applied(&preference, domain, json!({}));
        assert_eq!(result.pointer(place).unwrap_or(&Value::Null), &wanted, "{preference}: {result}");
    }
}

#[test]
fn devices_are_switched() {
    for (preferred, field) in [
        ("preferredAutoattachGraphicsDevice", "autoattachGraphicsDevice"),
        ("preferredAutoattachInputDevice", "autoattachInputDevice"),
        ("preferredAutoattachMemBalloon", "autoattachMemBalloon"),
        ("preferredAutoattachPodInterface", "autoattachPodInterface"),
        ("preferredAutoattachSerialConsole", "autoattachSerialConsole"),
        ("preferredBlockMultiQueue", "blockMultiQueue"),
        ("preferredNetworkInterfaceMultiQueue", "networkInterfaceMultiqueue"),
        ("preferredUseVirtioTransitional", "useVirtioTransitional"),
    ] {
        let place = format!("/domain/devices/{field}");
        let set = json!({"devices": {field: true}});
        check(vec![
            (json!({"devices": {preferred: false}}), json!({}), &place, json!(false)),
            (json!({"devices": {preferred: false}}), set, &place, json!(true)),
        ]);
    }
    // The only field where the preference overrides the machine.
    let hotplug = json!({"devices": {"preferredDisableHotplug": true}});
    check(vec![(
        hotplug,
        json!({"devices": {"disableHotplug": false}}),
        "/domain/devices/disableHotplug",
        json!(true),
    )]);
}

#[test]
fn devices_that_come_whole() {
    let devices = |name: &str, value: Value| json!({"devices": {name: value}});
    check(vec![
        (devices("preferredRng", json!({})), json!({}), "/domain/devices/rng", json!({})),
        (
            devices("preferredTPM", json!({"persistent": true})),
            json!({}),
            "/domain/devices/tpm/persistent",
            json!(true),
        ),
        (
            devices("preferredTPM", json!({"persistent": true})),
            json!({"devices": {"tpm": {}}}),
            "/domain/devices/tpm",
            json!({}),
        ),
        (
            devices("preferredVideoType", json!("virtio")),
            json!({}),
            "/domain/devices/video/type",
            json!("virtio"),
        ),
        (
            devices("preferredVideoType", json!("virtio")),
            json!({"devices": {"video": {"type": "vga"}}}),
            "/domain/devices/video/type",
            json!("vga"),
        ),
        (devices("preferredSoundModel", json!("ac97")), json!({}), "/domain/devices/sound", Value::Null),
        (
            devices("preferredSoundModel", json!("ac97")),
            json!({"devices": {"sound": {"name": "s"}}}),
            "/domain/devices/sound/model",
            json!("ac97"),
        ),
        (
            devices("preferredPanicDeviceModel", json!("isa")),
            json!({}),
            "/domain/devices/panicDevices",
            json!([{"model": "isa"}]),
        ),
        (
            devices("preferredPanicDeviceModel", json!("isa")),
            json!({"devices": {"panicDevices": [{"model": "hyperv"}, {}]}}),
            "/domain/devices/panicDevices",
            json!([{"model": "hyperv"}, {"model": "isa"}]),
        ),
        (
            json!({"devices": {"preferredInputBus": "virtio", "preferredInputType": "tablet"}}),
            json!({"devices": {"inputs": [{"name": "i", "type": ""}, {"name": "j", "type": "mouse", "bus": "usb"}]}}),
            "/domain/devices/inputs",
            json!([
                {"name": "i", "type": "tablet", "bus": "virtio"}, {"name": "j", "type": "mouse", "bus": "usb"}
            ]),
        ),
    ]);
}

#[test]
fn disks_by_their_target() {
    let preference = json!({"devices": {
        "preferredDiskBus": "virtio", "preferredCdromBus": "scsi", "preferredLunBus": "scsi",
        "preferredDiskCache": "none", "preferredDiskIO": "native", "preferredDiskDedicatedIoThread": true,
        "preferredDiskBlockSize": {"matchVolume": {}},
    }});
    let disks = json!({"devices": {"disks": [
        {"name": "bare"},
        {"name": "sata", "disk": {"bus": "sata"}, "cache": "writeback", "io": "threads", "blockSize": {}},
        {"name": "cd", "cdrom": {}},
        {"name": "lun", "lun": {}},
    ]}});
    let result = applied(&preference, disks, json!({}));
    assert_eq!(
        result["domain"]["devices"]["disks"],
        json!([
            {"name": "bare", "disk": {"bus": "virtio"}, "cache": "none", "io": "native", "dedicatedIOThread": true,
                "blockSize": {"matchVolume": {}}},
            {"name": "sata", "disk": {"bus": "sata"}, "cache": "writeback", "io": "threads", "blockSize": {}},
            {"name": "cd", "cdrom": {"bus": "scsi"}},
            {"name": "lun", "lun": {"bus": "scsi"}},
        ])
    );
}

#[test]
fn interfaces_and_their_binding() {
    let preference =
        json!({"devices": {"preferredInterfaceModel": "e1000e", "preferredInterfaceMasquerade": {}}});
    let interfaces = json!({"devices": {"interfaces": [
        {"name": "pod"}, {"name": "other", "model": "virtio"}, {"name": "pod", "bridge": {}}, {"name": "nowhere"},
        {"name": "other", "sriov": {}},
    ]}});
    let result = applied(&preference, interfaces, json!({}));
    assert_eq!(
        result["domain"]["devices"]["interfaces"],
        json!([
            {"name": "pod", "model": "e1000e", "masquerade": {}},
            {"name": "other", "model": "virtio"},
            {"name": "pod", "model": "e1000e", "bridge": {}},
            {"name": "nowhere", "model": "e1000e"},
            {"name": "other", "sriov": {}},
        ])
    );
}

#[test]
fn clock_and_cpu_features() {
    let offset = json!({"clock": {"preferredClockOffset": {"utc": {}}}});
    check(vec![
        (offset.clone(), json!({}), "/domain/clock", json!({"utc": {}})),
        (
            offset,
            json!({"clock": {"timezone": "Europe/Berlin"}}),
            "/domain/clock",
            json!({"timezone": "Europe/Berlin"}),
        ),
        (json!({"clock": {}}), json!({}), "/domain/clock", Value::Null),
        (
            json!({"clock": {"preferredTimer": {"hyperv": {}}}}),
            json!({}),
            "/domain/clock/timer",
            json!({"hyperv": {}}),
        ),
        (
            json!({"clock": {"preferredTimer": {"hyperv": {}}}}),
            json!({"clock": {"timer": {"kvm": {}}}}),
            "/domain/clock/timer",
            json!({"kvm": {}}),
        ),
        (
            json!({"cpu": {"preferredCPUFeatures": [{"name": "a", "policy": "require"}, {"name": "b"}]}}),
            json!({"cpu": {"features": [{"name": "a", "policy": "forbid"}]}}),
            "/domain/cpu/features",
            json!([{"name": "a", "policy": "forbid"}, {"name": "b"}]),
        ),
        (json!({"cpu": {"preferredCPUTopology": "cores"}}), json!({}), "/domain/cpu", Value::Null),
    ]);
}

#[test]
fn features_one_by_one() {
    for (preferred, field) in
        [("preferredApic", "apic"), ("preferredPvspinlock", "pvspinlock"), ("preferredSmm", "smm")]
    {
        let place = format!("/domain/features/{field}");
        let set = json!({"features": {field: {"enabled": false}}});
        check(vec![
            (json!({"features": {preferred: {}}}), json!({}), &place, json!({})),
            (json!({"features": {preferred: {}}}), set, &place, json!({"enabled": false})),
        ]);
    }
    check(vec![
        (
            json!({"features": {"preferredKvm": {"hidden": true}}}),
            json!({}),
            "/domain/features/kvm/hidden",
            json!(true),
        ),
        (
            json!({"features": {"preferredAcpi": {"enabled": false}}}),
            json!({"features": {"acpi": {"enabled": true}}}),
            "/domain/features/acpi/enabled",
            json!(false),
        ),
        (json!({"features": {}}), json!({}), "/domain/features", Value::Null),
    ]);
    let fields = [
        "evmcs",
        "frequencies",
        "ipi",
        "reenlightenment",
        "relaxed",
        "reset",
        "runtime",
        "spinlocks",
        "synic",
        "synictimer",
        "tlbflush",
        "vapic",
        "vendorid",
        "vpindex",
    ];
    for field in fields {
        let place = format!("/domain/features/hyperv/{field}");
        let preference = json!({"features": {"preferredHyperv": {field: {"enabled": true}}}});
        let set = json!({"features": {"hyperv": {field: {"enabled": false}}}});
        check(vec![
            (preference.clone(), json!({}), &place, json!({"enabled": true})),
            (preference, set, &place, json!({"enabled": false})),
        ]);
    }
}

#[test]
fn firmware_is_chosen_once() {
    let efi = json!({"firmware": {"preferredEfi": {"secureBoot": true}}});
    let old = json!({"firmware": {"preferredUseEfi": true, "preferredUseSecureBoot": true}});
    let bios = json!({"firmware": {"preferredUseBios": true, "preferredUseBiosSerial": true}});
    let given = |loader: Value| json!({"firmware": {"bootloader": loader}});
    let place = "/domain/firmware/bootloader";
    check(vec![
        (efi.clone(), json!({}), place, json!({"efi": {"secureBoot": true}})),
        (efi.clone(), given(json!({"bios": {}})), place, json!({"bios": {}})),
        (efi, given(json!({"efi": {}})), place, json!({"efi": {}})),
        (old.clone(), json!({}), place, json!({"efi": {"secureBoot": true}})),
        (old.clone(), given(json!({"bios": {}})), place, json!({"bios": {}})),
        (old, given(json!({"efi": {"secureBoot": false}})), place, json!({"efi": {"secureBoot": false}})),
        (
            json!({"firmware": {"preferredEfi": {"persistent": true}, "preferredUseSecureBoot": true}}),
            json!({}),
            place,
            json!({"efi": {"persistent": true}}),
        ),
        (bios.clone(), json!({}), place, json!({"bios": {"useSerial": true}})),
        (bios.clone(), given(json!({"efi": {}})), place, json!({"efi": {}})),
        (bios, given(json!({"bios": {"useSerial": false}})), place, json!({"bios": {"useSerial": false}})),
        (
            json!({"firmware": {"preferredUseBios": true, "preferredEfi": {}}}),
            json!({}),
            place,
            json!({"bios": {}}),
        ),
        (json!({"firmware": {"preferredUseBios": false}}), json!({}), "/domain/firmware", Value::Null),
    ]);
}

#[test]
fn the_rest_of_the_specification() {
    for (preference, field, wanted, other) in [
        (json!({"preferredSubdomain": "s"}), "subdomain", json!("s"), json!("t")),
        (
            json!({"preferredTerminationGracePeriodSeconds": 3600}),
            "terminationGracePeriodSeconds",
            json!(3600),
            json!(0),
        ),
        (json!({"preferredArchitecture": "arm64"}), "architecture", json!("arm64"), json!("amd64")),
    ] {
        assert_eq!(applied(&preference, json!({}), json!({}))[field], wanted);
        assert_eq!(applied(&preference, json!({}), json!({field: other}))[field], other);
    }
    check(vec![
        (
            json!({"machine": {"preferredMachineType": "pc-q35-9.2"}}),
            json!({}),
            "/domain/machine/type",
            json!("pc-q35-9.2"),
        ),
        (
            json!({"machine": {"preferredMachineType": "pc-q35-9.2"}}),
            json!({"machine": {"type": "q35"}}),
            "/domain/machine/type",
            json!("q35"),
        ),
        (
            json!({"preferredLaunchSecurity": {"sev": {}}}),
            json!({}),
            "/domain/launchSecurity",
            json!({"sev": {}}),
        ),
        (
            json!({"preferredLaunchSecurity": {"sev": {}}}),
            json!({"launchSecurity": {}}),
            "/domain/launchSecurity",
            json!({}),
        ),
        (
            json!({"annotations": {"mine": "2", "a": "b"}}),
            json!({}),
            "/annotations",
            json!({"mine": "1", "a": "b"}),
        ),
    ]);
}

#[test]
fn an_empty_preference_changes_nothing() {
    let given = json!({"cpu": {"sockets": 1}, "devices": {"disks": [{"name": "d", "cdrom": {}}]}});
    let mut result = applied(&json!({}), given.clone(), json!({}));
    result.as_object_mut().unwrap().remove("annotations");
    assert_eq!(result["domain"], given);
}

#[test]
fn a_machine_gets_what_must_be_there_early() {
    let preference: VirtualMachinePreferenceSpec = serde_json::from_value(json!({
        "preferredArchitecture": "arm64", "machine": {"preferredMachineType": "virt"},
        "volumes": {"preferredStorageClassName": "fast"}, "preferredSubdomain": "later",
    }))
    .unwrap();
    let mut vm: VirtualMachine = serde_json::from_value(json!({"metadata": {}, "spec": {
        "template": {"spec": {"domain": {"devices": {}}}},
        "dataVolumeTemplates": [
            {"spec": {"pvc": {}}}, {"spec": {"storage": {}}}, {"spec": {"storage": {"storageClassName": "slow"}}}
        ],
    }}))
    .unwrap();
    to_machine(&preference, &mut vm);
    let spec = serde_json::to_value(&vm.spec).unwrap();
    assert_eq!(spec.pointer("/template/spec/architecture"), Some(&json!("arm64")));
    assert_eq!(spec.pointer("/template/spec/domain/machine/type"), Some(&json!("virt")));
    assert_eq!(spec.pointer("/template/spec/subdomain"), None);
    let classes: Vec<&Value> = ["/0/spec/pvc", "/1/spec/storage", "/2/spec/storage"]
        .iter()
        .map(|place| &spec["dataVolumeTemplates"].pointer(place).unwrap()["storageClassName"])
        .collect();
    assert_eq!(classes, [&json!("fast"), &json!("fast"), &json!("slow")]);
}
