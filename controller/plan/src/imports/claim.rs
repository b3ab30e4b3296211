//! The claim of a DataVolume.

use super::facts::{LABEL, SourceClaim};
use super::job::{ARCHIVE, is_archive, is_upload};
use super::origin;
use super::profile::{self, Profile};
use crate::data_volumes::status::SUCCEEDED;
use crate::owner::owner;
use barevirt_api::cdi::{ClaimPropertySet, DataVolume, DataVolumeSpec, StorageSpec, annotation};
use barevirt_api::quantity;
use barevirt_import_job::DISK_ALIGNMENT;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Annotation on a claim: for which DataVolume it was filled.
pub(super) const POPULATED_FOR_ANNOTATION: &str = "cdi.kubevirt.io/storage.populatedFor";
/// Kubectl's own annotation.
const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Annotations of a DataVolume that its claim does not get: two of them would say that it is filled.
const NOT_PASSED: [&str; 3] = [LAST_APPLIED_ANNOTATION, POPULATED_FOR_ANNOTATION, annotation::PHASE];

const BLOCK: &str = "Block";

/// The text of an annotation of a claim.
pub(super) fn annotated<'a>(claim: &'a PersistentVolumeClaim, annotation: &str) -> Option<&'a str> {
    claim.annotations().get(annotation).map(String::as_str)
}

/// The phase of a claim, once it has one.
pub(super) fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref().and_then(|status| status.phase.as_deref())
}

/// The class of a claim, once it has one.
pub(super) fn class(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref())
}

/// The patch that gives the claim these annotations; `None` where it has them.
pub(super) fn changed(claim: &PersistentVolumeClaim, wanted: &[(&str, &str)]) -> Option<Value> {
    let changed: BTreeMap<&str, &str> = wanted
        .iter()
        .copied()
        // An annotation that was never there need not be cleared.
        .filter(|(annotation, value)| annotated(claim, annotation).unwrap_or_default() != *value)
        .collect();
    let patch = json!({ "metadata": { "annotations": changed } });
    (!changed.is_empty()).then_some(patch)
}

/// Whether a claim is marked as filled for the DataVolume of that name.
pub fn is_filled(claim: &PersistentVolumeClaim, data_volume: &str) -> bool {
    claim.annotations().get(POPULATED_FOR_ANNOTATION).is_some_and(|name| name == data_volume)
}

/// The claim to make, or why it cannot be made. `source` is the claim that is copied, if any. `profile` is what the storage
/// class advises.
pub(super) fn of(
    data_volume: &DataVolume,
    source: Option<&SourceClaim>,
    profile: &Profile,
) -> Result<PersistentVolumeClaim, String> {
    let copy = source.and_then(|source| source.claim.as_ref());
    let spec = match (&data_volume.spec.pvc, &data_volume.spec.storage) {
        (Some(claim), None) => {
            size(claim.resources.as_ref(), "spec.pvc")?;
            claim.clone()
        }
        (None, Some(storage)) if is_archive(&data_volume.spec) && !profile::gives_mode(storage) => {
            // An archive needs a file system, whatever the class is best at.
            let files = Some(profile::FILES.to_owned());
            of_storage(&StorageSpec { volume_mode: files, ..storage.clone() }, copy, profile)?
        }
        (None, Some(storage)) => of_storage(storage, copy, profile)?,
        _ => return Err("exactly one of spec.pvc and spec.storage must be given".to_owned()),
    };
    let mut labels = data_volume.labels().clone();
    if origin::inferred(&labels).is_empty() {
        // A DataSource speaks for its claim.
        let referred = source.map(|source| source.inferred.clone()).filter(|inferred| !inferred.is_empty());
        let inferred = referred.or_else(|| Some(origin::inferred(copy?.labels())));
        labels.extend(inferred.unwrap_or_default());
    }
    labels.insert(LABEL.0.to_owned(), LABEL.1.to_owned());
    let mut annotations = data_volume.annotations().clone();
    annotations.retain(|annotation, _| !NOT_PASSED.contains(&annotation.as_str()));
    if is_upload(&data_volume.spec) {
        annotations.insert(annotation::UPLOAD.to_owned(), String::new());
    }
    if is_archive(&data_volume.spec) {
        annotations.insert(annotation::CONTENT.to_owned(), ARCHIVE.to_owned());
    }
    annotations.extend(source.map(|source| origin::remembered(&source.place)));
    Ok(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: data_volume.metadata.name.clone(),
            namespace: data_volume.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owner(data_volume)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    })
}

