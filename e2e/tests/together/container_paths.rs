//! Directories that webhooks put into a launcher's pod and that its guest mounts (`containerPath`). The test runs a
//! webhook on this machine, which acts like those of clouds and vaults.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, try_kubectl_with};
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, crypto};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The directory in which the webhook mounts a token and the name of a region.
const CLOUD: &str = "/var/run/secrets/cloud.example";
/// How long the API server may be silent.
const QUIET: Duration = Duration::from_secs(30);
/// Size limit of a review; those of these tests are smaller.
const LONGEST: u64 = 1 << 20;

/// A webhook that changes the launchers of one namespace, until it is dropped.
struct Injector {
    name: String,
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Injector {
    fn start(namespace: &Namespace) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let tls = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let (tls, over) = (Arc::new(tls), ended.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(error) = serve(stream, tls.clone()) {
                    eprintln!("webhook: {error:#}");
                }
            }
        });
        // By its name it is called after Barevirt's webhook, which must see the mount nevertheless.
        let injector = Self { name: format!("zz-{}", namespace.name()), address, ended };
        let webhook = json!({
            "name": "cloud.example.com",
            "clientConfig": {
                "url": format!("https://127.0.0.1:{}/inject", address.port()),
                "caBundle": STANDARD.encode(made.cert.pem()),
            },
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name()}},
            "objectSelector": {"matchLabels": {"kubevirt.io": "virt-launcher"}},
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        });
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": injector.name}, "webhooks": [webhook],
        });
        let applied = try_kubectl_with(&["apply", "-f", "-"], &configuration.to_string())?;
        ensure!(applied.code == 0, "{}", applied.text());
        Ok(injector)
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        if let Err(error) =
            kubectl(&["delete", "mutatingwebhookconfiguration", &self.name, "--ignore-not-found"])
        {
            eprintln!("cannot remove the webhook: {error:#}");
        }
        self.ended.store(true, Ordering::Relaxed);
        // This wakes the listener, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

/// Reads a review and answers it.
fn serve(stream: TcpStream, tls: Arc<ServerConfig>) -> Result<()> {
    stream.set_read_timeout(Some(QUIET))?;
    stream.set_write_timeout(Some(QUIET))?;
    let mut stream = BufReader::new(StreamOwned::new(ServerConnection::new(tls)?, stream));
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.by_ref().take(16 << 10).read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "a request ends in its head: {line:?}");
        let header = line.trim_end().to_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length: ") {
            length = value.parse()?;
        }
    }
    ensure!(length <= LONGEST, "{length} bytes are too many");
    let mut body = Vec::new();
    stream.by_ref().take(length).read_to_end(&mut body)?;
    let review: Value = serde_json::from_slice(&body).context("a review")?;
    let text = answer(&review).to_string();
    let mut stream = stream.into_inner();
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )?;
    stream.conn.send_close_notify();
    stream.flush().context("answer")
}

/// An answer that adds a volume to the pod, mounted only in the container `compute`.
fn answer(review: &Value) -> Value {
    let containers =
        review["request"]["object"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let compute = containers.iter().position(|container| container["name"] == "compute").unwrap_or_default();
    let sources = json!([
        {"serviceAccountToken": {"path": "token", "audience": "sts.cloud.example"}},
        {"configMap": {"name": "cloud"}},
    ]);
    let patch = json!([
        {"op": "add", "path": "/spec/volumes/-", "value": {"name": "cloud", "projected": {"sources": sources}}},
        {"op": "add", "path": format!("/spec/containers/{compute}/volumeMounts/-"),
            "value": {"name": "cloud", "mountPath": CLOUD, "readOnly": true}},
    ]);
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {
            "uid": review["request"]["uid"], "allowed": true,
            "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string()),
        },
    })
}

/// A guest that mounts that directory of its pod.
fn with_path(name: &str, path: &str) -> Value {
    let mut manifest = guest::movable(guest::instance(name));
    let spec = guest::spec_of(&mut manifest);
    guest::push(&mut spec["domain"]["devices"]["filesystems"], json!({"name": "cloud", "virtiofs": {}}));
    guest::push(&mut spec["volumes"], json!({"name": "cloud", "containerPath": {"path": path}}));
    manifest
}

#[test]
fn a_guest_reads_what_a_webhook_puts_into_its_pod() {
    in_namespace("containerpath", |namespace| {
        namespace.kubectl(&["create", "configmap", "cloud", "--from-literal=region=north"])?;
        let _injector = Injector::start(namespace)?;
        namespace.apply(&with_path("vm", CLOUD))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        console.ok("mkdir -p /mnt/cloud && mount -t virtiofs cloud /mnt/cloud", SOON)?;
        let region = console.ok("cat /mnt/cloud/region", SOON)?;
        ensure!(region.trim() == "north", "{region}");
        let token = console.ok("wc -c </mnt/cloud/token", SOON)?;
        ensure!(token.trim().parse::<usize>()? > 100, "{token}");
        let owner = console.ok("stat -L -c %u /mnt/cloud/token", SOON)?;
        ensure!(owner.trim() == "0", "the token is user {owner}'s");
        let (said, code) = console.run("echo x >/mnt/cloud/new", SOON)?;
        ensure!(code != 0, "it was written: {said}");
        console.leave()?;
        let pod = namespace.launcher("vm")?;
        let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
        let serves = containers.iter().find(|container| container["name"] == "virtiofs-cloud");
        let mounts =
            serves.context("no container serves it")?["volumeMounts"].as_array().cloned().unwrap_or_default();
        ensure!(
            mounts.iter().any(|mount| mount["name"] == "cloud" && mount["readOnly"] == true),
            "{mounts:?}"
        );
        Ok(())
    });
}

#[test]
fn a_directory_that_nobody_puts_into_the_pod_is_told() {
    in_namespace("containerpathnone", |namespace| {
        namespace.apply(&with_path("vm", "/etc"))?;
        let vmi = namespace.wait("vmi", "vm", "to say what is missing", SOON, |vmi| {
            vmi["status"]["conditions"].to_string().contains("MissingVirtiofsContainers")
        })?;
        let conditions = vmi["status"]["conditions"].to_string();
        let words = "pod is missing virtiofs containers for ContainerPath volumes: [virtiofs-cloud]";
        ensure!(
            conditions.contains(words) && conditions.contains("in container compute at /etc"),
            "{conditions}"
        );
        ensure!(vmi["status"]["phase"] == "Scheduling", "{}", vmi["status"]);
        namespace.wait_event("vm", "MissingVirtiofsContainers").map(drop)
    });
}
