//! Uploads over TLS on loopback: by allowed and other clients, complete, broken off, and malicious.

use crate::world::{SIZE, World, backed, contents, image, packed};
use barevirt_import_job::{Content, DISK, Job, Source, UPLOAD, UPLOAD_ASYNC};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use virt_importer::failure::Failure;
use virt_importer::keys;
use virt_importer::upload::{Upload, tls};

const SHOWN: &str = "c1.upload.barevirt.dev";

/// The authority that signs virt-api's certificate.
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

    /// A client that trusts the certificate, and presents one with that usage, if any.
    fn client(&self, trusted: &str, usage: Option<ExtendedKeyUsagePurpose>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_root_certificates(roots);
        let config = match usage {
            None => config.with_no_client_auth(),
            Some(usage) => {
                let key = KeyPair::generate().unwrap();
                let mut params = CertificateParams::default();
                params.extended_key_usages = vec![usage];
                let shown = params.signed_by(&key, &self.issuer).unwrap().der().clone();
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                config.with_client_auth_cert(vec![shown], key).unwrap()
            }
        };
        TlsConnector::from(Arc::new(config))
    }
}

/// A claim with its upload server.
pub(crate) struct Uploads {
    world: World,
    authority: Authority,
    certificate: String,
    address: SocketAddr,
    serving: JoinHandle<Result<u64, Failure>>,
}

impl Uploads {
    pub(crate) async fn start() -> Self {
        Self::of(Content::Disk).await
    }

    /// For an image or an archive.
    async fn of(content: Content) -> Self {
        Self::within(content, Duration::from_millis(500)).await
    }

    /// One that waits for so long.
    pub(crate) async fn within(content: Content, stall: Duration) -> Self {
        let (world, authority) = (World::new(), Authority::new());
        let keys = tempfile::tempdir().unwrap();
        let certificate = keys::make(keys.path(), SHOWN).unwrap();
        let source = Source::Upload { authorities: authority.pem.clone() };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = Arc::new(tls(&source, keys.path()).unwrap());
        let upload = Upload {
            places: world.importer.places.clone(),
            tools: world.importer.tools.clone(),
            job: Job {
                source,
                content,
                size: SIZE,
                overhead: 60,
                preallocation: false,
                owner: "u".to_owned(),
            },
            stall,
        };
        let serving = tokio::spawn(upload.serve(listener, tls));
        Uploads { world, authority, certificate, address, serving }
    }

    async fn connect(&self, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.address).await?;
        client.connect(ServerName::try_from(SHOWN).unwrap(), tcp).await
    }

    pub(crate) async fn proxy(&self) -> TlsStream<TcpStream> {
        let client = self.authority.client(&self.certificate, Some(ExtendedKeyUsagePurpose::ClientAuth));
        self.connect(&client).await.unwrap()
    }

    /// Sends a request with that body; returns status and text of the answer.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        self.ask_with(method, path, &[], body).await
    }

    /// The same, with further header lines.
    pub(crate) async fn ask_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> (u16, String) {
        let mut stream = self.proxy().await;
        let further: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: pod\r\nContent-Length: {length}\r\n{further}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let body = body.to_vec();
        let sending = tokio::spawn(async move {
            // An early answer may close the connection.
            let _ = writer.write_all(&body).await;
            writer
        });
        let answer = answer(&mut reader).await;
        sending.abort();
        answer
    }

    pub(crate) async fn ends(self) -> (World, Result<u64, Failure>) {
        let ended = timeout(Duration::from_secs(30), self.serving).await.unwrap().unwrap();
        (self.world, ended)
    }

    /// Directory of the claim.
    pub(crate) fn directory(&self) -> &Path {
        self.world.directory.path()
    }

    #[track_caller]
    pub(crate) fn has_nothing(&self) {
        assert_eq!(std::fs::read_dir(self.directory()).unwrap().count(), 0, "something is left");
    }
}

/// An image with a valid header and corrupt compressed contents.
fn corrupt() -> Vec<u8> {
    let mut image = image(&contents(1 << 20), "qcow2", &["-c"]);
    let length = image.len();
    image[length - (128 << 10)..].fill(0xff);
    image
}

