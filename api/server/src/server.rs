//! The listener: TLS, one task a connection, and every request through the same gate.
//!
//! ```text
//! request -> route -> (front proxy: who) -> (access review: may they) -> what it does -> answer
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::answer::{self, Answer, Refusal};
use crate::front_proxy::{self, User};
use crate::route::{self, InstanceAction, NoRoute, Route};
use crate::tls::Certificates;
use crate::{admission, authorize, discovery, instance, machine};

/// A body's largest size: an AdmissionReview carries the old and the new object, each at most etcd's 1.5 MB.
const LARGEST_BODY: usize = 8 << 20;
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Connections at one time. The aggregator and the webhooks share few; each console is one more.
const MOST_CONNECTIONS: usize = 4096;

/// What every request may use.
#[derive(Debug)]
pub struct Server {
    /// Our own client: the service account of virt-api.
    pub client: KubeClient,
    /// Namespace of the installation.
    pub namespace: String,
    /// Certificates in use.
    pub certificates: Arc<Certificates>,
    /// Who may speak for users.
    pub front_proxy: front_proxy::Current,
}

/// `kube::Client` without a Debug that prints its layers.
#[derive(Clone)]
pub struct KubeClient(pub Client);

impl std::fmt::Debug for KubeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KubeClient")
    }
}

/// Accepts until the future is dropped.
///
/// # Errors
/// Where the TLS configuration cannot be made.
pub async fn serve(server: Arc<Server>, listener: TcpListener) -> Result<(), rustls::Error> {
    let acceptor = TlsAcceptor::from(Arc::new(server.certificates.server_config()?));
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        let tcp = match listener.accept().await {
            Ok((tcp, _)) => tcp,
            Err(error) => {
                // Out of descriptors, or a client that left: the next one may do better, but not at once.
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (server, acceptor) = (server.clone(), acceptor.clone());
        tokio::spawn(async move {
            connection(server, acceptor, tcp).await;
            drop(place);
        });
    }
}

async fn connection(server: Arc<Server>, acceptor: TlsAcceptor, tcp: TcpStream) {
    let tls = match timeout(HANDSHAKE_WITHIN, acceptor.accept(tcp)).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => return tracing::debug!(%error, "no TLS session"),
        Err(_) => return tracing::debug!("no TLS session in time"),
    };
    let shown: Arc<[CertificateDer<'static>]> = tls
        .get_ref()
        .1
        .peer_certificates()
        .map(|chain| chain.iter().map(|cert| cert.clone().into_owned()).collect())
        .unwrap_or_default();
    let service = service_fn(move |request| {
        let (server, shown) = (server.clone(), shown.clone());
        async move { Ok::<_, Infallible>(answer_to(&server, &shown, request).await) }
    });
    let builder = Builder::new(TokioExecutor::new());
    if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(tls), service).await {
        tracing::debug!(%error, "connection ended");
    }
}

async fn answer_to(server: &Server, shown: &[CertificateDer<'_>], request: Request<Incoming>) -> Answer {
    route_request(server, shown, request).await.unwrap_or_else(Answer::from)
}

async fn route_request(
    server: &Server,
    shown: &[CertificateDer<'_>],
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let path = request.uri().path().to_owned();
    let route = match route::parse(request.method(), &path) {
        Ok(route) => route,
        Err(NoRoute::NotFound) => {
            // Nobody learns without an identity what exists; with one, the answer is an honest 404.
            identity(server, shown, &request)?;
            return Err(Refusal::not_found("the server could not find the requested resource"));
        }
        Err(NoRoute::MethodNotAllowed) => return Err(Refusal::method_not_allowed()),
    };
    if !route.behind_front_proxy() {
        return open_route(server, route, request).await;
    }
    let user = identity(server, shown, &request)?;
    let Some(access) = route.access() else { return Err(Refusal::forbidden("no access rule")) };
    authorize::allow(&server.client.0, &user, &access).await?;
    match route {
        Route::Machine { action, namespace, name } => {
            let body = body(request).await?;
            machine::act(&server.client.0, &user, action, &namespace, &name, &body).await
        }
        Route::Instance { action: InstanceAction::Qmp, namespace, name } => {
            let body = body(request).await?;
            instance::qmp(server, &user, &namespace, &name, body).await
        }
        Route::Instance { action, namespace, name } => {
            instance::stream(server, &user, action, &namespace, &name, request).await
        }
        Route::Healthz
        | Route::Webhook(_)
        | Route::Groups
        | Route::Group
        | Route::Resources(_)
        | Route::OpenApiV2
        | Route::OpenApiV3Index
        | Route::OpenApiV3(_)
        | Route::Version => Err(Refusal::forbidden("no access rule")),
    }
}

/// Paths that tell the same to everybody, and webhooks, whose answer changes nothing by itself.
async fn open_route(server: &Server, route: Route, request: Request<Incoming>) -> Result<Answer, Refusal> {
    Ok(match route {
        Route::Healthz => answer::ok(&serde_json::json!({ "status": "ok" })),
        Route::Groups => answer::ok(&discovery::groups()),
        Route::Group => answer::ok(&discovery::group()),
        Route::Resources(version) => answer::ok(&discovery::resources(version)),
        Route::OpenApiV2 => answer::ok(&discovery::openapi_v2()),
        Route::OpenApiV3Index => answer::ok(&discovery::openapi_v3_index()),
        Route::OpenApiV3(_) => answer::ok(&discovery::openapi_v3()),
        Route::Version => answer::ok(&discovery::version()),
        Route::Webhook(hook) => {
            let body = body(request).await?;
            answer::ok(&admission::review(hook, &server.namespace, &body, &Time(jiff::Timestamp::now()))?)
        }
        Route::Machine { .. } | Route::Instance { .. } => return Err(Refusal::forbidden("no access rule")),
    })
}

fn identity(
    server: &Server,
    shown: &[CertificateDer<'_>],
    request: &Request<Incoming>,
) -> Result<User, Refusal> {
    server
        .front_proxy
        .load()
        .as_ref()
        .ok_or(front_proxy::Refused::NotConfigured)
        .and_then(|front_proxy| front_proxy.user(shown, request.headers()))
        .map_err(|refused| {
            tracing::info!(path = request.uri().path(), %refused, "request without identity");
            Refusal::unauthorized("Unauthorized")
        })
}

async fn body(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    match timeout(BODY_WITHIN, Limited::new(request.into_body(), LARGEST_BODY).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(Refusal::bad_request(format!("read the request's body: {error}"))),
        Err(_) => Err(Refusal::bad_request("the request's body did not come in time")),
    }
}
