//! The listener of virt-api: the accept loop that all our servers share, with virt-api's answers.

use std::sync::Arc;

use barevirt_component::server::{Caller, Limits};
use hyper::body::Incoming;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;

use crate::dispatch;
use crate::state::State;

/// Accepts connections until the future is dropped. Streams of guests are no longer part of the loop: their
/// limits are in [`crate::streams`].
pub async fn serve(state: Arc<State>, listener: TcpListener) {
    let (certificates, proxies) = (state.clone(), state.clone());
    // The current configuration: it changes when certificates are renewed.
    let tls = move || certificates.certificates.server();
    // The aggregator's connection is never displaced by an unknown client.
    let knows = move |shown: &[CertificateDer<'static>]| {
        proxies.front_proxy.load().as_ref().is_some_and(|front_proxy| front_proxy.trusts(shown).is_ok())
    };
    let answer = move |caller: Caller, request: http::Request<Incoming>| {
        let state = state.clone();
        async move { dispatch::answer(&state, &caller, request).await }
    };
    barevirt_component::server::serve(listener, Limits::BUSY, tls, knows, answer).await;
}
