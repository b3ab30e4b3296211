mod method;

use super::*;
use serde_json::{Value, json};

/// An instance with a disk on a claim of that access mode, and a change.
fn instance(mode: &str, change: Value) -> VirtualMachineInstance {
    let mut instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "domain": {"devices": {
                "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            }},
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "data"}}],
        },
        "status": {"volumeStatus": [
            {"name": "root", "target": "vda", "persistentVolumeClaimInfo": {"claimName": "data", "accessModes": [mode]}},
        ]},
    });
    merge(&mut instance, change);
    serde_json::from_value(instance).unwrap()
}

/// Puts the fields of `change` into `value`, deep down; lists as a whole.
fn merge(value: &mut Value, change: Value) {
    match (value, change) {
        (Value::Object(value), Value::Object(change)) => {
            for (key, change) in change {
                merge(value.entry(key).or_insert(Value::Null), change);
            }
        }
        (value, change) => *value = change,
    }
}

fn told(condition: &Condition) -> (&str, &str, &str) {
    (
        &condition.status,
        condition.reason.as_deref().unwrap_or_default(),
        condition.message.as_deref().unwrap_or_default(),
    )
}

#[test]
fn nothing_moves_before_migration_is_served() {
    let shared = instance("ReadWriteMany", json!({}));
    let condition = condition_when(&shared, &Bindings::default(), false);
    assert_eq!(condition.type_, "LiveMigratable");
    let message = "live migration is not part of this version of Barevirt";
    assert_eq!(told(&condition), ("False", "MigrationNotSupported", message));
    assert_eq!(storage_condition_when(&shared, &Bindings::default(), false), None);
}

#[test]
fn a_guest_on_shared_disks_moves() {
    let shared = instance("ReadWriteMany", json!({}));
    let condition = condition_when(&shared, &Bindings::default(), true);
    assert_eq!((condition.type_.as_str(), told(&condition)), ("LiveMigratable", ("True", "", "")));
    let condition = storage_condition_when(&shared, &Bindings::default(), true).unwrap();
    assert_eq!((condition.type_.as_str(), told(&condition)), ("StorageLiveMigratable", ("True", "", "")));
    assert_eq!(method_when_served(&shared), "LiveMigration");
}

#[test]
fn the_switches_decide_what_the_public_functions_say() {
    let shared = instance("ReadWriteMany", json!({}));
    assert_eq!(condition(&shared, &Bindings::default()).is_true(), SERVED);
    assert_eq!(storage_condition(&shared, &Bindings::default()).is_some(), SERVED);
    assert_eq!(method(&shared).is_some(), SERVED);
}

#[test]
fn disks_that_are_not_shared_keep_a_guest_where_it_is() {
    let volume = |source: Value| {
        let mut volume = json!({"name": "root"});
        merge(&mut volume, source);
        json!({"spec": {"volumes": [volume]}})
    };
    let copied = if LOCAL_DISKS_COPIED {
        ""
    } else {
        "cannot migrate VMI: disk root is on its node alone and is not copied yet"
    };
    let not_shared = "cannot migrate VMI: PVC data is not shared, live migration requires that all PVCs must be shared \
                      (using ReadWriteMany access mode)";
    let rows = [
        ("ReadWriteOnce", json!({}), not_shared),
        ("ReadOnlyMany", json!({}), not_shared),
        (
            "ReadWriteMany",
            json!({"status": {"volumeStatus": []}}),
            "cannot migrate VMI: Unable to determine if PVC data is shared, live migration requires that all PVCs must \
             be shared (using ReadWriteMany access mode)",
        ),
        ("ReadWriteMany", volume(json!({"dataVolume": {"name": "data"}})), ""),
        (
            "ReadWriteMany",
            volume(json!({"hostDisk": {"path": "/a", "type": "Disk"}})),
            "cannot migrate VMI with non-shared HostDisk",
        ),
        ("ReadWriteMany", volume(json!({"hostDisk": {"path": "/a", "type": "Disk", "shared": true}})), ""),
        ("ReadWriteMany", volume(json!({"containerDisk": {"image": "a"}})), copied),
        ("ReadWriteMany", volume(json!({"emptyDisk": {"capacity": "1Mi"}})), copied),
        (
            "ReadWriteMany",
            volume(json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "data"}}})),
            copied,
        ),
        (
            "ReadOnlyMany",
            volume(json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "data"}}})),
            copied,
        ),
        (
            "ReadWriteOnce",
            volume(json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "data"}}})),
            "cannot migrate VMI: PVC data below an ephemeral disk is read on one node only (it needs the access mode \
             ReadOnlyMany or ReadWriteMany)",
        ),
        ("ReadWriteMany", volume(json!({"cloudInitNoCloud": {"userData": "a"}})), copied),
    ];
    for (mode, change, message) in rows {
        let vmi = instance(mode, change.clone());
        let expected = if message.is_empty() { ("True", "", "") } else { ("False", REASON_DISKS, message) };
        assert_eq!(told(&condition_when(&vmi, &Bindings::default(), true)), expected, "{mode} {change}");
        // The instance could move if its disks moved to other claims.
        assert!(
            storage_condition_when(&vmi, &Bindings::default(), true).unwrap().is_true(),
            "{mode} {change}"
        );
    }
    let local = instance("ReadWriteMany", volume(json!({"emptyDisk": {"capacity": "1Mi"}})));
    assert_eq!(method_when_served(&local), "BlockMigration");
    assert_eq!(method_when_served(&instance("ReadWriteOnce", json!({}))), "BlockMigration");
}

