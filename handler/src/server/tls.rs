//! Who calls: the certificate that a client has shown.
//!
//! Our own is made in [`crate::certificate`]; both are followed by [`barevirt_component::certificates`].

use barevirt_api::names::HANDLER_CLIENT_COMMON_NAME;
use barevirt_component::certificates::Seen;
use rustls::ServerConnection;

/// For ALPN.
pub const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// Whether the peer has shown virt-api's certificate. That one of our authorities signed it for a client was checked in the
/// handshake.
pub fn is_virt_api(connection: &ServerConnection) -> bool {
    let leaf = connection.peer_certificates().and_then(|chain| chain.first());
    leaf.and_then(Seen::read).is_some_and(|seen| seen.common_name == HANDLER_CLIENT_COMMON_NAME)
}
