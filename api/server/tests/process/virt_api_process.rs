//! The process and its environment.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use barevirt_api::names::HANDLER_CLIENT_COMMON_NAME;
use barevirt_component::certificates::install_provider;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::sleep;

pub(crate) const NODE: &str = "home";
pub(crate) const SERVER: &str = "virt-api.kubevirt.svc";

pub(crate) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(crate) fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key, as PEM.
pub(crate) fn leaf(by: &Authority, name: &str, host: &str, usage: ExtendedKeyUsagePurpose) -> [String; 2] {
    let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate().unwrap();
    [params.signed_by(&key, by).unwrap().pem(), key.serialize_pem()]
}

/// A directory with virt-api's certificates and authorities.
pub(crate) fn certificates(ours: &Authority) -> TempDir {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    install_provider();
    let directory = tempfile::tempdir().unwrap();
    for (name, [certificate, key]) in [
        ("serving", leaf(ours, "virt-api", SERVER, ServerAuth)),
        ("client", leaf(ours, HANDLER_CLIENT_COMMON_NAME, "none", ClientAuth)),
    ] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
        std::fs::write(directory.path().join(name).join("tls.crt"), certificate).unwrap();
        std::fs::write(directory.path().join(name).join("tls.key"), key).unwrap();
    }
    std::fs::create_dir(directory.path().join("ca")).unwrap();
    std::fs::write(directory.path().join("ca/ca-bundle"), ours.pem()).unwrap();
    directory
}

/// A minimal API server for consoles; the address of its pod is the handler's.
pub(crate) async fn api_server(handler: IpAddr, front_proxy: &Authority) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let map = json!({"metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system", "resourceVersion": "1"},
    "data": {
        "requestheader-client-ca-file": front_proxy.pem(),
        "requestheader-allowed-names": r#"["front-proxy-client"]"#,
        "requestheader-username-headers": r#"["X-Remote-User"]"#,
        "requestheader-group-headers": r#"["X-Remote-Group"]"#,
        "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
    }});
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let map = map.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let map = map.clone();
                    async move { Ok::<_, Infallible>(kubernetes(request, handler, map).await) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(tcp), service).await;
            });
        }
    });
    address
}

pub(crate) async fn kubernetes(
    request: Request<Incoming>,
    handler: IpAddr,
    map: Value,
) -> Response<Full<Bytes>> {
    let (path, query) =
        (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
    let list = |kind: &str, items: Value| json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
    if query.contains("watch=") {
        // No object ever changes.
        sleep(Duration::from_secs(600)).await;
    }
    let body = match (request.method(), path.rsplit('/').next().unwrap_or_default()) {
        (&Method::POST, "subjectaccessreviews") => {
            let mut review: Value =
                serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
            review["status"] = json!({"allowed": true});
            review
        }
        (_, "configmaps") => list("ConfigMapList", json!([map])),
        (_, "pods") => {
            list("PodList", json!([{"metadata": {"name": "h"}, "status": {"podIP": handler.to_string()}}]))
        }
        (_, name) if path.contains("/virtualmachineinstances/") => json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "namespace": "shop"}, "spec": {"domain": {"devices": {}}},
            "status": {"phase": "Running", "nodeName": NODE}}),
        _ => list("List", json!([])),
    };
    let mut answer = Response::new(Full::from(body.to_string()));
    answer.headers_mut().insert("content-type", "application/json".parse().unwrap());
    answer
}

/// virt-api in its own process, killed at the end.
pub(crate) struct VirtApi {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Address of its probes.
    pub(crate) probes: SocketAddr,
}

impl VirtApi {
    pub(crate) fn start(directory: &Path, kubernetes: SocketAddr) -> Self {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{kubernetes}")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]});
        let file = directory.join("kubeconfig");
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        // All are bound at once, so that they are different.
        let [address, probes, uploads] = [(); 3]
            .map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
            .map(|listener| listener.local_addr().unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_virt-api"))
            .env("KUBECONFIG", file)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .arg(format!("--listen={address}"))
            .arg(format!("--probes-listen={probes}"))
            .arg(format!("--uploads-listen={uploads}"))
            .arg(format!("--serving-certs={}", directory.join("serving").display()))
            .arg(format!("--client-certs={}", directory.join("client").display()))
            .arg(format!("--ca={}", directory.join("ca").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, address, probes }
    }

    /// Memory of the process that is its own, according to the kernel.
    pub(crate) fn memory_kib(&self, what: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for VirtApi {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
