//! `/healthz`, `/readyz`, `/leader` and `/metrics` over TLS, for the kubelet, users and monitoring.
//!
//! They have their own listener, so that clients which exhaust the server's other listener do not make the
//! kubelet restart the pod. They contain no secrets, so every client gets an answer.

use crate::installation::Installation;
use crate::metrics::{CONTENT_TYPE, Metrics};
use crate::server::{self, Caller, Limits};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use rustls::ServerConfig;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;
use tracing::info;

const JSON: &str = "application/json";

/// The state that the probes report.
#[derive(Debug)]
pub struct Probes {
    /// Settings in effect, and the state of the API server.
    pub installation: Installation,
    /// Whether this process leads; `None` for components without a leader.
    pub leading: Option<Arc<AtomicBool>>,
    /// Metrics of the process.
    pub metrics: Metrics,
}

impl Probes {
    /// KubeVirt's members, and whether this process leads.
    ///
    /// The answer is 200 even if the API server cannot be reached, where KubeVirt answers 500: a restart
    /// would not help any process then, and the guests of a handler go on running.
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

    fn respond(&self, path: &str) -> Response<Full<Bytes>> {
        // As servers in Go do: clients that join a host and a path may produce two slashes.
        let (status, kind, body) = match (path.trim_matches('/'), self.is_leading()) {
            ("healthz", _) => (StatusCode::OK, JSON, self.health().to_string()),
            ("readyz", _) if self.installation.get().is_some() => {
                (StatusCode::OK, JSON, self.health().to_string())
            }
            ("readyz", _) => (StatusCode::SERVICE_UNAVAILABLE, JSON, self.health().to_string()),
            ("leader", Some(leading)) => (StatusCode::OK, JSON, json!({ "leading": leading }).to_string()),
            ("metrics", _) => (StatusCode::OK, CONTENT_TYPE, self.metrics.text()),
            _ => (StatusCode::NOT_FOUND, JSON, "{}".to_owned()),
        };
        let mut answer = Response::new(Full::from(body));
        *answer.status_mut() = status;
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        answer
    }
}

/// Serves until the future is dropped. `tls` is called for each connection, so that certificates can change;
/// without a certificate no client gets an answer.
///
/// # Errors
/// If the address cannot be used.
pub async fn serve(
    address: SocketAddr,
    probes: Arc<Probes>,
    tls: impl Fn() -> Option<Arc<ServerConfig>>,
) -> std::io::Result<()> {
    let listener = listen(address).await?;
    let answer = move |_: Caller, request: Request<Incoming>| {
        let probes = probes.clone();
        async move {
            let path = request.uri().path().to_owned();
            // Collecting the metrics of many machines takes a while. If the task panics, the answer is empty.
            tokio::task::spawn_blocking(move || probes.respond(&path)).await.unwrap_or_default()
        }
    };
    server::serve(listener, Limits::PROBES, tls, |_| false, answer).await;
    Ok(())
}

/// Listens on the address. On a node without IPv6, the unspecified address is replaced by that of IPv4.
///
/// # Errors
/// If the address cannot be used.
pub async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if address.is_ipv6() && address.ip().is_unspecified() => {
            info!(%error, "no IPv6 on this node");
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    fn probes(leading: Option<bool>) -> Probes {
        Probes {
            installation: Installation::default(),
            leading: leading.map(|leading| Arc::new(AtomicBool::new(leading))),
            metrics: Metrics::default(),
        }
    }

    async fn answered(probes: &Probes, path: &str) -> (StatusCode, String) {
        let (head, body) = probes.respond(path).into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn four_paths_and_nothing_else() {
        let leader = probes(Some(true));
        let (status, health) = answered(&leader, "/healthz").await;
        let body: Value = serde_json::from_str(&health).unwrap();
        assert_eq!(status, StatusCode::OK);
        assert_eq!((&body["config-resource-version"], &body["leading"]), (&json!(""), &json!(true)));
        assert_eq!(body["apiserver"]["connectivity"], "failed");
        assert_eq!(answered(&leader, "/leader").await.1, "{\"leading\":true}");
        assert_eq!(answered(&leader, "//leader").await.1, "{\"leading\":true}");
        let metrics = answered(&leader, "/metrics").await.1;
        assert!(metrics.contains("\nprocess_open_fds "), "{metrics}");
        // The settings are not known yet.
        assert_eq!(answered(&leader, "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
        let everyone = probes(None);
        for path in ["/other", "/leader", "", "*"] {
            assert_eq!(answered(&everyone, path).await.0, StatusCode::NOT_FOUND, "{path}");
        }
        assert_eq!(everyone.health().get("leading"), None);
    }
}
