//! `/healthz`, `/leader` and `/metrics` over TLS, for the kubelet, for people and for monitoring.
//!
//! A few lines of HTTP/1.1 rather than a server: three paths, a bounded head of a request, one answer, the end. Nothing
//! secret is told here, so everybody is answered. A server that is there anyway uses [`Probes`] alone.

use crate::installation::Installation;
use crate::metrics::{CONTENT_TYPE, Metrics};
use rustls::ServerConfig;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tracing::info;

/// Longest head of a request that is waited for; what the API server's proxy adds is well below.
const REQUEST_LIMIT: usize = 16 * 1024;
const DEADLINE: Duration = Duration::from_secs(5);
/// Connections at one time; more wait.
const MOST_CONNECTIONS: usize = 64;

/// What is told.
#[derive(Debug)]
pub struct Probes {
    /// Settings in force, and how the API server was found.
    pub installation: Installation,
    /// Whether this process acts; none where all of them do.
    pub leading: Option<Arc<AtomicBool>>,
    /// Metrics of the process.
    pub metrics: Metrics,
}

impl Probes {
    /// KubeVirt's members, and whether this process leads.
    ///
    /// It is told with 200 even where the API server cannot be reached, where KubeVirt tells 500: no process gets better
    /// by being started anew because of that, and a handler's guests go on.
    pub fn health(&self) -> Value {
        let mut health = self.installation.health();
        if let Some(leading) = self.is_leading() {
            health["leading"] = json!(leading);
        }
        health
    }

    fn is_leading(&self) -> Option<bool> {
        self.leading.as_ref().map(|leading| leading.load(Ordering::Relaxed))
    }

    fn respond(&self, request: &[u8]) -> String {
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let target = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let mut path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        // As servers of Go do: clients that put a host and a path together bring two.
        while path.starts_with(b"//") {
            path = &path[1..];
        }
        let (status, kind, body) = match (path, self.is_leading()) {
            (b"/healthz", _) => ("200 OK", "application/json", self.health().to_string()),
            (b"/leader", Some(leading)) => {
                ("200 OK", "application/json", json!({ "leading": leading }).to_string())
            }
            (b"/metrics", _) => ("200 OK", CONTENT_TYPE, self.metrics.text()),
            _ => ("404 Not Found", "application/json", "{}".to_owned()),
        };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Answers until the future is dropped; `tls` is asked for each connection, so that certificates can change, and without
/// any nobody is answered.
///
/// # Errors
/// Where the address cannot be used.
pub async fn serve(
    address: SocketAddr,
    probes: Arc<Probes>,
    tls: impl Fn() -> Option<Arc<ServerConfig>>,
) -> std::io::Result<()> {
    let listener = listen(address).await?;
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: do not spin.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(config) = tls() else { continue };
        let (acceptor, probes) = (TlsAcceptor::from(config), probes.clone());
        tokio::spawn(async move {
            let work = async {
                if let Ok(stream) = acceptor.accept(stream).await {
                    // A client that goes away is not our concern.
                    let _ = answer(stream, &probes).await;
                }
            };
            let _ = tokio::time::timeout(DEADLINE, work).await;
            drop(place);
        });
    }
}

/// Listens; on a node without IPv6 the unspecified address is the one of IPv4.
///
/// # Errors
/// Where the address cannot be used.
pub async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if address.is_ipv6() && address.ip().is_unspecified() => {
            info!(%error, "no IPv6 on this node");
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    probes: &Arc<Probes>,
) -> std::io::Result<()> {
    let mut request = Vec::with_capacity(1024);
    while request.len() < REQUEST_LIMIT && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if (&mut stream).take(REQUEST_LIMIT as u64).read_buf(&mut request).await? == 0 {
            break;
        }
    }
    let probes = probes.clone();
    // Metrics of many machines take a while.
    let answer = tokio::task::spawn_blocking(move || probes.respond(&request)).await?;
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    fn probes(leading: Option<bool>) -> Probes {
        Probes {
            installation: Installation::default(),
            leading: leading.map(|leading| Arc::new(AtomicBool::new(leading))),
            metrics: Metrics::default(),
        }
    }

    #[test]
    fn three_paths_and_nothing_else() {
        let leader = probes(Some(true));
        let health = leader.respond(b"GET /healthz?a=b HTTP/1.1\r\n\r\n");
        let body: Value = serde_json::from_str(health.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!((&body["config-resource-version"], &body["leading"]), (&json!(""), &json!(true)));
        assert_eq!(body["apiserver"]["connectivity"], "failed");
        assert!(leader.respond(b"GET /leader HTTP/1.1\r\n\r\n").ends_with("{\"leading\":true}"));
        assert!(leader.respond(b"GET //leader HTTP/1.1\r\n\r\n").ends_with("{\"leading\":true}"));
        let metrics = leader.respond(b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(metrics.contains("\nprocess_open_fds "), "{metrics}");
        let everyone = probes(None);
        for request in [&b"GET /other HTTP/1.1\r\n\r\n"[..], b"GET /leader HTTP/1.1\r\n\r\n", b"", b"GET"] {
            assert!(everyone.respond(request).starts_with("HTTP/1.1 404"), "{request:?}");
        }
        assert_eq!(everyone.health().get("leading"), None);
    }

    #[tokio::test]
    async fn a_client_is_answered_over_tls() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let made = rcgen::generate_simple_self_signed(vec!["pod".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let certificate = rustls::pki_types::CertificateDer::from(made.cert);
        let config = ServerConfig::builder().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![certificate.clone()], key).unwrap());
        // A port of the system's choice, let go just before.
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        tokio::spawn(serve(address, Arc::new(probes(None)), move || Some(config.clone())));
        let tcp = loop {
            match TcpStream::connect(address).await {
                Ok(tcp) => break tcp,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let mut tls = connector.connect("pod".try_into().unwrap(), tcp).await.unwrap();
        // A head that comes in two pieces, as long as a proxy's.
        let padding = "x".repeat(6000);
        tls.write_all(format!("GET /healthz HTTP/1.1\r\nX-Padding: {padding}").as_bytes()).await.unwrap();
        tls.flush().await.unwrap();
        tls.write_all(b"\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        tls.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("config-resource-version"),
            "{answer}"
        );
    }
}
