//! Trees of whole objects, and the effect of options on them.

use super::*;
use serde_json::{Value, json};

/// The nodes of a tree, each with its depth.
fn lines(node: &ObjectGraphNode) -> Vec<String> {
    fn add(node: &ObjectGraphNode, depth: usize, lines: &mut Vec<String>) {
        let object = &node.object_reference;
        let namespace = object.namespace.as_deref().unwrap_or("none");
        let optional = if node.optional == Some(true) { " optional" } else { "" };
        let of = &node.labels["kubevirt.io/dependency-type"];
        let indent = " ".repeat(depth);
        lines.push(format!("{indent}{} {namespace}/{} {of}{optional}", object.kind, object.name));
        for child in &node.children {
            add(child, depth + 1, lines);
        }
    }
    let mut all = Vec::new();
    add(node, 0, &mut all);
    all
}

fn spec() -> Value {
    json!({
        "accessCredentials": [
            {"sshPublicKey": {"source": {"secret": {"secretName": "keys"}}, "propagationMethod": {"noCloud": {}}}},
            {"userPassword": {"source": {"secret": {"secretName": "words"}},
                              "propagationMethod": {"qemuGuestAgent": {}}}},
        ],
        "domain": {
            "devices": {"tpm": {"persistent": true}},
            "firmware": {"kernelBoot": {"container": {"image": "i", "imagePullSecret": "registry"}}},
        },
        "networks": [
            {"name": "a", "pod": {}},
            {"name": "b", "multus": {"networkName": "blue"}},
            {"name": "c", "multus": {"networkName": "nets/red"}},
        ],
        "volumes": [
            {"name": "a", "dataVolume": {"name": "dv"}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "claim"}},
            {"name": "c", "configMap": {"name": "map"}},
            {"name": "d", "secret": {"secretName": "secret"}},
            {"name": "e", "serviceAccount": {"serviceAccountName": "account"}},
            {"name": "f", "cloudInitNoCloud": {"secretRef": {"name": "user"},
                                               "networkDataSecretRef": {"name": "net"}}},
            {"name": "g", "cloudInitConfigDrive": {"secretRef": {"name": "user"}}},
            {"name": "h", "ephemeral": {"persistentVolumeClaim": {"claimName": "golden"}}},
            {"name": "i", "memoryDump": {"claimName": "dump"}},
            {"name": "j", "sysprep": {"configMap": {"name": "answers"}}},
            {"name": "k", "containerDisk": {"image": "i", "imagePullSecret": "registry"}},
            {"name": "l", "emptyDisk": {"capacity": "1Gi"}},
        ],
    })
}

/// The nodes from the specification, in both trees.
const OF_SPEC: [&str; 17] = [
    " Secret shop/keys config",
    " Secret shop/words config",
    " Secret shop/registry config",
    " DataVolume shop/dv storage",
    "  PersistentVolumeClaim shop/dv storage",
    " PersistentVolumeClaim shop/claim storage",
    " ConfigMap shop/map config",
    " Secret shop/secret config",
    " ServiceAccount shop/account config",
    " Secret shop/user config",
    " Secret shop/net config",
    " PersistentVolumeClaim shop/golden storage",
    " PersistentVolumeClaim shop/dump storage",
    " ConfigMap shop/answers config",
    " PersistentVolumeClaim shop/persistent-state-for-web-x storage",
    " NetworkAttachmentDefinition shop/blue network optional",
    " NetworkAttachmentDefinition nets/red network optional",
];

fn machine() -> VirtualMachine {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "instancetype": {"name": "small"},
            "preference": {"name": "linux", "kind": "VirtualMachinePreference", "revisionName": "old"},
            "template": {"spec": spec()},
        },
        "status": {
            "created": true,
            "instancetypeRef": {"name": "small", "controllerRevisionRef": {"name": "web-small"}},
        },
    }))
    .unwrap()
}

fn tree() -> ObjectGraphNode {
    let seen = LookedUpObjects {
        pod: Some("launcher".to_owned()),
        state: Some("persistent-state-for-web-x".to_owned()),
    };
    tree::machine(&machine(), &seen)
}

