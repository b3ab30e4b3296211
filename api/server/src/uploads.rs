//! Uploads into claims in clusters without CDI: tokens, and the proxy to the pods that receive images.
//!
//! ```text
//!   API server's aggregator --POST .../uploadtokenrequests-----> token for one claim, five minutes
//!                           --POST .../uploads/CLAIM/proxy--+
//!                                                           +--> proxy: is its pod ready? --mutual TLS--> the pod
//!   any client with a token ------POST /v1beta1/upload ...-----+
//! ```
//!
//! The listener is separate from that of webhooks and calls: it may be exposed, its requests can take very
//! long, and it speaks only HTTP/1.1, so that an image that waits for a slow disk cannot block another
//! request on the same connection.
//!
//! Requests through the aggregator are authorized ([`crate::authorize`]); requests with a token were
//! authorized when the token was made. The group is CDI's (`upload.cdi.kubevirt.io`): virt-operator registers
//! this server for it only in clusters without CDI.

mod group;
mod pod;
mod proxy;
mod route;
mod seats;
mod token;

use std::sync::Arc;

use barevirt_component::server::{Caller, Limits};
use http::Request;
use hyper::body::Incoming;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;

use crate::answer::{self, Answer, Refusal};
use crate::authorize;
use crate::front_proxy::{self, User};
use crate::route::NoRoute;
use crate::state::State;
use proxy::UploadMode;
use route::Route;
use seats::Seats;

/// Values that requests of this listener may use.
#[derive(Debug)]
pub struct Uploads {
    state: Arc<State>,
    seats: Seats,
}

impl Uploads {
    /// No upload is running.
    #[must_use]
    pub fn new(state: Arc<State>) -> Arc<Self> {
        Arc::new(Uploads { state, seats: Seats::default() })
    }
}

/// Accepts connections until the future is dropped.
pub async fn serve(uploads: Arc<Uploads>, listener: TcpListener) {
    let (certificates, proxies) = (uploads.state.clone(), uploads.state.clone());
    let tls = move || certificates.certificates.uploads();
    // The aggregator's connection is never displaced by an unknown client.
    let knows = move |shown: &[CertificateDer<'static>]| {
        proxies.front_proxy.load().as_ref().is_some_and(|front_proxy| front_proxy.trusts(shown).is_ok())
    };
    let answer = move |caller: Caller, request: Request<Incoming>| {
        let uploads = uploads.clone();
        async move { respond(&uploads, &caller, request).await.unwrap_or_else(Answer::from) }
    };
    barevirt_component::server::serve(listener, Limits::BUSY, tls, knows, answer).await;
}

async fn respond(uploads: &Uploads, caller: &Caller, request: Request<Incoming>) -> Result<Answer, Refusal> {
    let state = &uploads.state;
    let route = match route::parse(request.method(), request.uri().path()) {
        Ok(route) => route,
        Err(NoRoute::NotFound) => {
            return Err(Refusal::not_found("the server could not find the requested resource"));
        }
        Err(NoRoute::MethodNotAllowed) => return Err(Refusal::method_not_allowed()),
    };
    match route {
        Route::Groups => Ok(answer::ok(&group::groups())),
        Route::Group => Ok(answer::ok(&group::group())),
        Route::Resources => Ok(answer::ok(&group::resources())),
        Route::Token { namespace } => {
            let user = allowed(uploads, caller, &request, &route::token_access(&namespace)).await?;
            let body = state.bodies.read(caller, request).await?;
            let asked = group::asked(&namespace, &body)?;
            let pair = state.certificates.shown();
            let pair = pair.ok_or_else(|| Refusal::unavailable("there is no certificate yet"))?;
            tracing::info!(user = user.name, namespace, claim = asked.claim, "a token for an upload");
            Ok(group::granted(&asked, &token::issue(&pair, &namespace, &asked.claim, Timestamp::now())))
        }
        Route::Upload { namespace, claim, mode } => {
            let access = route::upload_access(&namespace, &claim);
            let user = allowed(uploads, caller, &request, &access).await?;
            tracing::info!(user = user.name, namespace, claim, ?mode, "an upload begins");
            uploads.forward(caller, &(namespace, claim), mode, request).await
        }
        Route::Proxied(mode) => {
            let pair = state.certificates.shown();
            let pair = pair.ok_or_else(|| Refusal::unavailable("there is no certificate yet"))?;
            let read = token::bearer(request.headers())
                .and_then(|token| token::read(&pair, token, Timestamp::now()))
                .map_err(|refused| Refusal::unauthorized(refused.to_string()))?;
            tracing::info!(namespace = read.namespace, claim = read.claim, ?mode, "an upload begins");
            uploads.forward(caller, &(read.namespace, read.claim), mode, request).await
        }
        Route::NotServed(what) => {
            Err(Refusal::bad_request(format!("{what} are taken by CDI alone, and this cluster has none")))
        }
    }
}

/// The user of a request through the aggregator, if permitted.
async fn allowed(
    uploads: &Uploads,
    caller: &Caller,
    request: &Request<Incoming>,
    access: &crate::route::Access,
) -> Result<User, Refusal> {
    let front_proxy = uploads.state.front_proxy.load();
    let user = front_proxy
        .as_ref()
        .ok_or(front_proxy::Refused::NotConfigured)
        .and_then(|front_proxy| front_proxy.user(&caller.shown, request.headers()))
        .map_err(|refused| {
            refused.log(request.uri().path());
            Refusal::unauthorized("Unauthorized")
        })?;
    authorize::allow(&uploads.state.client.0, &user, access).await?;
    Ok(user)
}

impl Uploads {
    /// Forwards a permitted request to the pod of the claim.
    async fn forward(
        &self,
        caller: &Caller,
        (namespace, claim): &(String, String),
        mode: UploadMode,
        request: Request<Incoming>,
    ) -> Result<Answer, Refusal> {
        // An authorized request is not displaced by unknown clients.
        let _work = caller.work();
        let server = pod::find(&self.state.client.0, namespace, claim).await?;
        if request.method() == http::Method::HEAD {
            return Ok(answer::done());
        }
        let seat = self.seats.take(namespace)?;
        let tls = self.state.certificates.to_handlers();
        let tls = tls.ok_or_else(|| Refusal::unavailable("there is no certificate for pods yet"))?;
        tokio::select! {
            answer = proxy::send(&tls, &server, mode, request, seat) => answer,
            () = server.gone(&self.state.client.0) => {
                Err(Refusal::unavailable(format!("the upload pod of claim {claim} is gone: send it again")))
            }
        }
    }
}
