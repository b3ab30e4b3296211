use super::*;
use serde_json::{Value, json};

fn defaulted(spec: Value) -> Value {
    let mut instance: VirtualMachineInstance =
        serde_json::from_value(json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": spec})).unwrap();
    vmi(&mut instance);
    let once = serde_json::to_value(&instance.spec).unwrap();
    vmi(&mut instance);
    assert_eq!(once, serde_json::to_value(&instance.spec).unwrap(), "a second time changes nothing");
    once
}

#[test]
fn the_least_that_can_be_written() {
    let spec = defaulted(json!({
        "domain": {"devices": {}, "resources": {"requests": {"memory": "64M"}}},
        "volumes": [{"name": "root", "containerDisk": {"image": "guest:devel"}}],
    }));
    assert_eq!(
        spec,
        json!({
            "architecture": "amd64",
            "terminationGracePeriodSeconds": 30,
            "domain": {
                "cpu": {"sockets": 1, "cores": 1, "threads": 1, "model": "host-model"},
                "memory": {"guest": "64M"},
                "resources": {"requests": {"memory": "64M"}},
                "machine": {"type": "q35"},
                "firmware": {"uuid": identity::uuid("ns", "vm")},
                "features": {"acpi": {"enabled": true}},
                "devices": {
                    "disks": [{"name": "root", "disk": {"bus": "sata"}}],
                    "interfaces": [{"name": "default", "masquerade": {}}],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "containerDisk": {"image": "guest:devel", "imagePullPolicy": "IfNotPresent"}}],
        })
    );
}

#[test]
fn defaults_do_not_replace_given_values() {
    let given = json!({
        "architecture": "arm64",
        "terminationGracePeriodSeconds": 0,
        "domain": {
            "cpu": {"sockets": 2, "cores": 3, "threads": 4, "model": "Nehalem"},
            "memory": {"guest": "1Gi"},
            "machine": {"type": "pc-q35-9.0"},
            "firmware": {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223"},
            "features": {"acpi": {"enabled": false}},
            "devices": {
                "disks": [{"name": "a", "cdrom": {"bus": "scsi", "readonly": false, "tray": "open"}}, {"name": "b", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "x", "bridge": {}}],
            },
        },
        "networks": [{"name": "x", "pod": {}}],
        "volumes": [{"name": "a", "containerDisk": {"image": "g", "imagePullPolicy": "Never"}}],
    });
    assert_eq!(defaulted(given.clone()), given);
}

#[test]
fn cpus_come_from_resources_where_no_arrangement_is_given() {
    let cpu = |spec: Value| defaulted(spec)["domain"]["cpu"].clone();
    let sockets =
        |resources: Value| cpu(json!({"domain": {"devices": {}, "resources": resources}}))["sockets"].clone();
    assert_eq!(sockets(json!({"limits": {"cpu": "4"}, "requests": {"cpu": "2"}})), 4);
    assert_eq!(sockets(json!({"requests": {"cpu": "2500m"}})), 3);
    assert_eq!(sockets(json!({"requests": {"cpu": "100m"}})), 1);
    assert_eq!(sockets(json!({"requests": {"cpu": "0"}})), 1);
    assert_eq!(sockets(json!({"requests": {"cpu": "many"}})), 1);
    let with_cores =
        cpu(json!({"domain": {"devices": {}, "cpu": {"cores": 2}, "resources": {"limits": {"cpu": "4"}}}}));
    assert_eq!(with_cores, json!({"sockets": 1, "cores": 2, "threads": 1, "model": "host-model"}));
}

#[test]
fn a_cpu_limit_is_the_request_too() {
    let spec = defaulted(json!({"domain": {"devices": {}, "resources": {"limits": {"cpu": "2"}}}}));
    assert_eq!(spec["domain"]["resources"]["requests"]["cpu"], "2");
}

#[test]
fn guest_memory_comes_from_the_request_else_the_limit() {
    let guest = |resources: Value| {
        defaulted(json!({"domain": {"devices": {}, "resources": resources}}))["domain"]["memory"]["guest"]
            .clone()
    };
    assert_eq!(guest(json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}})), "1Gi");
    assert_eq!(guest(json!({"limits": {"memory": "2Gi"}})), "2Gi");
    assert_eq!(guest(json!({"requests": {"memory": "0"}, "limits": {"memory": "2Gi"}})), "2Gi");
    assert_eq!(guest(json!({})), Value::Null);
}

#[test]
fn a_moving_tag_is_always_pulled() {
    let policy = |image: &str| {
        let spec =
            json!({"domain": {"devices": {}}, "volumes": [{"name": "a", "containerDisk": {"image": image}}]});
        defaulted(spec)["volumes"][0]["containerDisk"]["imagePullPolicy"].clone()
    };
    for moving in ["guest", "guest:latest", "registry:5000/guest", "a.b/c/guest:latest"] {
        assert_eq!(policy(moving), "Always", "{moving}");
    }
    for fixed in
        ["guest:1", "registry:5000/guest:1", "guest@sha256:00", "localhost/barevirt/guest-tiny:devel"]
    {
        assert_eq!(policy(fixed), "IfNotPresent", "{fixed}");
    }
}

