//! `/healthz` and `/metrics` over TLS, for the kubelet and for monitoring.
//!
//! A few lines of HTTP/1.1 rather than a server: two paths, at most one kibibyte of a request, then the end. The
//! certificate is made at the start and proves nothing; nothing secret is told here.

use super::cache::Cache;
use super::target::deciding;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const REQUEST_LIMIT: usize = 1024;
const DEADLINE: Duration = Duration::from_secs(5);

/// Why the probes cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum ProbesError {
    /// The address cannot be used.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// No certificate could be made.
    #[error("cannot make a certificate for the probes")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library takes nothing of it.
    #[error("cannot set up TLS for the probes")]
    Tls(#[from] rustls::Error),
}

/// What is told.
pub struct State {
    /// Whether this process acts.
    pub leading: AtomicBool,
    /// What is known of the cluster; only the leader knows any.
    pub cache: Arc<Cache>,
    /// Version of the API server.
    pub server: Value,
}

/// Answers until the future is dropped.
pub async fn serve(address: SocketAddr, state: Arc<State>) -> Result<(), ProbesError> {
    let acceptor = TlsAcceptor::from(Arc::new(config()?));
    let listener =
        TcpListener::bind(address).await.map_err(|source| ProbesError::Listen { address, source })?;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: do not spin.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (acceptor, state) = (acceptor.clone(), state.clone());
        tokio::spawn(async move {
            let work = async {
                if let Ok(stream) = acceptor.accept(stream).await {
                    // A client that goes away is not our concern.
                    let _ = answer(stream, &state).await;
                }
            };
            let _ = tokio::time::timeout(DEADLINE, work).await;
        });
    }
}

fn config() -> Result<rustls::ServerConfig, ProbesError> {
    let made = rcgen::generate_simple_self_signed(vec![super::NAME.to_owned()])?;
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    Ok(rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(vec![made.cert.into()], key)?)
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, state: &State) -> std::io::Result<()> {
    let mut request = Vec::with_capacity(REQUEST_LIMIT);
    while request.len() < REQUEST_LIMIT && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if (&mut stream).take(REQUEST_LIMIT as u64).read_buf(&mut request).await? == 0 {
            break;
        }
    }
    stream.write_all(respond(&request, state).as_bytes()).await?;
    stream.shutdown().await
}

fn respond(request: &[u8], state: &State) -> String {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let (status, kind, body) = match line.split(|byte| *byte == b' ').nth(1) {
        Some(b"/healthz") => ("200 OK", "application/json", health(state).to_string()),
        Some(b"/metrics") => ("200 OK", "text/plain; version=0.0.4", metrics(state)),
        _ => ("404 Not Found", "application/json", "{}".to_owned()),
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// KubeVirt's members, and whether this process leads.
fn health(state: &State) -> Value {
    let kubevirts = state.cache.kubevirts().unwrap_or_default();
    let version = deciding(&kubevirts).and_then(|object| object.metadata.resource_version.clone());
    json!({
        "apiserver": {"connectivity": "ok", "version": state.server},
        "config-resource-version": version.unwrap_or_default(),
        "leading": state.leading.load(Ordering::Relaxed),
    })
}

fn metrics(state: &State) -> String {
    let leading = u8::from(state.leading.load(Ordering::Relaxed));
    [
        ("kubevirt_virt_operator_leading_status", "Whether this virt-operator leads.", leading),
        ("kubevirt_virt_operator_ready_status", "Whether this virt-operator could lead.", 1),
    ]
    .iter()
    .map(|(name, help, value)| format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n"))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_paths_and_nothing_else() {
        let state = State {
            leading: AtomicBool::new(true),
            cache: Arc::default(),
            server: json!({"gitVersion": "v1.34.4"}),
        };
        let health = respond(b"GET /healthz HTTP/1.1\r\n\r\n", &state);
        let body: Value = serde_json::from_str(health.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(body["apiserver"]["version"]["gitVersion"], "v1.34.4");
        assert_eq!((&body["config-resource-version"], &body["leading"]), (&json!(""), &json!(true)));
        let metrics = respond(b"GET /metrics HTTP/1.1\r\n\r\n", &state);
        assert!(metrics.contains("\nkubevirt_virt_operator_leading_status 1\n"));
        assert!(respond(b"GET /other HTTP/1.1\r\n\r\n", &state).starts_with("HTTP/1.1 404"));
        assert!(respond(b"", &state).starts_with("HTTP/1.1 404"));
    }
}
