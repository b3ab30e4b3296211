//! One row for each rule: what is changed in a right object, and the one cause that follows beside the refusal of the kind.

use super::*;
use crate::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use crate::validate::{CauseKind, Requester};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Pointer, value (`null` takes the member away), field of the cause, part of its message.
type Row = (&'static str, Value, &'static str, &'static str);

fn read<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{object}: {error}"))
}

/// The object with the value at the pointer; missing parents are made.
fn with(object: &Value, pointer: &str, value: &Value) -> Value {
    let mut object = object.clone();
    let mut at = &mut object;
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    for step in parent.split('/').skip(1) {
        at = match at {
            Value::Array(items) => &mut items[step.parse::<usize>().unwrap()],
            other => &mut other[step],
        };
    }
    match (at, value) {
        (Value::Object(members), Value::Null) => drop(members.remove(last)),
        (at, value) => at[last] = value.clone(),
    }
    object
}

/// The right object gives only the refusals `always`, and each row one cause before them.
fn check<T: DeserializeOwned>(
    rules: impl Fn(&T) -> Vec<Cause>,
    right: &Value,
    always: &[&str],
    rows: Vec<Row>,
) {
    let messages =
        |causes: &[Cause]| -> Vec<String> { causes.iter().map(|cause| cause.message.clone()).collect() };
    assert_eq!(messages(&rules(&read(right))), always);
    for (pointer, value, field, message) in rows {
        let causes = rules(&read(&with(right, pointer, &value)));
        assert_eq!(causes.len(), always.len() + 1, "{pointer} {value}: {causes:#?}");
        assert_eq!(causes[0].field, field, "{pointer} {value}: {causes:#?}");
        assert!(causes[0].message.contains(message), "{pointer} {value}: {causes:#?}");
    }
}

fn on(gates: &[&str]) -> Gates {
    Gates::new(gates.iter().map(|gate| (*gate).to_owned()), [])
}

fn off(gates: &[&str]) -> Gates {
    Gates::new([], gates.iter().map(|gate| (*gate).to_owned()))
}

fn template() -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}},
            "volumes": [{"name": "root", "containerDisk": {"image": "guest"}}],
        },
    })
}

fn source(group: &str, kind: &str) -> Value {
    json!({"apiGroup": group, "kind": kind, "name": "web"})
}

#[test]
fn replica_sets() {
    let right = json!({
        "metadata": {"name": "a"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template()},
    });
    let create = |set: &crate::v1::VirtualMachineInstanceReplicaSet| {
        replica_set::create(set, Requester::User, &Gates::default())
    };
    check(
        create,
        &right,
        &[],
        vec![
            (
                "/spec/selector/matchLabels/app",
                json!("db"),
                "spec.selector",
                "selector does not match labels.",
            ),
            ("/spec/template/metadata", Value::Null, "spec.selector", "selector does not match labels."),
            (
                "/spec/selector/matchExpressions",
                json!([{"key": "a", "operator": "Near", "values": ["b"]}]),
                "spec.selector",
                "\"Near\" is not a valid label selector operator",
            ),
            (
                "/spec/selector/matchExpressions",
                json!([{"key": "a", "operator": "In"}]),
                "spec.selector",
                "values set can't be empty",
            ),
            (
                "/spec/selector/matchExpressions",
                json!([{"key": "app", "operator": "NotIn", "values": ["web"]}]),
                "spec.selector",
                "selector does not match labels.",
            ),
            (
                "/spec/template/spec/domain/devices/disks/0/disk/bus",
                json!("tape"),
                "spec.template.spec.domain.devices.disks[0].disk.bus",
                "tape",
            ),
            (
                "/spec/template/metadata/labels",
                json!({"app": "web", "kubevirt.io/nodeName": "node01"}),
                "spec.template.metadata.labels",
                "creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited",
            ),
            ("/spec/replicas", json!(-1), "spec.replicas", "must be greater than or equal to 0"),
        ],
    );
    let expressions = json!([
        {"key": "app", "operator": "In", "values": ["web", "db"]}, {"key": "app", "operator": "Exists"},
        {"key": "b", "operator": "DoesNotExist"}, {"key": "b", "operator": "NotIn", "values": ["c"]},
    ]);
    check(create, &with(&right, "/spec/selector/matchExpressions", &expressions), &[], vec![]);
    let old = read(&right);
    check(
        |new| replica_set::update(&old, new, Requester::User, &Gates::default()),
        &with(&right, "/spec/replicas", &json!(3)),
        &[],
        vec![("/spec/selector/matchLabels/app", json!("db"), "spec.selector", "does not match labels")],
    );
    let wrong = read(&with(&right, "/spec/selector/matchLabels/app", &json!("db")));
    assert_eq!(replica_set::update(&wrong, &wrong, Requester::User, &Gates::default()), []);
}

