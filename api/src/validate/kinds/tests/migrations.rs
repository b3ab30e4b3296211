//! Migrations and their policies.

use super::*;

fn moving() -> Value {
    json!({"metadata": {"name": "move", "namespace": "shop"}, "spec": {"vmiName": "web"}})
}

const NOT_MOVING: &str = "VirtualMachineInstanceMigration is not supported yet: an instance cannot move to another node while it runs";

#[test]
fn new_migrations_are_refused_until_they_are_served() {
    let web = instance(json!({"phase": "Running"}));
    let causes = migration::create(&read(&moving()), Some(&web), &[], Requester::User, &Gates::default());
    let messages: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
    assert_eq!(messages, if crate::migratable::SERVED { &[][..] } else { &[NOT_MOVING][..] });
}

#[test]
fn a_new_migration_gets_its_label_and_its_finalizer() {
    let mut new: VirtualMachineInstanceMigration = read(&moving());
    migration::complete(&mut new);
    let once = new.clone();
    migration::complete(&mut new);
    assert_eq!(new, once);
    let metadata = serde_json::to_value(&new.metadata).unwrap();
    assert_eq!(metadata["labels"], json!({"kubevirt.io/vmi-name": "web"}));
    assert_eq!(metadata["finalizers"], json!(["kubevirt.io/migrationJobFinalize"]));
    // A label that a user wrote must be the instance's name, or it is refused.
    let mut new =
        read(&with(&moving(), "/metadata/labels", &json!({"kubevirt.io/vmi-name": "db", "a": "b"})));
    migration::complete(&mut new);
    let labels = serde_json::to_value(&new.metadata.labels).unwrap();
    assert_eq!(labels, json!({"kubevirt.io/vmi-name": "web", "a": "b"}));
    // A name that is too long for a label is shortened, so that the migration is not refused for its label.
    let mut new = read(&with(&moving(), "/spec/vmiName", &json!("w".repeat(100))));
    migration::complete(&mut new);
    assert_eq!(new.metadata.labels.unwrap()["kubevirt.io/vmi-name"].len(), 63);
    let mut new = read(&with(&moving(), "/spec/vmiName", &Value::Null));
    migration::complete(&mut new);
    assert_eq!(new.metadata.labels, None);
}

#[test]
fn new_migrations() {
    let web = instance(json!({"phase": "Running"}));
    let gates = off(&["DecentralizedLiveMigration"]);
    check(
        |new| migration::rules(new, Some(&web), &[], Requester::User, &gates),
        &with(&moving(), "/spec/addedNodeSelector", &json!({"disk": "ssd", "example.com/rack": ""})),
        &[],
        vec![
            ("/spec/vmiName", Value::Null, "spec.vmiName", "vmiName is missing"),
            ("/spec/vmiName", json!(""), "spec.vmiName", "vmiName is missing"),
            ("/spec/priority", json!("system-critical"), "spec.priority", "only virt-controller is allowed"),
            (
                "/metadata/annotations",
                json!({"kubevirt.io/func-test-migration-target-image-override": "other"}),
                "metadata.annotations",
                "target-image-override is not supported yet",
            ),
            (
                "/spec/receive",
                json!({"migrationID": "1"}),
                "spec",
                "DecentralizedLiveMigration feature gate is not enabled in kubevirt resource",
            ),
            (
                "/spec/addedNodeSelector",
                json!({"a/b/c": "d"}),
                "spec.addedNodeSelector",
                "a/b/c is not the name of a label",
            ),
            (
                "/spec/addedNodeSelector",
                json!({"a": "not a value"}),
                "spec.addedNodeSelector",
                "not a value is not the value of a label",
            ),
        ],
    );
    let by_controller = with(&moving(), "/spec/priority", &json!("system-critical"));
    check(
        |new| migration::rules(new, Some(&web), &[], Requester::Component, &Gates::default()),
        &by_controller,
        &[],
        vec![
            (
                "/spec/receive",
                json!({"migrationID": "1"}),
                "spec.receive",
                "spec.receive is not supported yet",
            ),
            (
                "/spec/sendTo",
                json!({"migrationID": "1", "connectURL": "a:1"}),
                "spec.sendTo",
                "spec.sendTo is not supported yet",
            ),
        ],
    );
    let both = with(&by_controller, "/spec/receive", &json!({"migrationID": "1"}));
    let both = with(&both, "/spec/sendTo", &json!({"migrationID": "2", "connectURL": "a:1"}));
    let causes = migration::rules(&read(&both), Some(&web), &[], Requester::User, &Gates::default());
    let told = |words: &str| causes.iter().any(|cause| cause.message.contains(words));
    assert!(told("sendTo migrationID 2 does not match receive migrationID 1"), "{causes:#?}");
}

/// Migrations that the instance or the other migrations of its namespace prevent.
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
        let field = if web.is_none() { "spec.vmiName" } else { "" };
        let found = causes.iter().any(|cause| cause.field == field && cause.message.contains(message));
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
        // KubeVirt's message has no field before it.
        assert!(causes.iter().all(|cause| !found || cause.to_string().starts_with("in-flight migration")));
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

