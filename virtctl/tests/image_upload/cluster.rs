//! A fake API server with CDI, as far as an upload uses them: it stores objects by their paths, and CDI's
//! controller makes one step after each read of an object, so that the first read shows it waiting.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, crypto};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::own::{self, Arrived, Cut};

const CLAIMS: &str = "/api/v1/namespaces/shop/persistentvolumeclaims";
const CDI: &str = "/apis/cdi.kubevirt.io/v1beta1";
const ANNOTATION: &str = "cdi.kubevirt.io/storage.";
/// Most bytes of an image that are stored; further bytes are only counted.
const KEPT: usize = 2 << 20;

/// Deviations from normal behaviour.
#[derive(Default)]
pub(crate) struct Script {
    /// The proxy's answers to uploads before it accepts one.
    pub(crate) answers: Vec<u16>,
    /// The proxy does not have the asynchronous endpoint.
    pub(crate) only_synchronous: bool,
    pub(crate) without_cdi: bool,
    pub(crate) without_tls: bool,
    /// The pod of a claim never becomes ready.
    pub(crate) never_ready: bool,
    /// The pod ends while it converts the image.
    pub(crate) loses_images: bool,
    /// Barevirt takes uploads, through the API server.
    pub(crate) own: bool,
    /// After how many bytes of a request Barevirt's connections break.
    pub(crate) cuts: Vec<usize>,
    /// Barevirt knows nothing of an upload that has begun.
    pub(crate) forgets: bool,
}

/// Where objects are.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Claim,
    DataVolume,
    DataSource,
}

impl Kind {
    fn path(self) -> String {
        match self {
            Self::Claim => CLAIMS.to_owned(),
            Self::DataVolume => format!("{CDI}/namespaces/shop/datavolumes"),
            Self::DataSource => format!("{CDI}/namespaces/shop/datasources"),
        }
    }
}

/// An image that was accepted.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) token: String,
    pub(crate) length: usize,
    pub(crate) begins_with: Vec<u8>,
}

pub(crate) struct State {
    pub(crate) script: Script,
    objects: BTreeMap<String, Value>,
    tokens: usize,
    pub(crate) posts: usize,
    pub(crate) received: Vec<Received>,
    pub(crate) arrived: Arrived,
}

/// A cluster for one test, until it is dropped.
pub(crate) struct Cluster {
    state: Arc<Mutex<State>>,
    _until_dropped: oneshot::Sender<()>,
    files: tempfile::TempDir,
    api: SocketAddr,
    proxy: String,
}

impl Cluster {
    pub(crate) fn start(script: Script) -> Self {
        let files = tempfile::tempdir().unwrap();
        let (secure, state) = (
            !script.without_tls,
            State {
                script,
                objects: BTreeMap::new(),
                tokens: 0,
                posts: 0,
                received: Vec::new(),
                arrived: Arrived::default(),
            },
        );
        let state = Arc::new(Mutex::new(state));
        let tls = secure.then(|| {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            std::fs::write(files.path().join("ca.crt"), made.cert.pem()).unwrap();
            let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            std::fs::write(files.path().join("other.crt"), other.cert.pem()).unwrap();
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
            let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.der().clone()], key);
            TlsAcceptor::from(Arc::new(config.unwrap()))
        });
        let (ready, addresses) = std::sync::mpsc::channel();
        let (until_dropped, dropped) = oneshot::channel::<()>();
        let served = state.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let api = serve(served.clone(), None, answer).await;
                let proxy = serve(served, tls, take).await;
                ready.send((api, proxy)).unwrap();
                let _ = dropped.await;
            });
        });
        let (api, proxy) = addresses.recv().unwrap();
        let scheme = if secure { "https" } else { "http" };
        let proxy = format!("{scheme}://localhost:{}", proxy.port());
        let config = json!({ "metadata": { "name": "config" }, "status": { "uploadProxyURL": proxy } });
        state.lock().unwrap().objects.insert(format!("{CDI}/cdiconfigs/config"), config);
        std::fs::write(files.path().join("kubeconfig"), "{apiVersion: v1, kind: Config}").unwrap();
        Self { state, _until_dropped: until_dropped, files, api, proxy }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The API server's address.
    pub(crate) fn api(&self) -> String {
        format!("http://{}", self.api)
    }

    /// The proxy's URL.
    pub(crate) fn proxy(&self) -> &str {
        &self.proxy
    }

    /// An empty kubeconfig, so that the user's own is not used.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.files.path().join("kubeconfig")
    }

    /// The certificate of the authority that signed the proxy's.
    pub(crate) fn authority(&self) -> PathBuf {
        self.files.path().join("ca.crt")
    }

    /// The certificate of another authority.
    pub(crate) fn other_authority(&self) -> PathBuf {
        self.files.path().join("other.crt")
    }

    pub(crate) fn object(&self, kind: Kind, name: &str) -> Option<Value> {
        self.state().objects.get(&format!("{}/{name}", kind.path())).cloned()
    }

    pub(crate) fn put(&self, kind: Kind, name: &str, object: Value) {
        self.state().objects.insert(format!("{}/{name}", kind.path()), object);
    }

    /// Images that were accepted.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.state().received.clone()
    }

    /// How many uploads the proxy got.
    pub(crate) fn posts(&self) -> usize {
        self.state().posts
    }
}

