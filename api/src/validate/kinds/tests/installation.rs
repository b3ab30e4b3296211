//! The `KubeVirt` object.

use super::*;

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
                "/spec/configuration",
                configuration("migrations", json!({"disableTLS": true})),
                "spec.configuration.migrations.disableTLS",
                "every byte of a migration is encrypted",
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
                "/spec/customizeComponents",
                json!({"flags": {"api": {"port": "8443"}}}),
                "spec.customizeComponents.flags.api.port",
                "virt-api has no flag port",
            ),
            (
                "/spec/customizeComponents",
                json!({"flags": {"handler": {"v": "5"}}}),
                "spec.customizeComponents.flags.handler.v",
                "virt-handler has no flag v; logVerbosity sets the level of its log",
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

/// Rules about fields that are not supported yet: the cause of a broken rule replaces the refusal.
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
fn updates_by_migration_alone_come_with_migrations() {
    let strategy = read(&json!({"workloadUpdateMethods": ["LiveMigrate"]}));
    let messages = |served| {
        let mut causes = Vec::new();
        workload_updates::rules_when(&Path::new("spec"), &strategy, served, &mut causes);
        causes.into_iter().map(|cause| cause.message).collect::<Vec<String>>()
    };
    assert_eq!(messages(true), Vec::<String>::new());
    let [message] = &messages(false)[..] else { panic!("one cause") };
    assert!(message.contains("LiveMigrate alone is not supported yet: nothing can migrate"), "{message}");
}
