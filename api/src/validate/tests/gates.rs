use super::*;

fn at(changes: &[(&str, Value)]) -> Value {
    changes.iter().fold(right(), |object, (pointer, value)| with(object, pointer, value.clone()))
}

fn off(gate: &str) -> Gates {
    Gates::new([], [gate.to_owned()])
}

/// For each gate: changes that need it, the field and message while it is off, and the field that is not
/// supported yet while it is on.
#[test]
fn a_disabled_gate_is_named_and_an_enabled_one_reports_the_missing_feature() {
    let devices = "/spec/domain/devices";
    let under = |member: &str| format!("{devices}/{member}");
    let interface = |member: &str| format!("{devices}/interfaces/0/{member}");
    let claim = json!({"name": "a", "claimName": "c", "requestName": "r"});
    let claims = ("/spec/resourceClaims".to_owned(), json!([{"name": "c", "resourceClaimName": "c"}]));
    let efi = ("/spec/domain/firmware".to_owned(), json!({"bootloader": {"efi": {"secureBoot": false}}}));
    let not_bootable = (interface("bootOrder"), Value::Null);
    let shared = (under("filesystems"), json!([{"name": "p", "virtiofs": {}}]));
    let security = |kind: &str| ("/spec/domain/launchSecurity".to_owned(), json!({kind: {}}));
    let rows = [
        (
            "HostDisk",
            vec![(
                "/spec/volumes/0".to_owned(),
                json!({"name": "root", "hostDisk": {"path": "/a", "type": "Disk"}}),
            )],
            "spec.volumes[0]",
            "HostDisk feature gate is not enabled",
            "",
        ),
        (
            "DownwardMetrics",
            vec![("/spec/volumes/0".to_owned(), json!({"name": "root", "downwardMetrics": {}}))],
            "spec.volumes[0]",
            "downwardMetrics disks are not allowed: DownwardMetrics feature gate is not enabled.",
            "",
        ),
        (
            "DownwardMetrics",
            vec![(under("downwardMetrics"), json!({}))],
            "spec.domain.devices.downwardMetrics",
            "downwardMetrics virtio serial is not allowed: DownwardMetrics feature gate is not enabled",
            "",
        ),
        (
            "HostDevices",
            vec![(under("hostDevices"), json!([{"name": "a", "deviceName": "x/y"}]))],
            "spec.domain.devices.hostDevices",
            "Host Devices feature gate is not enabled in kubevirt-config: HostDevices",
            "",
        ),
        (
            "HostDevicesWithDRA",
            vec![(under("hostDevices"), json!([claim])), claims.clone()],
            "spec.domain.devices.hostDevices",
            "vmi.spec.domain.devices.hostDevices contains DRA enabled HostDevices but feature gate is not enabled: HostDevicesWithDRA",
            "spec.domain.devices.hostDevices[0].claimName",
        ),
        (
            "GPUsWithDRA",
            vec![(under("gpus"), json!([claim])), claims.clone()],
            "spec.domain.devices.gpus",
            "vmi.spec.domain.devices.gpus contains DRA enabled GPUs but feature gate is not enabled: GPUsWithDRA",
            "spec.domain.devices.gpus[0].claimName",
        ),
        (
            "NetworkDevicesWithDRA",
            vec![
                (
                    "/spec/networks/0".to_owned(),
                    json!({"name": "default", "resourceClaim": {"claimName": "c", "requestName": "r"}}),
                ),
                (under("interfaces"), json!([{"name": "default", "sriov": {}}])),
                claims,
            ],
            "spec.networks",
            "vmi.spec.networks contains DRA networks but NetworkDevicesWithDRA feature gate is not enabled",
            "spec.networks[0].resourceClaim",
        ),
        (
            "VSOCK",
            vec![(under("autoattachVSOCK"), json!(true))],
            "spec.domain.devices.autoattachVSOCK",
            "VSOCK feature gate is not enabled in kubevirt-config",
            "",
        ),
        (
            "RebootPolicy",
            vec![("/spec/domain/rebootPolicy".to_owned(), json!("Terminate"))],
            "spec.domain.rebootPolicy",
            "RebootPolicy is specified but the RebootPolicy feature gate is not enabled",
            "",
        ),
        (
            "ReservedOverheadMemlock",
            vec![("/spec/domain/memory/reservedOverhead".to_owned(), json!({"addedOverhead": "1Mi"}))],
            "spec.domain.memory.reservedOverhead",
            "Reserved overhead memlock feature gate is not enabled in kubevirt-config: ReservedOverheadMemlock",
            "spec.domain.memory.reservedOverhead",
        ),
        (
            "PasstBinding",
            vec![
                (interface("masquerade"), Value::Null),
                (interface("dhcpOptions"), Value::Null),
                (interface("passtBinding"), json!({})),
            ],
            "spec.domain.devices.interfaces[0].name",
            "PasstBinding feature gate is not enabled",
            "",
        ),
        (
            "PortRangesSpec",
            vec![
                (interface("ports"), json!([])),
                (interface("portRanges"), json!([{"protocol": "TCP", "start": 1, "end": 2}])),
            ],
            "spec.domain.devices.interfaces[0].name",
            "portRanges is specified on interface but the PortRangesSpec feature gate is not enabled",
            "",
        ),
        (
            "WorkloadEncryptionSEV",
            vec![security("sev"), efi.clone(), not_bootable.clone()],
            "spec.domain.launchSecurity",
            "WorkloadEncryptionSEV feature gate is not enabled in kubevirt-config",
            "spec.domain.launchSecurity",
        ),
        (
            "WorkloadEncryptionSEV",
            vec![security("snp"), efi.clone(), not_bootable.clone()],
            "spec.domain.launchSecurity",
            "WorkloadEncryptionSEV feature gate is not enabled in kubevirt-config",
            "spec.domain.launchSecurity",
        ),
        (
            "WorkloadEncryptionTDX",
            vec![security("tdx"), efi, not_bootable],
            "spec.domain.launchSecurity",
            "WorkloadEncryptionTDX feature gate is not enabled in kubevirt-config",
            "spec.domain.launchSecurity",
        ),
        (
            "ContainerPathVolumes",
            vec![
                ("/spec/volumes/-".to_owned(), json!({"name": "p", "containerPath": {"path": "/p"}})),
                shared.clone(),
            ],
            "spec.volumes[3].containerPath",
            "VMI has ContainerPath volumes but the ContainerPathVolumes feature gate is disabled",
            "",
        ),
        (
            "EnableVirtioFsStorageVolumes",
            vec![
                (
                    "/spec/volumes/-".to_owned(),
                    json!({"name": "p", "persistentVolumeClaim": {"claimName": "p"}}),
                ),
                shared,
            ],
            "spec.domain.devices.filesystems",
            "virtiofs is not allowed: virtiofs feature gate is not enabled for PVC: EnableVirtioFsStorageVolumes",
            "",
        ),
    ];
    for (gate, changes, field, message, refused) in rows {
        let changes: Vec<(&str, Value)> =
            changes.iter().map(|(at, value)| (at.as_str(), value.clone())).collect();
        let object = at(&changes);
        // Every other gate is on, so that this one alone decides.
        let all = crate::gates::GATES.iter().map(|(name, _)| (*name).to_owned());
        let closed = causes_with(&object, &Gates::new(all.filter(|name| name != gate), [gate.to_owned()]));
        let told: Vec<(&str, &str)> = rules_of(&closed)
            .into_iter()
            .map(|cause| (cause.field.as_str(), cause.message.as_str()))
            .collect();
        assert_eq!(told, [(field, message)], "{gate} off");
        assert!(message.contains(gate));
        assert!(
            !closed.iter().any(|cause| cause.field == refused && is_refusal(cause)),
            "{gate} off: {closed:?}"
        );
        let open = causes_with(&object, &Gates::all());
        assert!(open.iter().all(is_refusal), "{gate} on: {open:?}");
        // An empty `refused` says that the field has an effect while the gate is on.
        let told = open.iter().any(|cause| cause.field == refused);
        assert!(told || (refused.is_empty() && open.is_empty()), "{gate} on: {open:?}");
    }
}

