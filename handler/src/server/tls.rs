//! Who calls: the certificate that a client has shown.
//!
//! Our own is made in [`crate::certificate`]; both are followed by [`barevirt_component::certificates`].

use barevirt_api::names::HANDLER_CLIENT_COMMON_NAME;
use barevirt_component::certificates::Seen;
use rustls::pki_types::CertificateDer;

/// For ALPN.
pub const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// Whether a client has shown virt-api's certificate. That one of our authorities signed it for a client was checked in the
/// handshake.
pub fn is_virt_api(shown: &[CertificateDer<'static>]) -> bool {
    shown.first().and_then(Seen::read).is_some_and(|seen| seen.common_name == HANDLER_CLIENT_COMMON_NAME)
}
