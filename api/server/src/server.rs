//! The listener: the loop of all our servers, with what virt-api answers.

use std::sync::Arc;

use barevirt_component::server::{Caller, Limits};
use hyper::body::Incoming;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;

use crate::dispatch;
use crate::state::State;

/// Accepts until the future is dropped. Streams of guests have left the loop: their own limits are in [`crate::streams`].
pub async fn serve(state: Arc<State>, listener: TcpListener) {
    let (certificates, proxies) = (state.clone(), state.clone());
    // Of this moment: it changes when certificates are renewed.
    let tls = move || certificates.certificates.server();
    // The aggregator is never put out for a stranger.
    let knows = move |shown: &[CertificateDer<'static>]| {
        proxies.front_proxy.load().as_ref().is_some_and(|front_proxy| front_proxy.trusts(shown).is_ok())
    };
    let answer = move |caller: Caller, request: http::Request<Incoming>| {
        let state = state.clone();
        async move { dispatch::answer(&state, &caller, request).await }
    };
    barevirt_component::server::serve(listener, Limits::BUSY, tls, knows, answer).await;
}
