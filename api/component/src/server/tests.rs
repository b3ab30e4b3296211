//! The accept loop over real TLS, with clients that do nothing.

use super::bodies::{Bodies, LARGEST, NotRead};
use super::*;
use http_body_util::Full;
use hyper::body::Bytes;
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const SOON: Duration = Duration::from_secs(30);
const FEW: Limits = Limits { connections: 8, of_address: 8, ..Limits::BUSY };

/// A server that answers with the length of a body, or why it was not read; and the settings of its clients.
async fn start(limits: Limits) -> (SocketAddr, TlsConnector) {
    crate::certificates::install_provider();
    let made = rcgen::generate_simple_self_signed(vec!["pod".to_owned()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let certificate = CertificateDer::from(made.cert);
    let config = ServerConfig::builder().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![certificate.clone()], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let bodies = Arc::new(Bodies::default());
    let answer = move |caller: Caller, request: Request<Incoming>| {
        let bodies = bodies.clone();
        async move {
            let (code, text) = match bodies.read(&caller, request).await {
                Ok(body) => (200, body.len().to_string()),
                Err(NotRead::TooLarge | NotRead::TooHeavy) => (413, String::new()),
                Err(_) => (503, String::new()),
            };
            let mut answer = Response::new(Full::<Bytes>::from(text));
            *answer.status_mut() = http::StatusCode::from_u16(code).unwrap();
            answer
        }
    };
    tokio::spawn(serve(listener, limits, move || Some(config.clone()), |_| false, answer));
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    (address, TlsConnector::from(Arc::new(client)))
}

async fn connect((address, connector): &(SocketAddr, TlsConnector)) -> std::io::Result<TlsStream<TcpStream>> {
    connector.connect("pod".try_into().unwrap(), TcpStream::connect(address).await?).await
}

/// The status code of the answer.
async fn post(tls: &mut TlsStream<TcpStream>, length: usize, body: &[u8]) -> std::io::Result<u16> {
    tls.write_all(format!("POST / HTTP/1.1\r\nHost: pod\r\nContent-Length: {length}\r\n\r\n").as_bytes())
        .await?;
    tls.write_all(body).await?;
    let mut head = [0; 12];
    tls.read_exact(&mut head).await?;
    Ok(std::str::from_utf8(&head[9..]).unwrap().parse().unwrap())
}

#[tokio::test]
async fn silent_connections_do_not_block_others() {
    let server = start(FEW).await;
    // Connections that send nothing at all, and connections that send nothing after the handshake.
    let (mut dumb, mut silent) = (vec![], vec![]);
    for _ in 0..20 {
        dumb.push(TcpStream::connect(server.0).await.unwrap());
        silent.push(timeout(SOON, connect(&server)).await.unwrap().unwrap());
    }
    let mut tls = timeout(SOON, connect(&server)).await.unwrap().unwrap();
    assert_eq!(timeout(SOON, post(&mut tls, 2, b"{}")).await.unwrap().unwrap(), 200);
    // More silent connections: the one with an answer stays open.
    for _ in 0..20 {
        silent.push(timeout(SOON, connect(&server)).await.unwrap().unwrap());
    }
    let mut rest = [0; 1];
    let _ =
        timeout(Duration::from_millis(100), async { while tls.read_exact(&mut rest).await.is_ok() {} }).await;
    assert_eq!(timeout(SOON, post(&mut tls, 2, b"{}")).await.unwrap().unwrap(), 200);
}

#[tokio::test]
async fn a_silent_connection_ends() {
    let short = Duration::from_millis(200);
    let server = start(Limits { handshake: short, head: short, idle: short, ..FEW }).await;
    let begun = Instant::now();
    let mut rest = Vec::new();
    // Silent before the handshake, after it, and after a request.
    let mut dumb = TcpStream::connect(server.0).await.unwrap();
    timeout(SOON, dumb.read_to_end(&mut rest)).await.unwrap().unwrap();
    let mut silent = connect(&server).await.unwrap();
    let _ = timeout(SOON, silent.read_to_end(&mut rest)).await.unwrap();
    let mut idle = connect(&server).await.unwrap();
    assert_eq!(post(&mut idle, 2, b"{}").await.unwrap(), 200);
    let _ = timeout(SOON, idle.read_to_end(&mut rest)).await.unwrap();
    assert!(begun.elapsed() >= 3 * short);
}

#[tokio::test]
async fn bodies_are_bounded() {
    let server = start(FEW).await;
    let code = async |length: usize, body: &[u8]| {
        let mut tls = connect(&server).await.unwrap();
        timeout(SOON, post(&mut tls, length, body)).await.unwrap().unwrap()
    };
    assert_eq!(code(LARGEST + 1, b"").await, 413);
    // A body of a megabyte, because a slow machine takes too long to encrypt the largest one.
    let heavy = format!("[{}0]", "{\"a\":0},".repeat((1 << 20) / 8));
    assert_eq!(code(heavy.len(), heavy.as_bytes()).await, 413);
    // Two bodies that never arrive completely take an address's share of the large pool. Small ones are
    // answered meanwhile.
    let mut held = vec![];
    for _ in 0..2 {
        let mut tls = connect(&server).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nHost: pod\r\nContent-Length: {LARGEST}\r\n\r\n");
        tls.write_all(head.as_bytes()).await.unwrap();
        held.push(tls);
    }
    let begun = Instant::now();
    assert_eq!(code(2, b"{}").await, 200);
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(code(LARGEST, b"").await, 503);
}
