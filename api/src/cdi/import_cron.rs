//! DataImportCrons: images that are imported again whenever their source has a new one.

use super::definition::{below, rule};
use super::{DataVolumeCondition, DataVolumeSourcePvc};
use crate::crd;
use crate::v1::DataVolumeTemplateSpec;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::CustomResourceExt;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the definition of DataImportCrons.
pub const IMPORT_CRON_DEFINITION: &str = "dataimportcrons.cdi.kubevirt.io";
/// The kind of images that are imported again and again.
pub const IMPORT_CRON: &str = "DataImportCron";

/// Label on objects that a DataImportCron makes: its name.
pub const IMPORT_CRON_LABEL: &str = "cdi.kubevirt.io/dataImportCron";
/// Label on objects that are deleted together with their DataImportCron.
pub const IMPORT_CRON_CLEANUP_LABEL: &str = "cdi.kubevirt.io/dataImportCron.cleanup";
/// Annotation on a DataImportCron: the digest that its source has.
pub const DESIRED_DIGEST: &str = "cdi.kubevirt.io/storage.import.sourceDesiredDigest";
/// Annotation on a DataImportCron: when its source is checked next, RFC 3339.
pub const NEXT_CRON_TIME: &str = "cdi.kubevirt.io/storage.import.nextCronTime";
/// Annotation on a DataImportCron: when its source was last checked, RFC 3339.
pub const LAST_CRON_TIME: &str = "cdi.kubevirt.io/storage.import.lastCronTime";
/// Annotation on an import of a DataImportCron: when it was last the current one, RFC 3339.
pub const LAST_USE_TIME: &str = "cdi.kubevirt.io/storage.import.lastUseTime";

/// One import.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImportStatus {
    /// Its DataVolume.
    #[serde(rename = "DataVolumeName")]
    pub data_volume_name: String,
    /// Digest of the image that was imported.
    #[serde(rename = "Digest")]
    pub digest: String,
}

/// Observed state of a DataImportCron.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataImportCronStatus {
    /// Conditions: `Progressing`, `UpToDate`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<DataVolumeCondition>,
    /// The newest import; at most one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub current_imports: Vec<ImportStatus>,
    /// When the source was last checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_execution_timestamp: Option<Time>,
    /// When the last import was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_import_timestamp: Option<Time>,
    /// The claim of the last completed import.
    #[serde(rename = "lastImportedPVC", default, skip_serializing_if = "Option::is_none")]
    pub last_imported_pvc: Option<DataVolumeSourcePvc>,
    /// How images are kept: `pvc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_format: Option<String>,
}

/// An image that is imported again whenever its source has a new one.
#[derive(Clone, CustomResource, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "DataImportCron",
    plural = "dataimportcrons",
    doc = "An image that is imported again whenever its source has a new one.",
    namespaced,
    status = "DataImportCronStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "dic",
    shortname = "dics",
    category = "all",
    printcolumn = r#"{"name":"Format","type":"string","jsonPath":".status.sourceFormat","description":"What images are kept as"}"#
)]
pub struct DataImportCronSpec {
    /// `Outdated` (default) keeps only the last `importsToKeep` imports; `Never` keeps all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub garbage_collect: Option<String>,
    /// How many imports are kept; 3 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imports_to_keep: Option<i32>,
    /// The DataSource, of the same namespace, that refers to the last import.
    pub managed_data_source: String,
    /// Whether the imports and the DataSource stay when the DataImportCron is deleted: `All` (default) or
    /// `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_policy: Option<String>,
    /// When the source is checked, in cron's notation and UTC. If empty it is never checked, and the
    /// annotation `cdi.kubevirt.io/storage.import.sourceDesiredDigest` names the digest to import.
    pub schedule: String,
    /// ServiceAccount that needs permission to copy the source. Without CDI only web servers and registries
    /// are sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// The DataVolume of an import.
    pub template: DataVolumeTemplateSpec,
}