/// A volume that is no disk, for example a table of ACPI, is read before the guest starts. KubeVirt's method counts it.
#[test]
fn a_volume_without_a_disk_keeps_nothing() {
    let vmi = instance(
        "ReadWriteMany",
        json!({"spec": {"volumes": [
            {"name": "root", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "slic", "secret": {"secretName": "slic"}},
        ]}}),
    );
    assert!(condition_when(&vmi, &Bindings::default(), true).is_true());
    assert_eq!(method_when_served(&vmi), "BlockMigration");
}

#[test]
fn passt_on_the_target_takes_over_from_that_on_the_source() {
    let interfaces = json!([{"name": "default", "passtBinding": {}}]);
    let vmi = instance("ReadWriteMany", json!({"spec": {"domain": {"devices": {"interfaces": interfaces}}}}));
    assert_eq!(condition_when(&vmi, &Bindings::default(), true).status, "True");
}

#[test]
fn a_bridge_on_the_pod_network_moves_where_an_annotation_says_so() {
    let devices = json!({"interfaces": [{"name": "default", "bridge": {}}]});
    let status = |annotations: Value| {
        let change =
            json!({"metadata": {"annotations": annotations}, "spec": {"domain": {"devices": devices}}});
        condition_when(&instance("ReadWriteMany", change), &Bindings::default(), true).status
    };
    assert_eq!(status(json!({"kubevirt.io/allow-pod-bridge-network-live-migration": ""})), "True");
    assert_eq!(status(json!({"other": ""})), "False");
}

/// Interfaces with an SR-IOV card `red` that has these fields too.
fn with_sriov(fields: Value) -> Value {
    let mut card = json!({"name": "red", "sriov": {}});
    merge(&mut card, fields);
    json!([{"name": "default", "masquerade": {}}, card])
}

#[test]
fn a_guest_with_an_sriov_card_that_can_be_unplugged_moves() {
    for fields in [json!({}), json!({"pciAddress": "0000:03:00.0"})] {
        let interfaces = with_sriov(fields);
        let vmi =
            instance("ReadWriteMany", json!({"spec": {"domain": {"devices": {"interfaces": interfaces}}}}));
        assert_eq!(told(&condition_when(&vmi, &Bindings::default(), true)), ("True", "", ""));
    }
}

