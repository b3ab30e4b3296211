//! The upload proxy, either CDI's or the API server as a proxy. Each request has its own connection, with TLS
//! if the URL says so.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use barevirt_import_job::UPLOAD_ID;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kube::client::ConfigExt;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::super::endpoint::Endpoints;
use super::credentials::Credentials;
use crate::session::sentence;

/// Time limit for a connection, including TLS.
const CONNECTED: Duration = Duration::from_secs(30);
/// Time limit for the answer to a request without a body: the proxy waits ten seconds for the pod behind it.
const ANSWERED: Duration = Duration::from_secs(60);
/// Most bytes that are read of an answer's text.
const MAX_TEXT: usize = 4 << 10;

/// What the proxy answered.
#[derive(Debug)]
pub(in super::super) struct ProxyAnswer {
    pub(in super::super) status: StatusCode,
    pub(in super::super) text: String,
}

/// Why there is no answer.
#[derive(Debug)]
pub(in super::super) enum Broken {
    /// TLS fails, and another try would fail, too.
    Untrusted(String),
    /// The connection broke, or could not be made.
    Lost(String),
}

/// The upload proxy of a cluster.
pub(in super::super) struct Proxy {
    endpoints: Endpoints,
    /// Where the rest of an upload is sent, if it can go on over another connection.
    rest: Option<Uri>,
    /// `None` for a proxy without TLS.
    tls: Option<Arc<ClientConfig>>,
    /// The user, for requests to the API server, which authenticates users and knows no upload tokens.
    credentials: Option<Credentials>,
    /// The name that the certificate must have, if it is not the URL's host.
    name: Option<String>,
}

impl Proxy {
    /// A proxy with those endpoints. Its certificate is checked against the authorities that this machine
    /// trusts, unless `insecure`.
    pub(in super::super) fn new(endpoints: &Endpoints, insecure: bool) -> anyhow::Result<Self> {
        let tls = match endpoints.synchronous.scheme_str() {
            Some("http") => None,
            _ => Some(Arc::new(tls(&endpoints.synchronous, insecure)?)),
        };
        let host = endpoints.synchronous.host().unwrap_or_default();
        ensure!(
            ServerName::try_from(bare(host)).is_ok(),
            "the upload proxy's name {host:?} is not a host name"
        );
        Ok(Self { endpoints: endpoints.clone(), rest: None, tls, credentials: None, name: None })
    }

    /// The API server as a proxy: it passes on what the user of the kubeconfig sends to the given path.
    pub(in super::super) fn through_api_server(config: &kube::Config, path: &str) -> anyhow::Result<Self> {
        let base = config.cluster_url.to_string();
        let at = |below: &str| -> anyhow::Result<Uri> {
            let whole = format!("{}{path}{below}", base.trim_end_matches('/'));
            whole.parse().with_context(|| format!("{whole:?} is not a URL"))
        };
        let synchronous = at("")?;
        let tls = match synchronous.scheme_str() {
            Some("http") => None,
            _ => Some(Arc::new(config.rustls_client_config().context("prepare TLS for the API server")?)),
        };
        Ok(Self {
            endpoints: Endpoints { asynchronous: None, synchronous },
            rest: Some(at("/rest")?),
            tls,
            credentials: Some(Credentials::of(config)),
            name: config.tls_server_name.clone(),
        })
    }

    /// Whether an upload can go on where it broke off.
    pub(super) fn goes_on(&self) -> bool {
        self.rest.is_some()
    }

    /// Asks how much of an upload has arrived.
    pub(super) async fn arrived(&self, token: &str, id: &str, length: u64) -> Result<ProxyAnswer, Broken> {
        let uri = self.rest.as_ref().unwrap_or(&self.endpoints.synchronous);
        let headers = [(UPLOAD_ID, id.to_owned()), ("content-range", format!("bytes */{length}"))];
        let asked = self.ask(Method::POST, uri, token, &headers, Empty::<Bytes>::new());
        match timeout(ANSWERED, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(lost(uri, &format!("no answer within {} s", ANSWERED.as_secs()))),
        }
    }

    /// The endpoint for the rest of an upload, or for the file: the synchronous one if the proxy does not have the
    /// asynchronous one.
    pub(super) async fn endpoint(&self, token: &str, is_rest: bool) -> Uri {
        if let Some(rest) = self.rest.as_ref().filter(|_| is_rest) {
            return rest.clone();
        }
        let synchronous = self.endpoints.synchronous.clone();
        let Some(asynchronous) = &self.endpoints.asynchronous else { return synchronous };
        let upload = self.ask(Method::HEAD, asynchronous, token, &[], Empty::<Bytes>::new());
        match timeout(ANSWERED, upload).await {
            Ok(Ok(proxy_answer)) if proxy_answer.status == StatusCode::OK => asynchronous.clone(),
            _ => synchronous,
        }
    }

