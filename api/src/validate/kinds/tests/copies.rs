//! Snapshots, restores, exports and clones.

use super::*;

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
fn an_invalid_clone_may_lose_its_finalizers() {
    let wrong =
        json!({"metadata": {"name": "a", "finalizers": ["x"]}, "spec": {"source": source("", "Pod")}});
    let going = with(&wrong, "/metadata/finalizers", &Value::Null);
    assert_eq!(clone::update(&read(&wrong), &read(&going)), []);
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
