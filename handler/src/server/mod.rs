//! Consoles, displays and QEMU monitors of the guests on this node, for virt-api: HTTPS on port 8186.
//!
//! | path | |
//! |---|---|
//! | `GET /v1/namespaces/{namespace}/virtualmachineinstances/{name}/console` | websocket, the first serial port |
//! | `GET .../vnc` | websocket, the display (RFB) |
//! | `GET .../usbredir` | websocket, a slot for a USB device of the client; 503 if no slot is free |
//! | `GET .../vnc/screenshot` | a picture of the display, PNG |
//! | `POST .../qmp` | one QMP command, JSON in and out; `timeoutSeconds` in the query limits QEMU's time |
//! | `GET .../qmp/stream` | websocket, a session of the users' QEMU monitor |
//! | `GET .../debug` | the launcher's information about QEMU, JSON |
//! | `PUT .../{pause,unpause,reset,softreboot,freeze,unfreeze}` | changes the state of the guest ([`controls`]) |
//! | `GET .../{guestosinfo,userlist,filesystemlist}` | information from the guest agent, JSON |
//! | `GET /healthz` | `ok` |
//! | `GET /readyz` | `ok`, or 503 and why the handler has no certificate that virt-api would accept |
//!
//! A client has to present the certificate that our CA issued for virt-api, which has already authenticated
//! and authorized the user. The launcher provides the streams as descriptors ([`crate::launchers`]).

pub mod answer;
mod controls;
mod holders;
mod parts;
mod qmp;
pub mod route;
#[cfg(test)]
mod tests;
pub mod tls;

use std::sync::Arc;

use barevirt_component::certificates::Server;
use barevirt_component::server::{Caller, Limits};
use barevirt_component::websocket;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tracing::info;

use self::answer::{Body, refuse};
use self::holders::StreamHolders;
use self::parts::{has_flag, take};
use self::route::{Guest, Kind, Route};
use crate::certificate::NotReady;
use crate::launchers::Launcher;
use crate::registry::Launchers;

/// Serves until the process ends.
pub async fn run(
    listener: TcpListener,
    certificates: Arc<Server>,
    not_ready: NotReady,
    launchers: Launchers,
) {
    let holders = StreamHolders::default();
    let answer = move |caller: Caller, request: Request<Incoming>| {
        let (not_ready, launchers, holders) = (not_ready.clone(), launchers.clone(), holders.clone());
        async move { handle(request, caller.known, &not_ready, &launchers, &holders).await }
    };
    let tls = move || certificates.current();
    barevirt_component::server::serve(listener, Limits::BUSY, tls, tls::is_virt_api, answer).await;
}

async fn handle(
    request: Request<Incoming>,
    is_api: bool,
    not_ready: &NotReady,
    launchers: &Launchers,
    holders: &StreamHolders,
) -> Response<Body> {
    match Route::parse(request.method(), request.uri().path()) {
        Route::Health => answer::text(StatusCode::OK, "ok"),
        Route::Readiness => match not_ready.borrow().as_ref() {
            None => answer::text(StatusCode::OK, "ok"),
            Some(why) => refuse(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why),
        },
        Route::Guest(_) if !is_api => {
            refuse(StatusCode::UNAUTHORIZED, "Unauthorized", "only virt-api is answered here")
        }
        Route::Guest(guest) => match launcher(&guest, launchers).await {
            Ok(launcher) => serve_guest(request, &guest, launcher, launchers, holders).await,
            Err(refusal) => *refusal,
        },
        Route::WrongMethod => {
            refuse(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "the path needs another method")
        }
        Route::Nothing => refuse(StatusCode::NOT_FOUND, "NotFound", "there is no such path"),
    }
}

async fn launcher(guest: &Guest, launchers: &Launchers) -> Result<Launcher, Box<Response<Body>>> {
    let Guest { namespace, name, .. } = guest;
    launchers.wait(namespace, name).await.ok_or_else(|| {
        Box::new(if launchers.knows(namespace, name) {
            let message =
                format!("the launcher of virtualmachineinstance {namespace}/{name} is not connected to yet");
            refuse(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &message)
        } else {
            let message = format!("virtualmachineinstance {namespace}/{name} is not on this node");
            refuse(StatusCode::NOT_FOUND, "NotFound", &message)
        })
    })
}

async fn serve_guest(
    request: Request<Incoming>,
    guest: &Guest,
    launcher: Launcher,
    launchers: &Launchers,
    holders: &StreamHolders,
) -> Response<Body> {
    let stream = match guest.kind {
        Kind::Control(control) => {
            return controls::control(request, guest, control, &launcher, launchers).await;
        }
        Kind::Agent(query) => return controls::answer_query(guest, query, &launcher).await,
        Kind::Screenshot => return controls::screenshot(&request, guest, &launcher).await,
        Kind::Qmp => return qmp::call(request, guest, &launcher).await,
        Kind::QmpStream => return qmp::stream(request, guest, &launcher).await,
        Kind::Debug => return qmp::debug(&launcher).await,
        Kind::Usb => return open_usb(request, guest, &launcher).await,
        Kind::Console => barevirt_protocol::names::STREAM_SERIAL0,
        Kind::Vnc => barevirt_protocol::names::STREAM_VNC,
    };
    let (namespace, name) = (guest.namespace.clone(), guest.name.clone());
    let keep = has_flag(request.uri().query(), "preserveSession");
    if keep && guest.kind == Kind::Vnc && holders.is_held(&namespace, &name, stream) {
        let message = "Active VNC connection. Request denied.";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
    }
    let upgrade = match websocket::Upgrade::read(&request) {
        Ok(upgrade) => upgrade,
        Err(message) => return refuse(StatusCode::BAD_REQUEST, "BadRequest", message),
    };
    // This displaces the previous client, which gets the reason before the launcher disconnects it without
    // one.
    let mut holder = holders.take(&namespace, &name, stream);
    let socket = match take(&launcher, stream).await {
        Ok(socket) => socket,
        Err(refusal) => return *refusal,
    };
    let response = upgrade.answer();
    tokio::spawn(async move {
        info!(namespace, name, stream, "stream opened");
        let taken = async {
            holder.displaced().await;
            websocket::TAKEN
        };
        let ended = websocket::run_until(request, socket, websocket::TAKEN_OR_ENDED, taken).await;
        info!(namespace, name, stream, ended, "stream closed");
    });
    response
}

/// Opens a slot for a USB device. Each client gets a slot of its own and displaces no other client.
async fn open_usb(request: Request<Incoming>, guest: &Guest, launcher: &Launcher) -> Response<Body> {
    let upgrade = match websocket::Upgrade::read(&request) {
        Ok(upgrade) => upgrade,
        Err(message) => return refuse(StatusCode::BAD_REQUEST, "BadRequest", message),
    };
    let stream = barevirt_protocol::names::STREAM_USB;
    let socket = match take(launcher, stream).await {
        Ok(socket) => socket,
        Err(refusal) => return *refusal,
    };
    let (namespace, name) = (guest.namespace.clone(), guest.name.clone());
    tokio::spawn(async move {
        info!(namespace, name, stream, "stream opened");
        let ended = websocket::run(request, socket, websocket::CLOSED).await;
        info!(namespace, name, stream, ended, "stream closed");
    });
    upgrade.answer()
}