#[test]
fn the_pod_network_is_added_unless_anything_speaks_against_it() {
    let networks = |spec: Value| defaulted(spec)["networks"].clone();
    assert_eq!(networks(json!({"domain": {"devices": {}}})), json!([{"name": "default", "pod": {}}]));
    assert_eq!(networks(json!({"domain": {"devices": {"autoattachPodInterface": false}}})), Value::Null);
    assert_eq!(
        networks(json!({"domain": {"devices": {"interfaces": [{"name": "a", "masquerade": {}}]}}})),
        Value::Null
    );
    let spec = defaulted(json!({"domain": {"devices": {}}, "networks": [{"name": "a", "pod": {}}]}));
    assert_eq!(spec["domain"]["devices"].get("interfaces"), None);
}

#[test]
fn every_volume_has_a_disk() {
    let volumes = json!([{"name": "a", "emptyDisk": {"capacity": "1Gi"}}, {"name": "b", "emptyDisk": {"capacity": "1Gi"}}]);
    let disks = |given: Value| {
        let spec = json!({"domain": {"devices": {"disks": given}}, "volumes": volumes});
        defaulted(spec)["domain"]["devices"]["disks"].as_array().unwrap().len()
    };
    assert_eq!(disks(json!([])), 2);
    assert_eq!(disks(json!([{"name": "a"}])), 2);
    assert_eq!(disks(json!([{"name": "b"}, {"name": "a"}])), 2);
}

#[test]
fn an_instance_is_admitted_with_finalizer_and_first_status() {
    let mut instance: VirtualMachineInstance = serde_json::from_value(json!({
        "metadata": {"name": "vm", "namespace": "ns", "finalizers": ["mine"]},
        "spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}},
        "status": {"phase": "Running", "nodeName": "forged"},
    }))
    .unwrap();
    let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    admit_vmi(&mut instance, &GuestDefaults::default(), &now);
    admit_vmi(&mut instance, &GuestDefaults::default(), &now);
    assert_eq!(instance.metadata.finalizers.unwrap(), ["mine", names::VMI_FINALIZER]);
    assert_eq!(
        serde_json::to_value(instance.status).unwrap(),
        json!({
            "phase": "Pending", "runtimeUser": 107,
            "phaseTransitionTimestamps": [{"phase": "Pending", "phaseTransitionTimestamp": "1970-01-01T00:00:00Z"}],
            "currentCPUTopology": {"sockets": 1, "cores": 1, "threads": 1},
            "memory": {"guestAtBoot": "64Mi", "guestCurrent": "64Mi", "guestRequested": "64Mi"},
        })
    );
}

#[test]
fn a_generated_name_gives_no_uuid_yet() {
    let mut instance: VirtualMachineInstance = serde_json::from_value(json!({
        "metadata": {"generateName": "vm-", "namespace": "ns"}, "spec": {"domain": {"devices": {}}},
    }))
    .unwrap();
    vmi(&mut instance);
    assert_eq!(instance.spec.domain.firmware, None);
}

#[test]
fn a_machine_gets_what_must_stay_and_its_finalizer() {
    let mut machine: VirtualMachine = serde_json::from_value(json!({
        "metadata": {"name": "vm"},
        "spec": {"running": false, "template": {"spec": {"domain": {"devices": {}, "machine": {"type": ""}}}}},
    }))
    .unwrap();
    admit_vm(&mut machine, &GuestDefaults::default());
    admit_vm(&mut machine, &GuestDefaults::default());
    assert_eq!(machine.metadata.finalizers.as_deref(), Some(&[names::VM_FINALIZER.to_owned()][..]));
    assert_eq!(
        serde_json::to_value(&machine.spec.template.spec).unwrap(),
        json!({"architecture": "amd64", "domain": {"devices": {}, "machine": {"type": "q35"}}})
    );
}

