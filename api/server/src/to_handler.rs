//! Calls to the handler of a node: websockets that are copied byte by byte, and single requests.
//!
//! The handler is found by the node in the instance's status. It is trusted because our CA has signed its
//! certificate for the handler of this node; an address proves nothing, and the certificate of another node
//! is not accepted.

use std::sync::Arc;
use std::time::Duration;

use barevirt_api::names::handler_host;
use barevirt_component::websocket_client;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{DuplexStream, duplex};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::answer::{self, Answer, Refusal};
use crate::relay;
use crate::streams::Seat;
use crate::tls::Certificates;

/// Port of every handler.
pub const PORT: u16 = 8186;
/// Host header of requests; its value has no meaning.
const HOST: &str = "virt-handler";
/// Time limit for the head of the handler's answer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The only content type besides JSON.
const PNG: &str = "image/png";
/// Largest answer that is not a stream.
const MAX_ANSWER: usize = 8 << 20;

/// Buffered bytes in each direction of a stream that ends here.
const OWN_BUFFER: usize = 32 << 10;

/// The handler of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    /// Address of its pod.
    pub address: String,
    /// Node it serves.
    pub node: String,
}

/// Finds the handler of a node.
///
/// # Errors
/// 500 with the name of the node if no handler runs there.
pub async fn find(client: &Client, namespace: &str, node: &str) -> Result<Handler, Refusal> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default()
        .labels("kubevirt.io=virt-handler")
        .fields(&format!("spec.nodeName={node},status.phase=Running"));
    let list = pods.list(&params).await.map_err(|error| Refusal::from_kube("find virt-handler", error))?;
    let address = list
        .items
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .find_map(|pod| pod.status?.pod_ip)
        .ok_or_else(|| Refusal::internal(format!("no virt-handler runs on node {node}")))?;
    Ok(Handler { address, node: node.to_owned() })
}

/// One request and its answer.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// Its method.
    pub method: Method,
    /// Path with the query.
    pub path: &'a str,
    /// Body of the request.
    pub body: Bytes,
    /// Time limit for the handler.
    pub within: Duration,
}

/// Sends one request and returns the handler's answer unchanged.
///
/// # Errors
/// 504 if the handler does not answer in time, 500 if it cannot be reached.
pub async fn call(
    certificates: &Certificates,
    handler: &Handler,
    exchange: Exchange<'_>,
) -> Result<Answer, Refusal> {
    let Exchange { method, path, body, within } = exchange;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, HOST)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .map_err(|error| Refusal::internal(error.to_string()))?;
    let (_sender, response) = send(certificates, handler, request, within).await?;
    collect(handler, response).await
}

/// Forwards a websocket: the handler gets the client's upgrade headers, the client gets the handler's answer,
/// and then bytes are copied in both directions.
///
/// # Errors
/// 400 for a request that is not an upgrade; else as for [`call`].
pub async fn stream(
    certificates: &Certificates,
    handler: &Handler,
    path: &str,
    mut from_client: Request<Incoming>,
    seat: Seat,
) -> Result<Answer, Refusal> {
    if !from_client.headers().contains_key(header::SEC_WEBSOCKET_KEY) {
        return Err(Refusal::bad_request("this path is a websocket: the request is not a websocket upgrade"));
    }
    let mut request = Request::get(path).header(header::HOST, HOST);
    for name in [
        header::CONNECTION,
        header::UPGRADE,
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_VERSION,
        header::SEC_WEBSOCKET_PROTOCOL,
    ] {
        for value in from_client.headers().get_all(&name) {
            request = request.header(&name, value);
        }
    }
    let request = request.body(Full::default()).map_err(|error| Refusal::internal(error.to_string()))?;
    let (sender, mut response) = send(certificates, handler, request, ANSWER_WITHIN).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return collect(handler, response).await;
    }
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for name in
        [header::CONNECTION, header::UPGRADE, header::SEC_WEBSOCKET_ACCEPT, header::SEC_WEBSOCKET_PROTOCOL]
    {
        for value in response.headers().get_all(&name) {
            answer.headers_mut().append(&name, value.clone());
        }
    }
    let client_side = hyper::upgrade::on(&mut from_client);
    let handler_side = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        let both = timeout(ANSWER_WITHIN, async { tokio::try_join!(client_side, handler_side) }).await;
        drop(sender);
        match both {
            Ok(Ok((client, handler))) => {
                let ended = relay::run(TokioIo::new(client), TokioIo::new(handler)).await;
                tracing::info!(?ended, "stream ended");
            }
            Ok(Err(error)) => tracing::info!(%error, "stream not upgraded"),
            Err(_) => tracing::info!("stream not upgraded in time"),
        }
        drop(seat);
    });
    Ok(answer)
}