#[test]
fn utility_volumes_are_never_there_from_the_start() {
    let object = at(&[("/spec/utilityVolumes", json!([{"name": "u", "claimName": "u"}]))]);
    let message = |gates: &Gates| causes_with(&object, gates).remove(0).message;
    assert_eq!(message(&Gates::default()), "UtilityVolumes feature gate is not enabled");
    assert!(message(&Gates::all()).contains("can only be added via hotplug"));
}

#[test]
fn an_empty_drive_has_a_gate() {
    let object = at(&[("/spec/domain/devices/disks/-", json!({"name": "none", "cdrom": {}}))]);
    let causes = causes_with(&object, &off("DeclarativeHotplugVolumes"));
    assert_eq!(causes.len(), 1);
    assert_eq!(causes[0].field, "spec.domain.devices.disks[3].name");
    assert_eq!(
        causes[0].message,
        "DeclarativeHotplugVolumes feature gate not enabled, cannot define an empty CD-ROM disk"
    );
    assert_eq!(causes_with(&object, &Gates::default()), []);
}

#[test]
fn annotations_whose_features_are_not_built_are_refused_by_name() {
    for annotation in
        ["kubevirt.io/keep-launcher-alive-after-failure", "kubevirt.io/func-test-memory-hotplug-fail"]
    {
        let told = |value: &str| {
            let object = instance(at(&[("/metadata/annotations", json!({annotation: value}))]));
            let causes = vmi_create(&object, Requester::User, &Gates::all());
            causes.into_iter().map(|cause| (cause.field, cause.message)).collect::<Vec<_>>()
        };
        let message = format!("metadata.annotations {annotation} is not supported yet");
        let refused = [("metadata.annotations".to_owned(), message)];
        assert_eq!([told("true"), told("")], [refused.to_vec(), refused.to_vec()]);
        assert_eq!(told("false"), []);
    }
}

#[test]
fn annotations_have_gates_too() {
    for (annotation, gate, is_built, message) in [
        (
            "kubevirt.io/ignitiondata",
            "ExperimentalIgnitionSupport",
            true,
            "ExperimentalIgnitionSupport feature gate is not enabled in kubevirt-config, invalid entry metadata.annotations.kubevirt.io/ignitiondata",
        ),
        (
            "hooks.kubevirt.io/hookSidecars",
            "Sidecar",
            false,
            "sidecar feature gate is not enabled in kubevirt-config: Sidecar, invalid entry metadata.annotations.hooks.kubevirt.io/hookSidecars",
        ),
    ] {
        let object = instance(at(&[("/metadata/annotations", json!({annotation: "x"}))]));
        let told = |gates: &Gates| {
            let causes = vmi_create(&object, Requester::User, gates);
            causes.into_iter().map(|cause| (cause.field, cause.message)).collect::<Vec<_>>()
        };
        let of = |message: String| vec![("metadata.annotations".to_owned(), message)];
        assert_eq!(told(&off(gate)), of(message.to_owned()));
        let unbuilt = format!("metadata.annotations {annotation} is not supported yet");
        assert_eq!(told(&Gates::all()), if is_built { vec![] } else { of(unbuilt) });
    }
}
