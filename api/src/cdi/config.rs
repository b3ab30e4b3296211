//! CDIConfig: what people and tools read of CDI's settings, and those settings that count without CDI. The only object that
//! is read is called `config`.

use super::definition::{LONGEST_URL, Rule, below, judge, rule};
use crate::crd;
use k8s_openapi::api::core::v1::{LocalObjectReference, ResourceRequirements};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube_core::CustomResourceExt;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Name of the definition of CDIConfigs.
pub const CONFIG_DEFINITION: &str = "cdiconfigs.cdi.kubevirt.io";
/// The kind of CDI's settings.
pub const CONFIG_KIND: &str = "CDIConfig";
/// Name of the object that is read.
pub const CONFIG: &str = "config";
/// CDI's feature gate for claims that wait for a consumer. Without CDI it is always on.
pub const WAITS_FOR_CONSUMER: &str = "HonorWaitForFirstConsumer";

/// Most entries of a list.
const MOST: i64 = 256;
/// Longest list of hosts, in bytes.
const LONGEST_LIST: i64 = 8192;
/// A share: CDI's, without the whole.
const SHARE: &str = r"^0(\.\d{1,3})?$";

/// The share of claims that their file systems take, as fractions such as `0.06`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemOverhead {
    /// For classes without a share of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global: Option<String>,
    /// For the classes of these names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub storage_class: BTreeMap<String, String>,
}

/// How importers reach servers outside the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportProxy {
    /// Proxy for addresses with `http`: `http://[user:password@]host[:port]`.
    #[serde(rename = "HTTPProxy", default, skip_serializing_if = "Option::is_none")]
    pub http_proxy: Option<String>,
    /// Proxy for addresses with `https`, in the same form.
    #[serde(rename = "HTTPSProxy", default, skip_serializing_if = "Option::is_none")]
    pub https_proxy: Option<String>,
    /// Hosts that are reached without a proxy, with commas between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_proxy: Option<String>,
    /// ConfigMap with certificates of authorities. Without CDI they are in an annotation of the `KubeVirt` object.
    #[serde(rename = "trustedCAProxy", default, skip_serializing_if = "Option::is_none")]
    pub trusted_ca_proxy: Option<String>,
}

/// TLS settings of CDI's servers. Without CDI those of the `KubeVirt` object count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsSecurityProfile {
    /// Name of the profile.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
}

/// Settings of imports and uploads.
#[derive(Clone, CustomResource, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "CDIConfig",
    root = "CdiConfig",
    plural = "cdiconfigs",
    doc = "Settings of imports and uploads.",
    status = "CdiConfigStatus",
    derive = "PartialEq",
    derive = "Default"
)]
pub struct CdiConfigSpec {
    /// Seconds after which filled DataVolumes are deleted; less than 0 for never. Without CDI they stay.
    #[serde(rename = "dataVolumeTTLSeconds", default, skip_serializing_if = "Option::is_none")]
    pub data_volume_ttl_seconds: Option<i32>,
    /// Feature gates that are on. Without CDI it is `HonorWaitForFirstConsumer`, whether it is listed or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feature_gates: Vec<String>,
    /// The share of claims that their file systems take; 0.06 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem_overhead: Option<FilesystemOverhead>,
    /// Secrets for the image of the pods that fill claims, in the namespaces of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// How importers reach servers outside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import_proxy: Option<ImportProxy>,
    /// Registries that are used without TLS, `host` or `host:port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub insecure_registries: Vec<String>,
    /// How much CDI logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_verbosity: Option<i32>,
    /// Requests and limits of pods that fill claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_resource_requirements: Option<ResourceRequirements>,
    /// Whether all space is reserved up front, for DataVolumes that do not say so themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
    /// Storage class of CDI's claims for scratch space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_space_storage_class: Option<String>,
    /// TLS settings of CDI's servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_security_profile: Option<TlsSecurityProfile>,
    /// The address of the upload proxy, for clients.
    #[serde(rename = "uploadProxyURLOverride", default, skip_serializing_if = "Option::is_none")]
    pub upload_proxy_url_override: Option<String>,
    /// Whether CDI completes every claim from the profile of its class: `Enabled` or `Disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_pvc_rendering: Option<String>,
}

/// The settings that count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CdiConfigStatus {
    /// Requests and limits of pods that fill claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_pod_resource_requirements: Option<ResourceRequirements>,
    /// The share of claims that their file systems take, with every class of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem_overhead: Option<FilesystemOverhead>,
    /// Secrets for the image of the pods that fill claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// How importers reach servers outside the cluster; without CDI it shows no passwords.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import_proxy: Option<ImportProxy>,
    /// Whether all space is reserved up front, for DataVolumes that do not say so themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
    /// Storage class of claims for scratch space. Without CDI there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_space_storage_class: Option<String>,
    /// Certificate of the upload proxy's authority.
    #[serde(rename = "uploadProxyCA", default, skip_serializing_if = "Option::is_none")]
    pub upload_proxy_ca: Option<String>,
    /// The address of the upload proxy, for clients.
    #[serde(rename = "uploadProxyURL", default, skip_serializing_if = "Option::is_none")]
    pub upload_proxy_url: Option<String>,
}

