//! The group `upload.cdi.kubevirt.io`: its resources, and requests for tokens. Pure.

use barevirt_api::cdi::{UPLOAD_GROUP as GROUP, UPLOAD_VERSION as VERSION};
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::answer::{self, Answer, Refusal};
use crate::route::object_name;

const KIND: &str = "UploadTokenRequest";

/// `/apis`.
pub(super) fn groups() -> Value {
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()] })
}

/// `/apis/GROUP`.
pub(super) fn group() -> Value {
    let version = json!({ "groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION });
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP,
        "versions": [version], "preferredVersion": version,
    })
}

/// `/apis/GROUP/VERSION`. Nothing can be listed, so the deletion of a namespace finds nothing to delete.
pub(super) fn resources() -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [
            {
                "name": "uploadtokenrequests", "singularName": "uploadtokenrequest", "namespaced": true,
                "kind": KIND, "verbs": ["create"], "shortNames": ["utr", "utrs"],
            },
            { "name": "uploads", "singularName": "", "namespaced": true, "kind": "Upload", "verbs": [] },
            { "name": "uploads/proxy", "singularName": "", "namespaced": true, "kind": "", "verbs": ["create"] },
        ],
    })
}

/// A request for a token.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    /// Name of the claim.
    pub(super) claim: String,
    /// The original request.
    request: Value,
}

/// Parses a request, as `kubectl create` and client-go send it.
pub(super) fn asked(namespace: &str, body: &[u8]) -> Result<Asked, Refusal> {
    let request: Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("the request is not JSON: {error}")))?;
    if !request.is_object() {
        return Err(Refusal::bad_request("the request is not an object"));
    }
    let invalid = |field: &str, why: &str| Refusal::invalid(format!("{KIND} is invalid: {field}: {why}"));
    if request["kind"].as_str().is_some_and(|kind| kind != KIND) {
        return Err(Refusal::bad_request(format!("the request is not of kind {KIND}")));
    }
    if request["metadata"]["namespace"].as_str().is_some_and(|said| !said.is_empty() && said != namespace) {
        return Err(invalid("metadata.namespace", "is not that of the path"));
    }
    let claim = request["spec"]["pvcName"].as_str().unwrap_or_default();
    match object_name(claim) {
        Ok(claim) => Ok(Asked { claim, request }),
        Err(_) if claim.is_empty() => Err(invalid("spec.pvcName", "must be given")),
        Err(_) => Err(invalid("spec.pvcName", "is not the name of a claim")),
    }
}

/// The answer with the token. Nothing is stored.
pub(super) fn granted(asked: &Asked, token: &str) -> Answer {
    let mut metadata = asked.request["metadata"].clone();
    if !metadata.is_object() {
        metadata = json!({});
    }
    metadata["creationTimestamp"] = json!(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let body = json!({
        "kind": KIND, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": metadata,
        "spec": { "pvcName": asked.claim }, "status": { "token": token },
    });
    let mut answer = answer::ok(&body);
    *answer.status_mut() = StatusCode::CREATED;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: &Value) -> Result<String, String> {
        let read = asked("shop", &serde_json::to_vec(request).unwrap());
        read.map(|asked| asked.claim).map_err(|refusal| refusal.message)
    }

    #[test]
    fn a_request_names_one_claim() {
        let request = json!({
            "kind": KIND, "metadata": { "generateName": "a-", "namespace": "shop" }, "spec": { "pvcName": "disk" },
        });
        assert_eq!(read(&request), Ok("disk".to_owned()));
        assert!(read(&json!({ "spec": {} })).unwrap_err().contains("spec.pvcName: must be given"));
        assert!(
            read(&json!({ "spec": { "pvcName": "../a" } }))
                .unwrap_err()
                .contains("is not the name of a claim")
        );
        let elsewhere = json!({ "metadata": { "namespace": "other" }, "spec": { "pvcName": "disk" } });
        assert!(read(&elsewhere).unwrap_err().contains("metadata.namespace"));
        assert!(read(&json!([])).is_err() && read(&json!({ "kind": "Pod" })).is_err());
        assert!(asked("shop", b"{").is_err());
    }
}
