//! Sources that populate claims: a claim names one of them in `dataSourceRef`, and is bound once it is filled.

use super::definition::{Rule, judged};
use super::{
    DataVolumeBlankImage, DataVolumeCheckpoint, DataVolumeSource, DataVolumeSourceGcs, DataVolumeSourceHttp,
    DataVolumeSourceImageIo, DataVolumeSourceRegistry, DataVolumeSourceS3, DataVolumeSourceVddk, GROUP,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, TypedLocalObjectReference};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the definition of VolumeImportSources.
pub const IMPORT_SOURCE_DEFINITION: &str = "volumeimportsources.cdi.kubevirt.io";
/// Name of the definition of VolumeCloneSources.
pub const CLONE_SOURCE_DEFINITION: &str = "volumeclonesources.cdi.kubevirt.io";
/// Name of the definition of VolumeUploadSources.
pub const UPLOAD_SOURCE_DEFINITION: &str = "volumeuploadsources.cdi.kubevirt.io";

/// The kind of images that claims are filled with.
pub const IMPORT_SOURCE: &str = "VolumeImportSource";
/// The kind of claims that others are copied from.
pub const CLONE_SOURCE: &str = "VolumeCloneSource";
/// The kind of claims that a client fills.
pub const UPLOAD_SOURCE: &str = "VolumeUploadSource";

/// The only kind that is copied without CDI.
const CLAIM: &str = "PersistentVolumeClaim";

/// A kind of populators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopulatorKind {
    /// VolumeImportSource.
    Import,
    /// VolumeCloneSource.
    Clone,
    /// VolumeUploadSource.
    Upload,
}

impl PopulatorKind {
    /// The kind of its objects.
    pub fn name(self) -> &'static str {
        match self {
            PopulatorKind::Import => IMPORT_SOURCE,
            PopulatorKind::Clone => CLONE_SOURCE,
            PopulatorKind::Upload => UPLOAD_SOURCE,
        }
    }

    /// Its definition.
    pub fn definition(self) -> &'static str {
        match self {
            PopulatorKind::Import => IMPORT_SOURCE_DEFINITION,
            PopulatorKind::Clone => CLONE_SOURCE_DEFINITION,
            PopulatorKind::Upload => UPLOAD_SOURCE_DEFINITION,
        }
    }
}

/// The populator that a claim names: its kind and name.
pub fn populator(claim: &PersistentVolumeClaim) -> Option<(PopulatorKind, &str)> {
    let reference = claim.spec.as_ref()?.data_source_ref.as_ref()?;
    if reference.api_group.as_deref() != Some(GROUP) {
        return None;
    }
    let kinds = [PopulatorKind::Import, PopulatorKind::Clone, PopulatorKind::Upload];
    let kind = kinds.into_iter().find(|kind| kind.name() == reference.kind)?;
    Some((kind, &reference.name))
}

/// The DataVolume that fills such a claim without CDI, and the claim of that DataVolume. CDI's own name is `prime-UID`: if it
/// is installed later, it makes its own.
pub fn prime_name(claim: &PersistentVolumeClaim) -> String {
    format!("populator-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// An image that a claim is filled with. Exactly one member is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportSourceType {
    /// Starts with an empty disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blank: Option<DataVolumeBlankImage>,
    /// Downloads the image from Google Cloud Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs: Option<DataVolumeSourceGcs>,
    /// Downloads the image from a web server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<DataVolumeSourceHttp>,
    /// Fetches a disk from oVirt through its ImageIO service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imageio: Option<DataVolumeSourceImageIo>,
    /// Takes the disk out of a container image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<DataVolumeSourceRegistry>,
    /// Downloads the image from an S3 bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<DataVolumeSourceS3>,
    /// Copies a disk from VMware vCenter or ESXi with the VDDK library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vddk: Option<DataVolumeSourceVddk>,
}

impl From<ImportSourceType> for DataVolumeSource {
    fn from(source: ImportSourceType) -> Self {
        let ImportSourceType { blank, gcs, http, imageio, registry, s3, vddk } = source;
        DataVolumeSource {
            blank,
            gcs,
            http,
            imageio,
            registry,
            s3,
            vddk,
            pvc: None,
            snapshot: None,
            upload: None,
        }
    }
}

/// State of a source; it has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PopulatorStatus {}

/// An image for claims.
#[derive(Clone, CustomResource, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "VolumeImportSource",
    plural = "volumeimportsources",
    doc = "An image that claims are filled with which name it in dataSourceRef.",
    namespaced,
    status = "PopulatorStatus",
    derive = "PartialEq",
    derive = "Default"
)]
pub struct VolumeImportSourceSpec {
    /// Steps of a warm import, in the order they are copied. Only for `imageio` and `vddk`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<DataVolumeCheckpoint>,
    /// `kubevirt` (default) for a disk image, or `archive` for a tar file that is unpacked into the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// When true the last entry of `checkpoints` ends the import; otherwise more steps are awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_checkpoint: Option<bool>,
    /// Whether all space is reserved up front instead of on first write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
    /// Origin of the contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ImportSourceType>,
    /// The only claim that is filled from this object; any claim that names it when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_claim: Option<String>,
}