const RULES: &[Rule] = &[
    Rule {
        at: &[],
        rule: "!has(self.dataVolumeTTLSeconds) || self.dataVolumeTTLSeconds < 0",
        message: "filled DataVolumes stay",
        field: ".dataVolumeTTLSeconds",
    },
    Rule {
        at: &[],
        rule: "!has(self.logVerbosity)",
        message: "importers have one level of logs; others are served by CDI alone, and this cluster has none",
        field: ".logVerbosity",
    },
    Rule {
        at: &[],
        rule: "!has(self.scratchSpaceStorageClass) || self.scratchSpaceStorageClass == ''",
        message: "there are no claims for scratch space: images are kept in the claim itself until they are converted",
        field: ".scratchSpaceStorageClass",
    },
    Rule {
        at: &[],
        rule: "!has(self.tlsSecurityProfile)",
        message: "TLS settings are in the KubeVirt object: spec.configuration.tlsConfiguration",
        field: ".tlsSecurityProfile",
    },
    Rule {
        at: &[],
        rule: "!has(self.webhookPvcRendering) || self.webhookPvcRendering == 'Disabled'",
        message: "claims of DataVolumes are completed from StorageProfiles; others by CDI alone, and this cluster has none",
        field: ".webhookPvcRendering",
    },
    Rule {
        at: &["importProxy"],
        rule: "!has(self.HTTPProxy) || self.HTTPProxy.matches('^(http://[!-~]+)?$')",
        message: "a proxy is http://[user:password@]host[:port]",
        field: ".HTTPProxy",
    },
    Rule {
        at: &["importProxy"],
        rule: "!has(self.HTTPSProxy) || self.HTTPSProxy.matches('^(http://[!-~]+)?$')",
        message: "a proxy is http://[user:password@]host[:port]",
        field: ".HTTPSProxy",
    },
    Rule {
        at: &["importProxy"],
        rule: "!has(self.trustedCAProxy) || self.trustedCAProxy == ''",
        message: "certificates for importers are in the annotation barevirt.dev/import-authorities of the KubeVirt object",
        field: ".trustedCAProxy",
    },
    Rule {
        at: &["podResourceRequirements"],
        rule: "!has(self.claims) || size(self.claims) == 0",
        message: "pods that fill claims have no dynamic resources",
        field: ".claims",
    },
    Rule {
        at: &["podResourceRequirements"],
        rule: "!has(self.limits) || self.limits.all(name, name in ['cpu', 'memory'])",
        message: "pods that fill claims have limits of cpu and memory alone",
        field: ".limits",
    },
    Rule {
        at: &["podResourceRequirements"],
        rule: "!has(self.requests) || self.requests.all(name, name in ['cpu', 'memory'])",
        message: "pods that fill claims have requests of cpu and memory alone",
        field: ".requests",
    },
];

/// The definition that is installed in clusters without CDI. Like CDI's it has no status subresource.
pub fn config_definition() -> CustomResourceDefinition {
    let mut definition = crd::without_unsigned(CdiConfig::crd());
    for version in &mut definition.spec.versions {
        version.subresources = None;
        let Some(schema) = crd::schema(version) else { continue };
        bound(schema);
        judge(schema, RULES);
        rule(schema, "self.metadata.name == 'config'", "only the CDIConfig of the name config is read", "");
    }
    definition
}