pub(crate) type Answer = Response<Full<Bytes>>;

/// Serves on a free port for as long as the runtime runs.
async fn serve<F>(
    state: Arc<Mutex<State>>,
    tls: Option<TlsAcceptor>,
    answer: fn(Arc<Mutex<State>>, Request<Incoming>) -> F,
) -> SocketAddr
where
    F: Future<Output = Answer> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (state, tls) = (state.clone(), tls.clone());
            let service = service_fn(move |request| {
                let answered = answer(state.clone(), request);
                async move {
                    let answer = answered.await;
                    match answer.extensions().get::<Cut>() {
                        Some(Cut) => Err("cut"),
                        None => Ok(answer),
                    }
                }
            });
            tokio::spawn(async move {
                // The client reports a broken connection.
                let _ = match tls {
                    None => http1::Builder::new().serve_connection(TokioIo::new(stream), service).await,
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => {
                            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
                        }
                        Err(_) => Ok(()),
                    },
                };
            });
        }
    });
    address
}

pub(crate) fn json_answer(status: u16, body: impl Into<Bytes>) -> Answer {
    let status = StatusCode::from_u16(status).unwrap();
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body.into()))
        .unwrap()
}

fn object(status: u16, object: &Value) -> Answer {
    json_answer(status, object.to_string())
}

fn missing(path: &str) -> Answer {
    let message = format!("{path} not found");
    object(
        404,
        &json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": message,
        }),
    )
}

