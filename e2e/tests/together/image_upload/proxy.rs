//! An upload proxy on this machine. The first upload is answered with 503.

use crate::https::{Answer, Request, Server};
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The state of the proxy.
struct Shared {
    token: String,
    put_off: AtomicBool,
    images: Mutex<Vec<Vec<u8>>>,
}

/// A proxy for one test, until it is dropped.
pub(super) struct Proxy {
    server: Server,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy that accepts images with that token.
    pub(super) fn start(token: &str) -> Result<Self> {
        let put_off = AtomicBool::new(true);
        let shared = Arc::new(Shared { token: token.to_owned(), put_off, images: Mutex::default() });
        let known = shared.clone();
        let server = Server::start(move |request| answer(request, &known))?;
        Ok(Self { server, shared })
    }

    /// The URL for a CDIConfig.
    pub(super) fn url(&self) -> String {
        self.server.url()
    }

    /// The images that arrived.
    pub(super) fn images(&self) -> Vec<Vec<u8>> {
        self.shared.images.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn answer(request: Request, known: &Shared) -> Result<Answer> {
    let bearer = request.authorization.as_deref().and_then(|value| value.strip_prefix("Bearer "));
    if bearer != Some(known.token.as_str()) {
        return Ok(("401 Unauthorized", String::new()));
    }
    match request.line.as_str() {
        "HEAD /v1beta1/upload-async HTTP/1.1" => Ok(("200 OK", String::new())),
        "POST /v1beta1/upload-async HTTP/1.1" if known.put_off.swap(false, Ordering::Relaxed) => {
            Ok(("503 Service Unavailable", "not yet".to_owned()))
        }
        "POST /v1beta1/upload-async HTTP/1.1" => {
            known.images.lock().unwrap_or_else(PoisonError::into_inner).push(request.body);
            Ok(("200 OK", String::new()))
        }
        other => bail!("no client asks a proxy for {other:?}"),
    }
}
