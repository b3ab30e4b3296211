use super::*;
use crate::migrations::row::Row;
use crate::pod;
use barevirt_component::metrics::names::is_exported;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

fn given(labels: Labels<'_>) -> String {
    let given = labels.into_iter().filter(|(_, value)| !value.is_empty());
    given.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn machine() -> VirtualMachine {
    serde_json::from_value(json!({
        "metadata": {
            "name": "web", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"tier": "front"},
        },
        "spec": {"instancetype": {"name": "small"}, "template": {
            "metadata": {"annotations": {"vm.kubevirt.io/os": "debian13"}},
            "spec": {
                "domain": {
                    "devices": {"interfaces": [{"name": "default", "masquerade": {}}, {"name": "none"}]},
                    "machine": {"type": "q35"}, "cpu": {"cores": 2}, "memory": {"guest": "64Mi"},
                    "resources": {"requests": {"cpu": "1500m"}, "limits": {"memory": "1Gi"}},
                },
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": "web-data"}},
                    {"name": "logs", "persistentVolumeClaim": {"claimName": "none"}},
                ],
            }}},
        "status": {"printableStatus": "Paused", "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:01:40Z"},
            {"type": "Paused", "status": "True", "lastTransitionTime": "1970-01-01T00:02:00Z"},
            {"type": "Other", "status": "True", "lastTransitionTime": "2026-01-01T00:02:00Z"},
        ]},
    }))
    .unwrap()
}

fn instance(phase: &str, timestamps: Value) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"vm.kubevirt.io/os": "quote\" and\nline"},
        },
        "spec": {"domain": {"devices": {"autoattachGraphicsDevice": false}, "memory": {"guest": "64Mi"}}},
        "status": {
            "phase": phase, "nodeName": "one", "guestOSInfo": {"name": "Debian"},
            "interfaces": [
                {"name": "default", "ipAddress": "10.1.2.3", "interfaceName": "eth0"}, {"interfaceName": "docker0"}, {},
                {"interfaceName": "docker0"},
            ],
            "phaseTransitionTimestamps": timestamps,
        },
    }))
    .unwrap()
}

#[test]
fn a_machine() {
    let row = MachineRow::of(&machine());
    assert_eq!(
        given(row.labels("shop", &Vended::default())),
        "os=debian13 machine_type=q35 instance_type=<other> status=paused status_group=non_running"
    );
    assert_eq!((row.changed("non_running"), row.changed("error")), (120.0, 0.0));
    assert_eq!((row.vnics.len(), &*row.vnics[0].network), (1, "pod networking"));
    assert!(row.resources.is_none(), "what an instance type gives is not in the machine");
    let nothing = MachineRow::of(&VirtualMachine::default());
    assert_eq!(given(nothing.labels("shop", &Vended::default())), "status_group=<unknown>");
    assert_eq!(nothing.changed("error"), -1.0);
}

#[test]
fn resources_of_a_machine() {
    let mut machine = machine();
    machine.spec.instancetype = None;
    let resources = MachineRow::of(&machine).resources.unwrap();
    let mib = 1_048_576.0;
    assert_eq!(
        resources.requests,
        [
            ("memory", "bytes", "guest", 64.0 * mib),
            ("memory", "bytes", "guest_effective", 64.0 * mib),
            ("cpu", "cores", "domain", 2.0),
            ("cpu", "cores", "requests", 1.5),
            ("cpu", "cores", "guest_effective", 2.0),
        ]
    );
    assert_eq!(resources.limits, [("memory", "bytes", 1024.0 * mib)]);
}