/// A claim that others are copied from.
#[derive(Clone, CustomResource, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "VolumeCloneSource",
    plural = "volumeclonesources",
    doc = "A claim that claims are copied from which name this object in dataSourceRef.",
    namespaced,
    derive = "PartialEq",
    derive = "Default"
)]
pub struct VolumeCloneSourceSpec {
    /// Whether all space is reserved up front instead of on first write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
    /// Priority class of the pods that copy the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// What is copied, in the same namespace.
    pub source: TypedLocalObjectReference,
}

/// What a client sends for claims.
#[derive(Clone, CustomResource, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "cdi.kubevirt.io",
    version = "v1beta1",
    kind = "VolumeUploadSource",
    plural = "volumeuploadsources",
    doc = "Claims that name this object in dataSourceRef are filled with what a client sends.",
    namespaced,
    status = "PopulatorStatus",
    derive = "PartialEq",
    derive = "Default"
)]
pub struct VolumeUploadSourceSpec {
    /// `kubevirt` (default) for a disk image, or `archive` for a tar file that is unpacked into the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Whether all space is reserved up front instead of on first write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
}

/// What was judged once stays: claims may be filled from it at any time.
const UNCHANGED: Rule = Rule {
    at: &[],
    rule: "self == oldSelf",
    message: "a source cannot be changed: make another one",
    field: "",
};

const IMPORTS: &[Rule] = &[
    Rule { at: &[], rule: "has(self.source)", message: "source must be given", field: "" },
    Rule {
        at: &["source"],
        rule: "[has(self.blank), has(self.gcs), has(self.http), has(self.imageio), has(self.registry), has(self.s3), \
            has(self.vddk)].filter(given, given).size() == 1",
        message: "exactly one source must be given",
        field: "",
    },
    Rule {
        at: &[],
        rule: "!has(self.contentType) || self.contentType != 'archive' || has(self.source) && \
            (has(self.source.http) || has(self.source.s3))",
        message: "an archive can be the content of the sources http and s3 only",
        field: ".contentType",
    },
    UNCHANGED,
];

const CLONES: &[Rule] = &[
    Rule {
        at: &["source"],
        rule: "self.kind == 'PersistentVolumeClaim' && (!has(self.apiGroup) || self.apiGroup == '')",
        message: "only a PersistentVolumeClaim is copied: other sources are served by CDI alone, and this cluster has none",
        field: ".kind",
    },
    UNCHANGED,
];

const UPLOADS: &[Rule] = &[UNCHANGED];

/// The definition of VolumeImportSources that is installed in clusters without CDI.
pub fn import_source_definition() -> CustomResourceDefinition {
    judged(VolumeImportSource::crd(), IMPORTS)
}

/// The definition of VolumeCloneSources that is installed in clusters without CDI.
pub fn clone_source_definition() -> CustomResourceDefinition {
    judged(VolumeCloneSource::crd(), CLONES)
}

/// The definition of VolumeUploadSources that is installed in clusters without CDI.
pub fn upload_source_definition() -> CustomResourceDefinition {
    judged(VolumeUploadSource::crd(), UPLOADS)
}

