//! One row for each rule: the change of a valid object, and the one cause that follows in addition to the
//! refusal of the kind.

mod backups;
mod copies;
mod installation;
mod instancetypes;
mod migrations;
mod replicas;

use super::*;
use crate::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use crate::validate::{CauseKind, Requester};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Pointer, value (`null` removes the member), field of the cause, part of its message.
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

/// The valid object has only the refusals `always`, and each row adds one cause before them.
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

fn source(group: &str, kind: &str) -> Value {
    json!({"apiGroup": group, "kind": kind, "name": "web"})
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

fn instance(status: Value) -> VirtualMachineInstance {
    read(&json!({
        "metadata": {"name": "web", "namespace": "shop"}, "spec": template()["spec"], "status": status,
    }))
}

/// The object in KubeVirt's releases.
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
    use eviction::Decision::{Deny, Mark, Pass};
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

#[test]
fn settings_without_effect_cause_warnings() {
    let lists = json!({"developerConfiguration": {
        "featureGates": ["HostDisk", "LiveMigration", "Macvtap", "Unheard"], "disabledFeatureGates": ["NUMA"],
    }, "supportedGuestAgentVersions": ["5.*"], "network": {"permitSlirpInterface": true}, "migrations": {
        "unsafeMigrationOverride": true, "matchSELinuxLevelOnMigration": true,
    }, "seccompConfiguration": {"virtualMachineInstanceProfile": {
        "customProfile": {"localhostProfile": "kubevirt/kubevirt.json"},
    }}});
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
            "spec.configuration.network.permitSlirpInterface has no effect: there is no slirp binding any more, as in KubeVirt",
            "spec.configuration.migrations.unsafeMigrationOverride has no effect: no check of a migration can be overridden",
            "spec.configuration.migrations.matchSELinuxLevelOnMigration has no effect: virt-handler does not tell the level of a \
             launcher pod, and the container runtime chooses that of the target's pod",
            "spec.configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile: \
             virt-handler does not write kubevirt/kubevirt.json: launcher pods start only on nodes that have it",
        ]
    );
    let other = json!({"seccompConfiguration": {"virtualMachineInstanceProfile": {
        "customProfile": {"localhostProfile": "vm.json"},
    }}, "migrations": {"unsafeMigrationOverride": false, "matchSELinuxLevelOnMigration": false}});
    let object: KubeVirt = read(&with(&stock(), "/spec/configuration", &other));
    assert_eq!(kubevirt::warnings(&object), Vec::<String>::new());
}