    /// Sends the file and waits for the proxy's answer.
    pub(super) async fn post<B>(
        &self,
        endpoint: &Uri,
        token: &str,
        headers: &[(&str, String)],
        body: B,
    ) -> Result<ProxyAnswer, Broken>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.ask(Method::POST, endpoint, token, headers, body).await
    }

    async fn ask<B>(
        &self,
        method: Method,
        uri: &Uri,
        token: &str,
        headers: &[(&str, String)],
        body: B,
    ) -> Result<ProxyAnswer, Broken>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let host = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        // The Host header must not contain the credentials before an @.
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let mut request = Request::builder()
            .method(&method)
            .uri(uri.path_and_query().map_or("/", |path| path.as_str()))
            .header(header::HOST, host)
            .header(header::USER_AGENT, format!("virtctl/{}", barevirt_api::release::VERSION));
        if method == Method::POST {
            request = request.header(header::CONTENT_TYPE, "application/octet-stream");
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = match &self.credentials {
            None => request
                .header(header::AUTHORIZATION, format!("Bearer {token}"))
                .body(body)
                .map_err(|error| Broken::Lost(error.to_string()))?,
            Some(credentials) => {
                let request = request.body(()).map_err(|error| Broken::Lost(error.to_string()))?;
                let signed = credentials.sign(request).await;
                let signed = signed.map_err(|error| Broken::Untrusted(format!("{error:#}")))?;
                // The address is known; the layers may have put a path of the server before the request's
                // path.
                let (mut parts, ()) = signed.into_parts();
                parts.uri = uri.path_and_query().cloned().map_or(Uri::default(), Uri::from);
                Request::from_parts(parts, body)
            }
        };
        let stream = match timeout(CONNECTED, self.connect(uri)).await {
            Ok(connected) => connected?,
            Err(_) => return Err(lost(uri, &format!("no connection within {} s", CONNECTED.as_secs()))),
        };
        // The connection ends with the answer, so that the rest of a refused file is not sent.
        let mut connections = JoinSet::new();
        let (mut sender, connection) = http1::handshake(stream).await.map_err(|error| broken(uri, error))?;
        connections.spawn(connection);
        let answer = sender.send_request(request).await.map_err(|error| broken(uri, error))?;
        Ok(proxy_answer(answer).await)
    }

    async fn connect(&self, uri: &Uri) -> Result<TokioIo<Box<dyn Stream>>, Broken> {
        let host = bare(uri.host().unwrap_or_default());
        let port = uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let plain = TcpStream::connect((host.as_str(), port)).await;
        let plain = plain.map_err(|error| lost(uri, &error.to_string()))?;
        // The answer may take hours, and keepalive notices a proxy that has disappeared. A failure to set it
        // does not matter.
        let _ = setsockopt(&plain, sockopt::KeepAlive, &true);
        let Some(tls) = &self.tls else { return Ok(TokioIo::new(Box::new(plain))) };
        let name = self.name.clone().unwrap_or(host);
        let name = ServerName::try_from(name).map_err(|error| Broken::Untrusted(error.to_string()))?;
        match TlsConnector::from(tls.clone()).connect(name, plain).await {
            Ok(stream) => Ok(TokioIo::new(Box::new(stream))),
            Err(error) => Err(refused_by_tls(uri, &error)),
        }
    }
}

/// TLS for a proxy.
fn tls(url: &Uri, insecure: bool) -> anyhow::Result<ClientConfig> {
    let mut config = kube::Config::new(url.clone());
    config.accept_invalid_certs = insecure;
    // Without verification no authorities are needed, so this also works on a machine that has none.
    config.root_cert = insecure.then(Vec::new);
    config.rustls_client_config().context("prepare TLS for the upload proxy")
}

/// A connection, with TLS or without.
trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

/// A host's name without the brackets that an IPv6 address has in a URL.
fn bare(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

fn at(uri: &Uri) -> &str {
    uri.host().unwrap_or_default()
}

fn lost(uri: &Uri, why: &str) -> Broken {
    Broken::Lost(format!("the upload proxy at {} cannot be talked to: {why}", at(uri)))
}

/// The error with all its causes.
fn broken(uri: &Uri, error: hyper::Error) -> Broken {
    lost(uri, &format!("{:#}", anyhow::Error::from(error)))
}

fn refused_by_tls(uri: &Uri, error: &std::io::Error) -> Broken {
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match of_tls {
        Some(rustls::Error::InvalidCertificate(why)) => Broken::Untrusted(format!(
            "the certificate of the upload proxy at {} is not trusted: {why}. Let this machine trust its authority (SSL_CERT_FILE), or use --insecure",
            at(uri)
        )),
        Some(error) => Broken::Untrusted(format!("TLS with the upload proxy at {} failed: {error}", at(uri))),
        None => lost(uri, &error.to_string()),
    }
}

/// Status and the first words of an answer.
async fn proxy_answer(answer: Response<Incoming>) -> ProxyAnswer {
    let status = answer.status();
    let mut body = answer.into_body();
    let mut text = Vec::new();
    // The part of the text that arrived before the connection broke is used, and the text of a success is not
    // needed.
    while status != StatusCode::OK
        && text.len() < MAX_TEXT
        && let Ok(Some(Ok(frame))) = timeout(ANSWERED, body.frame()).await
    {
        text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
    }
    text.truncate(MAX_TEXT);
    // A Kubernetes status contains a message.
    ProxyAnswer { status, text: sentence(&text).trim().to_owned() }
}