pub(crate) async fn answer(reader: &mut (impl AsyncReadExt + Unpin)) -> (u16, String) {
    let mut bytes = vec![];
    let read = async {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = reader.read(&mut buffer).await {
            bytes.extend_from_slice(&buffer[..count]);
        }
    };
    timeout(Duration::from_secs(30), read).await.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).unwrap_or("0").parse().unwrap();
    (status, body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_format_becomes_the_disk_and_the_server_ends() {
    let disk = contents(2 << 20);
    for (path, body) in [
        (UPLOAD, disk.clone()),
        (UPLOAD_ASYNC, disk.clone()),
        (UPLOAD, image(&disk, "qcow2", &["-c"])),
        (UPLOAD_ASYNC, image(&disk, "qcow2", &[])),
        (UPLOAD, packed(&["gzip", "-c"], &disk)),
        (UPLOAD, packed(&["xz", "-c"], &image(&disk, "qcow2", &[]))),
        (UPLOAD_ASYNC, packed(&["zstd", "-q", "-c"], &disk)),
        (UPLOAD, image(&disk, "vmdk", &["-o", "subformat=streamOptimized"])),
        (UPLOAD_ASYNC, image(&disk, "vdi", &[])),
    ] {
        let uploads = Uploads::start().await;
        assert_eq!(uploads.ask("HEAD", path, b"").await, (200, String::new()));
        assert_eq!(uploads.ask("POST", path, &body).await, (200, String::new()));
        let (world, ended) = uploads.ends().await;
        assert_eq!(ended.unwrap(), SIZE);
        world.has(&disk);
        assert_eq!(std::fs::read_dir(world.directory.path()).unwrap().count(), 1, "only the disk stays");
    }
}

/// Only virt-api's client certificate gets as far as HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn only_virt_api_can_upload() {
    let uploads = Uploads::start().await;
    let stranger = Authority::new();
    for client in [
        uploads.authority.client(&uploads.certificate, None),
        stranger.client(&uploads.certificate, Some(ExtendedKeyUsagePurpose::ClientAuth)),
        // A server certificate of ours, such as handlers have, is not accepted as a client's.
        uploads.authority.client(&uploads.certificate, Some(ExtendedKeyUsagePurpose::ServerAuth)),
    ] {
        // With TLS 1.3 the client learns it when it reads.
        if let Ok(mut stream) = uploads.connect(&client).await {
            let request = format!("POST {UPLOAD} HTTP/1.1\r\nHost: pod\r\nContent-Length: 512\r\n\r\n");
            let mut body = request.into_bytes();
            body.extend([7; 512]);
            let _ = stream.write_all(&body).await;
            let mut answer = vec![];
            let _ = timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&answer), "");
        }
    }
    uploads.has_nothing();
    assert_eq!(uploads.ask("POST", "/v1beta1/other", b"x").await.0, 404);
    assert_eq!(uploads.ask("DELETE", UPLOAD, b"").await.0, 405);
    assert_eq!(uploads.ask("POST", UPLOAD, &contents(4096)).await.0, 200);
    uploads.ends().await.1.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_upload_leaves_no_disk_and_the_next_upload_works() {
    let uploads = Uploads::start().await;
    for (body, why) in [
        (backed("/etc/passwd"), "names a backing file"),
        (packed(&["gzip", "-c"], &backed("/etc/passwd")), "names a backing file"),
        (image(&vec![1; SIZE as usize + 512], "qcow2", &[]), "is a disk of 16777728 bytes"),
        (vec![1; SIZE as usize + 512], "is a disk of 16777728 bytes"),
        // A compression bomb.
        (packed(&["gzip", "-c"], &vec![0; 64 << 20]), "more than the 16777216 bytes"),
        (image(&contents(1 << 20), "vhdx", &[]), "vhdx format"),
        (corrupt(), "convert the image"),
        (vec![], "empty"),
    ] {
        let (status, text) = uploads.ask("POST", UPLOAD, &body).await;
        assert_eq!((status, text.contains(why)), (400, true), "{why}: {status} {text}");
        uploads.has_nothing();
    }
    let disk = contents(1 << 20);
    assert_eq!(uploads.ask("PUT", UPLOAD, &disk).await.0, 200);
    let (world, ended) = uploads.ends().await;
    ended.unwrap();
    world.has(&disk);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_an_end_is_ended() {
    let uploads = Uploads::start().await;
    let mut stream = uploads.proxy().await;
    let head = format!("POST {UPLOAD} HTTP/1.1\r\nHost: pod\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = tokio::spawn(async move {
        let mut chunk = b"10000\r\n".to_vec();
        chunk.extend(vec![1; 1 << 16]);
        chunk.extend(b"\r\n");
        while writer.write_all(&chunk).await.is_ok() {}
    });
    let (status, text) = answer(&mut reader).await;
    assert!(status == 400 && text.contains("more than the 16777216 bytes"), "{status} {text}");
    timeout(Duration::from_secs(30), sending).await.unwrap().unwrap();
    uploads.has_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_upload_leaves_no_disk() {
    let uploads = Uploads::start().await;
    let disk = contents(4 << 20);
    let part = |length: usize| {
        let mut bytes =
            format!("POST {UPLOAD} HTTP/1.1\r\nHost: pod\r\nContent-Length: {length}\r\n\r\n").into_bytes();
        bytes.extend(&disk[..2 << 20]);
        bytes
    };
    // Cut off.
    let mut stream = uploads.proxy().await;
    stream.write_all(&part(disk.len())).await.unwrap();
    drop(stream);
    // Silent, while another client asks.
    let mut stream = loop {
        let mut stream = uploads.proxy().await;
        stream.write_all(&part(disk.len())).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // An image that never fills the claim, even if it comes before the silent one.
        let (status, text) = uploads.ask("POST", UPLOAD, &corrupt()).await;
        if status == 503 && text == "another upload is under way" {
            break stream;
        }
    };
    let (status, text) = answer(&mut stream).await;
    assert!(
        status == 503 && (text.contains("nothing of the image came") || text.contains("another upload")),
        "{status} {text}"
    );
    // Nothing of either stays, and a third upload is complete.
    let sent = async {
        while uploads.ask("POST", UPLOAD_ASYNC, &disk).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(20), sent).await.unwrap();
    let (world, ended) = uploads.ends().await;
    ended.unwrap();
    world.has(&disk);
}

/// The client can get no answer any more, so the server starts again.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_taken_and_cannot_be_converted_ends_the_server() {
    let uploads = Uploads::start().await;
    assert_eq!(uploads.ask("POST", UPLOAD_ASYNC, &corrupt()).await.0, 200);
    let (world, ended) = uploads.ends().await;
    let failure = ended.unwrap_err();
    assert!(!failure.is_final() && failure.to_string().contains("convert the image"), "{failure}");
    assert_eq!(std::fs::read_dir(world.directory.path()).unwrap().count(), 0);
    assert!(!Path::new(&world.directory.path().join(DISK)).exists());
}

