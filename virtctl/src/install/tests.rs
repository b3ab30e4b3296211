//! install and upgrade against a fake API server on a socket, which stores what it is given.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Config;
use tokio::net::TcpListener;

use super::*;

/// The server's objects, and the writes that it got.
#[derive(Default)]
struct Store {
    objects: BTreeMap<String, Value>,
    writes: Vec<(Method, String)>,
    /// While this is above 0, creating a `KubeVirt` object fails because there is no webhook.
    without_webhook: u32,
}

impl Store {
    fn answer(&mut self, method: &Method, uri: &http::Uri, body: &[u8]) -> (StatusCode, Value) {
        let path = uri.path().to_owned();
        if *method == Method::GET {
            return match self.objects.get(&path) {
                Some(object) => (StatusCode::OK, object.clone()),
                None => self.list(&path),
            };
        }
        // doctor's trial.
        if uri.query().is_some_and(|query| query.contains("dryRun=All")) {
            return failure(StatusCode::NOT_FOUND, "there is no such kind");
        }
        let object: Value = serde_json::from_slice(body).unwrap();
        self.writes.push((method.clone(), uri.to_string()));
        let path = match *method {
            Method::POST => format!("{path}/{}", object["metadata"]["name"].as_str().unwrap()),
            _ => path,
        };
        if object["kind"] == "KubeVirt" && self.without_webhook > 0 {
            self.without_webhook -= 1;
            let message = "failed calling webhook \"kubevirt-validator\": connection refused";
            return failure(StatusCode::INTERNAL_SERVER_ERROR, message);
        }
        self.objects.insert(path, with_status(object));
        self.operate();
        (StatusCode::OK, json!({}))
    }

    /// The objects of a kind.
    fn list(&self, path: &str) -> (StatusCode, Value) {
        // The list over all namespaces.
        let path = if path == "/apis/kubevirt.io/v1/kubevirts" { KUBEVIRTS } else { path };
        let within = format!("{path}/");
        let is_item = |at: &&String| at.strip_prefix(&within).is_some_and(|name| !name.contains('/'));
        let items: Vec<&Value> =
            self.objects.iter().filter(|(at, _)| is_item(at)).map(|(_, object)| object).collect();
        match (items.is_empty(), path) {
            (false, _) => (StatusCode::OK, json!({ "items": items })),
            (true, "/version") => {
                (StatusCode::OK, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.0"}))
            }
            (true, "/api/v1/nodes") => (
                StatusCode::OK,
                json!({"items": [{
                    "metadata": {"name": "a"},
                    "status": {
                        "conditions": [{"type": "Ready", "status": "True"}],
                        "nodeInfo": {"architecture": "amd64", "operatingSystem": "linux"},
                    },
                }]}),
            ),
            (true, _) => failure(StatusCode::NOT_FOUND, "there is none"),
        }
    }

    /// Does the work of virt-operator at once.
    fn operate(&mut self) {
        let version = self.objects.get(DEPLOYMENT).and_then(bundle::version);
        let kubevirt = self.objects.get_mut(&format!("{KUBEVIRTS}/kubevirt"));
        if let (Some(version), Some(kubevirt)) = (version, kubevirt) {
            kubevirt["metadata"]["generation"] = json!(1);
            kubevirt["status"] = json!({
                "observedGeneration": 1, "observedDeploymentID": version, "targetDeploymentID": version,
                "observedKubeVirtVersion": version, "targetKubeVirtVersion": version,
                "conditions": [
                    {"type": "Available", "status": "True"}, {"type": "Progressing", "status": "False"},
                    {"type": "Degraded", "status": "False"},
                ],
            });
        }
    }

    fn of(&self, method: &Method) -> Vec<&str> {
        let same = self.writes.iter().filter(|(with, _)| with == method);
        same.map(|(_, uri)| uri.as_str()).collect()
    }
}

fn failure(code: StatusCode, message: &str) -> (StatusCode, Value) {
    (
        code,
        json!({"kind": "Status", "status": "Failure", "code": code.as_u16(), "message": message, "reason": ""}),
    )
}

/// The object as the cluster would complete it.
fn with_status(mut object: Value) -> Value {
    if object["kind"] == "CustomResourceDefinition" {
        object["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
    }
    if object["kind"] == "Deployment" {
        object["metadata"]["generation"] = json!(1);
        object["status"] =
            json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2});
    }
    object
}

async fn answer(
    store: Arc<Mutex<Store>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let (code, value) = store.lock().unwrap().answer(&head.method, &head.uri, &body);
    let answer = Response::builder().status(code).header("content-type", "application/json");
    Ok(answer.body(Full::new(Bytes::from(value.to_string()))).unwrap())
}

