//! From a client's connection through the proxy into a claim. The pod is virt-importer's own server, over
//! real TLS.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::Path;

use barevirt_import_job::{Content, DISK, Job, Source};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use virt_importer::convert::Tools;
use virt_importer::failure::Failure;
use virt_importer::target::Places;
use virt_importer::upload::{self, Upload};

use super::*;

const SIZE: u64 = 4 << 20;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// virt-api's client configuration, which trusts no server yet.
    fn client(&self) -> ClientConfig {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let shown = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_client_auth_cert(vec![shown], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap()
    }
}

/// A pod that waits for an image.
struct Pod {
    claim: TempDir,
    server: Server,
    ended: JoinHandle<Result<u64, Failure>>,
}

impl Pod {
    async fn start(authority: &Authority) -> Self {
        let claim = tempfile::tempdir().unwrap();
        let nothing = claim.path().join("nothing");
        let keys = tempfile::tempdir().unwrap();
        let certificate = virt_importer::keys::make(keys.path(), "c1.upload.barevirt.dev").unwrap();
        let shown = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let source = Source::Upload { authorities: authority.pem.clone() };
        let tls = Arc::new(upload::tls(&source, keys.path()).unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = Server::at(listener.local_addr().unwrap(), shown);
        let upload = Upload {
            places: Places {
                data: claim.path().to_owned(),
                device: nothing.clone(),
                scratch: claim.path().to_owned(),
                source: nothing.clone(),
                source_device: nothing.clone(),
                keys: nothing.clone(),
                receiver: nothing,
            },
            tools: Tools { importer: "/nothing".into(), qemu_img: "/usr/bin/qemu-img".into(), seconds: None },
            job: Job {
                source,
                content: Content::Disk,
                size: SIZE,
                overhead: 60,
                preallocation: false,
                owner: String::new(),
            },
            stall: Duration::from_secs(5),
        };
        Pod { claim, server, ended: tokio::spawn(upload.serve(listener, tls)) }
    }

    fn disk(&self) -> Option<Vec<u8>> {
        std::fs::read(self.claim.path().join(DISK)).ok()
    }
}

/// Sends an image through a proxy for this pod and returns the answer. Only a part of the image is sent, then
/// the connection ends.
async fn through(
    tls: &ClientConfig,
    server: &Server,
    mode: UploadMode,
    image: &[u8],
    only: Option<usize>,
) -> (u16, String) {
    with(tls, server, mode, "", image, only).await
}

/// The same, with further header lines.
async fn with(
    tls: &ClientConfig,
    server: &Server,
    mode: UploadMode,
    further: &str,
    image: &[u8],
    only: Option<usize>,
) -> (u16, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tls, server) = (tls.clone(), server.clone());
    let seats = Arc::new(Semaphore::new(1));
    let counted = seats.clone();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let answer = service_fn(move |request: Request<Incoming>| {
            let (tls, server, seats) = (tls.clone(), server.clone(), seats.clone());
            async move {
                let seat = seats.try_acquire_owned().unwrap();
                Ok::<_, Infallible>(
                    send(&tls, &server, mode, request, seat).await.unwrap_or_else(Answer::from),
                )
            }
        });
        let _ = server::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
    });
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let head = format!(
        "POST /v1beta1/upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n{further}\r\n",
        image.len()
    );
    writer.write_all(head.as_bytes()).await.unwrap();
    let body = image[..only.unwrap_or(image.len())].to_vec();
    let sending = tokio::spawn(async move {
        // An early answer may end the connection.
        let _ = writer.write_all(&body).await;
        writer
    });
    let mut answer = vec![];
    if only.is_some() {
        drop(sending.await.unwrap());
        drop(reader);
    } else {
        timeout(Duration::from_secs(20), reader.read_to_end(&mut answer)).await.unwrap().unwrap();
    }
    timeout(Duration::from_secs(20), serving).await.unwrap().unwrap();
    // In every case its permit is free again.
    drop(timeout(Duration::from_secs(20), counted.acquire()).await.unwrap().unwrap());
    let text = String::from_utf8(answer).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    (head.split(' ').nth(1).unwrap_or("0").parse().unwrap(), body.to_owned())
}