/// The API server.
async fn answer(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Answer {
    if request.uri().path().contains("/uploads/disk/proxy") {
        return own::take(state, request).await;
    }
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = head.uri.path().to_owned();
    let mut state = state.lock().unwrap();
    match (head.method, path.rsplit('/').next().unwrap()) {
        (Method::GET, "apis") => {
            let served = ["apps", "cdi.kubevirt.io", "upload.cdi.kubevirt.io"];
            let served = if state.script.without_cdi { &served[..1] } else { &served[..] };
            let group = |name: &&str| {
                let version = json!({ "groupVersion": format!("{name}/v1beta1"), "version": "v1beta1" });
                json!({ "name": name, "versions": [version], "preferredVersion": version })
            };
            let groups: Vec<Value> = served.iter().map(group).collect();
            object(200, &json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        // The resources of the group: CDI's has no uploads through the API server.
        (Method::GET, "v1beta1") => {
            assert_eq!(path, "/apis/upload.cdi.kubevirt.io/v1beta1");
            let tokens = json!({
                "name": "uploadtokenrequests", "singularName": "", "namespaced": true, "kind": "UploadTokenRequest",
                "verbs": ["create"],
            });
            let through = json!({
                "name": "uploads/proxy", "singularName": "", "namespaced": true, "kind": "", "verbs": ["create"],
            });
            let resources = if state.script.own { vec![tokens, through] } else { vec![tokens] };
            object(
                200,
                &json!({
                    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "upload.cdi.kubevirt.io/v1beta1",
                    "resources": resources,
                }),
            )
        }
        (Method::GET, "events") => {
            object(200, &json!({ "kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": [] }))
        }
        // CDI answers with the request's object and a token, without a name.
        (Method::POST, "uploadtokenrequests") => {
            assert_eq!(path, "/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/shop/uploadtokenrequests");
            assert_eq!(body["spec"]["pvcName"], "disk");
            state.tokens += 1;
            let mut answer = body;
            answer["status"] = json!({ "token": format!("token-{}", state.tokens) });
            object(200, &answer)
        }
        (Method::POST, _) => {
            let mut made = body;
            let name = made["metadata"]["name"].as_str().unwrap().to_owned();
            made["metadata"]["uid"] = json!(format!("uid-{name}"));
            state.objects.insert(format!("{path}/{name}"), made.clone());
            object(201, &made)
        }
        (Method::PATCH, _) => {
            let found = state.objects.get_mut(&path).unwrap();
            let annotations = body["metadata"]["annotations"].as_object().unwrap();
            for (key, value) in annotations {
                found["metadata"]["annotations"][key] = value.clone();
            }
            object(200, &found.clone())
        }
        (Method::GET, _) => {
            let found = state.objects.get(&path).cloned();
            if path.starts_with(CLAIMS) || path.contains("/datavolumes/") {
                step(&mut state);
            }
            match found {
                Some(found) => object(200, &found),
                None => missing(&path),
            }
        }
        (method, _) => panic!("{method} {path}"),
    }
}

/// One step of CDI's controller.
fn step(state: &mut State) {
    let State { script, objects, received, .. } = state;
    let volumes = Kind::DataVolume.path();
    let of_volumes: Vec<String> = objects
        .keys()
        .filter_map(|path| path.strip_prefix(&format!("{volumes}/")).map(str::to_owned))
        .collect();
    for name in of_volumes {
        let claim = format!("{CLAIMS}/{name}");
        objects.entry(claim).or_insert_with(|| {
            let annotations = json!({ format!("{ANNOTATION}upload.target"): "" });
            json!({ "metadata": { "name": name, "annotations": annotations }, "spec": {} })
        });
        if !script.never_ready {
            let volume = objects.get_mut(&format!("{volumes}/{name}")).unwrap();
            volume["status"] = json!({ "phase": "UploadReady", "claimName": name });
        }
    }
    for (_, claim) in objects.iter_mut().filter(|(path, _)| path.starts_with(CLAIMS)) {
        let annotations = &mut claim["metadata"]["annotations"];
        if annotations[format!("{ANNOTATION}upload.target")].is_null() || script.never_ready {
            continue;
        }
        let lost = script.loses_images && !received.is_empty();
        let phase = if received.is_empty() || lost { "Running" } else { "Succeeded" };
        annotations[format!("{ANNOTATION}pod.phase")] = json!(phase);
        annotations[format!("{ANNOTATION}pod.ready")] = json!("true");
        annotations[format!("{ANNOTATION}pod.restarts")] = json!(if lost { "1" } else { "0" });
    }
}

/// The upload proxy.
async fn take(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Answer {
    let (head, mut body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let token = head
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let token = token.map(str::to_owned).unwrap_or_default();
    let told = {
        let mut state = state.lock().unwrap();
        if !token.starts_with("token-") {
            return json_answer(400, "");
        }
        let known = match path.as_str() {
            "/v1beta1/upload-async" => !state.script.only_synchronous,
            "/v1beta1/upload" => true,
            _ => false,
        };
        match head.method {
            _ if !known => return json_answer(404, ""),
            Method::HEAD => return json_answer(200, ""),
            Method::POST => {}
            _ => return json_answer(404, ""),
        }
        state.posts += 1;
        (!state.script.answers.is_empty()).then(|| state.script.answers.remove(0))
    };
    if let Some(status) = told {
        // If a connection is closed while bytes are unread, the answer may be lost.
        let _ = body.collect().await;
        return json_answer(status, "told to");
    }
    assert_eq!(head.headers[header::CONTENT_TYPE], "application/octet-stream");
    assert!(!head.headers.contains_key("barevirt-upload"), "CDI's proxy does not go on with an upload");
    let expected: usize = head.headers[header::CONTENT_LENGTH].to_str().unwrap().parse().unwrap();
    let mut received = Received { path, token, length: 0, begins_with: Vec::new() };
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return json_answer(500, "broken off") };
        let Some(data) = frame.data_ref() else { continue };
        received.length += data.len();
        let kept = data.len().min(KEPT - received.begins_with.len());
        received.begins_with.extend_from_slice(&data[..kept]);
    }
    assert_eq!(received.length, expected);
    state.lock().unwrap().received.push(received);
    json_answer(200, "")
}
