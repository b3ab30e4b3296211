//! Whether an existing claim may be uploaded to.

use barevirt_api::cdi::annotation;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::DynamicObject;

use super::upload::{Content, Upload};

/// Which claim an upload to a DataVolume goes into.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// The claim with the DataVolume's name.
    Own,
    /// Another claim, whose volume becomes the DataVolume's.
    By(String),
}

/// The text of an annotation.
pub(super) fn annotated<'a>(claim: &'a PersistentVolumeClaim, name: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The claim that is filled for a DataVolume, given the claim of the same name.
pub(super) fn filled(
    claim: &PersistentVolumeClaim,
    data_volume: Option<&DynamicObject>,
    namespace: &str,
    name: &str,
) -> Result<Filled, String> {
    let Some(data_volume) = data_volume else {
        let gone = annotated(claim, annotation::DELETED_AFTERWARDS) == Some("true");
        if gone && annotated(claim, annotation::PHASE) == Some("Succeeded") {
            return Err(format!(
                "DataVolume already garbage-collected: Assuming PVC {namespace}/{name} is successfully populated"
            ));
        }
        return Err(format!(
            "No DataVolume is associated with the existing PVC {namespace}/{name}, upload to the claim itself with 'image-upload pvc'"
        ));
    };
    let annotations = data_volume.metadata.annotations.as_ref();
    let populator = annotations.and_then(|all| all.get(annotation::POPULATOR));
    if populator.map(String::as_str) != Some("true") {
        return Ok(Filled::Own);
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase == Some("Bound") {
        return Err(format!("PVC {name} already successfully populated"));
    }
    match annotated(claim, annotation::PRIME) {
        Some(prime) => Ok(Filled::By(prime.to_owned())),
        None => Err(format!("Unable to get PVC Prime name from PVC {namespace}/{name}")),
    }
}

/// Refuses a claim that is populated, was not made for an upload, or is for other content.
pub(super) fn usable(upload: &Upload, claim: &PersistentVolumeClaim) -> Result<(), String> {
    let name = &upload.name;
    if annotated(claim, annotation::PHASE) == Some("Succeeded") {
        return Err(format!("PVC {name} already successfully imported/cloned/updated"));
    }
    if upload.create && annotated(claim, annotation::UPLOAD).is_none() {
        return Err(format!(
            "PVC {name} not available for upload: it was made for something else; --no-create overwrites what is in it"
        ));
    }
    let content = annotated(claim, annotation::CONTENT);
    if upload.content == Content::Archive && content != Some(Content::Archive.word()) {
        return Err(format!("PVC {name} doesn't have archive contentType annotation"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::upload::tests::read;
    use super::*;
    use serde_json::{Value, json};

    fn claim(annotations: Value, phase: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "disk", "annotations": annotations }, "status": { "phase": phase },
        }))
        .unwrap()
    }

    fn refused(arguments: &[&str], annotations: Value) -> Option<String> {
        let upload = read(&[&["pvc", "disk"], arguments].concat());
        usable(&upload, &claim(annotations, "Bound")).err()
    }

    #[test]
    fn a_claim_made_for_an_upload_is_used_again() {
        let upload = json!({ "cdi.kubevirt.io/storage.upload.target": "" });
        assert_eq!(refused(&["--image-path=a"], upload.clone()), None);
        let words = refused(&["--image-path=a"], json!({})).unwrap();
        assert!(words.starts_with("PVC disk not available for upload"), "{words}");
        assert_eq!(refused(&["--image-path=a", "--no-create"], json!({})), None);
        let full = json!({
            "cdi.kubevirt.io/storage.upload.target": "", "cdi.kubevirt.io/storage.pod.phase": "Succeeded",
        });
        let words = "PVC disk already successfully imported/cloned/updated".to_owned();
        assert_eq!(refused(&["--image-path=a", "--no-create"], full), Some(words));
        let words = "PVC disk doesn't have archive contentType annotation".to_owned();
        assert_eq!(refused(&["--archive-path=a"], upload), Some(words));
        let archive = json!({
            "cdi.kubevirt.io/storage.upload.target": "", "cdi.kubevirt.io/storage.contentType": "archive",
        });
        assert_eq!(refused(&["--archive-path=a"], archive), None);
    }

    #[test]
    fn a_data_volume_says_which_claim_is_filled() {
        let data_volume = |annotations: Value| -> DynamicObject {
            serde_json::from_value(json!({
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
                "metadata": { "name": "disk", "annotations": annotations },
            }))
            .unwrap()
        };
        let plain = data_volume(json!({}));
        let by_prime = data_volume(json!({ "cdi.kubevirt.io/storage.usePopulator": "true" }));
        let prime = json!({ "cdi.kubevirt.io/storage.populator.pvcPrime": "prime-1" });
        let look = |claim: &PersistentVolumeClaim, found| filled(claim, found, "shop", "disk");
        assert_eq!(look(&claim(json!({}), "Bound"), Some(&plain)), Ok(Filled::Own));
        let waiting = claim(prime.clone(), "Pending");
        assert_eq!(look(&waiting, Some(&by_prime)), Ok(Filled::By("prime-1".to_owned())));
        assert_eq!(
            look(&claim(prime, "Bound"), Some(&by_prime)),
            Err("PVC disk already successfully populated".to_owned())
        );
        assert_eq!(
            look(&claim(json!({}), "Pending"), Some(&by_prime)),
            Err("Unable to get PVC Prime name from PVC shop/disk".to_owned())
        );
        let collected = json!({
            "cdi.kubevirt.io/storage.deleteAfterCompletion": "true",
            "cdi.kubevirt.io/storage.pod.phase": "Succeeded",
        });
        let words = look(&claim(collected, "Bound"), None).unwrap_err();
        assert!(words.contains("garbage-collected"), "{words}");
        let words = look(&claim(json!({}), "Bound"), None).unwrap_err();
        assert!(words.starts_with("No DataVolume is associated with the existing PVC shop/disk"), "{words}");
    }
}
