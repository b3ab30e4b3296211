//! Deletes only the observed object, and only if it is ours. Pure.
//!
//! Names prove nothing: a client that may make objects in a namespace may make one with our name after we have looked, and
//! our object may have been replaced. So each deletion names the object's UID, and the API server refuses it if another
//! object has the name by then.

use super::{MANAGED_BY_LABEL, NAME};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Preconditions};

/// Whether the object has our label.
pub fn is_ours(object: &ObjectMeta) -> bool {
    let label = object.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY_LABEL));
    label.is_some_and(|by| by == NAME)
}

/// How to delete the object; `None` where it is not ours.
pub fn deletion(object: &ObjectMeta) -> Option<DeleteParams> {
    let uid = object.uid.as_deref().filter(|_| is_ours(object))?;
    Some(of(uid, DeleteParams::default()))
}

/// The same for an object that is known to be ours.
pub fn of(uid: &str, params: DeleteParams) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..params }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deleted(labels: &serde_json::Value) -> Option<serde_json::Value> {
        let object = serde_json::from_value(json!({"name": "a", "uid": "u-1", "labels": labels})).unwrap();
        deletion(&object).map(|params| serde_json::to_value(params).unwrap())
    }

    #[test]
    fn only_the_observed_object_is_deleted_and_only_if_it_is_ours() {
        let ours = deleted(&json!({MANAGED_BY_LABEL: NAME})).unwrap();
        assert_eq!(ours["preconditions"]["uid"], "u-1");
        assert_eq!(deleted(&json!({MANAGED_BY_LABEL: "somebody"})), None);
        assert_eq!(deleted(&json!({})), None);
        let unnamed = ObjectMeta {
            labels: Some([(MANAGED_BY_LABEL.into(), NAME.into())].into()),
            ..Default::default()
        };
        assert!(deletion(&unnamed).is_none());
    }
}
