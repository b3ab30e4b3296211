//! Pods that send claims to importers of other namespaces: creates them, introduces their importer, and removes them, also
//! when their DataVolume is gone.

use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi::DataVolume;
use barevirt_component::error::chain;
use barevirt_component::request::{Error, call, call_opt};
use barevirt_plan::imports::{RECEIVER_ANNOTATION, SELECTOR, asked_by, is_waiting};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::time::Duration;
use tracing::{info, warn};

/// Pause between two sweeps, while there are senders.
const SWEEP: Duration = Duration::from_secs(5);

/// Makes a sender.
pub(super) async fn make(cluster: &Cluster, wanted: &Pod) -> Result<(), Error> {
    let namespace = wanted.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
    let about = || format!("pod {namespace}/{}", wanted.name_any());
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    // Set before the request: a sender that may exist is looked for.
    cluster.senders.may_be();
    call("create", about, pods.create(&params, wanted)).await.map(drop)
}

/// Tells a sender of its importer.
pub(super) async fn introduce(
    cluster: &Cluster,
    (namespace, name): (&str, &str),
    certificate: &str,
) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let about = || format!("pod {namespace}/{name}");
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = json!({ "metadata": { "annotations": { RECEIVER_ANNOTATION: certificate } } });
    call("patch", about, pods.patch_metadata(name, &params, &Patch::Merge(&patch))).await.map(drop)
}

/// Removes a sender.
pub(super) async fn remove(client: &Client, (namespace, name): (&str, &str), uid: &str) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let about = || format!("pod {namespace}/{name}");
    call_opt("delete", about, pods.delete(name, &params)).await.map(drop)
}

/// Removes senders that no DataVolume needs any more, while there may be any. It continues when another owner serves
/// DataVolumes.
pub(super) async fn sweep(cluster: &Cluster) {
    loop {
        if cluster.senders.are_there() {
            match sweep_once(&cluster.client).await {
                Ok(true) => {}
                Ok(false) => cluster.senders.are_gone(),
                Err(error) => warn!(error = %chain(&error), "pods that send claims may be left"),
            }
        }
        tokio::time::sleep(SWEEP).await;
    }
}

/// Removes them once; returns whether there are any senders. Users can make pods that look like one, so what one of them
/// says never keeps the others.
async fn sweep_once(client: &Client) -> Result<bool, Error> {
    let found = all(client).await?;
    for pod in found.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        if let Err(error) = remove_unneeded(client, pod).await {
            let (namespace, name) = (pod.namespace(), pod.name_any());
            warn!(namespace, pod = name, error = %chain(&error), "a pod that sends a claim may be left");
        }
    }
    Ok(!found.is_empty())
}

/// The pods that look like senders.
async fn all(client: &Client) -> Result<Vec<Pod>, Error> {
    let pods: Api<Pod> = Api::all(client.clone());
    let wanted = ListParams::default().labels(SELECTOR);
    let found = pods.list(&wanted);
    Ok(call("list", || "pods that send claims".to_owned(), found).await?.items)
}

/// Removes all senders: another owner serves DataVolumes.
pub(super) async fn remove_all(client: &Client) -> Result<(), Error> {
    let found = all(client).await?;
    let ours = |pod: &&Pod| asked_by(pod).is_some() && pod.metadata.deletion_timestamp.is_none();
    for pod in found.iter().filter(ours) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        remove(client, (&namespace, &name), &pod.uid().unwrap_or_default()).await?;
    }
    Ok(())
}

/// Removes a sender that no DataVolume needs.
async fn remove_unneeded(client: &Client, pod: &Pod) -> Result<(), Error> {
    // Without our annotations it is not ours, whatever its labels.
    let Some((namespace, name, uid)) = asked_by(pod) else { return Ok(()) };
    let all: Api<DataVolume> = Api::namespaced(client.clone(), &namespace);
    let about = || format!("data volume {namespace}/{name}");
    let volume = call_opt("get", about, all.get(&name)).await?;
    let waits = volume.is_some_and(|volume| {
        volume.metadata.uid.as_ref() == Some(&uid)
            && volume.metadata.deletion_timestamp.is_none()
            && is_waiting(&volume)
    });
    if waits {
        return Ok(());
    }
    let own = pod.namespace().unwrap_or_default();
    info!(namespace = own, pod = pod.name_any(), "deleting a sender that no DataVolume needs");
    remove(client, (&own, &pod.name_any()), &pod.uid().unwrap_or_default()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::Value;
    use std::sync::{Arc, Mutex};

    fn sender(name: &str, place: &str) -> Value {
        let annotations = json!({ "import.barevirt.dev/for": place, "import.barevirt.dev/for-uid": "u1" });
        json!({ "metadata": { "name": name, "namespace": "golden", "uid": name, "annotations": annotations } })
    }

    fn status(code: u16) -> (u16, Value) {
        let text = if code < 400 { "Success" } else { "Failure" };
        let status =
            json!({ "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": text, "code": code });
        (code, status)
    }

    /// An API server with these senders. It cannot tell of the DataVolume `troubled`, and has no other.
    fn server(senders: Vec<Value>, asked: Arc<Mutex<Vec<String>>>) -> Client {
        let list = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": senders });
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path();
            asked.lock().unwrap().push(format!("{} {path}", request.method()));
            let (code, answer) = match path {
                "/api/v1/pods" => (200, list.clone()),
                path if path.ends_with("/troubled") => status(500),
                path if path.contains("/datavolumes/") => status(404),
                _ => status(200),
            };
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            std::future::ready(answer)
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn an_invalid_pod_does_not_prevent_the_removal_of_other_senders() {
        let asked = Arc::new(Mutex::new(vec![]));
        let senders =
            vec![sender("s1", "ns/troubled"), sender("s2", "ns/../../pods/a"), sender("s3", "ns/gone")];
        let client = server(senders, asked.clone());
        assert!(sweep_once(&client).await.unwrap());
        let volume =
            |name: &str| format!("GET /apis/cdi.kubevirt.io/v1beta1/namespaces/ns/datavolumes/{name}");
        let removed = "DELETE /api/v1/namespaces/golden/pods/s3".to_owned();
        let expected = ["GET /api/v1/pods".to_owned(), volume("troubled"), volume("gone"), removed];
        assert_eq!(*asked.lock().unwrap(), expected);
    }
    #[tokio::test]
    async fn with_another_owner_all_senders_go_and_no_other_pod() {
        let asked = Arc::new(Mutex::new(vec![]));
        let stranger = json!({ "metadata": { "name": "s2", "namespace": "golden", "uid": "s2" } });
        let client = server(vec![sender("s1", "ns/needed"), stranger], asked.clone());
        remove_all(&client).await.unwrap();
        let expected = ["GET /api/v1/pods".to_owned(), "DELETE /api/v1/namespaces/golden/pods/s1".to_owned()];
        assert_eq!(*asked.lock().unwrap(), expected);
    }
}
