//! Two hundred consoles at once, some of which are never read, and the memory of the process.
//!
//! ```text
//!   200 clients --TLS, websocket--> virt-api --TLS, websocket--> handler (this process) --> guests that echo
//!                                      \--plain HTTP--> API server (this process): reviews, instances, one pod
//! ```

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use barevirt_api::names::handler_host;
use barevirt_component::websocket::{self, Upgrade};
use futures::{SinkExt, StreamExt};
use http::{Request, StatusCode};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use virt_api::streams::OF_GUEST;
use virt_api::to_handler;

use crate::virt_api_process::{NODE, SERVER, VirtApi, api_server, authority, certificates, leaf};

const CONSOLES: usize = 200;
/// Consoles that are never read, while their guests keep sending.
const DEAF: usize = 50;
const MOST_MEMORY_KIB: u64 = 64 << 10;
const SOON: Duration = Duration::from_secs(30);

type Console = WebSocketStream<TlsStream<TcpStream>>;

fn parsed([certificate, key]: &[String; 2]) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
    (chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
}

/// A guest: it echoes; after the word `flood` it sends without end.
async fn guest(mut line: DuplexStream) {
    let mut buffer = vec![0; 4096];
    while let Ok(length @ 1..) = line.read(&mut buffer).await {
        if &buffer[..length] == b"flood" {
            while line.write_all(&[b'x'; 4096]).await.is_ok() {}
            return;
        }
        if line.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// The handler of the node, at its own address.
async fn handler(address: IpAddr, shown: &[String; 2]) {
    let (chain, key) = parsed(shown);
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((address, to_handler::PORT)).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(tls) = acceptor.accept(tcp).await else { return };
                let service = service_fn(|request: Request<Incoming>| async move {
                    let upgrade = Upgrade::read(&request).unwrap();
                    let (ours, theirs) = tokio::io::duplex(4096);
                    tokio::spawn(guest(theirs));
                    let answer = upgrade.answer();
                    tokio::spawn(websocket::run(request, ours, websocket::TAKEN_OR_ENDED));
                    Ok::<_, Infallible>(answer)
                });
                let http = hyper::server::conn::http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(tls), service).with_upgrades().await;
            });
        }
    });
}

/// The API server's aggregator, for a user.
#[derive(Clone)]
struct Aggregator {
    config: Arc<ClientConfig>,
    address: SocketAddr,
}

impl Aggregator {
    async fn console(&self, vmi: &str) -> Result<Console, Error> {
        let tcp = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(SERVER).unwrap();
        let tls = TlsConnector::from(Arc::clone(&self.config)).connect(name, tcp).await?;
        let path = format!("namespaces/shop/virtualmachineinstances/{vmi}/console");
        let url = format!("wss://{SERVER}/apis/subresources.kubevirt.io/v1/{path}");
        let mut request = url.into_client_request()?;
        request.headers_mut().insert("X-Remote-User", "jdoe".parse().unwrap());
        request.headers_mut().insert("X-Remote-Group", "system:authenticated".parse().unwrap());
        tokio_tungstenite::client_async(request, tls).await.map(|(console, _)| console)
    }

    async fn consoles(&self, names: impl Iterator<Item = String>) -> Vec<Console> {
        let mut consoles = Vec::new();
        for name in names {
            consoles.push(self.console(&name).await.unwrap());
        }
        consoles
    }
}

async fn says(console: &mut Console, text: &str) {
    console.send(Message::Binary(Bytes::copy_from_slice(text.as_bytes()))).await.unwrap();
    let mut heard = Vec::new();
    while heard.len() < text.len() {
        match console.next().await.unwrap().unwrap() {
            Message::Binary(bytes) => heard.extend_from_slice(&bytes),
            other => assert!(other.is_ping(), "{other:?}"),
        }
    }
    assert_eq!(heard, text.as_bytes());
}

#[tokio::test]
async fn two_hundred_consoles_with_stalled_clients_take_little_memory() {
    let (ours, front) = (authority("ours"), authority("front"));
    let directory = certificates(&ours);
    // All addresses of 127/8 belong to this machine. They are needed because the handlers' port is fixed.
    let [high, low] = u16::try_from(std::process::id() % 65_000).unwrap().to_be_bytes();
    let node = IpAddr::from(Ipv4Addr::new(127, 86, high, low.max(1)));
    handler(node, &leaf(&ours, "virt-handler", &handler_host(NODE), ExtendedKeyUsagePurpose::ServerAuth))
        .await;
    let api = VirtApi::start(directory.path(), api_server(node, &front).await);
    let mut roots = RootCertStore::empty();
    roots.add(ours.der().clone()).unwrap();
    let (chain, key) =
        parsed(&leaf(&front, "front-proxy-client", "none", ExtendedKeyUsagePurpose::ClientAuth));
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let config = Arc::new(builder.with_client_auth_cert(chain, key).unwrap());
    let aggregator = Aggregator { config, address: api.address };
    let first = async {
        loop {
            match aggregator.console("first").await {
                Ok(console) => return console,
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    };
    drop(timeout(SOON, first).await.expect("virt-api serves"));
    let before = api.memory_kib("VmRSS:");

    let opened = aggregator.consoles((0..CONSOLES).map(|number| format!("vm{number}")));
    let mut consoles = timeout(SOON * 10, opened).await.expect("two hundred consoles");
    for console in &mut consoles {
        timeout(SOON, says(console, "login: ")).await.unwrap();
    }
    for console in &mut consoles[..DEAF] {
        console.send(Message::Binary(Bytes::from_static(b"flood"))).await.unwrap();
    }
    // All buffers are full by then; the other consoles must not be affected.
    sleep(Duration::from_secs(2)).await;
    for round in 0..3 {
        for (number, console) in consoles[DEAF..].iter_mut().enumerate() {
            let text = format!("{round} {number}");
            let spoken = timeout(SOON, says(console, &text));
            spoken.await.expect("a client that reads nothing delays no other");
        }
    }
    let (after, peak) = (api.memory_kib("VmRSS:"), api.memory_kib("VmHWM:"));
    println!("virt-api: {before} KiB before, {after} KiB with {CONSOLES} consoles, {peak} KiB at most");
    assert!(peak < MOST_MEMORY_KIB, "virt-api took {peak} KiB");
    drop(consoles);

    // One guest has reached its limit; the refusal says so. Streams that ended are not counted, but it takes
    // a moment until they have.
    sleep(Duration::from_secs(1)).await;
    let held =
        timeout(SOON * 10, aggregator.consoles((0..OF_GUEST).map(|_| "busy".to_owned()))).await.unwrap();
    let Err(Error::Http(refusal)) = aggregator.console("busy").await else {
        panic!("one too many was served")
    };
    assert_eq!(refusal.status(), StatusCode::TOO_MANY_REQUESTS);
    let body = String::from_utf8_lossy(refusal.body().as_deref().unwrap_or_default()).into_owned();
    assert!(
        body.is_empty() || body.contains("virtualmachineinstance shop/busy has 128 streams open"),
        "{body}"
    );
    assert!(aggregator.console("other").await.is_ok());
    drop(held);
}