/// Why no claim is made: it leaves its access modes open, and nothing says which ones its class can have.
pub(super) fn lacking(data_volume: &DataVolume, profile: &Profile) -> Option<String> {
    let storage = data_volume.spec.storage.as_ref().filter(|_| data_volume.spec.pvc.is_none())?;
    let class = profile.without_modes.as_ref()?;
    // A copy has the modes of its source.
    let is_open = storage.access_modes.is_empty() && !origin::copies(&data_volume.spec);
    is_open.then(|| {
        format!(
            "spec.storage.accessModes must be given: storage class {class} has no provisioner and no volume, and its StorageProfile names no modes"
        )
    })
}

/// A claim that is large enough for a disk of the requested size.
fn of_storage(
    storage: &StorageSpec,
    copy: Option<&PersistentVolumeClaim>,
    profile: &Profile,
) -> Result<PersistentVolumeClaimSpec, String> {
    let asks = storage
        .resources
        .as_ref()
        .and_then(|all| all.requests.as_ref())
        .is_some_and(|all| all.contains_key("storage"));
    if let Some(copy) = copy.filter(|_| !asks) {
        return Ok(as_large(storage, copy, profile));
    }
    let asked = size(storage.resources.as_ref(), "spec.storage")?;
    let (access_modes, volume_mode) = profile::modes(storage, &profile.sets);
    let aligned = asked.checked_next_multiple_of(DISK_ALIGNMENT);
    let needed = match &volume_mode {
        Some(_) => aligned,
        None => aligned.and_then(|disk| with_share(disk, profile.share)),
    };
    let needed = needed.ok_or_else(|| "spec.storage.resources.requests.storage is too large".to_owned())?;
    let needed = quantity::from_bytes(needed.max(profile.least));
    let mut resources = storage.resources.clone().unwrap_or_default();
    resources.requests.get_or_insert_default().insert("storage".to_owned(), needed);
    Ok(as_advised(storage, profile, (access_modes, volume_mode), resources))
}

/// The size of a file system that has room for a disk of this size, in bytes. `share` are thousandths.
fn with_share(disk: u64, share: u16) -> Option<u64> {
    // A share is less than the whole.
    Some(disk.checked_mul(1000)?.div_ceil(u64::from(1000u16.saturating_sub(share).max(1))))
}

/// A claim for a copy of that claim, as large as it. Its class advises the rest as it does for any other claim; the modes of the
/// source are those of a class that advises none.
fn as_large(
    storage: &StorageSpec,
    copy: &PersistentVolumeClaim,
    profile: &Profile,
) -> PersistentVolumeClaimSpec {
    let from = copy.spec.clone().unwrap_or_default();
    let own = ClaimPropertySet {
        access_modes: from.access_modes.unwrap_or_default(),
        volume_mode: from.volume_mode.or_else(|| Some(profile::FILES.to_owned())),
    };
    let sets = if profile.sets.is_empty() { vec![own] } else { profile.sets.clone() };
    let (access_modes, volume_mode) = profile::modes(storage, &sets);
    let mut resources = from.resources.unwrap_or_default();
    // The request of a file system includes its share, that of a device does not.
    if is_block(copy) {
        let device = device_size(copy);
        let needed = match &volume_mode {
            Some(_) => device,
            None => with_share(device, profile.share).unwrap_or(u64::MAX),
        };
        let needed = quantity::from_bytes(needed);
        resources.requests.get_or_insert_default().insert("storage".to_owned(), needed);
    }
    let asked = resources.requests.as_mut().and_then(|all| all.get_mut("storage"));
    if let Some(asked) = asked
        && quantity::bytes(asked).is_ok_and(|bytes| bytes < profile.least)
    {
        *asked = quantity::from_bytes(profile.least);
    }
    as_advised(storage, profile, (access_modes, volume_mode), resources)
}