/// A directory, packed by tar.
fn tar(mode: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("d")).unwrap();
    std::fs::write(directory.path().join("d/a"), contents(1 << 20)).unwrap();
    let mut tar = std::process::Command::new("tar");
    let output = tar.arg("-C").arg(directory.path()).args([mode, "."]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_becomes_files_and_one_that_is_refused_leaves_none() {
    for (path, mode) in [(UPLOAD, "-c"), (UPLOAD_ASYNC, "-cz"), (UPLOAD, "-cJ"), (UPLOAD, "-c")] {
        let uploads = Uploads::of(Content::Archive).await;
        let mut cut = tar("-c");
        cut.truncate(600 << 10);
        for (body, why) in [
            (cut, "the archive: entry \"./d/a\" is cut off"),
            (contents(1 << 20), "is not a tar archive"),
            (vec![], "the archive is empty"),
        ] {
            let (status, text) = uploads.ask("POST", path, &body).await;
            assert_eq!((status, text.contains(why)), (400, true), "{why}: {status} {text}");
            uploads.has_nothing();
        }
        assert_eq!(uploads.ask("POST", path, &tar(mode)).await, (200, String::new()));
        let (world, ended) = uploads.ends().await;
        ended.unwrap();
        assert_eq!(std::fs::read(world.directory.path().join("d/a")).unwrap(), contents(1 << 20), "{mode}");
        assert_eq!(std::fs::read_dir(world.directory.path()).unwrap().count(), 1, "{mode}");
    }
}
