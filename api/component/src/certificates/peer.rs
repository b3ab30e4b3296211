//! Checks the caller's certificate in calls between servers.

use super::Authorities;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;

/// Whether a caller has shown a certificate of the server of this name that is currently valid and signed by
/// one of the authorities. The handshake has proven that the caller holds the key; the server accepts any
/// certificate there ([`super::Clients::Shown`]), or that of any server ([`super::Clients::Servers`]).
#[must_use]
pub fn is_server_of(shown: &[CertificateDer<'static>], name: &str, authorities: &Authorities) -> bool {
    let Some((leaf, others)) = shown.split_first() else { return false };
    let (Some(provider), Ok(name)) = (CryptoProvider::get_default(), ServerName::try_from(name.to_owned()))
    else {
        return false;
    };
    let verifier =
        WebPkiServerVerifier::builder_with_provider(authorities.roots(), Arc::clone(provider)).build();
    verifier
        .is_ok_and(|verifier| verifier.verify_server_cert(leaf, others, &name, &[], UnixTime::now()).is_ok())
}
