//! The objects that ask CDI for a volume to upload to, and the DataSource that points to it.

use barevirt_api::cdi::annotation;
use std::collections::BTreeMap;

use barevirt_api::cdi::{DataVolumeSource, DataVolumeSourceUpload, DataVolumeSpec, StorageSpec};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::upload::Upload;

/// Lets CDI's webhook fill empty fields of the claim from the storage class's profile.
const PROFILE_LABEL: &str = "cdi.kubevirt.io/applyStorageProfile";

fn requests(size: &Quantity) -> VolumeResourceRequirements {
    VolumeResourceRequirements {
        requests: Some(BTreeMap::from([("storage".to_owned(), size.clone())])),
        limits: None,
    }
}

fn labels(upload: &Upload) -> BTreeMap<String, String> {
    upload.labels.iter().map(|(label, text)| ((*label).to_owned(), text.clone())).collect()
}

fn bind(upload: &Upload) -> Option<(String, String)> {
    upload.force_bind.then(|| (annotation::BIND.to_owned(), String::new()))
}

/// A DataVolume of that size for an upload.
pub(super) fn data_volume(upload: &Upload, size: &Quantity) -> Value {
    let storage = StorageSpec {
        access_modes: upload.access_mode.iter().cloned().collect(),
        resources: Some(requests(size)),
        storage_class_name: upload.storage_class.clone(),
        volume_mode: upload.volume_mode.map(str::to_owned),
        ..StorageSpec::default()
    };
    let source = DataVolumeSource { upload: Some(DataVolumeSourceUpload {}), ..DataVolumeSource::default() };
    let spec = DataVolumeSpec {
        source: Some(source),
        content_type: Some(upload.content.word().to_owned()),
        storage: Some(storage),
        ..DataVolumeSpec::default()
    };
    let annotations: BTreeMap<String, String> = bind(upload).into_iter().collect();
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": upload.name, "labels": labels(upload), "annotations": annotations },
        "spec": spec,
    })
}

/// A claim of that size for an upload.
pub(super) fn claim(upload: &Upload, size: &Quantity) -> PersistentVolumeClaim {
    let mut annotations = BTreeMap::from([
        (annotation::UPLOAD.to_owned(), String::new()),
        (annotation::CONTENT.to_owned(), upload.content.word().to_owned()),
    ]);
    annotations.extend(bind(upload));
    let mut labels = labels(upload);
    labels.insert(PROFILE_LABEL.to_owned(), "true".to_owned());
    let access_mode = upload.access_mode.clone().unwrap_or_else(|| "ReadWriteOnce".to_owned());
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(upload.name.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![access_mode]),
            resources: Some(requests(size)),
            storage_class_name: upload.storage_class.clone(),
            volume_mode: upload.volume_mode.map(str::to_owned),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// A DataSource of the claim's name that points to it.
pub(super) fn data_source(upload: &Upload, namespace: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource",
        "metadata": { "name": upload.name, "labels": labels(upload) },
        "spec": { "source": { "pvc": { "name": upload.name, "namespace": namespace } } },
    })
}

/// The patch that makes an existing DataSource point to the claim, whatever it pointed to before.
pub(super) fn data_source_patch(upload: &Upload, namespace: &str) -> Value {
    json!({
        "metadata": { "labels": labels(upload) },
        "spec": { "source": {
            "pvc": { "name": upload.name, "namespace": namespace }, "snapshot": null, "dataSource": null,
        } },
    })
}

#[cfg(test)]
mod tests {
    use super::super::upload::tests::read;
    use super::*;

    const ALL: [&str; 10] = [
        "dv",
        "disk",
        "--image-path=a.img",
        "--storage-class=fast",
        "--access-mode=ReadWriteMany",
        "--volume-mode=block",
        "--force-bind",
        "--default-instancetype=u1.small",
        "--default-instancetype-kind=virtualmachineinstancetype",
        "--default-preference=fedora",
    ];

