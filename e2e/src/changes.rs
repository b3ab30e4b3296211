//! What tests create, change and delete, by requests over their one connection to the API server.
//!
//! `kubectl` asks the same, but each of its processes starts, reads which kinds there are, and makes a connection with
//! certificates. That takes a fifth of a second of processor time, and the tests do it a thousand times. So `kubectl` itself only
//! runs where a person's command is what is tested, and for the rarer cases of `apply`:
//!
//! ```text
//!   apply:  the object does not exist --> POST as kubectl sends it, with the annotation for the next apply
//!           everything else           --> kubectl apply
//! ```

use crate::api_server;
use crate::command::{Output, try_kubectl_with};
use crate::namespace::Namespace;
use anyhow::{Context, Result};
use http::Request;
use http::request::Builder;
use serde_json::{Value, json};
use std::time::Duration;

/// The annotation in which `kubectl apply` finds what was applied before.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The name under which `kubectl apply` owns fields.
const OWNER: &str = "kubectl-client-side-apply";
/// How long a deleted object may take to be gone, as for a command.
const GONE: Duration = Duration::from_secs(120);

/// `kubectl apply` of a manifest, also if it is refused; with `--dry-run=server` unless it is to be stored.
///
/// # Errors
/// When `kubectl` is needed, and cannot be started or does not end in time.
pub fn apply(namespace: &str, manifest: &Value, stores: bool) -> Result<Output> {
    if let Some(collection) = collection_of_new(namespace, manifest) {
        let dry_run = if stores { "" } else { "&dryRun=All" };
        let path = format!("{collection}?fieldManager={OWNER}&fieldValidation=Strict{dry_run}");
        return Ok(outcome(manifest, request(Request::post(path), "json", &applied(manifest))));
    }
    let mut words = vec!["apply", "-n", namespace, "-f", "-"];
    if !stores {
        words.push("--dry-run=server");
    }
    try_kubectl_with(&words, &manifest.to_string())
}

/// Where the object is to be made. `None` if it exists, is a list or of another namespace, or if anything about it is
/// unusual: then kubectl says what there is to say.
fn collection_of_new(namespace: &str, manifest: &Value) -> Option<String> {
    let metadata = &manifest["metadata"];
    let name = metadata["name"].as_str()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte);
    let here = metadata["namespace"].as_str().is_none_or(|other| other == namespace);
    let annotations = &metadata["annotations"];
    if name.is_empty()
        || !name.bytes().all(plain)
        || !here
        || !(annotations.is_null() || annotations.is_object())
    {
        return None;
    }
    let (version, kind) = (manifest["apiVersion"].as_str()?, manifest["kind"].as_str()?);
    let collection = api_server::collection(version, kind, namespace).ok()??;
    let found = api_server::text(&format!("{collection}/{name}"));
    let absent =
        found.is_err_and(|error| api_server::refusal(&error).is_some_and(|status| status.code == 404));
    absent.then_some(collection)
}

/// The object with the annotation that the next `kubectl apply` compares with.
fn applied(manifest: &Value) -> Value {
    let mut object = manifest.clone();
    object["metadata"]["annotations"][APPLIED] = format!("{manifest}\n").into();
    object
}

/// What kubectl would have printed.
fn outcome(manifest: &Value, answer: Result<String>) -> Output {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_lowercase();
    match answer {
        Ok(_) => {
            let stdout =
                format!("{}/{} created\n", text(&manifest["kind"]), text(&manifest["metadata"]["name"]));
            Output { code: 0, stdout, stderr: String::new() }
        }
        Err(error) => Output { code: 1, stdout: String::new(), stderr: said(&error) },
    }
}

