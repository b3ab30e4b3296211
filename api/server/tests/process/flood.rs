//! Unknown clients flood virt-api with silent connections, and with two hundred large bodies at once. Reviews
//! and probes must still be answered, and memory must stay limited.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::virt_api_process::{SERVER, VirtApi, api_server, authority, certificates};

const SOON: Duration = Duration::from_secs(30);
/// More than the places of one address, and more than all places.
const SILENT: usize = 1200;
const FLOODS: usize = 200;
const LARGE: usize = 8 << 20;
/// The deployment allows more. Without limits the bodies alone would take sixteen hundred megabytes.
const MOST_MEMORY_KIB: u64 = 512 << 10;

/// A client without a certificate, from any loopback address.
#[derive(Clone)]
struct Stranger(TlsConnector);

impl Stranger {
    async fn connect(&self, to: SocketAddr, from: [u8; 4]) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        self.0.connect(ServerName::try_from(SERVER).unwrap(), socket.connect(to).await?).await
    }

    /// The head of the answer; empty if there is none.
    async fn ask(&self, to: SocketAddr, from: [u8; 4], head: &str, body: &[u8]) -> std::io::Result<String> {
        let mut tls = self.connect(to, from).await?;
        let length = body.len();
        tls.write_all(format!("{head} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").as_bytes())
            .await?;
        // If the answer comes first, the rest of the body is not read.
        let (mut read, mut write) = tokio::io::split(tls);
        let mut answer = vec![0; 4096];
        let sent = async {
            let _ = write.write_all(body).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            length = read.read(&mut answer) => answer.truncate(length?),
            () = sent => {}
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

fn review(padding: &str) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "kind": {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachineInstancePreset"},
            "resource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachineinstancepresets"},
            "name": "web", "namespace": "shop", "operation": "CREATE", "userInfo": {"username": "ann"},
            "object": {
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePreset",
                "metadata": {"name": "web", "annotations": {"padding": padding}}, "spec": {},
            },
        },
    })
    .to_string()
}

const REVIEW: &str = "POST /vmipreset-validate";

#[tokio::test]
async fn strangers_do_not_block_others_and_are_limited() {
    let (ours, front) = (authority("ours"), authority("front"));
    let directory = certificates(&ours);
    let nowhere = std::net::IpAddr::from([127, 0, 0, 1]);
    let api = VirtApi::start(directory.path(), api_server(nowhere, &front).await);
    let mut roots = RootCertStore::empty();
    roots.add(ours.der().clone()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let stranger = Stranger(TlsConnector::from(Arc::new(config)));
    let api_servers = [127, 0, 0, 1];
    let small = review("");
    let answered = async || {
        let begun = Instant::now();
        let reviewed = timeout(SOON, stranger.ask(api.address, api_servers, REVIEW, small.as_bytes())).await;
        let reviewed = reviewed.unwrap_or_else(|_| Ok("late".to_owned()));
        let probed = timeout(SOON, stranger.ask(api.probes, api_servers, "GET /healthz", b"")).await;
        let probed = probed.unwrap_or_else(|_| Ok("late".to_owned()));
        let good = |answer: &std::io::Result<String>| {
            answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        };
        (good(&reviewed) && good(&probed), begun.elapsed(), format!("{reviewed:?} {probed:?}"))
    };
    let first = async {
        while !answered().await.0 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(SOON * 2, first).await.expect("virt-api serves");

    // From a dozen addresses, to both ports.
    let mut silent = Vec::new();
    for number in 0..SILENT {
        let to = if number % 4 == 0 { api.probes } else { api.address };
        let from = [127, 0, 1, u8::try_from(number % 12).unwrap() + 1];
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        silent.push(timeout(SOON, socket.connect(to)).await.unwrap().unwrap());
    }
    let (good, took, what) = answered().await;
    assert!(good && took < Duration::from_secs(10), "after {took:?}: {what}");
    drop(silent);

    // Large bodies: half of them contain one long text and are answered; half of them have many small parts,
    // which would take much more memory.
    let long = Arc::new(review(&"x".repeat(LARGE - 2048)).into_bytes());
    let heavy = Arc::new(format!("[{}0]", "{\"a\":0},".repeat(LARGE / 8 - 8)).into_bytes());
    let mut floods = JoinSet::new();
    for number in 0..FLOODS {
        let (stranger, to) = (stranger.clone(), api.address);
        let body = if number % 2 == 0 { long.clone() } else { heavy.clone() };
        let from = [127, 0, 1, u8::try_from(number % 12).unwrap() + 1];
        floods.spawn(async move { stranger.ask(to, from, REVIEW, &body).await });
    }
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        sleep(Duration::from_millis(300)).await;
        let (good, took, what) = answered().await;
        assert!(good, "after {took:?}: {what}");
        slowest = slowest.max(took);
    }
    let mut codes = std::collections::BTreeMap::<String, usize>::new();
    let ends = async {
        while let Some(ended) = floods.join_next().await {
            let head = ended.unwrap().unwrap_or_default();
            *codes.entry(head.split(' ').nth(1).unwrap_or("none").to_owned()).or_default() += 1;
        }
    };
    timeout(SOON * 10, ends).await.expect("each ends");
    let peak = api.memory_kib("VmHWM:");
    println!(
        "virt-api: {peak} KiB at most, the slowest review and probe took {slowest:?}, answers {codes:?}"
    );
    assert!(codes.contains_key("200") && codes.contains_key("413"), "{codes:?}");
    assert!(peak < MOST_MEMORY_KIB, "virt-api took {peak} KiB");
}
