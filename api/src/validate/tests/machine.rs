use super::*;

#[test]
fn machine_rules() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": right()["spec"]});
    let with_strategy = |more: Value| {
        let mut spec = json!({"template": template});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        vm(&machine(spec), Requester::User, &Gates::default())
    };
    for right in ["Always", "Halted", "Manual", "RerunOnFailure", "Once", "WaitAsReceiver"] {
        assert_eq!(with_strategy(json!({"runStrategy": right})), []);
    }
    assert_eq!(with_strategy(json!({"running": false})), []);
    for (more, field, message) in [
        (
            json!({"running": true, "runStrategy": "Always"}),
            "spec.running",
            "Running and RunStrategy are mutually exclusive",
        ),
        (json!({}), "spec.running", "RunStrategy must be specified"),
        (json!({"runStrategy": "Sometimes"}), "spec.runStrategy", "Invalid RunStrategy (Sometimes)"),
    ] {
        let causes = with_strategy(more);
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].field, field);
        assert!(causes[0].message.contains(message), "{causes:?}");
    }
}

#[test]
fn the_template_is_named_in_the_path_and_gets_defaults_first() {
    let spec = json!({
        "running": false,
        "template": {"spec": {
            "domain": {
                "devices": {"disks": [{"name": "a", "disk": {"bus": "virtio"}}, {"name": "a", "disk": {}}]},
                "resources": {"requests": {"memory": "64M"}}, "machine": {"type": ""},
            },
            "volumes": [{"name": "a", "containerDisk": {"image": "guest"}}],
        }},
    });
    let causes = vm(&machine(spec), Requester::User, &Gates::default());
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!(causes[0].field, "spec.template.spec.domain.devices.disks[1].name");
}

#[test]
fn a_machine_that_is_being_deleted_may_change() {
    let mut broken = machine(json!({"template": {"spec": {"domain": {"devices": {}}}}}));
    assert!(!vm_update(&broken, &broken, Requester::User, &Gates::default()).is_empty());
    broken.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    assert!(vm_update(&broken, &broken, Requester::User, &Gates::default()).is_empty());
}

