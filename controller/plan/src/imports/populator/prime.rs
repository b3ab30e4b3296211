//! The DataVolume that fills a claim with a populator, through a claim of its own.

use super::super::passed;
use super::facts::Source;
use crate::owner::owner;
use barevirt_api::cdi::{
    DataVolume, DataVolumeSource, DataVolumeSourcePvc, DataVolumeSourceUpload, DataVolumeSpec, annotation,
    prime_name,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;

/// The scheduler's annotation on a claim: the node of the pod that uses it first.
pub(super) const NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";
/// Label of these DataVolumes, by which they are watched.
pub const LABEL: &str = "populator.barevirt.dev/fills-a-claim";
/// Velero's label: it is not part of a backup.
const NO_BACKUP_LABEL: (&str, &str) = ("velero.io/exclude-from-backup", "true");

/// The DataVolume, or why there is none for that source. `node` is where the claim is used first.
pub(super) fn of(
    claim: &PersistentVolumeClaim,
    source: &Source,
    node: Option<&str>,
) -> Result<DataVolume, String> {
    let wanted = claim.spec.clone().unwrap_or_default();
    // The same volume as the claim asks for. A selector would choose among volumes that exist.
    let pvc = PersistentVolumeClaimSpec {
        access_modes: wanted.access_modes,
        resources: wanted.resources,
        storage_class_name: wanted.storage_class_name,
        volume_mode: wanted.volume_mode,
        ..PersistentVolumeClaimSpec::default()
    };
    let mut spec = DataVolumeSpec { pvc: Some(pvc), ..DataVolumeSpec::default() };
    // A copy is made where the claim is that is copied: the pod that uses the new claim follows its volume.
    let mut follows = true;
    match source {
        Source::Import(source) => {
            spec.source = Some(source.spec.source.clone().unwrap_or_default().into());
            spec.content_type.clone_from(&source.spec.content_type);
            spec.preallocation = source.spec.preallocation;
            spec.checkpoints.clone_from(&source.spec.checkpoints);
        }
        Source::Clone(source) => {
            let copied = source.spec.claim().ok_or_else(|| {
                format!("a {} is copied by CDI alone, and this cluster has none", source.spec.source.kind)
            })?;
            follows = false;
            let namespace = claim.namespace().unwrap_or_default();
            let copied = DataVolumeSourcePvc { name: copied.to_owned(), namespace };
            spec.source = Some(DataVolumeSource { pvc: Some(copied), ..DataVolumeSource::default() });
            spec.preallocation = source.spec.preallocation;
            spec.priority_class_name.clone_from(&source.spec.priority_class_name);
        }
        Source::Upload(source) => {
            let upload = Some(DataVolumeSourceUpload {});
            spec.source = Some(DataVolumeSource { upload, ..DataVolumeSource::default() });
            spec.content_type.clone_from(&source.spec.content_type);
            spec.preallocation = source.spec.preallocation;
        }
    }
    let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    // Nothing else would have its claim bound.
    let mut annotations = passed::given(claim.annotations());
    annotations.extend([text((annotation::BIND, ""))]);
    annotations.extend(node.filter(|_| follows).map(|node| text((NODE_ANNOTATION, node))));
    let metadata = ObjectMeta {
        name: Some(prime_name(claim)),
        namespace: claim.metadata.namespace.clone(),
        labels: Some([(LABEL, ""), NO_BACKUP_LABEL].map(text).into()),
        annotations: Some(annotations),
        // The claim's deletion need not wait for it: that would need a right to write the finalizers of claims.
        owner_references: Some(vec![OwnerReference { block_owner_deletion: None, ..owner(claim) }]),
        ..ObjectMeta::default()
    };
    Ok(DataVolume { metadata, spec, status: None })
}
