//! StorageProfiles: defaults for claims of the storage class with the same name.

use super::DataVolumeCondition;
use crate::crd;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// How claims of the class are copied: `copy`, `snapshot` or `csi-clone`. Without CDI all are copied byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_strategy: Option<String>,
    /// How images of DataImportCrons are kept: `pvc` or `snapshot`. Without CDI they are kept in claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_import_cron_source_format: Option<String>,
    /// The VolumeSnapshotClass for copies by snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_class: Option<String>,
}

/// The definition that is installed in clusters without CDI.
pub fn storage_profile_definition() -> CustomResourceDefinition {
    let mut definition = crd::without_unsigned(StorageProfile::crd());
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        let sets = schema.and_then(|schema| super::definition::below(schema, &["spec", "claimPropertySets"]));
        if let Some(sets) = sets {
            sets.max_items = Some(8);
        }
    }
    definition
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_profile_is_of_no_namespace_and_bounded() {
        let definition = storage_profile_definition();
        assert_eq!(definition.metadata.name.as_deref(), Some(super::super::STORAGE_PROFILE_DEFINITION));
        assert_eq!(definition.spec.scope, "Cluster");
        let text = serde_json::to_string(&definition).unwrap();
        assert!(text.contains("\"maxItems\":8") && text.contains("\"subresources\":{\"status\":{}}"));
    }
}