/// The result of a request for a stream.
#[derive(Debug)]
pub enum Opened {
    /// Our end of the stream.
    Stream(DuplexStream),
    /// The handler's refusal, unchanged.
    Refused(Answer),
}

/// Opens a stream of a guest for this server itself.
///
/// # Errors
/// As for [`call`].
pub async fn open(certificates: &Certificates, handler: &Handler, path: &str) -> Result<Opened, Refusal> {
    let mut request = Request::get(path).header(header::HOST, HOST);
    for (name, value) in websocket_client::headers() {
        request = request.header(name, value);
    }
    let request = request.body(Full::default()).map_err(|error| Refusal::internal(error.to_string()))?;
    let (sender, response) = send(certificates, handler, request, ANSWER_WITHIN).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Opened::Refused(collect(handler, response).await?));
    }
    let (ours, theirs) = duplex(OWN_BUFFER);
    tokio::spawn(async move {
        let ended = websocket_client::run(response, theirs).await;
        drop(sender);
        tracing::debug!(ended, "stream to virt-handler ended");
    });
    Ok(Opened::Stream(ours))
}

async fn send(
    certificates: &Certificates,
    handler: &Handler,
    request: Request<Full<Bytes>>,
    within: Duration,
) -> Result<(SendRequest<Full<Bytes>>, Response<Incoming>), Refusal> {
    let mut sender = timeout(CONNECT_TIMEOUT, connect(certificates, handler))
        .await
        .map_err(|_| Refusal::timeout(format!("virt-handler on node {} does not answer", handler.node)))?
        .map_err(|error| Refusal::internal(format!("connect virt-handler on {}: {error}", handler.node)))?;
    let response = timeout(within, sender.send_request(request))
        .await
        .map_err(|_| Refusal::timeout(format!("virt-handler on node {} does not answer", handler.node)))?
        .map_err(|error| Refusal::internal(format!("call virt-handler on {}: {error}", handler.node)))?;
    Ok((sender, response))
}

async fn connect(
    certificates: &Certificates,
    handler: &Handler,
) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let address: std::net::IpAddr = handler.address.parse()?;
    let tcp = TcpStream::connect((address, PORT)).await?;
    tcp.set_nodelay(true)?;
    let config = certificates.to_handlers().ok_or("there is no certificate for handlers yet")?;
    let tls = session(config, &handler.node, tcp).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to virt-handler ended");
        }
    });
    Ok(sender)
}

/// A TLS session that only the handler of this node can accept.
async fn session(
    config: Arc<ClientConfig>,
    node: &str,
    tcp: TcpStream,
) -> Result<TlsStream<TcpStream>, Box<dyn std::error::Error + Send + Sync>> {
    let name = ServerName::try_from(handler_host(node))?;
    Ok(TlsConnector::from(config).connect(name, tcp).await?)
}

async fn collect(handler: &Handler, response: Response<Incoming>) -> Result<Answer, Refusal> {
    let code = response.status();
    let picture = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == PNG);
    let body = timeout(ANSWER_WITHIN, Limited::new(response.into_body(), MAX_ANSWER).collect())
        .await
        .map_err(|_| Refusal::timeout(format!("virt-handler on node {} stopped answering", handler.node)))?
        .map_err(|error| Refusal::internal(format!("read from virt-handler on {}: {error}", handler.node)))?
        .to_bytes();
    Ok(if picture { answer::typed(code, PNG, body) } else { answer::raw(code, body) })
}

#[cfg(test)]
#[path = "to_handler_tests.rs"]
mod tests;
