//! Dispatches a request to the code that answers it. Every request passes the same checks.
//!
//! ```text
//! request -> route -> (front proxy: user) -> (access review: permission) -> the call -> answer
//! ```

use barevirt_component::server::Caller;
use barevirt_component::server::bodies::Whole;
use http::Request;
use hyper::body::Incoming;
use rustls::pki_types::CertificateDer;

use crate::answer::{self, Answer, Refusal};
use crate::endpoints::{Call, InstanceAction};
use crate::front_proxy::{self, User};
use crate::route::{self, Called, NoRoute, Route};
use crate::state::State;
use crate::{
    admission, authorize, controls, discovery, expand, instance, machine, migrations, object_graph, openapi,
    port_forward, qmp, volumes,
};

/// Answers a request of this caller.
pub(crate) async fn answer(state: &State, caller: &Caller, request: Request<Incoming>) -> Answer {
    route_request(state, caller, request).await.unwrap_or_else(Answer::from)
}

async fn route_request(
    state: &State,
    caller: &Caller,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let shown = &caller.shown;
    let path = request.uri().path().to_owned();
    let route = match route::parse(request.method(), &path) {
        Ok(route) => route,
        Err(no_route) => {
            // Only an authenticated user learns which paths exist.
            identity(state, shown, &request)?;
            return Err(match no_route {
                NoRoute::NotFound => Refusal::not_found("the server could not find the requested resource"),
                NoRoute::MethodNotAllowed => Refusal::method_not_allowed(),
            });
        }
    };
    let Some(access) = route.access() else { return open_route(state, caller, route, request).await };
    let user = identity(state, shown, &request)?;
    authorize::allow(&state.client.0, &user, &access).await?;
    match route {
        Route::Call(called) => call(state, caller, &user, &called, request).await,
        Route::Webhook(_)
        | Route::Evacuation(_)
        | Route::Paths
        | Route::Groups
        | Route::Group
        | Route::Resources(_)
        | Route::OpenApiV2
        | Route::OpenApiV3Index
        | Route::OpenApiV3(_) => Err(Refusal::forbidden("no access rule")),
    }
}

/// Makes a call that the user has permission for.
async fn call(
    state: &State,
    caller: &Caller,
    user: &User,
    called: &Called,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let Called { endpoint, namespace, name, .. } = called;
    let body = |request| body(state, caller, request);
    match endpoint.call {
        Call::Machine(action) => {
            let body = body(request).await?;
            machine::act(&state.client.0, user, action, namespace, name, &body).await
        }
        Call::Volume(action) => {
            let config = state.config()?;
            let (gates, object) = (&config.settings.gates, (endpoint.on, namespace.as_str(), name.as_str()));
            let body = body(request).await?;
            volumes::act(&state.client.0, gates, user, action, object, &body).await
        }
        Call::Instance(InstanceAction::Qmp) => {
            let query = request.uri().query().map(str::to_owned);
            let body = body(request).await?;
            qmp::call(state, user, called, query.as_deref(), body.clone()).await
        }
        Call::Instance(InstanceAction::QmpStream) => qmp::stream(state, user, called, request).await,
        Call::Instance(InstanceAction::Debug) => qmp::debug(state, user, called).await,
        Call::Instance(
            action @ (InstanceAction::Console | InstanceAction::Vnc | InstanceAction::UsbRedir),
        ) => instance::stream(state, user, action, namespace, name, request).await,
        Call::PortForward => port_forward::open(state, user, called, request).await,
        Call::Control(control) => {
            let query = request.uri().query().map(str::to_owned);
            let body = body(request).await?;
            controls::act(state, user, control, (namespace, name), query.as_deref(), body.clone()).await
        }
        Call::Expand => {
            let (client, config) = (&state.client.0, state.config()?);
            let guest = &config.settings.guest;
            match name.as_str() {
                "" => {
                    let body = body(request).await?;
                    expand::body(client, guest, user, namespace, &body).await
                }
                name => expand::machine(client, guest, user, namespace, name).await,
            }
        }
        Call::ObjectGraph => {
            let config = state.config()?;
            let (gates, object) = (&config.settings.gates, (namespace.as_str(), name.as_str()));
            object_graph::of(&state.client.0, gates, endpoint.on, object, &body(request).await?).await
        }
        Call::Migrate => {
            let body = body(request).await?;
            migrations::migrate(&state.client.0, user, namespace, name, &body).await
        }
        Call::CancelEvacuation => {
            let (config, object) = (state.config()?, (endpoint.on, namespace.as_str(), name.as_str()));
            let (taint, body) = (&config.settings.drain_taint, body(request).await?);
            migrations::cancel_evacuation(&state.client.0, user, taint, object, &body).await
        }
        Call::Version | Call::Health | Call::NotYet => open_call(state, called),
    }
}

/// Calls that need no permission.
fn open_call(state: &State, called: &Called) -> Result<Answer, Refusal> {
    match called.endpoint.call {
        Call::Version => Ok(answer::ok(&discovery::version())),
        Call::Health => Ok(answer::ok(&state.probes.health())),
        Call::NotYet => Err(Refusal::not_implemented(&called.endpoint.title())),
        Call::Machine(_)
        | Call::Volume(_)
        | Call::Instance(_)
        | Call::Control(_)
        | Call::PortForward
        | Call::Expand
        | Call::ObjectGraph
        | Call::Migrate
        | Call::CancelEvacuation => Err(Refusal::forbidden("no access rule")),
    }
}

/// Paths that need no permission, and webhooks, which the API server calls without a certificate.
async fn open_route(
    state: &State,
    caller: &Caller,
    route: Route,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    Ok(match route {
        Route::Paths => answer::ok(&discovery::paths()),
        Route::Groups => answer::ok(&discovery::groups()),
        Route::Group => answer::ok(&discovery::group()),
        Route::Resources(version) => answer::ok(&discovery::resources(version)),
        Route::OpenApiV2 => answer::ok(&openapi::v2()),
        Route::OpenApiV3Index => answer::ok(&openapi::v3_index()),
        Route::OpenApiV3(version) => answer::ok(&openapi::v3(version)),
        Route::Call(called) => open_call(state, &called)?,
        // A client that does not know the seal learns nothing, not even that this path exists.
        Route::Evacuation(seal) if !state.certificates.is_seal(&seal) => {
            identity(state, &caller.shown, &request)?;
            return Err(Refusal::not_found("the server could not find the requested resource"));
        }
        Route::Evacuation(_) => {
            let config = state.config()?;
            let body = body(state, caller, request).await?;
            answer::ok(&admission::evacuate(&state.webhooks.0, &config, &body).await?)
        }
        Route::Webhook(hook) => {
            let config = state.config()?;
            let body = body(state, caller, request).await?;
            let answer =
                admission::answer(&state.webhooks.0, &state.namespace, &config, &state.created, hook, &body);
            answer::ok(&answer.await?)
        }
    })
}

fn identity(
    state: &State,
    shown: &[CertificateDer<'_>],
    request: &Request<Incoming>,
) -> Result<User, Refusal> {
    state
        .front_proxy
        .load()
        .as_ref()
        .ok_or(front_proxy::Refused::NotConfigured)
        .and_then(|front_proxy| front_proxy.user(shown, request.headers()))
        .map_err(|refused| {
            refused.log(request.uri().path());
            Refusal::unauthorized("Unauthorized")
        })
}

async fn body(state: &State, caller: &Caller, request: Request<Incoming>) -> Result<Whole, Refusal> {
    Ok(state.bodies.read(caller, request).await?)
}