/// Longest schedule, in bytes.
const LONGEST_SCHEDULE: i64 = 256;
/// Longest name of a managed DataSource, because the names of imports begin with it.
const LONGEST_NAME: i64 = 63;
const UNCHANGED: &str = "a DataImportCron's source, schedule and DataSource cannot be changed";

/// The definition that is installed in clusters without CDI.
pub fn import_cron_definition() -> CustomResourceDefinition {
    let mut definition = crd::without_unsigned(DataImportCron::crd());
    for version in &mut definition.spec.versions {
        let Some(spec) = crd::schema(version).and_then(|schema| below(schema, &["spec"])) else { continue };
        let lengths: [(&[&str], i64); 4] = [
            (&["schedule"], LONGEST_SCHEDULE),
            (&["managedDataSource"], LONGEST_NAME),
            (&["template", "spec", "source", "http", "url"], super::definition::LONGEST_URL),
            (&["template", "spec", "source", "registry", "url"], super::definition::LONGEST_URL),
        ];
        for (path, most) in lengths {
            if let Some(schema) = below(spec, path) {
                schema.max_length = Some(most);
                rule(schema, "self == oldSelf", UNCHANGED, "");
            }
        }
        if let Some(name) = below(spec, &["managedDataSource"]) {
            rule(name, "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", "it is not a name", "");
        }
        if let Some(schedule) = below(spec, &["schedule"]) {
            let fields = r"self == '' || self.startsWith('@') || self.matches('^\\s*(\\S+\\s+){4}\\S+\\s*$')";
            rule(
                schedule,
                fields,
                "a schedule has five fields: minute, hour, day, month, day of the week",
                "",
            );
        }
        rule(
            spec,
            "!has(self.garbageCollect) || self.garbageCollect in ['Outdated', 'Never']",
            "garbageCollect is Outdated or Never",
            ".garbageCollect",
        );
        rule(
            spec,
            "!has(self.retentionPolicy) || self.retentionPolicy in ['All', 'None']",
            "retentionPolicy is All or None",
            ".retentionPolicy",
        );
        rule(
            spec,
            "!has(self.importsToKeep) || self.importsToKeep >= 0",
            "importsToKeep cannot be less than none",
            ".importsToKeep",
        );
        if let Some(template) = below(spec, &["template", "spec"]) {
            rule(
                template,
                "has(self.source) && !has(self.sourceRef)",
                "source must be given, and sourceRef cannot be",
                "",
            );
            rule(
                template,
                "!has(self.source) || has(self.source.http) != has(self.source.registry)",
                "images of http and registry are imported by schedule; other sources by CDI alone, and this cluster has none",
                ".source",
            );
        }
        if let Some(registry) = below(spec, &["template", "spec", "source", "registry"]) {
            rule(
                registry,
                "has(self.url) && self.url.startsWith('docker://')",
                "url must be given, and begin with docker://",
                ".url",
            );
        }
    }
    definition
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_data_import_cron_are_bounded_and_immutable() {
        let mut definition = import_cron_definition();
        assert_eq!(definition.metadata.name.as_deref(), Some(IMPORT_CRON_DEFINITION));
        let schema = crd::schema(&mut definition.spec.versions[0]).unwrap();
        for path in [
            &["spec", "schedule"][..],
            &["spec", "managedDataSource"],
            &["spec", "template", "spec", "source", "http", "url"],
            &["spec", "template", "spec", "source", "registry", "url"],
        ] {
            let found = below(schema, path).unwrap_or_else(|| panic!("{path:?}"));
            assert!(found.max_length.is_some(), "{path:?}");
            let rules = found.x_kubernetes_validations.as_ref().unwrap();
            assert!(rules.iter().any(|rule| rule.rule == "self == oldSelf"), "{path:?}");
        }
        let template = below(schema, &["spec", "template", "spec"]).unwrap();
        assert_eq!(template.x_kubernetes_validations.as_ref().map(Vec::len), Some(2));
    }
}
