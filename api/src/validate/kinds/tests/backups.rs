//! Backups.

use super::*;

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