#[test]
fn an_sriov_card_is_where_the_guest_was_started_with_it() {
    let moves = |phase: &str, wants: Option<&str>, layout: Option<&str>| {
        let vmi = instance(
            "ReadWriteMany",
            json!({
                "metadata": {"annotations": {
                    "kubevirt.io/placePCIDevicesOnRootComplex": wants.unwrap_or("false"),
                    "barevirt.dev/pci-layout": layout.unwrap_or_default(),
                }},
                "spec": {"domain": {"devices": {"interfaces": with_sriov(json!({}))}}},
                "status": {"phase": phase},
            }),
        );
        condition_when(&vmi, &Bindings::default(), true).is_true()
    };
    let root = Some(r#"{"version":"v1","ports":0,"devices":{},"slots":{"nic-red":3}}"#);
    let ports = Some(r#"{"version":"v1","ports":16,"devices":{"nic-red":3}}"#);
    // The annotation came or went since the guest was started.
    assert!(moves("Running", Some("true"), ports) && !moves("Running", None, root));
    // No launcher has reported a layout: the annotation is all that is known.
    assert!(!moves("Running", Some("true"), None) && moves("Running", None, None));
    // The layout of a former run says nothing about a guest that is being started.
    assert!(moves("Scheduled", None, root) && !moves("Scheduled", Some("true"), ports));
}

#[test]
fn devices_of_a_node_prevent_migration() {
    let devices = |devices: Value| json!({"spec": {"domain": {"devices": devices}}});
    let features = |features: Value| json!({"spec": {"domain": {"features": features}}});
    let cpu = |cpu: Value| json!({"spec": {"domain": {"cpu": cpu}}});
    let rows = [
        (devices(json!({"interfaces": [{"name": "default", "bridge": {}}]})), REASON_INTERFACE, "masquerade"),
        (
            devices(json!({"disableHotplug": true, "interfaces": with_sriov(json!({}))})),
            REASON_INTERFACE,
            "SR-IOV interface red: disableHotplug",
        ),
        (
            devices(json!({"interfaces": with_sriov(json!({"pciAddress": "0000:00:08.0"}))})),
            REASON_INTERFACE,
            "SR-IOV interface red: its pciAddress",
        ),
        (
            json!({"metadata": {"annotations": {"kubevirt.io/placePCIDevicesOnRootComplex": "true"}},
                "spec": {"domain": {"devices": {"interfaces": with_sriov(json!({}))}}}}),
            REASON_INTERFACE,
            "SR-IOV interface red: kubevirt.io/placePCIDevicesOnRootComplex",
        ),
        (
            devices(json!({"hostDevices": [{"name": "a", "deviceName": "b"}]})),
            REASON_HOST_DEVICE,
            "PCI host device",
        ),
        (devices(json!({"gpus": [{"name": "a", "deviceName": "b"}]})), REASON_HOST_DEVICE, "GPU"),
        (json!({"spec": {"domain": {"launchSecurity": {"sev": {}}}}}), REASON_SEV, "VMI uses SEV"),
        (json!({"spec": {"domain": {"launchSecurity": {"tdx": {}}}}}), REASON_TDX, "VMI uses TDX"),
        (features(json!({"hyperv": {"reenlightenment": {}}})), REASON_TSC, "TSC Frequency"),
        (
            features(json!({"hypervPassthrough": {"enabled": true}})),
            REASON_HYPERV_PASSTHROUGH,
            "hyperv passthrough",
        ),
        (devices(json!({"autoattachVSOCK": true})), REASON_OTHER, "VSOCK"),
        (devices(json!({"clientPassthrough": {}})), REASON_OTHER, "clientPassthrough"),
        (cpu(json!({"dedicatedCpuPlacement": true})), REASON_OTHER, "dedicatedCpuPlacement"),
        (cpu(json!({"features": [{"name": "invtsc", "policy": "require"}]})), REASON_TSC, "invtsc"),
        (cpu(json!({"realtime": {}})), REASON_OTHER, "realtime"),
    ];
    for (change, reason, words) in rows {
        // Disks come last.
        let vmi = instance("ReadWriteOnce", change.clone());
        let condition = condition_when(&vmi, &Bindings::default(), true);
        let (status, told_reason, message) = told(&condition);
        assert_eq!((status, told_reason), ("False", reason), "{change}");
        assert!(message.contains(words), "{change}: {message}");
        let storage = storage_condition_when(&vmi, &Bindings::default(), true).unwrap();
        let expected = format!("{reason}: {message}");
        assert_eq!(told(&storage), ("False", "NotMigratable", expected.as_str()), "{change}");
    }
}

#[test]
fn switched_off_devices_and_metrics_keep_nothing() {
    let vmi = instance(
        "ReadWriteMany",
        json!({"spec": {"domain": {
            "devices": {
                "tpm": {"enabled": false, "persistent": true}, "autoattachVSOCK": false, "downwardMetrics": {},
            },
            "features": {"hypervPassthrough": {"enabled": false}, "hyperv": {"reenlightenment": {"enabled": false}}},
            "cpu": {"dedicatedCpuPlacement": false, "features": [{"name": "invtsc", "policy": "disable"}]},
        }}}),
    );
    assert!(condition_when(&vmi, &Bindings::default(), true).is_true());
}

#[test]
fn temporary_firmware_and_tpm_state_moves_with_the_guest() {
    let vmi = instance(
        "ReadWriteMany",
        json!({"spec": {"domain": {"devices": {"tpm": {}}, "firmware": {"bootloader": {"efi": {}}}}}}),
    );
    assert!(condition_when(&vmi, &Bindings::default(), true).is_true());
}

#[test]
fn a_guest_without_the_pod_network_moves() {
    let vmi = instance(
        "ReadWriteMany",
        json!({"spec": {"networks": [], "domain": {"devices": {"interfaces": []}}}}),
    );
    assert!(condition_when(&vmi, &Bindings::default(), true).is_true());
}

#[test]
fn a_volume_that_is_to_move_to_another_claim_keeps_nothing() {
    let moves = |name: &str| {
        let moved = json!([{"volumeName": name, "sourcePVCInfo": {"claimName": "data"}}]);
        let vmi = instance("ReadWriteOnce", json!({"status": {"migratedVolumes": moved}}));
        assert_eq!(method_when_served(&vmi), "BlockMigration");
        condition_when(&vmi, &Bindings::default(), true).reason.unwrap_or_default()
    };
    assert_eq!((moves("root").as_str(), moves("other").as_str()), ("", REASON_DISKS));
}

#[test]
fn a_volume_that_was_plugged_in_moves_where_its_claim_is_shared() {
    let told = |mode: &str| {
        let claim = json!({"claimName": "data", "hotpluggable": true});
        let vmi =
            instance(mode, json!({"spec": {"volumes": [{"name": "root", "persistentVolumeClaim": claim}]}}));
        condition_when(&vmi, &Bindings::default(), true).reason.unwrap_or_default()
    };
    assert_eq!((told("ReadWriteMany").as_str(), told("ReadWriteOnce").as_str()), ("", REASON_DISKS));
}

#[test]
fn persistent_state_moves_with_any_claim() {
    let told = |mode: &str| {
        let kept = json!({"name": "persistent-state-for-this-vm", "target": "",
            "persistentVolumeClaimInfo": {"claimName": "kept", "accessModes": [mode]}});
        let vmi = instance(
            "ReadWriteMany",
            json!({
                "spec": {"domain": {"devices": {"disks": [], "tpm": {"persistent": true}}}, "volumes": []},
                "status": {"volumeStatus": [kept]},
            }),
        );
        condition_when(&vmi, &Bindings::default(), true).is_true()
    };
    assert!(told("ReadWriteMany") && told("ReadWriteOnce"));
}

#[test]
fn the_storage_condition_names_all_obstacles() {
    let vmi = instance(
        "ReadWriteMany",
        json!({"spec": {"domain": {
            "launchSecurity": {"sev": {}},
            "features": {"hypervPassthrough": {"enabled": true}},
        }}}),
    );
    let condition = storage_condition_when(&vmi, &Bindings::default(), true).unwrap();
    let message =
        "SEVNotLiveMigratable: VMI uses SEV, HypervPassthroughNotLiveMigratable: VMI uses hyperv passthrough";
    assert_eq!(told(&condition), ("False", "NotMigratable", message));
}

#[test]
fn a_binding_plugin_of_the_pod_network_moves_where_it_says_so() {
    let vmi = |name: &str| {
        let card = json!({"name": "default", "binding": {"name": name}});
        serde_json::from_value::<VirtualMachineInstance>(json!({
            "metadata": {},
            "spec": {"domain": {"devices": {"interfaces": [card]}}, "networks": [{"name": "default", "pod": {}}]},
        }))
        .unwrap()
    };
    let plugin = json!({"domainAttachmentType": "managedTap"});
    let moves = json!({"domainAttachmentType": "managedTap", "migration": {}});
    let spec = json!({"configuration": {"network": {"binding": {"stays": plugin, "moves": moves}}}});
    let settings = crate::settings::Settings::from_kubevirt(Some(&serde_json::from_value(spec).unwrap()));
    for (name, moves) in [("stays", false), ("moves", true), ("gone", false)] {
        assert_eq!(condition_when(&vmi(name), &settings.bindings, true).is_true(), moves, "{name}");
    }
}

#[test]
fn a_shared_directory_moves_where_its_claim_is_on_both_nodes() {
    let vmi = |source: Value, mode: &str| -> VirtualMachineInstance {
        let mut volume = source;
        volume["name"] = json!("shared");
        let info = json!({"claimName": "data", "accessModes": [mode]});
        serde_json::from_value(json!({
            "metadata": {"name": "vm"},
            "spec": {
                "domain": {"devices": {"filesystems": [{"name": "shared", "virtiofs": {}}]}},
                "volumes": [volume],
            },
            "status": {"volumeStatus": [{"name": "shared", "target": "", "persistentVolumeClaimInfo": info}]},
        }))
        .unwrap()
    };
    let claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
    let status = |vmi: VirtualMachineInstance| condition_when(&vmi, &Bindings::default(), true).status;
    assert_eq!(status(vmi(json!({"configMap": {"name": "a"}}), "")), "True");
    assert_eq!(status(vmi(claim.clone(), "ReadWriteMany")), "True");
    assert_eq!(status(vmi(claim, "ReadWriteOnce")), "False");
    assert_eq!(method_when_served(&vmi(json!({"configMap": {"name": "a"}}), "")), METHOD_LIVE);
}
