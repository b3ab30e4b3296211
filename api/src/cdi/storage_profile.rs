//! StorageProfiles: defaults for claims of the storage class with the same name.

use super::DataVolumeCondition;
use super::definition::{Rule, below, judge};
use crate::crd;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube_core::CustomResourceExt;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Name of the definition of StorageProfiles.
pub const STORAGE_PROFILE_DEFINITION: &str = "storageprofiles.cdi.kubevirt.io";
/// The kind of settings for storage classes.
pub const STORAGE_PROFILE: &str = "StorageProfile";

/// Modes of access of claims.
const ACCESS_MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];
/// Modes of volumes.
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Modes that claims of a class may combine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimPropertySet {
    /// Access modes, all of which a claim gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// `Block` or `Filesystem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
}

/// Observed state of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageProfileStatus {
    /// What claims of the class get for what they leave open, the best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim_property_sets: Vec<ClaimPropertySet>,
    /// How claims of the class are copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_strategy: Option<String>,
    /// Conditions of the class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<DataVolumeCondition>,
    /// How images of DataImportCrons are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_import_cron_source_format: Option<String>,
    /// The class's provisioner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<String>,
    /// The VolumeSnapshotClass for copies by snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_class: Option<String>,
    /// Name of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
}

/// Settings of a storage class.
#[derive(Clone, CustomResource, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "StorageProfile",
    plural = "storageprofiles",
    doc = "Defaults for claims of the storage class with the same name.",
    status = "StorageProfileStatus",
    derive = "PartialEq",
    derive = "Default"
)]
pub struct StorageProfileSpec {
    /// What claims of the class get for what they leave open, the best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim_property_sets: Vec<ClaimPropertySet>,
    /// How claims of the class are copied: `copy`, `snapshot` or `csi-clone`. Without CDI it is `copy`: byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_strategy: Option<String>,
    /// How images of DataImportCrons are kept: `pvc` or `snapshot`. Without CDI it is `pvc`: in claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_import_cron_source_format: Option<String>,
    /// The VolumeSnapshotClass for copies by snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_class: Option<String>,
}

const RULES: &[Rule] = &[
    Rule {
        at: &[],
        rule: "!has(self.cloneStrategy) || self.cloneStrategy == 'copy'",
        message: "claims are copied byte for byte (copy); other strategies are served by CDI alone, and this cluster has none",
        field: ".cloneStrategy",
    },
    Rule {
        at: &[],
        rule: "!has(self.dataImportCronSourceFormat) || self.dataImportCronSourceFormat == 'pvc'",
        message: "images are kept in claims (pvc); snapshots of them are served by CDI alone, and this cluster has none",
        field: ".dataImportCronSourceFormat",
    },
    Rule {
        at: &[],
        rule: "!has(self.snapshotClass) || self.snapshotClass == ''",
        message: "claims are copied without snapshots; those are served by CDI alone, and this cluster has none",
        field: ".snapshotClass",
    },
];

/// The definition that is installed in clusters without CDI.
pub fn storage_profile_definition() -> CustomResourceDefinition {
    let mut definition = crd::without_unsigned(StorageProfile::crd());
    for version in &mut definition.spec.versions {
        let Some(schema) = crd::schema(version) else { continue };
        judge(schema, RULES);
        for part in ["spec", "status"] {
            if let Some(sets) = below(schema, &[part, "claimPropertySets"]) {
                bound(sets);
            }
        }
    }
    definition
}

/// Bounds sets of modes, and lists the values, as CDI does.
fn bound(sets: &mut JSONSchemaProps) {
    sets.max_items = Some(8);
    let Some(JSONSchemaPropsOrArray::Schema(set)) = &mut sets.items else { return };
    set.required = Some(vec!["accessModes".to_owned(), "volumeMode".to_owned()]);
    let of = |values: &[&str]| Some(values.iter().map(|value| JSON(json!(value))).collect());
    if let Some(modes) = below(set, &["accessModes"]) {
        modes.max_items = Some(4);
        if let Some(JSONSchemaPropsOrArray::Schema(mode)) = &mut modes.items {
            mode.enum_ = of(&ACCESS_MODES);
        }
    }
    if let Some(mode) = below(set, &["volumeMode"]) {
        mode.enum_ = of(&VOLUME_MODES);
        // A value is required.
        mode.nullable = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_profile_is_of_no_namespace_and_bounded() {
        let definition = storage_profile_definition();
        assert_eq!(definition.metadata.name.as_deref(), Some(STORAGE_PROFILE_DEFINITION));
        assert_eq!(definition.spec.scope, "Cluster");
        let text = serde_json::to_string(&definition).unwrap();
        assert!(text.contains("\"maxItems\":8") && text.contains("\"subresources\":{\"status\":{}}"));
    }

    #[test]
    fn what_has_no_effect_is_refused_by_name_and_modes_are_modes() {
        let mut definition = storage_profile_definition();
        let schema = crd::schema(&mut definition.spec.versions[0]).unwrap();
        let spec = below(schema, &["spec"]).unwrap();
        for name in spec.properties.as_ref().unwrap().keys() {
            let refused = RULES.iter().any(|rule| rule.field == format!(".{name}"));
            assert!(refused != (name == "claimPropertySets"), "{name}");
        }
        let rules = spec.x_kubernetes_validations.as_ref().unwrap();
        assert_eq!(rules.len(), RULES.len());
        for part in ["spec", "status"] {
            let sets = below(schema, &[part, "claimPropertySets"]).unwrap();
            let Some(JSONSchemaPropsOrArray::Schema(set)) = &mut sets.items else { panic!() };
            assert_eq!(set.required.as_ref().map(Vec::len), Some(2));
            let mode = below(set, &["volumeMode"]).unwrap();
            let values = VOLUME_MODES.iter().map(|mode| JSON(json!(mode))).collect::<Vec<_>>();
            assert_eq!(mode.enum_, Some(values));
        }
    }
}