/// A claim with these modes and resources, in the class that the DataVolume names, or else the one that its profile advises.
fn as_advised(
    storage: &StorageSpec,
    profile: &Profile,
    (access_modes, volume_mode): (Vec<String>, Option<String>),
    resources: VolumeResourceRequirements,
) -> PersistentVolumeClaimSpec {
    PersistentVolumeClaimSpec {
        access_modes: Some(access_modes),
        resources: Some(resources),
        selector: storage.selector.clone(),
        storage_class_name: storage.storage_class_name.clone().or_else(|| profile.class.clone()),
        volume_mode,
        volume_name: storage.volume_name.clone(),
        ..PersistentVolumeClaimSpec::default()
    }
}

fn size(resources: Option<&VolumeResourceRequirements>, field: &str) -> Result<u64, String> {
    let field = format!("{field}.resources.requests.storage");
    let asked: Option<&Quantity> = resources.and_then(|all| all.requests.as_ref()?.get("storage"));
    let asked = asked.ok_or_else(|| format!("{field} must be given"))?;
    match quantity::bytes(asked) {
        Ok(0) => Err(format!("{field} must be more than 0")),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(format!("{field}: {error}")),
    }
}

/// Whether the pod that has filled a claim stays, with its log: one that has failed would be started again by its kubelet.
pub(super) fn pod_stays(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(annotation::POD_STAYS).is_some_and(|value| value == "true")
}

/// Requested size of the disk, in bytes. The request of a claim includes the file system's share; the importer measures the
/// free space.
pub(super) fn disk_size(spec: &DataVolumeSpec, copy: Option<&PersistentVolumeClaim>) -> u64 {
    let resources = match (&spec.pvc, &spec.storage) {
        (Some(claim), _) => claim.resources.as_ref(),
        (None, Some(storage)) => storage.resources.as_ref(),
        (None, None) => None,
    };
    let copied = || match copy? {
        device if is_block(device) => Some(device_size(device)),
        files => size(files.spec.as_ref()?.resources.as_ref(), "spec").ok(),
    };
    // A DataVolume without a size has no claim, so it has no importer either.
    size(resources, "spec").ok().or_else(copied).unwrap_or_default()
}

/// Size of a claim's device, in bytes: what it has, or before it is bound what it asks for.
pub(super) fn device_size(claim: &PersistentVolumeClaim) -> u64 {
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    let capacity = capacity.and_then(|capacity| quantity::bytes(capacity).ok());
    let asked = || size(claim.spec.as_ref()?.resources.as_ref(), "spec").ok();
    capacity.or_else(asked).unwrap_or_default()
}

/// Whether a claim is a block device.
pub(super) fn is_block(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some(BLOCK)
}

/// The patch that gives an existing claim to the DataVolume, with its contents. It is refused if the claim has changed, so that
/// no other owner is overwritten.
pub(super) fn adoption(data_volume: &DataVolume, claim: &PersistentVolumeClaim) -> Value {
    let mut owners = claim.owner_references().to_vec();
    owners.retain(|owner| Some(&owner.uid) != data_volume.metadata.uid.as_ref());
    owners.push(owner(data_volume));
    let mut patch = patch_of(claim, &BTreeMap::from(filled(data_volume)));
    patch["metadata"]["ownerReferences"] = json!(owners);
    patch
}

/// The patch that marks a claim as filled. It is refused if the claim has changed: another one may have its name.
/// `preallocated`: its space was reserved up front.
pub(super) fn mark(data_volume: &DataVolume, claim: &PersistentVolumeClaim, preallocated: bool) -> Value {
    let mut annotations = BTreeMap::from(filled(data_volume));
    if preallocated {
        annotations.insert(annotation::PREALLOCATED.to_owned(), "true".to_owned());
    }
    patch_of(claim, &annotations)
}

fn patch_of(claim: &PersistentVolumeClaim, annotations: &BTreeMap<String, String>) -> Value {
    let ObjectMeta { uid, resource_version, .. } = &claim.metadata;
    json!({ "metadata": { "uid": uid, "resourceVersion": resource_version, "annotations": annotations } })
}

/// The annotations of a claim that is filled.
pub(super) fn filled(data_volume: &DataVolume) -> [(String, String); 2] {
    [
        (POPULATED_FOR_ANNOTATION.to_owned(), data_volume.name_any()),
        (annotation::PHASE.to_owned(), SUCCEEDED.to_owned()),
    ]
}