/// Bounds lists and texts, and lists the values of those that have few.
fn bound(schema: &mut JSONSchemaProps) {
    let mut at = |path: &[&str], change: &dyn Fn(&mut JSONSchemaProps)| {
        let path: Vec<&str> = ["spec"].iter().chain(path).copied().collect();
        if let Some(found) = below(schema, &path) {
            change(found);
        }
    };
    at(&["featureGates"], &|gates| {
        gates.max_items = Some(MOST);
        if let Some(JSONSchemaPropsOrArray::Schema(gate)) = &mut gates.items {
            gate.enum_ = Some(vec![JSON(json!(WAITS_FOR_CONSUMER))]);
        }
    });
    at(&["filesystemOverhead", "global"], &|share| share.pattern = Some(SHARE.to_owned()));
    at(&["filesystemOverhead", "storageClass"], &|classes| {
        if let Some(JSONSchemaPropsOrBool::Schema(share)) = &mut classes.additional_properties {
            share.pattern = Some(SHARE.to_owned());
        }
    });
    for list in ["imagePullSecrets", "insecureRegistries"] {
        at(&[list], &|found| found.max_items = Some(MOST));
    }
    at(&["podResourceRequirements", "claims"], &|claims| claims.max_items = Some(MOST));
    for of in ["limits", "requests"] {
        at(&["podResourceRequirements", of], &|found| found.max_properties = Some(8));
    }
    for proxy in ["HTTPProxy", "HTTPSProxy"] {
        at(&["importProxy", proxy], &|found| found.max_length = Some(LONGEST_URL));
    }
    at(&["importProxy", "noProxy"], &|found| found.max_length = Some(LONGEST_LIST));
    at(&["uploadProxyURLOverride"], &|found| found.max_length = Some(LONGEST_URL));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The members of CDI's specification: those that count, and those that are refused.
    const SERVED: [&str; 8] = [
        "featureGates",
        "filesystemOverhead",
        "imagePullSecrets",
        "importProxy",
        "insecureRegistries",
        "podResourceRequirements",
        "preallocation",
        "uploadProxyURLOverride",
    ];
    const REFUSED: [&str; 5] = [
        "dataVolumeTTLSeconds",
        "logVerbosity",
        "scratchSpaceStorageClass",
        "tlsSecurityProfile",
        "webhookPvcRendering",
    ];

    fn schema(definition: &mut CustomResourceDefinition) -> &mut JSONSchemaProps {
        crd::schema(&mut definition.spec.versions[0]).unwrap()
    }

    #[test]
    fn each_setting_counts_or_is_refused_by_name() {
        let mut definition = config_definition();
        assert_eq!(definition.metadata.name.as_deref(), Some(CONFIG_DEFINITION));
        assert_eq!(definition.spec.names.kind, CONFIG_KIND);
        assert_eq!(
            (definition.spec.scope.as_str(), definition.spec.names.singular.as_deref()),
            ("Cluster", Some("cdiconfig"))
        );
        assert_eq!(definition.spec.versions[0].subresources, None);
        let schema = schema(&mut definition);
        let mut expected: Vec<&str> = SERVED.into_iter().chain(REFUSED).collect();
        expected.sort_unstable();
        let spec = below(schema, &["spec"]).unwrap();
        let found: Vec<&str> = spec.properties.as_ref().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found, expected);
        let refused =
            |name: &str| RULES.iter().any(|rule| rule.at.is_empty() && rule.field == format!(".{name}"));
        assert!(REFUSED.into_iter().all(refused) && !SERVED.into_iter().any(refused));
        for rule in RULES {
            let path: Vec<&str> = ["spec"].iter().chain(rule.at).copied().collect();
            let found = below(schema, &path).unwrap_or_else(|| panic!("{path:?}"));
            let rules = found.x_kubernetes_validations.as_ref().unwrap();
            assert!(rules.iter().any(|found| found.rule == rule.rule), "{}", rule.rule);
            let field = rule.field.strip_prefix('.').unwrap();
            assert!(below(found, &[field]).is_some(), "{field} of {path:?}");
        }
        let name = schema.x_kubernetes_validations.as_ref().unwrap();
        assert_eq!(name[0].rule, format!("self.metadata.name == '{CONFIG}'"));
    }

    #[test]
    fn lists_and_texts_are_bounded_and_shares_are_shares() {
        let mut definition = config_definition();
        let schema = schema(&mut definition);
        let gates = below(schema, &["spec", "featureGates"]).unwrap();
        let Some(JSONSchemaPropsOrArray::Schema(gate)) = &gates.items else { panic!() };
        assert_eq!(gate.enum_, Some(vec![JSON(json!(WAITS_FOR_CONSUMER))]));
        let global = below(schema, &["spec", "filesystemOverhead", "global"]).unwrap();
        assert_eq!(global.pattern.as_deref(), Some(SHARE));
        let classes = below(schema, &["spec", "filesystemOverhead", "storageClass"]).unwrap();
        let Some(JSONSchemaPropsOrBool::Schema(share)) = &classes.additional_properties else { panic!() };
        assert_eq!(share.pattern.as_deref(), Some(SHARE));
        let limits = below(schema, &["spec", "podResourceRequirements", "limits"]).unwrap();
        assert_eq!(limits.max_properties, Some(8));
        let proxy = below(schema, &["spec", "importProxy", "HTTPSProxy"]).unwrap();
        assert_eq!(proxy.max_length, Some(LONGEST_URL));
    }

    #[test]
    fn the_names_are_cdis() {
        let config = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDIConfig", "metadata": { "name": "config" },
            "spec": {
                "uploadProxyURLOverride": "https://uploads.example", "dataVolumeTTLSeconds": -1,
                "importProxy": { "HTTPProxy": "http://p", "HTTPSProxy": "http://s", "noProxy": ".svc", "trustedCAProxy": "" },
                "filesystemOverhead": { "global": "0.1", "storageClass": { "fast": "0" } },
                "podResourceRequirements": { "limits": { "cpu": "1" } },
            },
            "status": { "uploadProxyURL": "https://uploads.example", "uploadProxyCA": "PEM" },
        });
        let read: CdiConfig = serde_json::from_value(config.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), config);
    }
}