fn image() -> Vec<u8> {
    (0..3_000_000_u32).map(|at| (at % 251) as u8).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_goes_through_whole() {
    let authority = Authority::new();
    for mode in [UploadMode::Synchronous, UploadMode::Asynchronous] {
        let pod = Pod::start(&authority).await;
        let (status, text) = through(&authority.client(), &pod.server, mode, &image(), None).await;
        assert_eq!((status, text.as_str()), (200, ""));
        let Pod { claim, ended, .. } = pod;
        assert_eq!(timeout(Duration::from_secs(20), ended).await.unwrap().unwrap().unwrap(), SIZE);
        let disk = std::fs::read(claim.path().join(DISK)).unwrap();
        assert!(disk[..3_000_000] == image()[..] && disk.len() as u64 == SIZE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pods_answer_is_forwarded_and_a_broken_upload_leaves_no_disk() {
    let authority = Authority::new();
    let pod = Pod::start(&authority).await;
    let client = authority.client();
    // The upload is refused long before its end.
    let large = vec![7; 64 << 20];
    let (status, text) = through(&client, &pod.server, UploadMode::Synchronous, &large, None).await;
    assert!(status == 400 && text.contains("is a disk of 67108864 bytes"), "{status} {text}");
    through(&client, &pod.server, UploadMode::Synchronous, &image(), Some(1 << 20)).await;
    assert_eq!(pod.disk(), None);
    assert!(!pod.ended.is_finished());
    let again = async {
        while through(&client, &pod.server, UploadMode::Synchronous, &image(), None).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(20), again).await.unwrap();
    assert!(pod.disk().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_says_about_its_upload_reaches_the_pod() {
    let authority = Authority::new();
    let (pod, client, image) = (Pod::start(&authority).await, authority.client(), image());
    let name = "barevirt-upload: abc\r\n";
    let wrong = format!("{name}barevirt-checksum: md5:{}\r\n", "0".repeat(32));
    let (status, text) = with(&client, &pod.server, UploadMode::Synchronous, &wrong, &image, None).await;
    assert!(status == 400 && text.contains("the upload has the checksum"), "{status} {text}");
    with(&client, &pod.server, UploadMode::Asynchronous, name, &image, Some(1 << 20)).await;
    let question = format!("{name}content-range: bytes */3000000\r\n");
    let asked = async {
        loop {
            let (status, text) = with(&client, &pod.server, UploadMode::Rest, &question, b"", None).await;
            if status == 202 {
                break text.parse::<usize>().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let from = timeout(Duration::from_secs(20), asked).await.unwrap();
    assert!(from <= 1 << 20, "{from}");
    let part = format!("{name}content-range: bytes {from}-2999999/3000000\r\n");
    let done = with(&client, &pod.server, UploadMode::Rest, &part, &image[from..], None).await;
    assert_eq!(done, (200, String::new()));
    let Pod { claim, ended, .. } = pod;
    assert_eq!(timeout(Duration::from_secs(20), ended).await.unwrap().unwrap().unwrap(), SIZE);
    assert!(std::fs::read(claim.path().join(DISK)).unwrap()[..3_000_000] == image[..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_goes_to_the_very_pod_and_is_taken_from_us_alone() {
    let authority = Authority::new();
    let (pod, other) = (Pod::start(&authority).await, Pod::start(&authority).await);
    // Another pod has the address by now.
    let moved = Server::at(other.server.address, pod.server.certificate.clone());
    let (status, text) = through(&authority.client(), &moved, UploadMode::Synchronous, &image(), None).await;
    assert!(status == 503 && text.contains("cannot use the upload pod"), "{status} {text}");
    // The pod trusts another authority.
    let stranger = Authority::new().client();
    let (status, text) = through(&stranger, &pod.server, UploadMode::Synchronous, &image(), None).await;
    assert!(status == 503 && text.contains("cannot use the upload pod"), "{status} {text}");
    for pod in [&pod, &other] {
        assert_eq!(std::fs::read_dir(pod.claim.path()).unwrap().count(), 0);
    }
    // No server listens there.
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let gone = Server::at(nobody, pod.server.certificate.clone());
    assert_eq!(through(&authority.client(), &gone, UploadMode::Synchronous, &image(), None).await.0, 503);
    assert!(!Path::new(&pod.claim.path().join(DISK)).exists());
}
