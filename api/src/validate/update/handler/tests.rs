use super::*;
use serde_json::{Value, json};

/// An instance on node a that moves to node b.
fn object() -> Value {
    json!({
        "metadata": {
            "name": "web", "labels": {"kubevirt.io/nodeName": "a", "app": "shop"},
            "annotations": {"note": "x"}, "finalizers": ["kubevirt.io/foregroundDeleteVirtualMachine"],
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "m1"}],
        },
        "spec": {"domain": {"devices": {}}},
        "status": {
            "phase": "Running", "nodeName": "a", "activePods": {"p1": "a", "p2": "b"},
            "migrationState": {
                "migrationUid": "m", "sourceNode": "a", "sourcePod": "s", "targetNode": "b", "targetPod": "t",
                "sourceState": {"node": "a", "pod": "s", "migrationUID": "m"},
                "targetState": {"node": "b", "pod": "t", "migrationUID": "m"},
                "migrationConfiguration": {"maxDowntimeMs": 900},
            },
        },
    })
}

fn read(object: &Value) -> VirtualMachineInstance {
    serde_json::from_value(object.clone()).unwrap()
}

/// The object with these changes.
fn changed(object: &Value, changes: &[(&str, Value)]) -> Value {
    let mut changed = object.clone();
    for (at, value) in changes {
        let (parent, key) = at.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = value.clone();
    }
    changed
}

/// Fields that a handler on this node may not change.
fn refused_of(before: &Value, node: &str, changes: &[(&str, Value)]) -> Vec<String> {
    let causes = handler_update(&read(before), &read(&changed(before, changes)), Some(node));
    causes.into_iter().map(|cause| cause.field).collect()
}

fn refused(node: &str, changes: &[(&str, Value)]) -> Vec<String> {
    refused_of(&object(), node, changes)
}

const NODE: &str = "/status/nodeName";
const LABEL: &str = "/metadata/labels/kubevirt.io~1nodeName";
const COMPLETED: &str = "/status/migrationState/completed";
const FAILED: &str = "/status/migrationState/failed";

#[test]
fn a_handler_changes_what_it_must_and_nothing_else() {
    let layout = ("/metadata/annotations/barevirt.dev~1pci-layout", json!("{}"));
    assert!(refused("a", &[("/status/phase", json!("Failed")), layout]).is_empty());
    let volume = json!([{"name": "loot", "persistentVolumeClaim": {"claimName": "of-another"}}]);
    for (at, value, field) in [
        ("/spec/volumes", volume, "spec"),
        ("/spec/nodeSelector", json!({"a": "b"}), "spec"),
        ("/metadata/labels/app", json!("bank"), "metadata.labels"),
        ("/metadata/labels/more", json!(""), "metadata.labels"),
        ("/metadata/labels/kubevirt.io~1migrationTargetNodeName", json!("b"), "metadata.labels"),
        ("/metadata/labels", json!({"kubevirt.io/nodeName": "a"}), "metadata.labels"),
        (LABEL, json!("b"), "metadata.labels"),
        ("/metadata/annotations/note", json!("y"), "metadata.annotations"),
        ("/metadata/annotations", json!({}), "metadata.annotations"),
        ("/metadata/ownerReferences", json!([]), "metadata.ownerReferences"),
        ("/metadata/finalizers", json!([]), "metadata.finalizers"),
    ] {
        assert_eq!(refused("a", &[(at, value.clone())]), [field], "{at} {value}");
        assert_eq!(refused("b", &[(at, value.clone())]), [field], "{at} {value}");
    }
    for pods in [json!({"p1": "a", "p2": "a"}), json!({"p1": "a", "p2": "b", "p3": "b"}), json!({})] {
        assert_eq!(refused("a", &[("/status/activePods", pods.clone())]), ["status.activePods"], "{pods}");
        assert_eq!(refused("b", &[("/status/activePods", pods)]), ["status", "status.activePods"]);
    }
    // The controller gives its level to a pod on another node, where it would open the files of all pods.
    let wide = ("/status/selinuxContext", json!("system_u:object_r:container_file_t:s0-s0:c0.c1023"));
    assert_eq!(refused("a", &[wide]), ["status.selinuxContext"]);
}

/// The handler on the target node may report the progress of the migration, but may not change the status of
/// the guest before the guest has arrived.
#[test]
fn the_target_speaks_of_the_migration_alone() {
    let state = |name: &str| format!("/status/migrationState/{name}");
    for (name, value) in [
        ("targetNodeAddress", json!("10.0.0.2")),
        ("targetDirectMigrationNodePorts", json!({"8187": 0})),
        ("failureReason", json!("no room")),
        ("targetNodeDomainDetected", json!(true)),
    ] {
        assert!(refused("b", &[(&state(name), value.clone())]).is_empty(), "{name}");
        assert!(refused("a", &[(&state(name), value)]).is_empty(), "{name}");
    }
    let address = ("/status/migrationState/targetState/nodeAddress", json!("10.0.0.2"));
    assert!(refused("b", &[address]).is_empty());
    for (at, value) in [("/status/phase", json!("Failed")), ("/status/evacuationNodeName", json!("a"))] {
        assert_eq!(refused("b", &[(at, value)]), ["status"], "{at}");
    }
    let layout = ("/metadata/annotations/barevirt.dev~1pci-layout", json!("{}"));
    assert_eq!(refused("b", &[layout]), ["metadata.annotations"]);
}