    fn size() -> Quantity {
        Quantity("1Gi".to_owned())
    }

    #[test]
    fn a_data_volume_waits_for_an_upload() {
        assert_eq!(
            data_volume(&read(&["dv", "disk", "--archive-path=a.tar"]), &size()),
            json!({
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
                "metadata": { "name": "disk", "labels": {}, "annotations": {} },
                "spec": {
                    "source": { "upload": {} }, "contentType": "archive",
                    "storage": { "resources": { "requests": { "storage": "1Gi" } } },
                },
            })
        );
        let all = data_volume(&read(&ALL), &size());
        assert_eq!(
            all["metadata"],
            json!({
                "name": "disk",
                "labels": {
                    "instancetype.kubevirt.io/default-instancetype": "u1.small",
                    "instancetype.kubevirt.io/default-instancetype-kind": "virtualmachineinstancetype",
                    "instancetype.kubevirt.io/default-preference": "fedora",
                },
                "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "" },
            })
        );
        assert_eq!(
            all["spec"],
            json!({
                "source": { "upload": {} }, "contentType": "kubevirt",
                "storage": {
                    "accessModes": ["ReadWriteMany"], "storageClassName": "fast", "volumeMode": "Block",
                    "resources": { "requests": { "storage": "1Gi" } },
                },
            })
        );
    }

    #[test]
    fn a_claim_says_by_annotations_that_it_waits_for_an_upload() {
        assert_eq!(
            json!(claim(&read(&["pvc", "disk", "--archive-path=a.tar"]), &size())),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": "disk", "labels": { "cdi.kubevirt.io/applyStorageProfile": "true" },
                    "annotations": {
                        "cdi.kubevirt.io/storage.upload.target": "",
                        "cdi.kubevirt.io/storage.contentType": "archive",
                    },
                },
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
                },
            })
        );
        let all = json!(claim(&read(&ALL), &size()));
        assert_eq!(
            all["metadata"]["annotations"]["cdi.kubevirt.io/storage.bind.immediate.requested"],
            json!("")
        );
        assert_eq!(all["metadata"]["labels"]["instancetype.kubevirt.io/default-preference"], json!("fedora"));
        assert_eq!(
            all["spec"],
            json!({
                "accessModes": ["ReadWriteMany"], "storageClassName": "fast", "volumeMode": "Block",
                "resources": { "requests": { "storage": "1Gi" } },
            })
        );
    }

    #[test]
    fn a_data_source_points_to_the_claim_alone() {
        let upload = read(&["pvc", "disk", "--image-path=a.img", "--default-preference=fedora"]);
        let labels = json!({ "instancetype.kubevirt.io/default-preference": "fedora" });
        let pvc = json!({ "name": "disk", "namespace": "shop" });
        let made = data_source(&upload, "shop");
        assert_eq!(made["metadata"], json!({ "name": "disk", "labels": labels }));
        assert_eq!(made["spec"], json!({ "source": { "pvc": pvc } }));
        let mut former = json!({
            "metadata": { "labels": { "mine": "kept" } }, "spec": { "source": { "snapshot": { "name": "old" } } },
        });
        json_patch_merge(&mut former, &data_source_patch(&upload, "shop"));
        assert_eq!(former["spec"], json!({ "source": { "pvc": pvc } }));
        assert_eq!(former["metadata"]["labels"]["mine"], "kept");
        assert_eq!(former["metadata"]["labels"]["instancetype.kubevirt.io/default-preference"], "fedora");
    }

    /// A merge patch as the API server applies it.
    fn json_patch_merge(into: &mut Value, patch: &Value) {
        match patch {
            Value::Object(members) => {
                if !into.is_object() {
                    *into = json!({});
                }
                for (key, value) in members {
                    if value.is_null() {
                        into.as_object_mut().unwrap().remove(key);
                    } else {
                        json_patch_merge(&mut into[key.as_str()], value);
                    }
                }
            }
            other => *into = other.clone(),
        }
    }
}
