//! One row for each setting: a configuration, and the causes that follow.

use super::{create, standing, update};
use crate::v1::KubeVirt;
use serde_json::{Value, json};

/// `field: message` of each cause.
fn causes(configuration: &Value) -> Vec<String> {
    let object = json!({"metadata": {"name": "kubevirt"}, "spec": {"configuration": configuration}});
    let object: KubeVirt = serde_json::from_value(object).unwrap();
    standing(&object).iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

#[test]
fn valid_configurations_are_accepted() {
    let bucket = json!({"restClient": {"rateLimiter": {"tokenBucketRateLimiter": {"qps": 5.5, "burst": 0}}}});
    for right in [
        json!({"developerConfiguration": {"logVerbosity": {"virtAPI": 0, "virtLauncher": 9, "nodeVerbosity": {"a": 4}}}}),
        json!({"developerConfiguration": {"nodeSelectors": {"example.com/disk": "ssd", "a": ""}}}),
        json!({"developerConfiguration": {"minimumReservePVCBytes": 0, "pvcTolerateLessSpaceUpToPercent": 100}}),
        json!({"memBalloonStatsPeriod": 0, "virtualMachineOptions": {"disableFreePageReporting": {}}}),
        json!({"cpuRequest": "250m", "vmRolloutStrategy": "Stage", "evictionStrategy": "External"}),
        json!({"emulatedMachines": ["q35*", "pc-*"]}),
        json!({"architectureConfiguration": {"amd64": {"emulatedMachines": ["pc-q35-9*"], "machineType": "pc-q35-9.2"}}}),
        json!({"defaultRuntimeClass": "kata", "additionalGuestMemoryOverheadRatio": "1.25"}),
        json!({"smbios": {"manufacturer": "Acme, Inc.", "product": "p", "version": "1", "sku": "7", "family": "f"}}),
        json!({"supportContainerResources": [{"type": "container-disk",
            "resources": {"requests": {"cpu": "2m"}, "limits": {"memory": "80Mi"}}}]}),
        json!({"network": {"defaultNetworkInterface": "bridge", "permitSlirpInterface": false}}),
        json!({"network": {"permitSlirpInterface": true}}),
        // What is switched off needs no support.
        json!({"virtTemplateDeployment": {"enabled": false}, "developerConfiguration": {"clusterProfiler": false}}),
        json!({"mediatedDevicesConfiguration": {"enabled": false, "mediatedDeviceTypes": []}}),
        json!({"mediatedDevicesConfiguration": {}}),
        json!({"architectureConfiguration": {"defaultArchitecture": "amd64"}}),
        json!({"roleAggregationStrategy": "Manual"}),
        json!({"roleAggregationStrategy": "AggregateToDefault"}),
        json!({"network": {"binding": {"macvtap": {"domainAttachmentType": "tap", "migration": {"method": "link-refresh"}},
            "bare": {"domainAttachmentType": "managedTap", "networkAttachmentDefinition": "net/one", "migration": {},
                "computeResourceOverhead": {"requests": {"memory": "10Mi"}}}}}}),
        json!({"autoCPULimitNamespaceLabelSelector": {"matchLabels": {"a": "b"}}}),
        json!({"apiConfiguration": bucket, "controllerConfiguration": bucket, "handlerConfiguration": bucket,
            "webhookConfiguration": bucket}),
        json!({"tlsConfiguration": {"minTLSVersion": "VersionTLS13"}}),
        json!({"migrations": {"parallelMigrationsPerCluster": 5, "allowPostCopy": false, "bandwidthPerMigration": "0Mi",
            "completionTimeoutPerGiB": 150, "utilityVolumesTimeout": 150, "network": "migrations"}}),
        json!({"migrations": {"network": "net/migrations.second"}}),
        json!({"migrations": {"network": ""}}),
        json!({"seccompConfiguration": {"virtualMachineInstanceProfile": {"customProfile": {"localhostProfile": "a/b.json"}}}}),
    ] {
        assert_eq!(causes(&right), Vec::<String>::new(), "{right}");
    }
}

#[test]
fn invalid_configurations_are_named_by_field() {
    let bucket = |bucket: Value| json!({"restClient": {"rateLimiter": {"tokenBucketRateLimiter": bucket}}});
    let rows: Vec<(Value, &str, &str)> = vec![
        (
            json!({"developerConfiguration": {"logVerbosity": {"virtHandler": 10}}}),
            "developerConfiguration.logVerbosity.virtHandler",
            "must be from 0 to 9",
        ),
        (
            json!({"developerConfiguration": {"logVerbosity": {"nodeVerbosity": {"a": -1}}}}),
            "developerConfiguration.logVerbosity.nodeVerbosity.a",
            "must be from 0 to 9",
        ),
        (
            json!({"developerConfiguration": {"logVerbosity": {"virtSynchronizationController": 3}}}),
            "developerConfiguration.logVerbosity.virtSynchronizationController",
            "is not supported yet",
        ),
        (
            json!({"mediatedDevicesConfiguration": {"mediatedDeviceTypes": ["nvidia-222"]}}),
            "mediatedDevicesConfiguration.mediatedDeviceTypes",
            "is not supported yet",
        ),
        (
            json!({"mediatedDevicesConfiguration": {"enabled": true}}),
            "mediatedDevicesConfiguration.enabled",
            "is not supported yet",
        ),
        (
            json!({"developerConfiguration": {"nodeSelectors": {"a b": "c"}}}),
            "developerConfiguration.nodeSelectors",
            "a b=c is not a label",
        ),
        (
            json!({"memBalloonStatsPeriod": -1}),
            "memBalloonStatsPeriod",
            "must be from 0 to 4294967295 seconds",
        ),
        (
            json!({"developerConfiguration": {"minimumReservePVCBytes": -1}}),
            "developerConfiguration.minimumReservePVCBytes",
            "must not be below 0",
        ),
        (
            json!({"developerConfiguration": {"pvcTolerateLessSpaceUpToPercent": 101}}),
            "developerConfiguration.pvcTolerateLessSpaceUpToPercent",
            "must be from 0 to 100",
        ),
        (
            json!({"developerConfiguration": {"pvcTolerateLessSpaceUpToPercent": -1}}),
            "developerConfiguration.pvcTolerateLessSpaceUpToPercent",
            "must be from 0 to 100",
        ),
        (json!({"cpuRequest": "0"}), "cpuRequest", "0 is not an amount above zero"),
        (json!({"emulatedMachines": ["q35*", "virt*"]}), "emulatedMachines[1]", "virt* fits no machine type"),
        (json!({"emulatedMachines": ["pc-q35*"]}), "emulatedMachines", "does not allow q35"),
        (json!({"vmRolloutStrategy": "Later"}), "vmRolloutStrategy", "Later is not one of LiveUpdate, Stage"),
        (json!({"defaultRuntimeClass": "K"}), "defaultRuntimeClass", "is not the name of a runtime class"),
        (
            json!({"additionalGuestMemoryOverheadRatio": "1e9"}),
            "additionalGuestMemoryOverheadRatio",
            "is not a decimal number from 1 to 1000",
        ),
        (json!({"smbios": {"sku": "a\nb"}}), "smbios.sku", "printable ASCII"),
        (
            json!({"supportContainerResources": [{"type": "sidecar", "resources": {}}]}),
            "supportContainerResources[0].type",
            "sidecar is not supported yet",
        ),
        (
            json!({"supportContainerResources": [{"type": "disk", "resources": {}}]}),
            "supportContainerResources[0].type",
            "disk is not one of",
        ),
        (
            json!({"supportContainerResources": [{"type": "container-disk",
                "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]}),
            "supportContainerResources[0].resources.requests.cpu",
            "is more than the limit",
        ),
        (
            json!({"supportContainerResources": [{"type": "container-disk", "resources": {"limits": {"gpu": "1"}}}]}),
            "supportContainerResources[0].resources.limits.gpu",
            "is not supported yet",
        ),
        (
            json!({"network": {"defaultNetworkInterface": "slirp"}}),
            "network.defaultNetworkInterface",
            "slirp is not one of bridge, masquerade",
        ),
        (
            json!({"network": {"defaultNetworkInterface": "bridge", "permitBridgeInterfaceOnPodNetwork": false}}),
            "network.defaultNetworkInterface",
            "permitBridgeInterfaceOnPodNetwork is false",
        ),
        (json!({"roleAggregationStrategy": "Own"}), "roleAggregationStrategy", "Own is not one of"),
        (
            json!({"virtTemplateDeployment": {"enabled": true}}),
            "virtTemplateDeployment.enabled",
            "is not supported yet",
        ),
        (
            json!({"architectureConfiguration": {"defaultArchitecture": "arm64"}}),
            "architectureConfiguration.defaultArchitecture",
            "is not supported yet",
        ),
        (
            json!({"autoCPULimitNamespaceLabelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
            "autoCPULimitNamespaceLabelSelector",
            "is not a valid label selector operator",
        ),
        (
            json!({"apiConfiguration": bucket(json!({"qps": -1.0, "burst": 1}))}),
            "apiConfiguration.restClient.rateLimiter.tokenBucketRateLimiter.qps",
            "must not be below 0",
        ),
        (
            json!({"handlerConfiguration": bucket(json!({"qps": 1.0, "burst": -1}))}),
            "handlerConfiguration.restClient.rateLimiter.tokenBucketRateLimiter.burst",
            "must not be below 0",
        ),
        (
            json!({"tlsConfiguration": {"minTLSVersion": "VersionTLS11"}}),
            "tlsConfiguration.minTLSVersion",
            "TLS 1.2 and 1.3 only",
        ),
        (
            json!({"tlsConfiguration": {"minTLSVersion": "VersionTLS12", "ciphers": ["TLS_RSA_WITH_AES_128_CBC_SHA"]}}),
            "tlsConfiguration.ciphers[0]",
            "the components speak",
        ),
        (
            json!({"migrations": {"network": "migrations@eth0,other"}}),
            "migrations.network",
            "must be a name, or a namespace and a name separated by a slash",
        ),
        (
            json!({"migrations": {"network": "a/b/c"}}),
            "migrations.network",
            "must be a name, or a namespace and a name separated by a slash",
        ),
        (
            json!({"migrations": {"parallelMigrationsPerCluster": -1}}),
            "migrations.parallelMigrationsPerCluster",
            "must not be negative",
        ),
        (
            json!({"migrations": {"parallelOutboundMigrationsPerNode": 0}}),
            "migrations.parallelOutboundMigrationsPerNode",
            "must be at least 1",
        ),
        (
            json!({"migrations": {"maxDowntimeMs": 2_000_001},
                "developerConfiguration": {"featureGates": ["MigrationDowntimeTuning"]}}),
            "migrations.maxDowntimeMs",
            "must be from 1 to 2000000",
        ),
        (
            json!({"migrations": {"nodeDrainTaintKey": "a b"}}),
            "migrations.nodeDrainTaintKey",
            "a b is not the key of a taint",
        ),
        (
            json!({"migrations": {"bandwidthPerMigration": "much"}}),
            "migrations.bandwidthPerMigration",
            "is not an amount of bytes",
        ),
        (
            json!({"permittedHostDevices": {"usb": [{"resourceName": "a/b", "selectors": []}]}}),
            "permittedHostDevices.usb[0].selectors",
            "names no device",
        ),
        (
            json!({"seccompConfiguration": {"virtualMachineInstanceProfile": {"customProfile": {"localhostProfile": "../a"}}}}),
            "seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile",
            "is not a path beneath",
        ),
    ];
    for (configuration, field, message) in rows {
        let causes = causes(&configuration);
        assert_eq!(causes.len(), 1, "{configuration}: {causes:#?}");
        assert!(causes[0].starts_with(&format!("spec.configuration.{field}: ")), "{causes:#?}");
        assert!(causes[0].contains(message), "{causes:#?}");
    }
}

#[test]
fn sizes_in_annotations_are_quantities_in_range() {
    let object = |size: &str| -> KubeVirt {
        let annotations =
            json!({"barevirt.dev/largest-image": size, "barevirt.dev/ephemeral-disks": "10Gi", "other": "x"});
        let metadata = json!({"name": "kubevirt", "namespace": "kubevirt", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()
    };
    let (good, bad) = (object("20Gi"), object("much"));
    assert_eq!(create(&good, false, "kubevirt"), []);
    assert_eq!(update(&bad, &good), []);
    // An unchanged specification passes.
    assert_eq!(update(&bad, &bad), []);
    for causes in [create(&bad, false, "kubevirt"), standing(&bad), update(&good, &bad)] {
        let causes: Vec<_> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        assert_eq!(
            causes,
            ["metadata.annotations[barevirt.dev/largest-image]: much is not a quantity between 1Mi and 64Ti"]
        );
    }
}

#[test]
fn annotations_about_imports_are_judged_without_repeating_a_password() {
    let metadata = json!({"name": "kubevirt", "namespace": "kubevirt", "annotations": {
        "barevirt.dev/import-http-proxy": "me:secret@proxy", "barevirt.dev/import-https-proxy": "http://me:x@proxy:3128",
        "barevirt.dev/import-addresses": "private"}});
    let object: KubeVirt = serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap();
    let causes: Vec<_> = create(&object, false, "kubevirt")
        .iter()
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect();
    assert_eq!(
        causes,
        [
            "metadata.annotations[barevirt.dev/import-http-proxy]: the value is not the address of a proxy, http://[user:password@]host[:port]",
            "metadata.annotations[barevirt.dev/import-addresses]: the value is neither any nor public",
        ]
    );
}

#[test]
fn unsupported_fields_of_a_binding_plugin_are_named() {
    let of = |plugin: Value| causes(&json!({"network": {"binding": {"mine": plugin}}}));
    for (plugin, field) in [
        (json!({"domainAttachmentType": "tap", "sidecarImage": "x"}), "sidecarImage"),
        (json!({"domainAttachmentType": "tap", "downwardAPI": "device-info"}), "downwardAPI"),
        (json!({"domainAttachmentType": "tap", "migration": {"method": "magic"}}), "migration.method"),
        (
            json!({"domainAttachmentType": "tap", "networkAttachmentDefinition": "a/b/c"}),
            "networkAttachmentDefinition",
        ),
        (json!({"networkAttachmentDefinition": "a"}), "domainAttachmentType"),
        (json!({"domainAttachmentType": "veth"}), "domainAttachmentType"),
        (
            json!({"domainAttachmentType": "tap", "computeResourceOverhead": {"requests": {"cpu": "1"}}}),
            "computeResourceOverhead.requests.cpu",
        ),
        (
            json!({"domainAttachmentType": "tap", "computeResourceOverhead": {"requests": {"memory": "much"}}}),
            "computeResourceOverhead.requests.memory",
        ),
    ] {
        let found = of(plugin.clone());
        let path = format!("spec.configuration.network.binding.mine.{field}: ");
        assert!(found.len() == 1 && found[0].starts_with(&path), "{plugin}: {found:?}");
    }
    let found = of(json!({"domainAttachmentType": "tap", "sidecarImage": "x"}));
    assert!(found[0].contains("there is no libvirt here"), "{found:?}");
}