#[test]
fn pools() {
    let right = json!({
        "metadata": {"name": "a"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "virtualMachineTemplate": {
                "metadata": {"labels": {"app": "web"}}, "spec": {"runStrategy": "Always", "template": template()},
            },
        },
    });
    let create =
        |pool: &crate::pool::VirtualMachinePool| pool::create(pool, Requester::User, &Gates::default());
    check(
        create,
        &right,
        &[],
        vec![
            (
                "/spec/selector/matchLabels/app",
                json!("db"),
                "spec.selector",
                "selector does not match labels.",
            ),
            (
                "/spec/virtualMachineTemplate/spec/runStrategy",
                json!("Sometimes"),
                "spec.virtualMachineTemplate.spec.runStrategy",
                "Sometimes",
            ),
            (
                "/spec/virtualMachineTemplate/spec/template/spec/domain/devices/disks/0/disk/bus",
                json!("tape"),
                "spec.virtualMachineTemplate.spec.template.spec.domain.devices.disks[0].disk.bus",
                "tape",
            ),
            (
                "/spec/virtualMachineTemplate/spec",
                Value::Null,
                "spec.virtualMachineTemplate.spec.template",
                "missing virtual machine template.",
            ),
            (
                "/spec/maxUnavailable",
                json!(0),
                "spec.maxUnavailable",
                "maxUnavailable must be greater than 0",
            ),
            ("/spec/maxUnavailable", json!("5"), "spec.maxUnavailable", "percentage must end with %"),
            ("/spec/maxUnavailable", json!("x%"), "spec.maxUnavailable", "is invalid"),
            ("/spec/maxUnavailable", json!("101%"), "spec.maxUnavailable", "101 must be between 1 and 100"),
            ("/spec/maxUnavailable", json!("0%"), "spec.maxUnavailable", "0 must be between 1 and 100"),
            (
                "/spec/updateStrategy",
                json!({"unmanaged": {}, "proactive": {}}),
                "spec.updateStrategy",
                "only one strategy can be configured at a time: but found unmanaged, proactive strategies",
            ),
            (
                "/spec/scaleInStrategy",
                json!({"opportunistic": {}, "proactive": {}}),
                "spec.scaleInStrategy",
                "found opportunistic, proactive strategies",
            ),
            (
                "/spec/scaleInStrategy",
                json!({"proactive": {"statePreservation": "Online"}}),
                "spec.scaleInStrategy.proactive.statePreservation",
                "is not supported yet",
            ),
            (
                "/spec/scaleInStrategy",
                json!({"opportunistic": {"statePreservation": "Online"}}),
                "spec.scaleInStrategy.opportunistic.statePreservation",
                "is not supported yet",
            ),
            (
                "/spec/scaleInStrategy",
                json!({"proactive": {"selectionPolicy": {"sortPolicy": "Prettiest"}}}),
                "spec.scaleInStrategy.proactive.selectionPolicy.sortPolicy",
                "Prettiest is not one of AscendingOrder, DescendingOrder, Newest, Oldest, Random",
            ),
            (
                "/spec/updateStrategy",
                json!({"proactive": {"selectionPolicy": {"selectors": {
                    "labelSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}}}),
                "spec.updateStrategy.proactive.selectionPolicy.selectors.labelSelector",
                "values set can't be empty",
            ),
            (
                "/spec/updateStrategy",
                json!({"proactive": {"selectionPolicy": {"selectors": {
                    "nodeSelectorRequirementMatcher": [{"key": "a", "operator": "Gt", "values": ["b"]}]}}}}),
                "spec.updateStrategy.proactive.selectionPolicy.selectors.nodeSelectorRequirementMatcher",
                "is not a whole number",
            ),
            (
                "/spec/autohealing",
                json!({"startUpFailureThreshold": 0}),
                "spec.autohealing.startUpFailureThreshold",
                "must be greater than or equal to 1",
            ),
            (
                "/spec/autohealing",
                json!({"minFailingToStartDuration": "soon"}),
                "spec.autohealing.minFailingToStartDuration",
                "soon is not a duration such as 5m",
            ),
            ("/spec/replicas", json!(-1), "spec.replicas", "must be greater than or equal to 0"),
        ],
    );
    check(create, &with(&right, "/spec/maxUnavailable", &json!("100%")), &[], vec![]);
    for kept in ["Disabled", "Offline"] {
        for strategy in ["proactive", "opportunistic"] {
            let strategy = json!({strategy: {"statePreservation": kept}});
            check(create, &with(&right, "/spec/scaleInStrategy", &strategy), &[], vec![]);
        }
    }
    let old = read(&right);
    check(
        |new| pool::update(&old, new, Requester::User, &Gates::default()),
        &with(&right, "/spec/replicas", &json!(3)),
        &[],
        vec![("/spec/selector", json!({}), "spec.selector", "selector is immutable after creation.")],
    );
    let wrong = read(&with(&right, "/spec/maxUnavailable", &json!(0)));
    assert_eq!(pool::update(&wrong, &wrong, Requester::User, &Gates::default()), []);
}

#[test]
fn presets() {
    let right = json!({"metadata": {"name": "a"}, "spec": {"selector": {}, "domain": {"devices": {}}}});
    check(
        preset::create,
        &right,
        &[
            "VirtualMachineInstancePreset is not supported: KubeVirt has deprecated it; VirtualMachineInstancetype and \
           VirtualMachinePreference take its place",
        ],
        vec![("/spec/domain", Value::Null, "spec.domain", "missing domain.")],
    );
}

fn moving() -> Value {
    json!({"metadata": {"name": "move", "namespace": "shop"}, "spec": {"vmiName": "web"}})
}

fn instance(status: Value) -> VirtualMachineInstance {
    read(&json!({
        "metadata": {"name": "web", "namespace": "shop"}, "spec": template()["spec"], "status": status,
    }))
}

const NOT_MOVING: &str = "VirtualMachineInstanceMigration is not supported yet: an instance cannot move to another node while it runs";

#[test]
fn new_migrations() {
    let web = instance(json!({"phase": "Running"}));
    let gates = off(&["DecentralizedLiveMigration"]);
    check(
        |new| migration::create(new, Some(&web), &[], Requester::User, &gates),
        &moving(),
        &[NOT_MOVING],
        vec![
            ("/spec/vmiName", Value::Null, "spec.vmiName", "vmiName is missing"),
            ("/spec/vmiName", json!(""), "spec.vmiName", "vmiName is missing"),
            ("/spec/priority", json!("system-critical"), "spec.priority", "only virt-controller is allowed"),
            (
                "/spec/receive",
                json!({"migrationID": "1"}),
                "spec",
                "DecentralizedLiveMigration feature gate is not enabled in kubevirt resource",
            ),
        ],
    );
    check(
        |new| migration::create(new, Some(&web), &[], Requester::Component, &Gates::default()),
        &with(
            &with(&moving(), "/spec/priority", &json!("system-critical")),
            "/spec/receive",
            &json!({"migrationID": "1"}),
        ),
        &[NOT_MOVING],
        vec![(
            "/spec/sendTo",
            json!({"migrationID": "2", "connectURL": "a:1"}),
            "spec",
            "sendTo migrationID 2 does not match receive migrationID 1",
        )],
    );
}

/// What the instance, and the other migrations of its namespace, have to say.
#[test]
fn migrations_of_what_cannot_move() {
    let condition = |reason: &str| {
        json!({"phase": "Running", "conditions": [
            {"type": "LiveMigratable", "status": "False", "reason": reason, "message": "so it is"},
        ]})
    };
    let elsewhere = with(&moving(), "/spec/sendTo", &json!({"migrationID": "1", "connectURL": "a:1"}));
    let cases = [
        (moving(), None, "the VMI \"shop/web\" does not exist"),
        (moving(), Some(json!({"phase": "Failed"})), "Cannot migrate VMI in finalized state."),
        (
            moving(),
            Some(condition("DisksNotLiveMigratable")),
            "Cannot migrate VMI, Reason: DisksNotLiveMigratable, Message: so it is",
        ),
        (
            elsewhere.clone(),
            Some(condition("HostDeviceNotLiveMigratable")),
            "Cannot migrate VMI, Reason: Host",
        ),
        (elsewhere, Some(condition("DisksNotLiveMigratable")), ""),
    ];
    for (new, status, message) in cases {
        let web = status.map(instance);
        let causes = migration::create(&read(&new), web.as_ref(), &[], Requester::User, &Gates::default());
        let found =
            causes.iter().any(|cause| cause.field == "spec.vmiName" && cause.message.contains(message));
        assert_eq!(found, !message.is_empty(), "{new}: {causes:#?}");
    }

    let web = instance(json!({"phase": "Running"}));
    for (name, vmi, phase, active) in [
        ("other", "web", "Running", true),
        ("other", "web", "Succeeded", false),
        ("other", "web", "Failed", false),
        ("other", "db", "Running", false),
        ("move", "web", "Running", false),
    ] {
        let other: VirtualMachineInstanceMigration = read(&json!({
            "metadata": {"name": name, "uid": "u-7"}, "spec": {"vmiName": vmi}, "status": {"phase": phase},
        }));
        let causes =
            migration::create(&read(&moving()), Some(&web), &[other], Requester::User, &Gates::default());
        let words = "Active migration job (u-7) is currently already in progress for VMI web.";
        let found = causes.iter().any(|cause| cause.message.contains(words));
        assert_eq!(found, active, "{name} {vmi} {phase}: {causes:#?}");
    }
}

#[test]
fn changed_migrations() {
    let labelled = with(&moving(), "/metadata/labels", &json!({"kubevirt.io/vmi-name": "web", "a": "b"}));
    let old = read(&labelled);
    check(
        |new| migration::update(&old, new),
        &with(&labelled, "/metadata/finalizers", &json!(["a"])),
        &[],
        vec![
            ("/spec/vmiName", json!("db"), "spec", "update of Migration object's spec is restricted"),
            (
                "/metadata/labels",
                json!({"a": "b"}),
                "metadata.labels",
                "selector label can't be removed from an in-flight migration",
            ),
            (
                "/metadata/labels",
                json!({"kubevirt.io/vmi-name": "db"}),
                "metadata.labels",
                "selector label can't be modified on an in-flight migration",
            ),
        ],
    );
    let ended = with(&labelled, "/status", &json!({"phase": "Succeeded"}));
    check(|new| migration::update(&old, new), &with(&ended, "/metadata/labels", &json!({})), &[], vec![]);
}

const NO_SNAPSHOT: &str = "VirtualMachineSnapshot is not supported yet: volumes cannot be snapshotted";

#[test]
fn snapshots() {
    let right =
        json!({"metadata": {"name": "a"}, "spec": {"source": source("kubevirt.io", "VirtualMachine")}});
    let rows = || {
        vec![
            ("/spec/source/apiGroup", Value::Null, "spec.source.apiGroup", "missing apiGroup"),
            ("/spec/source/apiGroup", json!("apps"), "spec.source.apiGroup", "invalid apiGroup"),
            ("/spec/source/kind", json!("VirtualMachineInstance"), "spec.source.kind", "invalid kind"),
        ]
    };
    check(|new| snapshot::create(new, &Gates::default()), &right, &[NO_SNAPSHOT], rows());
    check(
        |new| snapshot::create(new, &off(&["Snapshot"])),
        &right,
        &["snapshot feature gate not enabled"],
        rows(),
    );
    let old = read(&right);
    check(
        |new| snapshot::update(&old, new),
        &with(&right, "/metadata/finalizers", &json!(["a"])),
        &[],
        vec![("/spec/source/name", json!("db"), "spec", "spec in immutable after creation")],
    );
    let missing = with(&right, "/spec/source/apiGroup", &Value::Null);
    assert_eq!(snapshot::create(&read(&missing), &Gates::default())[0].kind, CauseKind::NotFound);
    assert_eq!(snapshot::create_content().len(), 1);
}

#[test]
fn restores() {
    let right = json!({"metadata": {"name": "a"}, "spec": {
        "target": source("kubevirt.io", "VirtualMachine"), "virtualMachineSnapshotName": "b",
        "patches": [
            r#"{"op": "replace", "path": "/spec/running", "value": "true"}"#,
            r#"{"op": "remove", "path": "/metadata/labels/a"}"#,
        ],
        "volumeRestorePolicy": "InPlace", "volumeOwnershipPolicy": "Vm",
        "volumeRestoreOverrides": [{"volumeName": "root", "restoreName": "c"}],
    }});
    let always = ["VirtualMachineRestore is not supported yet: volumes cannot be snapshotted"];
    check(
        |new| snapshot::create_restore(new, &[], &Gates::default()),
        &right,
        &always,
        vec![
            ("/spec/target/apiGroup", Value::Null, "spec.target.apiGroup", "missing apiGroup"),
            ("/spec/target/apiGroup", json!("apps"), "spec.target.apiGroup", "invalid apiGroup"),
            ("/spec/target/kind", json!("Pod"), "spec.target.kind", "invalid kind"),
            (
                "/spec/patches",
                json!([r#"{"op": "replace", "path": "/status/phase"}"#]),
                "spec.patches",
                "patching is valid only for elements under /spec/ only",
            ),
            ("/spec/patches", json!([r#"{"op": "a:b"}"#]), "spec.patches", "one \":\" expected"),
            (
                "/spec/volumeRestorePolicy",
                json!("x"),
                "spec.volumeRestorePolicy",
                "policy \"x\" doesn't exist",
            ),
            (
                "/spec/volumeOwnershipPolicy",
                json!("x"),
                "spec.volumeOwnershipPolicy",
                "policy \"x\" doesn't exist",
            ),
            (
                "/spec/volumeRestoreOverrides/0/volumeName",
                json!(""),
                "spec.volumeRestoreOverrides[0].volumeName",
                "must provide a volume name",
            ),
            (
                "/spec/volumeRestoreOverrides/0/restoreName",
                Value::Null,
                "spec.volumeRestoreOverrides[0]",
                "must provide at least one overriden field",
            ),
        ],
    );
    for (name, target, complete, busy) in [
        ("b", "web", json!(false), true),
        ("b", "web", Value::Null, true),
        ("b", "web", json!(true), false),
        ("b", "db", json!(false), false),
        ("a", "web", json!(false), false),
    ] {
        let other = with(&right, "/metadata/name", &json!(name));
        let other = with(&other, "/spec/target/name", &json!(target));
        let other = read(&with(&other, "/status", &json!({"complete": complete})));
        let causes = snapshot::create_restore(&read(&right), &[other], &Gates::default());
        let found = causes.iter().any(|cause| cause.message == "VirtualMachineRestore \"b\" in progress");
        assert_eq!(found, busy, "{name} {target} {complete}");
    }
    let old = read(&right);
    check(
        |new| snapshot::update_restore(&old, new),
        &right,
        &[],
        vec![("/spec/target/name", json!("db"), "spec", "spec in immutable after creation")],
    );
}

#[test]
fn exports() {
    let always = ["VirtualMachineExport is not supported yet: nothing serves volumes for download"];
    let right =
        |group: &str, kind: &str| json!({"metadata": {"name": "a"}, "spec": {"source": source(group, kind)}});
    let all = on(&["OCIExport"]);
    for (group, kind, named, wrong) in [
        ("", "PersistentVolumeClaim", "PVC name", "PVC API group must be missing or blank"),
        (
            "snapshot.kubevirt.io",
            "VirtualMachineSnapshot",
            "VMSnapshot name",
            "VMSnapshot API group must be snapshot.kubevirt.io",
        ),
        ("kubevirt.io", "VirtualMachine", "Virtual Machine name", "VM API group must be kubevirt.io"),
        (
            "backup.kubevirt.io",
            "VirtualMachineBackup",
            "VirtualMachineBackup name",
            "VirtualMachineBackup API group must be backup.kubevirt.io",
        ),
        (
            "template.kubevirt.io",
            "VirtualMachineTemplate",
            "VirtualMachineTemplate name",
            "VirtualMachineTemplate API group must be template.kubevirt.io",
        ),
    ] {
        check(
            |new| export::create(new, &all),
            &right(group, kind),
            &always,
            vec![
                ("/spec/source/name", json!(""), "spec.source.name", named),
                ("/spec/source/apiGroup", json!("apps"), "spec.source.apiGroup", wrong),
                ("/spec/source/kind", json!("Pod"), "spec.source.kind", "invalid kind"),
            ],
        );
    }
    let template = right("template.kubevirt.io", "VirtualMachineTemplate");
    let causes = export::create(&read(&template), &Gates::default());
    assert!(causes[0].message.contains("requires the OCIExport feature gate"), "{causes:#?}");
    let old = read(&template);
    check(
        |new| export::update(&old, new),
        &template,
        &[],
        vec![("/spec/ttlDuration", json!("1h"), "spec", "spec in immutable after creation")],
    );
}

#[test]
fn clones() {
    let right = json!({"metadata": {"name": "a"}, "spec": {
        "source": source("kubevirt.io", "VirtualMachine"),
        "target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "copy"},
        "annotationFilters": ["!a/*", "*", "b"], "labelFilters": ["*", "!c*"],
        "template": {"annotationFilters": ["*"], "labelFilters": ["*"]},
        "newMacAddresses": {"default": "02:00:00:11:22:33"},
        "patches": [r#"{"op": "remove", "path": "/a"}"#],
    }});
    let rows = || {
        vec![
            (
                "/spec/annotationFilters",
                json!(["a!b"]),
                "spec.annotationFilters",
                "cannot contain a negation character (!)",
            ),
            (
                "/spec/labelFilters",
                json!(["a*b"]),
                "spec.labelFilters",
                "cannot contain a wildcard character (*)",
            ),
            (
                "/spec/labelFilters",
                json!(["!"]),
                "spec.labelFilters",
                "a negation character is not a valid filter",
            ),
            (
                "/spec/template/annotationFilters",
                json!(["*b"]),
                "spec.template.annotationFilters",
                "wildcard",
            ),
            ("/spec/template/labelFilters", json!(["b!"]), "spec.template.labelFilters", "negation"),
            ("/spec/source/kind", json!("Pod"), "spec.source.kind", "Source kind is not supported"),
            (
                "/spec/source/apiGroup",
                Value::Null,
                "spec.source.apiGroup",
                "Source's APIGroup cannot be empty",
            ),
            ("/spec/source/name", json!(""), "spec.source.name", "Source's name cannot be empty"),
            ("/spec/target/kind", json!("Pod"), "spec.target.kind", "Target kind is not supported"),
            (
                "/spec/target/name",
                json!("web"),
                "spec.target.name",
                "Target name cannot be equal to source name",
            ),
            (
                "/spec/newMacAddresses/default",
                json!("02:00"),
                "spec.newMacAddresses.default",
                "interface default has malformed MAC address (02:00).",
            ),
            ("/spec/patches", json!(["{"]), "spec.patches[0]", "patch is not valid JSON ({)"),
        ]
    };
    let there = "VirtualMachineClone is not supported yet: machines cannot be copied";
    check(|new| clone::create(new, &Gates::default()), &right, &[there], rows());
    let gate = "snapshot feature gate is not enabled";
    check(|new| clone::create(new, &off(&["Snapshot"])), &right, &[gate], rows());
    let old = read(&right);
    check(|new| clone::update(&old, new), &right, &[], rows());
    let empty = with(&right, "/spec/labelFilters", &json!([""]));
    check(|new| clone::create(new, &Gates::default()), &empty, &[there], vec![]);
}

#[test]
fn a_wrong_clone_that_stays_as_it_is_may_go() {
    let wrong =
        json!({"metadata": {"name": "a", "finalizers": ["x"]}, "spec": {"source": source("", "Pod")}});
    let going = with(&wrong, "/metadata/finalizers", &Value::Null);
    assert_eq!(clone::update(&read(&wrong), &read(&going)), []);
}

#[test]
fn backups() {
    let right = json!({"metadata": {"name": "a"}, "spec": {
        "source": source("kubevirt.io", "VirtualMachine"), "pvcName": "b", "mode": "Push",
    }});
    let rows = || {
        vec![
            ("/spec/source/apiGroup", Value::Null, "spec.source", "apiGroup is required"),
            (
                "/spec/source/apiGroup",
                json!("apps"),
                "spec.source",
                "apiGroup must be kubevirt.io or backup.kubevirt.io",
            ),
            (
                "/spec/source/kind",
                json!("Pod"),
                "spec.source",
                "kind must be VirtualMachine for kubevirt.io or VirtualMachineBackupTracker for backup.kubevirt.io",
            ),
            ("/spec/source/name", json!(""), "spec.source", "name is required"),
            ("/spec/pvcName", Value::Null, "spec", "pvcName is required"),
            ("/spec/mode", json!("Pull"), "spec", "tokenSecretRef is required when mode is Pull"),
            ("/spec/mode", json!("Throw"), "spec.mode", "Unsupported value: \"Throw\""),
        ]
    };
    let gate = "IncrementalBackup feature gate not enabled";
    let there = "VirtualMachineBackup is not supported yet: changed blocks are not recorded";
    check(|new| backup::create(new, &[], &Gates::default()), &right, &[gate], rows());
    check(|new| backup::create(new, &[], &on(&["IncrementalBackup"])), &right, &[there], rows());
    let old = read(&right);
    check(
        |new| backup::update(&old, new),
        &right,
        &[],
        vec![("/spec/pvcName", json!("c"), "spec", "spec is immutable after creation")],
    );
    for (name, condition, status, busy) in [
        ("b", "Progressing", "True", true),
        ("b", "Complete", "False", true),
        ("b", "Complete", "True", false),
        ("b", "Failed", "True", false),
        ("a", "Progressing", "True", false),
    ] {
        let other = with(&right, "/metadata/name", &json!(name));
        let conditions = json!({"conditions": [{
            "type": condition, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]});
        let other = read(&with(&other, "/status", &conditions));
        let causes = backup::create(&read(&right), &[other], &Gates::default());
        let words = "VirtualMachineBackup \"b\" in progress for source";
        assert_eq!(causes.iter().any(|cause| cause.message == words), busy, "{name} {condition} {status}");
    }
}

#[test]
fn backup_trackers() {
    let right =
        json!({"metadata": {"name": "a"}, "spec": {"source": source("kubevirt.io", "VirtualMachine")}});
    check(
        |new| backup::create_tracker(new, &on(&["IncrementalBackup"])),
        &right,
        &["VirtualMachineBackupTracker is not supported yet: changed blocks are not recorded"],
        vec![
            (
                "/spec/source/apiGroup",
                json!("backup.kubevirt.io"),
                "spec.source",
                "apiGroup must be kubevirt.io",
            ),
            ("/spec/source/kind", json!("Pod"), "spec.source", "kind must be VirtualMachine"),
            ("/spec/source/name", json!(""), "spec.source", "name is required"),
        ],
    );
    let old = read(&right);
    check(
        |new| backup::update_tracker(&old, new),
        &right,
        &[],
        vec![("/spec/source/name", json!("db"), "spec", "spec is immutable after creation")],
    );
}

#[test]
fn instance_types() {
    let right = json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi", "overcommitPercent": 100}});
    check(
        instancetype::validate,
        &right,
        &[],
        vec![
            (
                "/memory/overcommitPercent",
                json!(101),
                "spec.memory.overcommitPercent",
                "spec.memory.overcommitPercent '101': must be in range between 0 and 100.",
            ),
            ("/memory/overcommitPercent", json!(-1), "spec.memory.overcommitPercent", "between 0 and 100."),
            (
                "/memory/hugepages",
                json!({"pageSize": "2Mi"}),
                "spec.memory.overcommitPercent",
                "spec.memory.overcommitPercent and spec.memory.hugepages should not be requested together.",
            ),
        ],
    );
    assert_eq!(instancetype::warnings(&read(&right)), Vec::<String>::new());
    let secured = with(&right, "/launchSecurity", &json!({"sev": {}}));
    assert!(instancetype::warnings(&read(&secured))[0].contains("Use preference instead."));
}

#[test]
fn preferences() {
    let spread =
        |options: Value| json!({"cpu": {"preferredCPUTopology": "spread", "spreadOptions": options}});
    check(
        preference::validate,
        &spread(json!({"across": "SocketsCores", "ratio": 4})),
        &[],
        vec![
            (
                "/cpu/preferredCPUTopology",
                json!("round"),
                "spec.cpu.preferredCPUTopology",
                "unknown preferredCPUTopology round",
            ),
            (
                "/cpu/spreadOptions/across",
                json!("Town"),
                "spec.cpu.spreadOptions.across",
                "across Town is not supported",
            ),
            (
                "/cpu/spreadOptions/across",
                json!("CoresThreads"),
                "spec.cpu.spreadOptions.ratio",
                "only a ratio of 2 (1 core 2 threads) is allowed",
            ),
        ],
    );
    for right in [
        json!({}),
        spread(json!({"across": "CoresThreads"})),
        spread(json!({"across": "CoresThreads", "ratio": 2})),
        json!({"cpu": {"preferredCPUTopology": "cores", "spreadOptions": {"across": "Town"}}}),
    ] {
        assert_eq!(preference::validate(&read(&right)), [], "{right}");
        assert_eq!(preference::warnings(&read(&right)), Vec::<String>::new());
    }
    let older = json!({
        "preferSpreadSocketToCoreRatio": 3,
        "cpu": {"preferredCPUTopology": "preferSpread", "spreadOptions": {"across": "CoresThreads"}},
    });
    assert_eq!(preference::validate(&read(&older)).len(), 1);
    assert!(preference::warnings(&read(&older))[0].contains("preferSpread is deprecated"));
}

#[test]
fn migration_policies() {
    let always =
        ["MigrationPolicy is not supported yet: an instance cannot move to another node while it runs"];
    let right = json!({"metadata": {"name": "a"}, "spec": {
        "selectors": {"namespaceSelector": {"a": "b"}}, "bandwidthPerMigration": "64Mi", "completionTimeoutPerGiB": 1,
    }});
    check(
        |new| migration_policy::create(new, &Gates::default()),
        &right,
        &always,
        vec![
            (
                "/spec/completionTimeoutPerGiB",
                json!(-1),
                "spec.completionTimeoutPerGiB",
                "must not be negative",
            ),
            (
                "/spec/bandwidthPerMigration",
                json!("-1Mi"),
                "spec.bandwidthPerMigration",
                "must not be negative",
            ),
            (
                "/spec/maxDowntimeMs",
                json!(100),
                "spec.maxDowntimeMs",
                "without enabling the MigrationStallDetection or MigrationDowntimeTuning feature gate",
            ),
            (
                "/spec/experimental",
                json!({"downtimeTuning": {}}),
                "spec.experimental.downtimeTuning",
                "without enabling the MigrationDowntimeTuning feature gate",
            ),
            (
                "/spec/experimental",
                json!({"stallDetector": {}}),
                "spec.experimental.stallDetector",
                "without enabling the MigrationStallDetection feature gate",
            ),
        ],
    );
    let gates = on(&["MigrationStallDetection", "MigrationDowntimeTuning"]);
    let full = json!({"stallDetector": {
        "ewmaAlpha": "0.4", "precopyPossibleFactor": "1.5", "patienceWindowDecayFactor": 0, "completionTimeoutFactor": 1,
    }});
    let right = with(&with(&right, "/spec/maxDowntimeMs", &json!(100)), "/spec/experimental", &full);
    let at = |name: &'static str| -> (&'static str, &'static str) {
        let pointer = format!("/spec/experimental/stallDetector/{name}");
        let field = format!("spec.experimental.stallDetector.{name}");
        (Box::leak(pointer.into_boxed_str()), Box::leak(field.into_boxed_str()))
    };
    let factor = |name, value: &str, message| {
        let (pointer, field) = at(name);
        (pointer, json!(value), field, message)
    };
    let rows = || {
        vec![
            (
                "/spec/experimental/downtimeTuning",
                json!({}),
                "spec.experimental",
                "experimental.stallDetector and experimental.downtimeTuning are mutually exclusive",
            ),
            factor("ewmaAlpha", "0", "must be greater than 0"),
            factor("ewmaAlpha", "1.001", "must be less than or equal to 1"),
            factor("ewmaAlpha", "0.0001", "must have at most 3 decimal places"),
            factor("ewmaAlpha", "-1", "must not be negative"),
            factor("precopyPossibleFactor", "0.999", "must be greater than or equal to 1"),
            factor("patienceWindowDecayFactor", "2", "must be less than or equal to 1"),
            factor("completionTimeoutFactor", "500m", "must be greater than or equal to 1"),
        ]
    };
    check(|new| migration_policy::create(new, &gates), &right, &always, rows());
    // What was there before its gate went off may stay.
    let old = read(&right);
    check(
        |new| migration_policy::update(&old, new, &Gates::default()),
        &with(&right, "/spec/allowPostCopy", &json!(true)),
        &[],
        vec![],
    );
}

#[test]
fn machines_while_they_are_snapshotted_or_restored() {
    let right = json!({
        "metadata": {"name": "web"}, "spec": {"runStrategy": "Always", "template": template()},
        "status": {"snapshotInProgress": "a"},
    });
    let old: VirtualMachine = read(&right);
    check(
        |new| lock::machine(&old, new),
        &right,
        &[],
        vec![
            (
                "/spec/runStrategy",
                json!("Halted"),
                "spec",
                "Cannot update vm running state until snapshot \"a\" completes",
            ),
            (
                "/spec/template/spec/volumes",
                json!([]),
                "spec",
                "Cannot update vm disks or volumes until snapshot \"a\" completes",
            ),
        ],
    );
    let right = with(&right, "/status", &json!({"restoreInProgress": "b"}));
    let old: VirtualMachine = read(&right);
    check(
        |new| lock::machine(&old, new),
        &with(&right, "/spec/template/spec/volumes", &json!([])),
        &[],
        vec![(
            "/spec/runStrategy",
            json!("Halted"),
            "spec",
            "Cannot update VM runStrategy until restore \"b\" completes",
        )],
    );
    let free = with(&right, "/status", &Value::Null);
    assert_eq!(lock::machine(&old, &read(&with(&free, "/spec/runStrategy", &json!("Halted")))), []);
}

#[test]
fn statuses() {
    let right = json!({
        "metadata": {"name": "web"}, "spec": {"runStrategy": "Always", "template": template()}, "status": {"ready": true},
    });
    let requests = json!([{"removeVolumeOptions": {"name": "a"}}]);
    let old: VirtualMachine = read(&right);
    check(
        |new| status::machine(Some(&old), new),
        &right,
        &[],
        vec![(
            "/status/volumeRequests",
            requests.clone(),
            "status.volumeRequests",
            "status.volumeRequests is not supported yet",
        )],
    );
    let stuck: VirtualMachine = read(&with(&right, "/status/volumeRequests", &requests));
    assert_eq!(status::machine(Some(&stuck), &stuck), []);
    assert_eq!(status::machine(Some(&stuck), &old), []);
}

#[test]
fn evictions() {
    use eviction::Verdict::{Deny, Mark, Pass};
    let deny = |words: &str| Deny(words.to_owned());
    let words = "Eviction triggered evacuation of VMI \"shop/web\"";
    let mark = || Mark(words.to_owned());
    let fixed = || deny("VMI web is configured with an eviction strategy but is not live-migratable");
    let still = json!({"nodeName": "node01"});
    let movable = json!({"nodeName": "node01", "conditions": [{"type": "LiveMigratable", "status": "True"}]});
    let leaving = with(&movable, "/evacuationNodeName", &json!("node01"));
    let cases = [
        (None, None, &movable, "node01", Pass),
        (Some("None"), None, &movable, "node01", Pass),
        (Some("None"), Some("LiveMigrate"), &movable, "node01", Pass),
        (Some("LiveMigrate"), None, &still, "node01", fixed()),
        (None, Some("LiveMigrate"), &still, "node01", fixed()),
        (Some(""), Some("LiveMigrate"), &still, "node01", fixed()),
        (Some("LiveMigrate"), None, &movable, "node01", mark()),
        (Some("LiveMigrateIfPossible"), None, &still, "node01", Pass),
        (Some("LiveMigrateIfPossible"), None, &movable, "node01", mark()),
        (Some("External"), None, &still, "node01", mark()),
        (Some("External"), None, &leaving, "node01", Deny(format!("Evacuation in progress: {words}"))),
        (Some("LiveMigrate"), None, &movable, "node02", deny("Eviction request for target Pod")),
    ];
    for (own, cluster, status, node, verdict) in cases {
        let mut web = instance(status.clone());
        web.spec.eviction_strategy = own.map(str::to_owned);
        assert_eq!(
            eviction::decide(&web, cluster, Some(node)),
            verdict,
            "{own:?} {cluster:?} {status} {node}"
        );
    }
}

/// KubeVirt's own object, as its releases have it.
fn stock() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {
            "certificateRotateStrategy": {}, "customizeComponents": {}, "imagePullPolicy": "IfNotPresent",
            "workloadUpdateStrategy": {}, "configuration": {"developerConfiguration": {"featureGates": []}},
        },
    })
}

#[test]
fn the_kubevirt_object() {
    let configuration = |name: &str, value: Value| json!({name: value});
    let rows = || {
        vec![
            (
                "/spec/configuration/developerConfiguration",
                json!({"featureGates": ["HostDisk"], "disabledFeatureGates": ["HostDisk"]}),
                "spec.configuration.developerConfiguration.featureGates",
                "feature gate \"HostDisk\" exists on both \"FeatureGates\" and \"DisabledFeatureGates\"",
            ),
            (
                "/spec/configuration",
                configuration("selinuxLauncherType", json!("virt")),
                "spec.configuration.selinuxLauncherType",
                "spec.configuration.selinuxLauncherType is not supported yet",
            ),
            (
                "/spec/configuration/evictionStrategy",
                json!("Migrate"),
                "spec.configuration.evictionStrategy",
                "evictionStrategy Migrate is not one of None, LiveMigrate, LiveMigrateIfPossible, External",
            ),
            (
                "/spec/configuration",
                configuration("machineType", json!("pc-i440fx-9.0")),
                "spec.configuration.machineType",
                "pc-i440fx-9.0 is not a machine type that guests can have",
            ),
            (
                "/spec/configuration",
                configuration("architectureConfiguration", json!({"amd64": {"machineType": "virt"}})),
                "spec.configuration.architectureConfiguration.amd64.machineType",
                "virt is not a machine type",
            ),
            (
                "/spec/configuration",
                configuration("cpuModel", json!("a,b")),
                "spec.configuration.cpuModel",
                "a,b is not a CPU model",
            ),
            (
                "/spec/configuration",
                configuration("imagePullPolicy", json!("Sometimes")),
                "spec.configuration.imagePullPolicy",
                "Sometimes is not one of Always, IfNotPresent, Never",
            ),
            (
                "/spec/configuration/developerConfiguration",
                json!({"memoryOvercommit": 9}),
                "spec.configuration.developerConfiguration.memoryOvercommit",
                "must be greater than or equal to 10",
            ),
            (
                "/spec/configuration/developerConfiguration",
                json!({"cpuAllocationRatio": 0}),
                "spec.configuration.developerConfiguration.cpuAllocationRatio",
                "must be greater than or equal to 1",
            ),
            ("/spec/imagePullPolicy", json!("Sometimes"), "spec.imagePullPolicy", "Sometimes is not one of"),
            (
                "/spec/uninstallStrategy",
                json!("Sometimes"),
                "spec.uninstallStrategy",
                "Sometimes is not one of",
            ),
            ("/spec/infra", json!({"replicas": 0}), "spec.infra.replicas", "infra replica count can't be 0"),
            (
                "/spec/customizeComponents",
                json!({"patches": [{"resourceName": "a", "resourceType": "b", "patch": "{", "type": "json"}]}),
                "spec.customizeComponents.patches",
                "patch \"{\" is not valid JSON",
            ),
            (
                "/spec/workloadUpdateStrategy",
                json!({"workloadUpdateMethods": ["LiveMigrate"]}),
                "spec.workloadUpdateStrategy.workloadUpdateMethods",
                "LiveMigrate alone is not supported yet: nothing can migrate",
            ),
            (
                "/spec/workloadUpdateStrategy",
                json!({"workloadUpdateMethods": ["Evict", "Sometimes"]}),
                "spec.workloadUpdateStrategy.workloadUpdateMethods[1]",
                "Sometimes is not one of LiveMigrate, Evict",
            ),
            (
                "/spec/workloadUpdateStrategy",
                json!({"workloadUpdateMethods": ["Evict"], "batchEvictionSize": -1}),
                "spec.workloadUpdateStrategy.batchEvictionSize",
                "must be greater than or equal to 0",
            ),
            (
                "/spec/workloadUpdateStrategy",
                json!({"workloadUpdateMethods": ["Evict"], "batchEvictionInterval": "soon"}),
                "spec.workloadUpdateStrategy.batchEvictionInterval",
                "soon is not a duration",
            ),
            ("/spec/workloads", json!({"replicas": 2}), "spec.workloads.replicas", "is not supported yet"),
            ("/spec/synchronizationPort", json!("1"), "spec.synchronizationPort", "is not supported yet"),
        ]
    };
    check(|new| kubevirt::create(new, false, "kubevirt"), &stock(), &[], rows());
    let old = read(&json!({"metadata": {"name": "kubevirt"}, "spec": {}}));
    check(|new| kubevirt::update(&old, new), &stock(), &[], rows());
    let elsewhere = kubevirt::create(&read(&stock()), false, "virt");
    assert_eq!(elsewhere[0].field, "metadata.namespace");
    assert_eq!(kubevirt::create(&read(&stock()), true, "kubevirt")[0].message, "Kubevirt is already created");
}

/// Rules about what is not supported yet either: one that is broken takes the place of the refusal.
#[test]
fn the_kubevirt_object_by_kubevirts_rules() {
    let own = |value: Value| ("/spec/certificateRotateStrategy", json!({"selfSigned": value}));
    let certificates = "spec.certificateRotateStrategy.selfSigned";
    let in_configuration = |name: &str, value: Value| {
        let pointer: &'static str = Box::leak(format!("/spec/configuration/{name}").into_boxed_str());
        (pointer, value)
    };
    let tls = |minimum: &str, cipher: &str| {
        in_configuration("tlsConfiguration", json!({"minTLSVersion": minimum, "ciphers": [cipher]}))
    };
    let seccomp = |profile: Value| {
        in_configuration("seccompConfiguration", json!({"virtualMachineInstanceProfile": profile}))
    };
    let profile = "spec.configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile";
    let rows: Vec<((&str, Value), String, &str)> = vec![
        (
            own(json!({"ca": {"duration": "1h", "renewBefore": "2h"}, "server": {"duration": "1h"}})),
            certificates.to_owned(),
            "CA RenewBefore cannot exceed Duration",
        ),
        (
            own(json!({"server": {"duration": "1h", "renewBefore": "1h1m"}})),
            certificates.to_owned(),
            "Cert RenewBefore cannot exceed Duration",
        ),
        (
            own(json!({"server": {"duration": "200h"}})),
            certificates.to_owned(),
            "Certificate duration cannot exceed CA",
        ),
        (
            own(json!({"certRotateInterval": "200h"})),
            certificates.to_owned(),
            "Certificate duration cannot exceed CA",
        ),
        (
            own(json!({"caRotateInterval": "48h", "server": {}})),
            certificates.to_owned(),
            "are deprecated and conflict",
        ),
        (
            own(json!({"ca": {"duration": "a week"}})),
            format!("{certificates}.ca.duration"),
            "a week is not a duration",
        ),
        (
            in_configuration("additionalGuestMemoryOverheadRatio", json!("much")),
            "spec.configuration.additionalGuestMemoryOverheadRatio".to_owned(),
            "cannot be parsed into float",
        ),
        (
            in_configuration("additionalGuestMemoryOverheadRatio", json!("0.9")),
            "spec.configuration.additionalGuestMemoryOverheadRatio".to_owned(),
            "ratio provided, 0.9, cannot be smaller than 1.0",
        ),
        (
            in_configuration("migrations", json!({"maxDowntimeMs": 1})),
            "spec.configuration.migrations.maxDowntimeMs".to_owned(),
            "maxDowntimeMs cannot be modified without enabling",
        ),
        (
            tls("VersionTLS13", "TLS_RSA_WITH_AES_128_CBC_SHA"),
            "spec.configuration.tlsConfiguration.ciphers".to_owned(),
            "You cannot specify ciphers when",
        ),
        (
            tls("VersionTLS12", "ROT13"),
            "spec.configuration.tlsConfiguration.ciphers[0]".to_owned(),
            "ROT13 is not a valid cipher",
        ),
        (seccomp(json!({})), profile.to_owned(), "needs to be set"),
        (
            seccomp(json!({"customProfile": {"localhostProfile": "a", "runtimeDefaultProfile": true}})),
            format!("{profile}.localhostProfile"),
            "cannot be set when",
        ),
    ];
    for ((pointer, value), field, message) in rows {
        let causes = kubevirt::create(&read(&with(&stock(), pointer, &value)), false, "kubevirt");
        assert_eq!(causes[0].field, field, "{pointer}: {causes:#?}");
        assert!(causes[0].message.contains(message), "{pointer}: {causes:#?}");
    }
    for (pointer, value) in [
        own(json!({"ca": {"duration": "48h", "renewBefore": "2h"}, "server": {"duration": "24h"}})),
        in_configuration("additionalGuestMemoryOverheadRatio", json!("1.5")),
        tls("VersionTLS12", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        seccomp(json!({"customProfile": {"runtimeDefaultProfile": true}})),
    ] {
        let causes = kubevirt::create(&read(&with(&stock(), pointer, &value)), false, "kubevirt");
        assert_eq!(causes, [], "{pointer}");
    }
    let gated = json!({"developerConfiguration": {"disabledFeatureGates": ["Template", "OptOutRoleAggregation"]},
        "virtTemplateDeployment": {"enabled": true}, "roleAggregationStrategy": "Manual"});
    let causes = kubevirt::create(&read(&with(&stock(), "/spec/configuration", &gated)), false, "kubevirt");
    for gate in ["the Template feature gate", "the OptOutRoleAggregation feature gate"] {
        assert!(causes.iter().any(|cause| cause.message.ends_with(gate)), "{causes:#?}");
    }
}

#[test]
fn a_kubevirt_object_of_older_days_may_change_beside_its_specification() {
    let old = with(&stock(), "/spec/configuration", &json!({"selinuxLauncherType": "virt"}));
    let new = with(&old, "/metadata/finalizers", &json!(["a"]));
    assert_eq!(kubevirt::update(&read(&old), &read(&new)), []);
}

#[test]
fn what_changes_nothing_is_told() {
    let lists = json!({"developerConfiguration": {
        "featureGates": ["HostDisk", "LiveMigration", "Macvtap", "Unheard"], "disabledFeatureGates": ["NUMA"],
    }, "supportedGuestAgentVersions": ["5.*"]});
    let object: KubeVirt = read(&with(&stock(), "/spec/configuration", &lists));
    assert_eq!(kubevirt::create(&object, false, "kubevirt"), []);
    assert_eq!(
        kubevirt::warnings(&object),
        [
            "spec.configuration.developerConfiguration.featureGates: LiveMigration is always on",
            "spec.configuration.developerConfiguration.featureGates: Macvtap has no effect any more",
            "spec.configuration.developerConfiguration.featureGates: Unheard is not a known feature gate",
            "spec.configuration.developerConfiguration.disabledFeatureGates: NUMA is always on",
            "spec.configuration.supportedGuestAgentVersions has no effect: guest agents are judged by the commands they list",
        ]
    );
}