/// A handler takes the disk that a pod offers and gives it to the guest. Only the controller may choose that
/// pod.
#[test]
fn which_pods_offer_disks_is_the_controllers_to_say() {
    let volume = |phase: &str, pod: Value| json!([{"name": "data", "target": "sda", "phase": phase, "hotplugVolume": pod}]);
    let own = json!({"attachPodName": "hp-volume-data", "attachPodUID": "p"});
    let before = changed(&object(), &[("/status/volumeStatus", volume("AttachedToNode", own.clone()))]);
    let says = |volumes: Value| refused_of(&before, "a", &[("/status/volumeStatus", volumes)]);
    assert!(says(volume("Ready", own)).is_empty());
    assert!(says(volume("Ready", Value::Null)).is_empty());
    let others = json!({"attachPodName": "hp-volume-data", "attachPodUID": "of-another"});
    assert_eq!(says(volume("AttachedToNode", others.clone())), ["status.volumeStatus"]);
    assert_eq!(
        refused("a", &[("/status/volumeStatus", volume("AttachedToNode", others))]),
        ["status.volumeStatus"]
    );
}

#[test]
fn only_the_controller_writes_a_migrations_source_and_target() {
    for (at, value) in [
        ("migrationUid", json!("n")),
        ("sourceNode", json!("c")),
        ("sourcePod", json!("x")),
        ("targetPod", json!("x")),
        ("abortRequested", json!(true)),
        ("migrationPolicyName", json!("mine")),
        ("migrationConfiguration", json!({"maxDowntimeMs": 1})),
        ("sourceState", json!({"node": "c", "pod": "s", "migrationUID": "m"})),
        ("targetState", json!({"node": "b", "pod": "x", "migrationUID": "m"})),
        ("targetState", Value::Null),
        ("targetAttachmentPodUID", json!("of-another")),
        ("targetState/attachmentPodUID", json!("of-another")),
        ("targetPersistentStatePVCName", json!("of-another")),
    ] {
        let at = format!("/status/migrationState/{at}");
        for node in ["a", "b"] {
            assert_eq!(refused(node, &[(&at, value.clone())]), ["status.migrationState"], "{node} {at}");
        }
    }
}

#[test]
fn only_the_target_nodes_handler_moves_an_instance_to_its_migrations_target() {
    let arrival = [(NODE, json!("b")), (LABEL, json!("b")), (COMPLETED, json!(true))];
    assert!(refused("b", &arrival).is_empty());
    assert!(refused("b", &[(NODE, json!("b"))]).is_empty());
    // The handler may change the rest of the status in the same write.
    assert!(refused("b", &[(NODE, json!("b")), ("/status/reason", json!("Moved"))]).is_empty());
    // The handler of the former node may not move the instance.
    assert_eq!(refused("a", &arrival), ["status.nodeName"]);
    for by in ["a", "b"] {
        assert_eq!(refused(by, &[(NODE, json!("c")), (LABEL, json!("c"))]), ["status.nodeName"]);
        assert_eq!(refused(by, &[(NODE, json!(""))]), ["status.nodeName"]);
        assert_eq!(refused(by, &[("/status/migrationState/targetNode", json!("c"))]), ["status.nodeName"]);
    }
    assert_eq!(refused("b", &[(NODE, json!("b")), (LABEL, json!("c"))]), ["metadata.labels"]);
    assert_eq!(refused("c", &[]), ["status.nodeName"]);
    assert_eq!(refused("c", &[("/status/migrationState/targetNode", json!("c"))]), ["status.nodeName"]);
}

/// The first result of a migration counts.
#[test]
fn a_target_has_no_say_once_its_migration_is_over() {
    for over in [COMPLETED, FAILED] {
        let ended = changed(&object(), &[(over, json!(true))]);
        assert_eq!(refused_of(&ended, "b", &[(NODE, json!("b")), (LABEL, json!("b"))]), ["status.nodeName"]);
        assert_eq!(
            refused_of(&ended, "b", &[("/status/migrationState/failureReason", json!("late"))]),
            ["status.nodeName"]
        );
        assert!(refused_of(&ended, "a", &[("/status/phase", json!("Failed"))]).is_empty());
    }
    // After the guest has arrived, only the target may change the status.
    let moved = changed(&object(), &[(NODE, json!("b")), (LABEL, json!("b")), (COMPLETED, json!(true))]);
    assert!(refused_of(&moved, "b", &[("/status/phase", json!("Failed"))]).is_empty());
    assert_eq!(refused_of(&moved, "a", &[("/status/phase", json!("Failed"))]), ["status.nodeName"]);
}
