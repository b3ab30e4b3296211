//! Checks the names in the path of each request.
//!
//! Users write names into their objects, and kube writes a name into a path as it is: with `a/status`, `../b` or
//! `a?dryRun=All` the request would be another one than that which is meant, with the rights of this process. No object has
//! such a name. So the answer is that of the API server for an object that is not there, and nothing is sent.

use http::{Request, Uri};
use kube::core::Status;
use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use tower::{BoxError, Service};

/// Longest part of a path in a message, in characters.
const LONGEST_SHOWN: usize = 200;

/// Adds the check to a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer;

impl<S> tower::Layer<S> for Layer {
    type Service = Checked<S>;

    fn layer(&self, inner: S) -> Checked<S> {
        Checked { inner }
    }
}

/// A client with the check.
#[derive(Clone, Debug)]
pub(super) struct Checked<S> {
    inner: S,
}

impl<S, A> Service<Request<A>> for Checked<S>
where
    S: Service<Request<A>, Error = BoxError>,
    S::Response: Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // kube marks its requests with the operation.
        let operation = request.extensions().get::<&'static str>().copied();
        if is_as_meant(operation, request.uri()) {
            return Box::pin(self.inner.call(request));
        }
        let path: String = request.uri().path().chars().take(LONGEST_SHOWN).collect();
        let status = Status::failure(&format!("no object has the name in {path:?}"), "NotFound");
        let answer: BoxError = Box::new(kube::Error::Api(status.with_code(404).boxed()));
        Box::pin(ready(Err(answer)))
    }
}

/// How many parts an operation of kube adds to the path of a collection: a name, and a subresource. `None` for another one.
fn parts_beyond(operation: &str) -> Option<usize> {
    match operation {
        "list" | "list_metadata" | "watch" | "watch_metadata" | "create" | "delete_collection" => Some(0),
        "get" | "get_metadata" | "delete" | "patch" | "patch_metadata" | "replace" => Some(1),
        "get_status"
        | "patch_status"
        | "replace_status"
        | "get_subresource"
        | "create_subresource"
        | "patch_subresource"
        | "replace_subresource"
        | "get_scale"
        | "patch_scale"
        | "replace_scale"
        | "evict"
        | "create_token_request" => Some(2),
        _ => None,
    }
}

/// Whether every name in the path is one, and the path has as many as the operation needs.
fn is_as_meant(operation: Option<&str>, uri: &Uri) -> bool {
    let path: Vec<&str> = uri.path().split('/').skip(1).collect();
    let query = uri.query().unwrap_or_default();
    // What kube itself writes into a query is encoded.
    if !path.iter().all(|part| is_name(part)) || query.contains(['?', '/']) {
        return false;
    }
    let Some((operation, beyond)) = operation.and_then(|one| Some((one, parts_beyond(one)?))) else {
        return true;
    };
    let is_get = matches!(operation, "get" | "get_metadata");
    if is_get && !query.is_empty() && !query.starts_with("resourceVersion=") {
        return false;
    }
    match path.as_slice() {
        ["api", _, below @ ..] | ["apis", _, _, below @ ..] => match below {
            ["namespaces", _, _, rest @ ..] if rest.len() == beyond => true,
            [_, rest @ ..] => rest.len() == beyond,
            [] => false,
        },
        _ => false,
    }
}

/// Whether it can be a name, or a fixed part of a path. Some kinds of objects have names with a colon.
fn is_name(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    !matches!(part, "" | "." | "..") && part.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
    use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
    use kube::{Client, client::Body};
    use serde_json::json;
    use std::sync::{Arc, Mutex};
    use tower::Layer as _;

    /// A client of an API server that has nothing, and the paths that it was asked for.
    fn client() -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(vec![]));
        let paths = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            paths.lock().unwrap().push(request.uri().path().to_owned());
            let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404 });
            let answer = Response::builder().status(404).body(Body::from(status.to_string().into_bytes()));
            ready(answer.map_err(BoxError::from))
        });
        (Client::new(Layer.layer(service), "default"), asked)
    }

    /// Asks in each way for an object of that name. None is there.
    async fn ask(client: &Client, name: &str) -> usize {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "ns");
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let (change, patch) = (PatchParams::default(), Patch::Merge(json!({})));
        let answers = [
            volumes.get(name).await.map(drop),
            volumes.get_metadata(name).await.map(drop),
            volumes.delete(name, &DeleteParams::default()).await.map(drop),
            volumes.patch(name, &change, &patch).await.map(drop),
            pods.get(name).await.map(drop),
            pods.delete(name, &DeleteParams::default()).await.map(drop),
            pods.patch_metadata(name, &change, &patch).await.map(drop),
            pods.patch_status(name, &change, &patch).await.map(drop),
            pods.patch_subresource("resize", name, &change, &patch).await.map(drop),
            pods.replace(name, &PostParams::default(), &Pod::default()).await.map(drop),
            pods.evict(name, &EvictParams::default()).await.map(drop),
        ];
        for answer in &answers {
            let error = answer.as_ref().unwrap_err();
            assert!(matches!(error, kube::Error::Api(status) if status.code == 404), "{name}: {error:?}");
        }
        answers.len()
    }

    #[tokio::test]
    async fn a_name_stays_a_name() {
        let (client, asked) = client();
        let bad = [
            "a/status",
            "../pods/a",
            "..",
            ".",
            "a/",
            "/a",
            "a/b/c",
            "a?dryRun=All",
            "?watch=true",
            "#",
            "a%2fstatus",
            "a;b",
            "namespaces/ns/secrets/a",
        ];
        for name in bad {
            ask(&client, name).await;
            assert_eq!(*asked.lock().unwrap(), Vec::<String>::new(), "{name}");
        }
        let within: Api<Pod> = Api::namespaced(client.clone(), "ns/secrets/a?");
        assert!(within.get("pod").await.is_err() && within.list(&ListParams::default()).await.is_err());
        assert_eq!(*asked.lock().unwrap(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn requests_for_objects_and_for_all_of_a_kind_pass() {
        let (client, asked) = client();
        let mut expected = 0;
        for name in ["a", "a.b-c", "system:node:a", "0"] {
            expected += ask(&client, name).await;
        }
        assert_eq!(asked.lock().unwrap().len(), expected);
        let pods: Api<Pod> = Api::namespaced(client.clone(), "ns");
        let selected = ListParams::default().labels("a.example/b in (c, d),!e").fields("spec.nodeName=n");
        assert!(pods.list(&selected).await.is_err() && pods.list_metadata(&selected).await.is_err());
        assert!(pods.create(&PostParams::default(), &Pod::default()).await.is_err());
        assert!(client.apiserver_version().await.is_err() && client.list_api_groups().await.is_err());
        assert_eq!(asked.lock().unwrap().len(), expected + 5);
    }
}