#[test]
fn migration_policies() {
    for served in [false, true] {
        migration_policies_when(served);
    }
}

/// With the refusals while migrations are not served, or without any refusal.
fn migration_policies_when(served: bool) {
    let not_there =
        ["MigrationPolicy is not supported yet: an instance cannot move to another node while it runs"];
    let always = if served { &[][..] } else { &not_there[..] };
    let right = json!({"metadata": {"name": "a"}, "spec": {
        "selectors": {"namespaceSelector": {"a": "b"}}, "bandwidthPerMigration": "64Mi", "completionTimeoutPerGiB": 1,
    }});
    check(
        |new| migration_policy::create_when(new, &Gates::default(), served),
        &right,
        always,
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
                "/spec/completionTimeoutPerGiB",
                json!(1_u64 << 32),
                "spec.completionTimeoutPerGiB",
                "must be at most 4294967295",
            ),
            (
                "/spec/selectors/namespaceSelector",
                json!({"a b": "c"}),
                "spec.selectors.namespaceSelector",
                "a b: c is not a label",
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
    if served {
        // The fields behind the gates are not supported yet.
        let causes = migration_policy::create_when(&read(&right), &gates, served);
        let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(fields, ["spec.experimental.stallDetector"]);
    } else {
        let create = |new: &_| migration_policy::create_when(new, &gates, served);
        check(create, &right, always, rows());
        // Fields that were set before the gate was switched off may stay.
        let old = read(&right);
        check(
            |new| migration_policy::update_when(&old, new, &Gates::default(), served),
            &with(&right, "/spec/allowPostCopy", &json!(true)),
            &[],
            vec![],
        );
    }
}

#[test]
fn a_policy_may_raise_the_downtime_in_steps() {
    let right = json!({"metadata": {"name": "a"}, "spec": {"selectors": {}, "experimental": {"downtimeTuning": {
        "cooldownSeconds": 5, "initialMs": 10, "startAfterIteration": 1, "steps": 10,
    }}}});
    let least = "must be greater than or equal to 1";
    let rows = vec![
        (
            "/spec/experimental/downtimeTuning/cooldownSeconds",
            json!(0),
            "spec.experimental.downtimeTuning.cooldownSeconds",
            least,
        ),
        (
            "/spec/experimental/downtimeTuning/initialMs",
            json!(-1),
            "spec.experimental.downtimeTuning.initialMs",
            least,
        ),
        (
            "/spec/experimental/downtimeTuning/startAfterIteration",
            json!(0),
            "spec.experimental.downtimeTuning.startAfterIteration",
            least,
        ),
        (
            "/spec/experimental/downtimeTuning/steps",
            json!(0),
            "spec.experimental.downtimeTuning.steps",
            least,
        ),
    ];
    let gates = on(&["MigrationDowntimeTuning"]);
    check(|new| migration_policy::create_when(new, &gates, true), &right, &[], rows);
}

#[test]
fn a_policy_may_have_memory_compressed_by_a_known_method() {
    let right = json!({"metadata": {"name": "a"}, "spec": {"selectors": {}, "experimental": {"compression": "zstd"}}});
    let row = |value: &str, message| {
        ("/spec/experimental/compression", json!(value), "spec.experimental.compression", message)
    };
    let rows = || {
        vec![
            row("lz4", "Unsupported value: \"lz4\": supported values: \"none\", \"zstd\""),
            row("", "Unsupported value: \"\""),
        ]
    };
    let gates = Gates::default();
    check(|new| migration_policy::create_when(new, &gates, true), &right, &[], rows());
    let none = read(&with(&right, "/spec/experimental/compression", &json!("none")));
    check(|new| migration_policy::update_when(&none, new, &gates, true), &right, &[], rows());
}

/// Settings that migrations do not support are refused by name, in new policies and in changed ones.
#[test]
fn policies_ask_for_nothing_that_is_not_there() {
    let right = json!({"metadata": {"name": "a"}, "spec": {
        "selectors": {}, "allowAutoConverge": true, "allowPostCopy": true, "allowWorkloadDisruption": true,
        "experimental": {"compression": "none"},
    }});
    let rows = || {
        vec![(
            "/spec/experimental",
            json!({"stallDetector": {"stallMargin": 3}}),
            "spec.experimental.stallDetector",
            "is not supported yet",
        )]
    };
    let gates = on(&["MigrationStallDetection"]);
    check(|new| migration_policy::create_when(new, &gates, true), &right, &[], rows());
    let tuned = on(&["MigrationDowntimeTuning"]);
    let none = vec![("/spec/maxDowntimeMs", json!(0), "spec.maxDowntimeMs", "must be from 1 to 2000000")];
    let create = |new: &_| migration_policy::create_when(new, &tuned, true);
    check(create, &with(&right, "/spec/maxDowntimeMs", &json!(2_000_000)), &[], none);
    let old = read(&right);
    check(|new| migration_policy::update_when(&old, new, &gates, true), &right, &[], rows());
}