/// All causes of a machine with this template and additional fields.
fn machine_with(more: Value, template: Value, gates: &Gates) -> Vec<Cause> {
    let mut spec = json!({"runStrategy": "Halted", "template": {"spec": template}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    vm(&machine(spec), Requester::User, gates)
}

#[test]
fn a_strategy_behind_a_gate() {
    let told = |gates: &Gates| {
        machine_with(json!({"runStrategy": "WaitAsReceiver"}), right()["spec"].clone(), gates)
            .into_iter()
            .map(|cause| (cause.field, cause.message))
            .collect::<Vec<_>>()
    };
    assert_eq!(told(&Gates::default()), []);
    let message = "Invalid RunStrategy (WaitAsReceiver), DecentralizedLiveMigration feature gate is not enabled in kubevirt resource";
    assert_eq!(
        told(&Gates::new([], ["DecentralizedLiveMigration".to_owned()])),
        [("spec.runStrategy".to_owned(), message.to_owned())]
    );
}

#[test]
fn volumes_are_updated_in_one_of_two_ways() {
    let told = |strategy: &str| {
        machine_with(json!({"updateVolumesStrategy": strategy}), right()["spec"].clone(), &Gates::default())
    };
    assert_eq!(
        told("Sometimes").remove(0).message,
        "spec.updateVolumesStrategy is set with an unrecognized option: Sometimes"
    );
    for strategy in ["", "Replacement", "Migration"] {
        assert!(told(strategy).is_empty(), "{strategy}");
    }
}

#[test]
fn rules_of_memory_that_grows() {
    let field = "spec.template.spec.domain.memory.guest";
    let grows = |memory: Value, changes: &[(&str, Value)]| {
        let object = with(with(right(), "/spec/domain/resources", json!({})), "/spec/domain/memory", memory);
        let object = changes.iter().fold(object, |object, (at, value)| with(object, at, value.clone()));
        machine_with(json!({}), object["spec"].clone(), &Gates::all())
    };
    for (memory, changes, message) in [
        (
            json!({"guest": "4Gi", "maxGuest": "2Gi"}),
            vec![],
            "Guest memory is greater than the configured maxGuest memory",
        ),
        (json!({"guest": "1025Mi", "maxGuest": "2Gi"}), vec![], "Guest memory must be 2Mi aligned"),
        (json!({"guest": "1Gi", "maxGuest": "2049Mi"}), vec![], "MaxGuest must be 2Mi aligned"),
        (
            json!({"guest": "1536Mi", "maxGuest": "2Gi", "hugepages": {"pageSize": "1Gi"}}),
            vec![],
            "Guest memory must be 1Gi aligned",
        ),
        (
            json!({"guest": "512Mi", "maxGuest": "2Gi"}),
            vec![],
            "Memory hotplug is only available for VMs with at least 1Gi of guest memory",
        ),
        (
            json!({"guest": "1Gi", "maxGuest": "2Gi"}),
            vec![("/spec/domain/cpu/realtime", json!({}))],
            "Memory hotplug is not compatible with realtime VMs",
        ),
        (
            json!({"guest": "1Gi", "maxGuest": "2Gi"}),
            vec![("/spec/domain/cpu/numa", json!({"guestMappingPassthrough": {}}))],
            "Memory hotplug is not compatible with guest mapping passthrough",
        ),
        (
            json!({"guest": "1Gi", "maxGuest": "2Gi"}),
            vec![("/spec/domain/launchSecurity", json!({}))],
            "Memory hotplug is not compatible with encrypted VMs",
        ),
        (
            json!({"guest": "1Gi", "maxGuest": "2Gi"}),
            vec![("/spec/architecture", json!("arm64"))],
            "Memory hotplug is only available for x86_64 VMs",
        ),
        (
            json!({"guest": "1Gi", "maxGuest": "-1"}),
            vec![],
            "Max guest memory must be configured when memory hotplug is enabled",
        ),
        (
            json!({"maxGuest": "2Gi"}),
            vec![],
            "Guest memory must be configured when memory hotplug is enabled",
        ),
    ] {
        let causes = grows(memory, &changes);
        let told = causes.iter().filter(|cause| cause.field == field).map(|cause| cause.message.as_str());
        assert!(told.clone().any(|told| told == message), "{message}: {causes:#?}");
    }
    let causes = grows(json!({"guest": "1Gi", "maxGuest": "2Gi"}), &[]);
    assert_eq!(causes, []);
    let causes = grows(json!({"guest": "1Gi", "maxGuest": "2Gi", "hugepages": {"pageSize": "2Mi"}}), &[]);
    assert!(causes.iter().any(|cause| cause.message.ends_with("is not supported yet with huge pages")));
}

#[test]
fn data_volume_template_rules() {
    let used = with(right(), "/spec/volumes/0", json!({"name": "root", "dataVolume": {"name": "dv"}}));
    let storage = json!({"resources": {"requests": {"storage": "1Gi"}}});
    let blank = json!({"blank": {}});
    let template = |name: Value, spec: Value| json!([{"metadata": {"name": name}, "spec": spec}]);
    let dv = |spec: Value| template(json!("dv"), spec);
    let field = "spec.dataVolumeTemplates[0]";
    let at = |member: &str| format!("{field}.{member}");
    for (templates, at, message) in [
        (
            template(json!(""), json!({"storage": storage, "source": blank})),
            at("metadata.name"),
            "'name' field must not be empty for DataVolumeTemplate entry",
        ),
        (
            template(json!("other"), json!({"storage": storage, "source": blank})),
            field.to_owned(),
            "DataVolumeTemplate entry spec.dataVolumeTemplates[0] must be referenced in the VMI template's 'volumes' list",
        ),
        (dv(json!({"source": blank})), at("spec"), "Missing Data volume PVC or Storage"),
        (
            dv(json!({"pvc": {}, "storage": storage, "source": blank})),
            at("spec"),
            "Duplicate storage definition, both target storage and target pvc defined",
        ),
        (
            dv(json!({"storage": storage})),
            at("spec.source"),
            "Data volume should have either Source, SourceRef, or be externally populated",
        ),
        (
            dv(json!({"pvc": {"dataSource": {"kind": "a", "name": "b"}}, "source": blank})),
            at("spec.source"),
            "External population is incompatible with Source and SourceRef",
        ),
        (dv(json!({"storage": storage, "source": {}})), at("spec.source"), "Missing dataVolume valid source"),
        (
            dv(json!({"storage": storage, "source": {"blank": {}, "upload": {}}})),
            at("spec.source"),
            "Multiple dataVolume sources",
        ),
        (
            json!([{"metadata": {"name": "dv", "namespace": "other"}, "spec": {"storage": storage, "source": blank}}]),
            field.to_owned(),
            "Embedded DataVolume namespace other differs from VM namespace default",
        ),
    ] {
        let more = json!({"dataVolumeTemplates": templates});
        let causes = machine_with(more, used["spec"].clone(), &Gates::default());
        let rules: Vec<&Cause> = causes.iter().filter(|cause| !is_refusal(cause)).collect();
        assert_eq!(rules.len(), 1, "{causes:#?}");
        assert_eq!(rules[0].field, at);
        assert!(rules[0].message.contains(message), "{causes:#?}");
    }
    let from = |origin: Value| {
        let mut spec = json!({"storage": storage});
        spec.as_object_mut().unwrap().extend(origin.as_object().unwrap().clone());
        machine_with(json!({"dataVolumeTemplates": dv(spec)}), used["spec"].clone(), &Gates::default())
    };
    let by = |kind: &str, namespace: Value, name: &str| json!({"kind": kind, "namespace": namespace, "name": name});
    for right in [
        json!({"source": blank}),
        json!({"source": {"pvc": {"namespace": "golden", "name": "image.x"}}}),
        json!({"source": {"snapshot": {"namespace": "", "name": "image"}}}),
        json!({"sourceRef": by("DataSource", Value::Null, "fedora")}),
        json!({"sourceRef": by("DataSource", json!("golden"), "fedora")}),
    ] {
        assert_eq!(from(right), []);
    }
    for (wrong, member) in [
        (json!({"source": {"pvc": {"namespace": "a/../b", "name": "image"}}}), "source.pvc.namespace"),
        (json!({"source": {"pvc": {"namespace": "a", "name": ""}}}), "source.pvc.name"),
        (json!({"source": {"snapshot": {"namespace": "a", "name": "x?y"}}}), "source.snapshot.name"),
        (json!({"sourceRef": by("Pod", Value::Null, "fedora")}), "sourceRef.kind"),
        (json!({"sourceRef": by("DataSource", json!("A"), "fedora")}), "sourceRef.namespace"),
        (json!({"sourceRef": by("DataSource", Value::Null, "../x")}), "sourceRef.name"),
        (json!({"source": blank, "sourceRef": by("DataSource", Value::Null, "fedora")}), "sourceRef"),
    ] {
        let fields: Vec<String> = from(wrong).into_iter().map(|cause| cause.field).collect();
        assert_eq!(fields, [at(&format!("spec.{member}"))]);
    }
    let one = dv(json!({"storage": storage, "source": blank}))[0].clone();
    let causes =
        machine_with(json!({"dataVolumeTemplates": [one, one]}), used["spec"].clone(), &Gates::default());
    let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
    assert_eq!(fields, ["spec.dataVolumeTemplates[1].metadata.name"]);
}

/// As in KubeVirt, the namespace of a template is checked when the template changes.
#[test]
fn unchanged_templates_are_not_validated_again() {
    let template = |size: &str| {
        json!([{"metadata": {"name": "dv", "namespace": "other"},
                "spec": {"storage": {"resources": {"requests": {"storage": size}}}, "source": {"blank": {}}}}])
    };
    let used = with(right(), "/spec/volumes/0", json!({"name": "root", "dataVolume": {"name": "dv"}}));
    let spec = |size: &str| json!({"running": true, "dataVolumeTemplates": template(size), "template": {"spec": used["spec"]}});
    let differs = |old: &str, new: &str| {
        vm_update(&machine(spec(old)), &machine(spec(new)), Requester::User, &Gates::default())
            .iter()
            .any(|cause| cause.message.contains("differs from VM namespace"))
    };
    assert!(!differs("1Gi", "1Gi"));
    assert!(differs("1Gi", "2Gi"));
}

#[test]
fn a_templates_annotations_are_validated() {
    let template = json!({"metadata": {"annotations": {"hooks.kubevirt.io/hookSidecars": "[]"}}, "spec": right()["spec"]});
    let causes =
        vm(&machine(json!({"running": true, "template": template})), Requester::User, &Gates::default());
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!(causes[0].field, "spec.template.metadata.annotations");
}

#[test]
fn a_machine_needs_a_template() {
    for spec in [json!({}), json!({"running": true, "template": null})] {
        let object =
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {}, "spec": spec});
        let cause = read::<VirtualMachine>(&object).unwrap_err();
        assert_eq!(cause.field, "spec.template");
        assert_eq!(cause.message, "missing virtual machine template.");
        assert_eq!(cause.kind.reason(), "FieldValueRequired");
    }
}

#[test]
fn a_value_of_another_type_is_refused_with_its_field() {
    let disks = json!([{"name": "a"}, {"name": "b", "bootOrder": "first"}]);
    let spec = json!({"domain": {"devices": {"disks": disks}}});
    let object = json!({"kind": "VirtualMachine", "metadata": {}, "spec": {"template": {"spec": spec}}});
    let cause = read::<VirtualMachine>(&object).unwrap_err();
    assert_eq!(cause.field, "spec.template.spec.domain.devices.disks[1].bootOrder");
    assert!(cause.message.contains("invalid type: string"), "{}", cause.message);
}