impl VolumeCloneSourceSpec {
    /// The name of the claim that is copied, in the namespace of this object; `None` if it is no claim.
    pub fn claim(&self) -> Option<&str> {
        let core = self.source.api_group.as_deref().is_none_or(str::is_empty);
        (core && self.source.kind == CLAIM).then_some(self.source.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::super::definition::below;
    use super::*;
    use serde_json::{Value, json};

    /// The rules at that place of a definition.
    fn rules(definition: &mut CustomResourceDefinition, path: &[&str]) -> Vec<String> {
        let schema = definition.spec.versions[0].schema.as_mut().unwrap();
        let found =
            below(schema.open_api_v3_schema.as_mut().unwrap(), path).unwrap_or_else(|| panic!("{path:?}"));
        found.x_kubernetes_validations.iter().flatten().map(|rule| rule.rule.clone()).collect()
    }

    #[test]
    fn each_kind_has_its_rules_and_cannot_be_changed() {
        for (mut definition, name) in [
            (import_source_definition(), IMPORT_SOURCE_DEFINITION),
            (clone_source_definition(), CLONE_SOURCE_DEFINITION),
            (upload_source_definition(), UPLOAD_SOURCE_DEFINITION),
        ] {
            assert_eq!(definition.metadata.name.as_deref(), Some(name));
            assert_eq!(definition.spec.scope, "Namespaced");
            assert!(rules(&mut definition, &["spec"]).contains(&"self == oldSelf".to_owned()), "{name}");
        }
        let copied = rules(&mut clone_source_definition(), &["spec", "source"]);
        assert!(copied.iter().any(|rule| rule.contains("'PersistentVolumeClaim'")), "{copied:?}");
        assert!(
            !rules(&mut upload_source_definition(), &["spec"])
                .iter()
                .any(|rule| rule.contains("checkpoints"))
        );
    }

    #[test]
    fn each_source_of_an_image_is_served_or_refused_as_in_data_volumes() {
        let mut definition = import_source_definition();
        let one = rules(&mut definition, &["spec", "source"]);
        let schema = definition.spec.versions[0].schema.as_mut().unwrap();
        let source = below(schema.open_api_v3_schema.as_mut().unwrap(), &["spec", "source"]).unwrap();
        let names: Vec<String> = source.properties.as_ref().unwrap().keys().cloned().collect();
        for name in names {
            let served = ["blank", "http", "registry", "s3"].contains(&name.as_str());
            assert!(served != one.contains(&format!("!has(self.{name})")), "{name}");
            assert!(one.iter().any(|rule| rule.contains(&format!("has(self.{name})"))), "{name}");
        }
        let tls = rules(&mut definition, &["spec", "source", "http"]);
        assert!(tls.iter().any(|rule| rule.contains("insecureSkipVerify")), "{tls:?}");
        assert!(rules(&mut definition, &["spec"]).iter().any(|rule| rule.contains("checkpoints")));
    }

    #[test]
    fn only_populators_of_cdi_are_ours() {
        let name = |reference: Value| {
            let claim = json!({ "metadata": { "uid": "c1" }, "spec": { "dataSourceRef": reference } });
            let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
            assert_eq!(prime_name(&claim), "populator-c1");
            populator(&claim).map(|(kind, name)| (kind, name.to_owned()))
        };
        let reference = |group: &str, kind: &str| json!({ "apiGroup": group, "kind": kind, "name": "x" });
        for kind in [PopulatorKind::Import, PopulatorKind::Clone, PopulatorKind::Upload] {
            let reference = reference("cdi.kubevirt.io", kind.name());
            assert_eq!(name(reference), Some((kind, "x".to_owned())));
            assert!(kind.definition().starts_with(&format!("{}s.", kind.name().to_lowercase())));
        }
        assert_eq!(name(reference("cdi.kubevirt.io", "DataVolume")), None);
        assert_eq!(name(reference("forklift.cdi.kubevirt.io", "VolumeImportSource")), None);
        assert_eq!(name(json!({ "kind": "PersistentVolumeClaim", "name": "x" })), None);
        assert_eq!(name(Value::Null), None);
    }

    #[test]
    fn only_claims_are_copied() {
        let of = |group: Option<&str>, kind: &str| {
            let source = TypedLocalObjectReference {
                api_group: group.map(str::to_owned),
                kind: kind.to_owned(),
                name: "golden".to_owned(),
            };
            VolumeCloneSourceSpec { source, ..VolumeCloneSourceSpec::default() }.claim().map(str::to_owned)
        };
        assert_eq!(of(None, CLAIM).as_deref(), Some("golden"));
        assert_eq!(of(Some(""), CLAIM).as_deref(), Some("golden"));
        assert_eq!(of(Some("snapshot.storage.k8s.io"), "VolumeSnapshot"), None);
        assert_eq!(of(Some("other.example"), CLAIM), None);
    }
}