#[test]
fn a_machine_depends_on_its_instance_and_all_that_it_names() {
    let own = [
        "VirtualMachine shop/web compute",
        " VirtualMachineInstance shop/web compute",
        "  Pod shop/launcher compute",
        " VirtualMachineClusterInstancetype /small config optional",
        " ControllerRevision shop/web-small config",
        " VirtualMachinePreference shop/linux config optional",
        " ControllerRevision shop/old config",
    ];
    assert_eq!(lines(&tree()), [&own[..], &OF_SPEC[..]].concat());
    // As in answers: empty groups and namespaces are included.
    let answer = serde_json::to_value(tree()).unwrap();
    assert_eq!(
        answer["children"][1],
        json!({
            "labels": {"kubevirt.io/dependency-type": "config"}, "optional": true,
            "objectReference": {"apiGroup": "instancetype.kubevirt.io", "kind": "VirtualMachineClusterInstancetype",
                                "name": "small", "namespace": ""},
        })
    );
    assert_eq!(answer["children"][0]["children"][0]["objectReference"]["apiGroup"], "");
}

#[test]
fn a_machine_that_is_off_has_no_instance() {
    let vm: VirtualMachine = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"template": {"spec": {"domain": {"devices": {}}}}},
    }))
    .unwrap();
    assert_eq!(lines(&tree::machine(&vm, &LookedUpObjects::default())), ["VirtualMachine shop/web compute"]);
}

#[test]
fn the_claim_of_a_volume_is_read_from_the_instances_status() {
    let vmi = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop"}, "spec": spec(),
        "status": {"volumeStatus": [
            {"name": "a", "target": "", "persistentVolumeClaimInfo": {"claimName": "dv"}},
            {"name": "persistent-state-for-this-vm", "target": "",
             "persistentVolumeClaimInfo": {"claimName": "persistent-state-for-web-x"}},
        ]},
    }))
    .unwrap();
    let own = ["VirtualMachineInstance shop/web compute", " Pod shop/launcher compute"];
    let root = tree::instance(&vmi, Some("launcher".to_owned()));
    assert_eq!(lines(&root), [&own[..], &OF_SPEC[..]].concat());
}

#[test]
fn options_leave_what_they_select() {
    let left = |options: Value| -> Result<Vec<String>, Refusal> {
        let options: ObjectGraphOptions = serde_json::from_value(options).unwrap();
        let mut root = tree();
        root.children = kept(root.children, &options)?;
        Ok(lines(&root))
    };
    let all = lines(&tree());
    assert_eq!(left(json!({})).unwrap(), all);
    assert_eq!(left(json!({"includeOptionalNodes": true})).unwrap(), all);
    let needed: Vec<_> = all.iter().filter(|line| !line.ends_with("optional")).cloned().collect();
    assert_eq!(left(json!({"includeOptionalNodes": false})).unwrap(), needed);

    let label = "kubevirt.io/dependency-type";
    assert_eq!(
        left(json!({"labelSelector": {"matchLabels": {label: "compute"}}})).unwrap(),
        [
            "VirtualMachine shop/web compute",
            " VirtualMachineInstance shop/web compute",
            "  Pod shop/launcher compute"
        ]
    );
    let rule = json!({"key": label, "operator": "NotIn", "values": ["compute", "config", "storage"]});
    let networks = left(json!({"labelSelector": {"matchExpressions": [rule]}})).unwrap();
    assert_eq!(networks[1..], all[all.len() - 2..]);
    let wrong = json!({"key": label, "operator": "Near"});
    let refusal = left(json!({"labelSelector": {"matchExpressions": [wrong]}})).unwrap_err();
    assert_eq!(refusal.code, 400);
}

#[test]
fn the_launcher_that_runs_comes_before_those_that_ran() {
    let pod = |name: &str, made: &str, phase: &str| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": made},
            "status": {"phase": phase},
        }))
        .unwrap()
    };
    let pods = [
        pod("first", "2026-01-01T00:00:00Z", "Succeeded"),
        pod("second", "2026-01-02T00:00:00Z", "Running"),
        pod("failed", "2026-01-03T00:00:00Z", "Failed"),
    ];
    assert_eq!(newest_launcher(&pods).as_deref(), Some("second"));
    assert_eq!(newest_launcher(&[pods[2].clone(), pods[0].clone()]).as_deref(), Some("failed"));
    assert_eq!(newest_launcher(&[]), None);
}

#[test]
fn a_launcher_is_known_by_the_uid_of_its_instance() {
    let selector = "kubevirt.io=virt-launcher,kubevirt.io/created-by=u-1";
    assert_eq!(made_for("u-1").label_selector.as_deref(), Some(selector));
}
