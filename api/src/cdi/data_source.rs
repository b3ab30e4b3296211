//! DataSources: names for sources to copy.

use super::{DataVolumeCondition, DataVolumeSourcePvc, DataVolumeSourceSnapshot};
use crate::crd;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, ValidationRule,
};
use kube_core::CustomResourceExt;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Another DataSource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataSourceRefSourceDataSource {
    /// Its name.
    pub name: String,
    /// Its namespace, which must be the namespace of the DataSource that names it.
    pub namespace: String,
}

/// What a DataSource refers to. At most one member is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataSourceSource {
    /// Another DataSource, whose source is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_source: Option<DataSourceRefSourceDataSource>,
    /// A claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<DataVolumeSourcePvc>,
    /// A VolumeSnapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<DataVolumeSourceSnapshot>,
}

/// Observed state of a DataSource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataSourceStatus {
    /// Conditions of the source: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<DataVolumeCondition>,
    /// The claim or snapshot that the DataSource finally refers to.
    #[serde(default)]
    pub source: DataSourceSource,
}

/// A name for a source to copy.
#[derive(Clone, CustomResource, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "DataSource",
    plural = "datasources",
    doc = "A name for a claim or snapshot that DataVolumes copy.",
    namespaced,
    status = "DataSourceStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "das",
    category = "all",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
pub struct DataSourceSpec {
    /// What it refers to.
    pub source: DataSourceSource,
}

/// The definition that is installed in clusters without CDI.
pub fn data_source_definition() -> CustomResourceDefinition {
    let mut definition = crd::without_unsigned(DataSource::crd());
    for version in &mut definition.spec.versions {
        let source =
            crd::schema(version).and_then(|schema| super::definition::below(schema, &["spec", "source"]));
        let Some(source) = source else { continue };
        source.x_kubernetes_validations.get_or_insert_default().push(ValidationRule {
            rule:
                "[has(self.dataSource), has(self.pvc), has(self.snapshot)].filter(given, given).size() <= 1"
                    .to_owned(),
            message: Some("at most one of dataSource, pvc and snapshot can be given".to_owned()),
            ..ValidationRule::default()
        });
    }
    definition
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_source_stands_for_one_thing() {
        let definition = data_source_definition();
        assert_eq!(definition.metadata.name.as_deref(), Some(super::super::DATA_SOURCE_DEFINITION));
        let text = serde_json::to_string(&definition).unwrap();
        assert!(text.contains("has(self.snapshot)") && text.contains("\"subresources\":{\"status\":{}}"));
    }
}
