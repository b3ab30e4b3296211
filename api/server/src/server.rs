//! The listener: TLS, one task a connection, and every request through the same gate.
//!
//! ```text
//! request -> route -> (front proxy: who) -> (access review: may they) -> what it does -> answer
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use kube::Client;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::answer::{self, Answer, Refusal};
use crate::endpoints::{Call, InstanceAction};
use crate::front_proxy::{self, User};
use crate::route::{self, Called, NoRoute, Route};
use crate::streams::Streams;
use crate::tls::Certificates;
use crate::{
    admission, authorize, controls, discovery, expand, instance, machine, object_graph, openapi,
    port_forward, qmp, volumes,
};
use barevirt_component::installation::Reading;
use barevirt_component::metrics::CONTENT_TYPE;
use barevirt_component::probes::Probes;

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
    /// The same for what webhooks have to know, with a rate of its own.
    pub webhooks: KubeClient,
    /// Namespace of the installation.
    pub namespace: String,
    /// Certificates in use.
    pub certificates: Certificates,
    /// Who may speak for users.
    pub front_proxy: front_proxy::Current,
    /// Settings of the installation, metrics of this process.
    pub probes: Probes,
    /// Streams that are open.
    pub streams: Streams,
    /// Machines that were admitted.
    pub created: admission::Created,
}

impl Server {
    /// Settings in force.
    ///
    /// # Errors
    /// 503 before they were read once.
    pub fn config(&self) -> Result<Arc<Reading>, Refusal> {
        self.probes
            .installation
            .get()
            .ok_or_else(|| Refusal::unavailable("the KubeVirt object has not been looked for yet"))
    }
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
pub async fn serve(server: Arc<Server>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let tcp = match listener.accept().await {
            Ok((tcp, _)) => tcp,
            Err(error) => {
                // Out of descriptors, or a client that left: the next one may do better, but not at once.
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let server = server.clone();
        tokio::spawn(async move {
            connection(server, tcp).await;
            drop(place);
        });
    }
}

async fn connection(server: Arc<Server>, tcp: TcpStream) {
    // Of this moment: it changes when certificates are renewed.
    let Some(config) = server.certificates.server() else { return tracing::debug!("no certificate yet") };
    let tls = match timeout(HANDSHAKE_WITHIN, TlsAcceptor::from(config).accept(tcp)).await {
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
        Err(no_route) => {
            // Nobody learns without an identity what exists; with one, the answer is an honest one.
            identity(server, shown, &request)?;
            return Err(match no_route {
                NoRoute::NotFound => Refusal::not_found("the server could not find the requested resource"),
                NoRoute::MethodNotAllowed => Refusal::method_not_allowed(),
            });
        }
    };
    let Some(access) = route.access() else { return open_route(server, route, request).await };
    let user = identity(server, shown, &request)?;
    authorize::allow(&server.client.0, &user, &access).await?;
    match route {
        Route::Call(called) => call(server, &user, &called, request).await,
        Route::Healthz
        | Route::Metrics
        | Route::Readyz
        | Route::Webhook(_)
        | Route::Paths
        | Route::Groups
        | Route::Group
        | Route::Resources(_)
        | Route::OpenApiV2
        | Route::OpenApiV3Index
        | Route::OpenApiV3(_) => Err(Refusal::forbidden("no access rule")),
    }
}

/// What the person asked for, and may.
async fn call(
    server: &Server,
    user: &User,
    called: &Called,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let Called { endpoint, namespace, name, .. } = called;
    match endpoint.call {
        Call::Machine(action) => {
            let body = body(request).await?;
            machine::act(&server.client.0, user, action, namespace, name, &body).await
        }
        Call::Volume(action) => {
            let config = server.config()?;
            let (gates, object) = (&config.settings.gates, (endpoint.on, namespace.as_str(), name.as_str()));
            volumes::act(&server.client.0, gates, user, action, object, &body(request).await?).await
        }
        Call::Instance(InstanceAction::Qmp) => {
            let query = request.uri().query().map(str::to_owned);
            let body = body(request).await?;
            qmp::call(server, user, called, query.as_deref(), body).await
        }
        Call::Instance(InstanceAction::QmpStream) => qmp::stream(server, user, called, request).await,
        Call::Instance(InstanceAction::Debug) => qmp::debug(server, user, called).await,
        Call::Instance(
            action @ (InstanceAction::Console | InstanceAction::Vnc | InstanceAction::UsbRedir),
        ) => instance::stream(server, user, action, namespace, name, request).await,
        Call::PortForward => port_forward::open(server, user, called, request).await,
        Call::Control(control) => {
            let query = request.uri().query().map(str::to_owned);
            let body = body(request).await?;
            controls::act(server, user, control, (namespace, name), query.as_deref(), body).await
        }
        Call::Expand => {
            let (client, config) = (&server.client.0, server.config()?);
            let guest = &config.settings.guest;
            match name.as_str() {
                "" => expand::body(client, guest, namespace, &body(request).await?).await,
                name => expand::machine(client, guest, namespace, name).await,
            }
        }
        Call::ObjectGraph => {
            let config = server.config()?;
            let (gates, object) = (&config.settings.gates, (namespace.as_str(), name.as_str()));
            object_graph::of(&server.client.0, gates, endpoint.on, object, &body(request).await?).await
        }
        Call::Version | Call::Health | Call::NotYet => open_call(server, called),
    }
}

/// Calls that tell the same to everybody.
fn open_call(server: &Server, called: &Called) -> Result<Answer, Refusal> {
    match called.endpoint.call {
        Call::Version => Ok(answer::ok(&discovery::version())),
        Call::Health => Ok(answer::ok(&server.probes.health())),
        Call::NotYet => Err(Refusal::not_implemented(&called.endpoint.title())),
        Call::Machine(_)
        | Call::Volume(_)
        | Call::Instance(_)
        | Call::Control(_)
        | Call::PortForward
        | Call::Expand
        | Call::ObjectGraph => Err(Refusal::forbidden("no access rule")),
    }
}

/// Paths that tell the same to everybody, and webhooks, to which the API server comes without a certificate.
async fn open_route(server: &Server, route: Route, request: Request<Incoming>) -> Result<Answer, Refusal> {
    Ok(match route {
        Route::Healthz => answer::ok(&server.probes.health()),
        Route::Metrics => answer::typed(StatusCode::OK, CONTENT_TYPE, server.probes.metrics.text()),
        Route::Readyz => {
            server.config()?;
            answer::ok(&server.probes.health())
        }
        Route::Paths => answer::ok(&discovery::paths()),
        Route::Groups => answer::ok(&discovery::groups()),
        Route::Group => answer::ok(&discovery::group()),
        Route::Resources(version) => answer::ok(&discovery::resources(version)),
        Route::OpenApiV2 => answer::ok(&openapi::v2()),
        Route::OpenApiV3Index => answer::ok(&openapi::v3_index()),
        Route::OpenApiV3(version) => answer::ok(&openapi::v3(version)),
        Route::Call(called) => open_call(server, &called)?,
        Route::Webhook(hook) => {
            let config = server.config()?;
            let body = body(request).await?;
            let answer = admission::answer(
                &server.webhooks.0,
                &server.namespace,
                &config,
                &server.created,
                hook,
                &body,
            );
            answer::ok(&answer.await?)
        }
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