#[test]
fn what_an_instance_type_gives_is_read_from_the_instance() {
    let inventory = Inventory::default();
    let mut metrics = Metrics::default();
    inventory.export(&mut metrics);
    inventory.lead();
    let memory = |inventory: &Inventory, instance: &VirtualMachineInstance| {
        inventory.saw_instance(instance);
        let text = metrics.text();
        let wanted = |line: &&str| {
            line.starts_with("kubevirt_vm_resource_requests{") && line.contains(r#"source="guest""#)
        };
        text.lines().filter(wanted).map(str::to_owned).collect::<Vec<_>>()
    };
    inventory.saw_machine(&machine());
    let mut running = instance("Running", json!([]));
    assert!(memory(&inventory, &running).is_empty(), "no instance type was applied to it");
    let annotations = running.metadata.annotations.get_or_insert_default();
    annotations.insert("kubevirt.io/cluster-instancetype-name".to_owned(), "small".to_owned());
    assert_eq!(
        memory(&inventory, &running),
        [
            r#"kubevirt_vm_resource_requests{namespace="shop",name="web",resource="memory",unit="bytes",source="guest"} 67108864.0"#
        ]
    );
}

#[test]
fn an_instance() {
    let pod = pod::name("web", "u");
    let row = |phase| InstanceRow::of(&instance(phase, json!([])), &Default::default());
    let running = row("Running");
    assert_eq!(
        given(running.labels("shop", None, &Vended::default())),
        format!(
            "node=one phase=running os=quote\" and\nline guest_os_name=Debian evictable=true outdated=false vmi_pod={pod}"
        )
    );
    assert!(
        given(running.labels("shop", Some("LiveMigrate"), &Vended::default())).contains("evictable=false")
    );
    assert!(!given(row("Pending").labels("shop", None, &Vended::default())).contains("vmi_pod"));
    assert_eq!(running.overhead, Some(f64::from((8 + 48 + 8 + 1) << 20)));
    let addresses: Vec<String> = running.addresses().map(|labels| given(labels.into())).collect();
    assert_eq!(
        addresses,
        [
            "node=one interface_name=docker0 type=SystemInterface",
            "node=one vnic_name=default interface_name=eth0 address=10.1.2.3 type=ExternalInterface",
        ]
    );
}

#[test]
fn only_the_leader_exports_metrics_and_deleted_objects_have_none() {
    let inventory = Inventory::default();
    let mut metrics = Metrics::default();
    inventory.export(&mut metrics);
    let at = |phase: &str, second: u32| json!({"phase": phase, "phaseTransitionTimestamp": format!("2026-01-01T00:00:{second:02}Z")});
    inventory.saw_machine(&machine());
    inventory.saw_instance(&instance("Scheduled", json!([at("Scheduled", 3)])));
    assert!(!metrics.text().contains("kubevirt_vmi_info"));
    let claim = json!({
        "metadata": {"name": "web-data", "namespace": "shop"},
        "spec": {"volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Ki"}}},
    });
    locked(&inventory.0.claims).saw(&Event::Apply(serde_json::from_value(claim).unwrap()));
    let migration = |name: &str, phase: &str| {
        Row::of(
            &serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "shop", "uid": name}, "spec": {"vmiName": "web"},
                "status": {"phase": phase},
            }))
            .unwrap(),
        )
    };
    inventory.migrations().saw("shop", "old", migration("old", "Failed"), None);
    inventory.migrations().saw("shop", "new", migration("new", "Running"), None);
    inventory.lead();
    inventory.saw_instance(&instance("Running", json!([at("Scheduled", 3), at("Running", 7)])));
    // Reported again, as watches do: no second transition.
    inventory.saw_instance(&instance("Running", json!([at("Scheduled", 3), at("Running", 7)])));
    let text = metrics.text();
    let lines = |wanted: &str| text.lines().filter(|line| line.starts_with(wanted)).collect::<Vec<_>>();
    assert_eq!(lines("kubevirt_vmi_info{").len(), 1, "{text}");
    assert_eq!(lines("kubevirt_vm_vnic_info{").len(), 1, "{text}");
    assert_eq!(
        lines("kubevirt_vm_labels{"),
        [r#"kubevirt_vm_labels{namespace="shop",name="web",label_tier="front"} 1.0"#]
    );
    assert_eq!(
        lines("kubevirt_vm_disk_allocated_size_bytes{"),
        [
            r#"kubevirt_vm_disk_allocated_size_bytes{namespace="shop",name="web",persistentvolumeclaim="web-data",volume_mode="Filesystem",device="data"} 1024.0"#
        ]
    );
    assert_eq!(lines("kubevirt_vmi_status_addresses{").len(), 2, "{text}");
    assert_eq!(
        lines("kubevirt_vm_non_running_status_last_transition_timestamp_seconds{"),
        [
            r#"kubevirt_vm_non_running_status_last_transition_timestamp_seconds{namespace="shop",name="web"} 120.0"#
        ]
    );
    assert_eq!(
        lines("kubevirt_vmi_phase_transition_time_seconds_sum"),
        [r#"kubevirt_vmi_phase_transition_time_seconds_sum{phase="Running",last_phase="Scheduled"} 4.0"#]
    );
    let from_creation = lines("kubevirt_vmi_phase_transition_time_from_creation_seconds_bucket");
    assert!(
        from_creation.iter().any(|line| line.contains(r#"le="10.0",phase="Running"} 1"#)),
        "{from_creation:?}"
    );
    assert_eq!(
        lines("kubevirt_vmi_migrations_in_running_phase"),
        ["kubevirt_vmi_migrations_in_running_phase 1.0"]
    );
    assert_eq!(
        lines("kubevirt_vmi_migration_failed{"),
        [r#"kubevirt_vmi_migration_failed{namespace="shop",vmi="web",vmim="old"} 1.0"#]
    );
    assert!(lines("kubevirt_vmi_migration_succeeded{").is_empty());
    for name in barevirt_component::metrics::names_in(&text) {
        assert!(is_exported(&name), "{name}");
    }
    inventory.machine_gone("shop", "web");
    inventory.instance_gone("shop", "web");
    let text = metrics.text();
    assert!(
        !text
            .lines()
            .any(|line| line.starts_with("kubevirt_vm_info{") || line.starts_with("kubevirt_vmi_info{"))
    );
}

#[test]
fn phases_of_migrations_are_timed_from_their_creation() {
    let inventory = Inventory::default();
    let mut metrics = Metrics::default();
    inventory.export(&mut metrics);
    inventory.lead();
    let see = |phase: &str| {
        let object: VirtualMachineInstanceMigration = serde_json::from_value(json!({
            "metadata": {"name": "m", "namespace": "shop", "uid": "m", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"vmiName": "web"},
            "status": {"phase": phase, "phaseTransitionTimestamps": [
                {"phase": "Pending", "phaseTransitionTimestamp": "2026-01-01T00:00:01Z"},
                {"phase": "TargetReady", "phaseTransitionTimestamp": "2026-01-01T00:00:07Z"},
            ]},
        }))
        .unwrap();
        inventory.saw_migration(&object);
        inventory.migrations().saw("shop", "m", Row::of(&object), None);
    };
    // Nothing is known about the first phase that is seen, and a watch reports a phase several times.
    for phase in ["Pending", "TargetReady", "TargetReady"] {
        see(phase);
    }
    let text = metrics.text();
    let lines = |wanted: &str| text.lines().filter(|line| line.starts_with(wanted)).collect::<Vec<_>>();
    let name = "kubevirt_vmi_migration_phase_transition_time_from_creation_seconds";
    assert_eq!(lines(&format!("{name}_sum")), [format!("{name}_sum{{phase=\"TargetReady\"}} 7.0")]);
    assert_eq!(lines(&format!("{name}_count")), [format!("{name}_count{{phase=\"TargetReady\"}} 1")]);
    // KubeVirt counts a migration as running once its target pod runs.
    assert_eq!(
        lines("kubevirt_vmi_migrations_in_"),
        [
            "kubevirt_vmi_migrations_in_unset_phase 0.0",
            "kubevirt_vmi_migrations_in_pending_phase 0.0",
            "kubevirt_vmi_migrations_in_scheduling_phase 0.0",
            "kubevirt_vmi_migrations_in_running_phase 1.0",
        ]
    );
}

#[test]
fn the_last_migration_of_an_instance_has_its_times_and_its_name() {
    let inventory = Inventory::default();
    let mut metrics = Metrics::default();
    inventory.export(&mut metrics);
    inventory.lead();
    let migration: VirtualMachineInstanceMigration = serde_json::from_value(json!({
        "metadata": {"name": "m", "namespace": "shop", "uid": "m-1"}, "spec": {"vmiName": "web"},
    }))
    .unwrap();
    inventory.migrations().saw("shop", "m", Row::of(&migration), None);
    let lines = |state: Value| {
        let mut moved = instance("Running", json!([]));
        moved.status.as_mut().unwrap().migration_state = Some(serde_json::from_value(state).unwrap());
        inventory.saw_instance(&moved);
        let text = metrics.text();
        let wanted =
            ["kubevirt_vmi_migration_start_time_seconds{", "kubevirt_vmi_migration_end_time_seconds{"];
        text.lines()
            .filter(|line| wanted.iter().any(|name| line.starts_with(name)))
            .map(|line| line.trim_start_matches("kubevirt_vmi_migration_").to_owned())
            .collect::<Vec<_>>()
    };
    let own = r#"namespace="shop",name="web",node="one""#;
    let begun = "1970-01-01T00:01:40Z";
    assert_eq!(
        lines(json!({"migrationUid": "m-1", "startTimestamp": begun})),
        [format!("start_time_seconds{{{own},migration_name=\"m\"}} 100.0")]
    );
    for (failed, status) in [(false, "succeeded"), (true, "failed")] {
        let ended = "1970-01-01T00:01:45Z";
        let state = json!({
            "migrationUid": "other", "startTimestamp": begun, "endTimestamp": ended, "completed": true, "failed": failed,
        });
        assert_eq!(
            lines(state),
            [
                format!("start_time_seconds{{{own},migration_name=\"<none>\"}} 100.0"),
                format!("end_time_seconds{{{own},migration_name=\"<none>\",status=\"{status}\"}} 105.0"),
            ]
        );
    }
    assert!(lines(json!({})).is_empty());
}
