//! Claims that ask for their contents by annotations, without a DataVolume or a populator, as in the early days of CDI. Only
//! CDI fills them. Without a word they would stay empty, and a guest would find an empty disk. Pure.

use super::claim::{POPULATED_FOR_ANNOTATION, annotated};
use crate::data_volumes::status::SUCCEEDED;
use barevirt_api::cdi::{DATA_VOLUME, annotation, populator};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

/// The annotations that name contents.
const REQUESTS: [&str; 3] = [annotation::ENDPOINT, annotation::SOURCE, annotation::CLONE_REQUEST];

/// Why a claim stays empty; `None` where it asks for nothing, is filled by something else, or was filled by CDI.
pub fn unserved(claim: &PersistentVolumeClaim) -> Option<String> {
    let request = REQUESTS.into_iter().find(|request| annotated(claim, request).is_some())?;
    let of_data_volume = claim.owner_references().iter().any(|owner| owner.kind == DATA_VOLUME);
    let is_filled = annotated(claim, annotation::PHASE) == Some(SUCCEEDED)
        || annotated(claim, POPULATED_FOR_ANNOTATION).is_some();
    if of_data_volume
        || is_filled
        || annotated(claim, annotation::UPLOAD).is_some()
        || populator(claim).is_some()
    {
        return None;
    }
    Some(format!(
        "the annotation {request} is served by CDI alone, and this cluster has none: the claim stays empty; \
         use a DataVolume, or name a VolumeImportSource or VolumeCloneSource in spec.dataSourceRef"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(annotations: &Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({ "metadata": { "name": "disk", "annotations": annotations } })).unwrap()
    }

    #[test]
    fn annotations_that_only_cdi_serves_are_named() {
        for (annotations, named) in [
            (json!({ (annotation::ENDPOINT): "http://images.example/a.img" }), annotation::ENDPOINT),
            (json!({ (annotation::SOURCE): "none" }), annotation::SOURCE),
            (json!({ (annotation::CLONE_REQUEST): "ns/golden" }), annotation::CLONE_REQUEST),
        ] {
            assert!(unserved(&claim(&annotations)).unwrap().contains(named), "{annotations}");
        }
    }

    #[test]
    fn claims_that_ask_for_nothing_or_are_filled_are_left_alone() {
        let of = |more: Value| {
            let mut annotations = json!({ (annotation::ENDPOINT): "http://images.example/a.img" });
            annotations.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            claim(&annotations)
        };
        let mut owned = of(json!({}));
        let owner = json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk", "uid": "d1" }]);
        owned.metadata.owner_references = serde_json::from_value(owner).unwrap();
        let mut populated = of(json!({}));
        let source = json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "image" });
        populated.spec = serde_json::from_value(json!({ "dataSourceRef": source })).unwrap();
        for left in [
            claim(&json!({ "other": "x" })),
            of(json!({ (annotation::PHASE): "Succeeded" })),
            of(json!({ (POPULATED_FOR_ANNOTATION): "disk" })),
            of(json!({ (annotation::UPLOAD): "" })),
            owned,
            populated,
        ] {
            assert_eq!(unserved(&left), None, "{left:?}");
        }
        assert!(unserved(&of(json!({}))).is_some());
    }
}