/// A session with a server that has these objects.
async fn session(store: &Arc<Mutex<Store>>) -> Session {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = Arc::clone(store);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let store = Arc::clone(&store);
            let service = service_fn(move |request| answer(Arc::clone(&store), request));
            let served = hyper::server::conn::http1::Builder::new();
            tokio::spawn(served.serve_connection(TokioIo::new(connection), service));
        }
    });
    let config = Config::new(format!("http://{address}").parse().unwrap());
    Session { client: Client::try_from(config).unwrap(), namespace: "default".to_owned() }
}

fn source(from: Vec<PathBuf>, force: bool) -> Source {
    Source { from, timeout: Duration::from_secs(20), dry_run: false, force }
}

fn manifests() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests"))
}

async fn install(session: &Session, use_emulation: bool) -> anyhow::Result<()> {
    Install { source: source(vec![manifests()], false), use_emulation }.run(session).await
}

#[tokio::test]
async fn everything_is_written_once_and_a_second_time_changes_nothing_of_others() {
    let store = Arc::new(Mutex::new(Store::default()));
    let session = session(&store).await;
    install(&session, true).await.unwrap();
    {
        let mut store = store.lock().unwrap();
        let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?fieldManager=virtctl";
        assert_eq!(
            store.of(&Method::POST),
            [definition.to_owned(), format!("{KUBEVIRTS}?fieldManager=virtctl")]
        );
        let applied = store.of(&Method::PATCH);
        assert!(applied.len() > 10 && applied[0].starts_with("/api/v1/namespaces/kubevirt?"), "{applied:?}");
        assert!(applied.iter().all(|uri| uri.ends_with("?fieldManager=virtctl&force=true")), "{applied:?}");
        assert!(applied.last().unwrap().starts_with(DEPLOYMENT));
        let kubevirt = &store.objects[&format!("{KUBEVIRTS}/kubevirt")];
        assert_eq!(kubevirt["spec"]["configuration"]["developerConfiguration"]["useEmulation"], true);
        store.writes.clear();
    }
    install(&session, false).await.unwrap();
    let refused = install(&session, true).await.unwrap_err().to_string();
    assert!(refused.contains("useEmulation"), "{refused}");
    let store = store.lock().unwrap();
    assert_eq!(store.of(&Method::POST), Vec::<&str>::new());
}

#[tokio::test]
async fn an_upgrade_replaces_the_operator_and_leaves_the_object_alone() {
    let store = Arc::new(Mutex::new(Store::default()));
    let session = session(&store).await;
    install(&session, false).await.unwrap();
    let next = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(manifests().join("barevirt-operator.yaml")).unwrap();
    std::fs::write(next.path().join("barevirt-operator.yaml"), text.replace(":devel", ":v9.0.0")).unwrap();
    let from = vec![next.path().to_owned()];
    let again = Install { source: source(from.clone(), true), use_emulation: false };
    let refused = again.run(&session).await.unwrap_err().to_string();
    assert!(refused.contains("virtctl upgrade"), "{refused}");

    store.lock().unwrap().writes.clear();
    // doctor finds no components here.
    let refused =
        Upgrade { source: source(from.clone(), false) }.run(&session).await.unwrap_err().to_string();
    assert!(refused.contains("--force"), "{refused}");
    assert_eq!(store.lock().unwrap().writes, []);
    Upgrade { source: source(from, true) }.run(&session).await.unwrap();
    let store = store.lock().unwrap();
    assert_eq!(store.of(&Method::POST), Vec::<&str>::new());
    assert!(store.writes.iter().all(|(_, uri)| !uri.contains("kubevirts")), "{:?}", store.writes);
    assert_eq!(bundle::version(&store.objects[DEPLOYMENT]).as_deref(), Some("v9.0.0"));
}

#[tokio::test]
async fn a_webhook_that_is_not_there_yet_is_waited_for() {
    let store = Arc::new(Mutex::new(Store { without_webhook: 1, ..Store::default() }));
    let session = session(&store).await;
    install(&session, false).await.unwrap();
    let tries =
        store.lock().unwrap().of(&Method::POST).iter().filter(|uri| uri.starts_with(KUBEVIRTS)).count();
    assert_eq!(tries, 2);
}

#[test]
fn a_time_has_a_unit() {
    assert_eq!(time("10m"), Ok(Duration::from_secs(600)));
    assert_eq!(time("1m30s"), Ok(Duration::from_secs(90)));
    for wrong in ["", "10", "0s", "soon"] {
        assert!(time(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn emulation_is_asked_for_beside_what_the_object_says() {
    let mut kubevirt = json!({"spec": {"imagePullPolicy": "Always", "configuration": {"cpuRequest": "1"}}});
    emulated(&mut kubevirt);
    assert_eq!(kubevirt["spec"]["configuration"]["developerConfiguration"]["useEmulation"], true);
    assert_eq!(kubevirt["spec"]["configuration"]["cpuRequest"], "1");
    let mut empty = json!({});
    emulated(&mut empty);
    assert_eq!(empty["spec"]["configuration"]["developerConfiguration"]["useEmulation"], true);
}
