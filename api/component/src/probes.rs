//! `/healthz`, `/readyz`, `/leader` and `/metrics` over TLS, for the kubelet, for people and for monitoring.
//!
//! They have a listener of their own, so that whoever keeps a server's others waiting does not have its pod started anew. Nothing
//! secret is told here, so everybody is answered.

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

    fn respond(&self, path: &str) -> Response<Full<Bytes>> {
        // As servers of Go do: clients that put a host and a path together bring two slashes.
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
    let answer = move |_: Caller, request: Request<Incoming>| {
        let probes = probes.clone();
        async move {
            let path = request.uri().path().to_owned();
            // Metrics of many machines take a while. A task that panics leaves an empty answer.
            tokio::task::spawn_blocking(move || probes.respond(&path)).await.unwrap_or_default()
        }
    };
    server::serve(listener, Limits::PROBES, tls, |_| false, answer).await;
    Ok(())
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
        // The settings were not read yet.
        assert_eq!(answered(&leader, "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
        let everyone = probes(None);
        for path in ["/other", "/leader", "", "*"] {
            assert_eq!(answered(&everyone, path).await.0, StatusCode::NOT_FOUND, "{path}");
        }
        assert_eq!(everyone.health().get("leading"), None);
    }
}