/// A refusal with its reason, its message and the field of each cause.
fn said(error: &anyhow::Error) -> String {
    let Some(status) = api_server::refusal(error) else { return format!("{error:#}\n") };
    let mut lines = vec![format!("Error from server ({}): {}", status.reason, status.message)];
    for cause in status.details.iter().flat_map(|details| &details.causes) {
        lines.push(format!("* {}: {}", cause.field, cause.message));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn request(builder: Builder, media_type: &str, content: &Value) -> Result<String> {
    let builder = builder.header("content-type", format!("application/{media_type}"));
    api_server::send(builder.body(content.to_string().into_bytes())?)
}

/// Merges a change into an object, as `kubectl patch --type=merge` does. The first arguments are those of `kubectl get`.
///
/// # Errors
/// When the server does not answer in a minute, or refuses.
pub fn merge(object: &[&str], change: &Value) -> Result<()> {
    request(Request::patch(api_server::path(object)?), "merge-patch+json", change).map(drop)
}

/// Merges a change into the status of an object that has it as a subresource.
///
/// # Errors
/// When the server does not answer in a minute, or refuses.
pub fn merge_status(object: &[&str], status: &Value) -> Result<()> {
    let path = format!("{}/status", api_server::path(object)?);
    request(Request::patch(path), "merge-patch+json", &json!({ "status": status })).map(drop)
}

/// Deletes an object that has to exist, as `kubectl delete --wait=false` does. The arguments are those of `kubectl get`.
///
/// # Errors
/// When the server does not answer in a minute, or refuses.
pub fn begin_delete(object: &[&str]) -> Result<()> {
    let options = json!({ "propagationPolicy": "Background" });
    request(Request::delete(api_server::path(object)?), "json", &options).map(drop)
}

/// The same without an error if there is no such object, as with `--ignore-not-found`.
///
/// # Errors
/// When the server does not answer in a minute, or refuses.
pub fn begin_delete_if_there(object: &[&str]) -> Result<()> {
    match begin_delete(object) {
        Err(error) if api_server::refusal(&error).is_some_and(|status| status.code == 404) => Ok(()),
        deleted => deleted,
    }
}

impl Namespace {
    /// Deletes an object that has to exist, and waits until it is gone.
    ///
    /// # Errors
    /// When there is no such object, or it is not gone in two minutes.
    pub fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let uid = self.need(kind, name)?["metadata"]["uid"].clone();
        self.begin_delete(kind, name)?;
        self.wait_other(kind, name, &uid)
    }

    /// Deletes an object that has to exist, and does not wait until it is gone.
    ///
    /// # Errors
    /// When there is no such object, or the server refuses.
    pub fn begin_delete(&self, kind: &str, name: &str) -> Result<()> {
        begin_delete(&[kind, name, "-n", self.name()])
    }

    /// Deletes all objects of a kind, and waits until they are gone.
    ///
    /// # Errors
    /// When the server refuses, or one is not gone in two minutes.
    pub fn delete_all(&self, kind: &str) -> Result<()> {
        let all = self.list(kind)?;
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        for object in &all {
            begin_delete_if_there(&[kind, &name(object), "-n", self.name()])?;
        }
        all.iter().try_for_each(|object| self.wait_other(kind, &name(object), &object["metadata"]["uid"]))
    }

    /// Waits until that object is gone; there may be another of its name.
    fn wait_other(&self, kind: &str, name: &str, uid: &Value) -> Result<()> {
        let look =
            |found: Option<Value>| found.is_none_or(|one| one["metadata"]["uid"] != *uid).then_some(());
        api_server::watch(&[kind, name, "-n", self.name()], GONE, look)?
            .with_context(|| format!("waited {} s for {kind} {name} to be gone", GONE.as_secs()))
    }

    /// Merges a change into an object.
    ///
    /// # Errors
    /// When there is no such object, or the change is refused.
    pub fn merge(&self, kind: &str, name: &str, change: &Value) -> Result<()> {
        merge(&[kind, name, "-n", self.name()], change)
    }

    /// Changes an object by the operations of a JSON patch.
    ///
    /// # Errors
    /// When there is no such object, or the change is refused.
    pub fn change(&self, kind: &str, name: &str, operations: &Value) -> Result<()> {
        let path = api_server::path(&[kind, name, "-n", self.name()])?;
        request(Request::patch(path), "json-patch+json", operations).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn an_applied_object_says_what_was_applied() {
        let manifest =
            json!({ "kind": "Secret", "metadata": { "name": "a", "annotations": { "own": "1" } } });
        let object = applied(&manifest);
        let annotations = object["metadata"]["annotations"].as_object().unwrap();
        assert_eq!(annotations["own"], "1");
        let before: Value = serde_json::from_str(annotations[APPLIED].as_str().unwrap()).unwrap();
        assert_eq!(before, manifest);
        assert_eq!(
            applied(&json!({ "metadata": {} }))["metadata"]["annotations"].as_object().unwrap().len(),
            1
        );
    }

    #[test]
    fn a_refusal_has_its_message_and_the_field_of_each_cause() {
        let cause = |field: &str| json!({ "message": "is wrong", "field": field });
        let status: Status = serde_json::from_value(json!({
            "code": 422, "reason": "Invalid", "message": "the webhook denied it",
            "details": { "causes": [cause("spec.a"), cause("spec.b")] },
        }))
        .unwrap();
        let output = outcome(&json!({}), Err(kube::Error::Api(status.boxed()).into()));
        assert_eq!(output.code, 1);
        let text =
            "Error from server (Invalid): the webhook denied it\n* spec.a: is wrong\n* spec.b: is wrong\n";
        assert_eq!(output.text(), text);
    }

    #[test]
    fn what_is_unusual_is_left_to_kubectl() {
        let name = |metadata: Value| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata });
        for manifest in [
            name(json!({})),
            name(json!({ "name": "a/b" })),
            name(json!({ "name": "a", "namespace": "other" })),
            name(json!({ "name": "a", "annotations": "none" })),
            json!({ "metadata": { "name": "a" } }),
        ] {
            assert_eq!(collection_of_new("ns", &manifest), None, "{manifest}");
        }
    }
}