#[test]
fn the_installation_chooses_machine_type_and_cpu_model() {
    let guest = GuestDefaults {
        machine_type: "pc-q35-9.2".into(),
        cpu_model: "Nehalem".into(),
        ..GuestDefaults::default()
    };
    let chosen = |given: Value| {
        let mut instance: VirtualMachineInstance =
            serde_json::from_value(json!({"metadata": {"name": "vm"}, "spec": {"domain": given}})).unwrap();
        admit_vmi(&mut instance, &guest, &Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        let domain = instance.spec.domain;
        (domain.machine.unwrap().type_.unwrap(), domain.cpu.unwrap().model.unwrap())
    };
    assert_eq!(chosen(json!({"devices": {}})), ("pc-q35-9.2".to_owned(), "Nehalem".to_owned()));
    let given = json!({"devices": {}, "machine": {"type": "q35"}, "cpu": {"model": "host-model"}});
    assert_eq!(chosen(given), ("q35".to_owned(), "host-model".to_owned()));
    let mut machine: VirtualMachine = serde_json::from_value(
        json!({"metadata": {}, "spec": {"template": {"spec": {"domain": {"devices": {}}}}}}),
    )
    .unwrap();
    admit_vm(&mut machine, &guest);
    // The CPU model may change from one run to the next, as nodes change; the machine type may not.
    let domain = machine.spec.template.spec.domain;
    assert_eq!(domain.machine.unwrap().type_.as_deref(), Some("pc-q35-9.2"));
    assert_eq!(domain.cpu, None);
}

#[test]
fn an_instance_keeps_the_installations_eviction_strategy() {
    let admitted = |cluster: Option<&str>, own: Option<&str>| {
        let mut spec = json!({"domain": {"devices": {}}});
        if let Some(own) = own {
            spec["evictionStrategy"] = json!(own);
        }
        let mut instance: VirtualMachineInstance =
            serde_json::from_value(json!({"metadata": {"name": "vm"}, "spec": spec})).unwrap();
        let guest =
            GuestDefaults { eviction_strategy: cluster.map(str::to_owned), ..GuestDefaults::default() };
        admit_vmi(&mut instance, &guest, &Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        instance.spec.eviction_strategy
    };
    assert_eq!(admitted(Some("LiveMigrate"), None).as_deref(), Some("LiveMigrate"));
    assert_eq!(admitted(Some("LiveMigrate"), Some("None")).as_deref(), Some("None"));
    assert_eq!(admitted(None, None), None);
}

#[test]
fn the_installation_chooses_the_binding_and_the_cpu_request() {
    let guest = GuestDefaults {
        cpu_request: Some(250),
        binding: crate::settings::Binding::Bridge,
        ..Default::default()
    };
    let chosen = |given: Value| {
        let mut given: VirtualMachineInstanceSpec =
            serde_json::from_value(json!({ "domain": given })).unwrap();
        super::chosen(&mut given, &guest);
        serde_json::to_value(given.domain).unwrap()
    };
    let domain = chosen(json!({"devices": {}}));
    assert_eq!(domain["devices"]["interfaces"], json!([{"name": "default", "bridge": {}}]));
    assert_eq!(domain["resources"]["requests"], json!({"cpu": "250m"}));
    let given = chosen(json!({"devices": {}, "resources": {"limits": {"cpu": "2"}}}));
    assert_eq!(given["resources"]["requests"], json!({"cpu": "2"}));
    let dedicated = chosen(json!({"devices": {}, "cpu": {"dedicatedCpuPlacement": true}}));
    assert_eq!(dedicated.get("resources"), None);
}

#[test]
fn a_cd_drive_is_closed_and_a_shared_directory_is_no_disk() {
    let spec = defaulted(json!({
        "domain": {"devices": {"filesystems": [{"name": "a", "virtiofs": {}}]}},
        "volumes": [{"name": "a", "configMap": {"name": "a"}}, {"name": "b", "configMap": {"name": "b"}}],
    }));
    assert_eq!(spec["domain"]["devices"]["disks"], json!([{"name": "b", "disk": {"bus": "sata"}}]));
    let spec = defaulted(json!({"domain": {"devices": {"disks": [{"name": "a", "cdrom": {}}]}}}));
    assert_eq!(
        spec["domain"]["devices"]["disks"][0]["cdrom"],
        json!({"bus": "sata", "readonly": true, "tray": "closed"})
    );
}

#[test]
fn an_even_number_of_cpus_is_the_installations_wish() {
    let kubevirt = |gates: Value| {
        serde_json::from_value(json!({"configuration": {"developerConfiguration": {"featureGates": gates}}}))
            .unwrap()
    };
    let annotations = [(names::EVEN_PARITY_ANNOTATION.to_owned(), String::new())].into();
    let annotated = |gates: Value, isolated: bool| {
        let settings =
            crate::settings::Settings::from_kubevirt(Some(&kubevirt(gates))).annotated(Some(&annotations));
        let mut instance =
            serde_json::from_value(json!({"metadata": {"name": "vm"}, "spec": {"domain": {"devices": {},
            "cpu": {"dedicatedCpuPlacement": true, "isolateEmulatorThread": isolated}}}}))
            .unwrap();
        admit_vmi(&mut instance, &settings.guest, &Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        instance.metadata.annotations
    };
    assert_eq!(annotated(json!(["AlignCPUs"]), true), Some(annotations.clone()));
    assert_eq!(annotated(json!(["AlignCPUs"]), false), None);
    assert_eq!(annotated(json!([]), true), None);
}
