//! Replica sets, pools and presets.

use super::*;

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
