//! Checks the certificate that a client presents.
//!
//! The server's own certificate comes from [`crate::certificate`]; [`barevirt_component::certificates`]
//! follows changes of both.

use barevirt_api::names::HANDLER_CLIENT_COMMON_NAME;
use barevirt_component::certificates::ParsedCertificate;
use rustls::pki_types::CertificateDer;

/// Protocols for ALPN.
pub const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// Whether a client has presented virt-api's certificate. The handshake has already checked that one of our
/// authorities signed it for a client.
pub fn is_virt_api(shown: &[CertificateDer<'static>]) -> bool {
    shown
        .first()
        .and_then(ParsedCertificate::read)
        .is_some_and(|seen| seen.common_name == HANDLER_CLIENT_COMMON_NAME)
}
