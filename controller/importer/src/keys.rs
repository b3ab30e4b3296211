//! The key that a pod makes for itself; and TLS of the two pods of a copy, in which each accepts only the other's certificate.

use crate::failure::Failure;
use barevirt_import_job::copy::{CERTIFICATE, KEY, LONGEST_CERTIFICATE, RECEIVER_FILE};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// Longest key, in bytes.
const LONGEST: usize = 64 << 10;

fn wrong(why: &dyn std::fmt::Display) -> Failure {
    Failure::Final(format!("prepare TLS: {why}"))
}

fn read(directory: &Path, name: &str, most: usize) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::Passing(format!("read {name}: {error}"));
    let mut text = String::new();
    let file = File::open(directory.join(name)).map_err(failed)?;
    file.take(most as u64).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Makes a key and its certificate for that name in a directory, unless they exist; returns the certificate, PEM.
///
/// # Errors
/// They cannot be made.
pub fn make(directory: &Path, name: &str) -> Result<String, Failure> {
    if directory.join(CERTIFICATE).exists() {
        return read(directory, CERTIFICATE, LONGEST_CERTIFICATE);
    }
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).map_err(|error| wrong(&error))?;
    let certificate = made.cert.pem();
    // The key first, so that every certificate has its key.
    for (name, text) in [(KEY, made.signing_key.serialize_pem()), (CERTIFICATE, certificate.clone())] {
        let unfinished = directory.join(format!(".{name}"));
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| std::fs::rename(&unfinished, directory.join(name)));
        written.map_err(|error| Failure::Passing(format!("write {name}: {error}")))?;
    }
    Ok(certificate)
}

/// The certificate of the importer that a sender serves.
///
/// # Errors
/// It is not known yet.
pub fn of_receiver(directory: &Path) -> Result<String, Failure> {
    let text = read(directory, RECEIVER_FILE, LONGEST_CERTIFICATE)?;
    let unknown = || Failure::Passing("the importer is not known yet".to_owned());
    if text.trim().is_empty() { Err(unknown()) } else { Ok(text) }
}

/// The key in a directory, with its certificate.
pub(crate) fn own(
    directory: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Failure> {
    let certificate = read(directory, CERTIFICATE, LONGEST_CERTIFICATE)?;
    let key = read(directory, KEY, LONGEST)?;
    let certificate =
        CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|error| wrong(&error))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| wrong(&error))?;
    Ok((vec![certificate], key))
}

fn only(peer: &str) -> Result<Arc<RootCertStore>, Failure> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(peer.as_bytes()).map_err(|error| wrong(&error))?;
    roots.add(certificate).map_err(|error| wrong(&error))?;
    Ok(Arc::new(roots))
}

/// TLS of a sender with the keys of that directory, for the importer with that certificate.
///
/// # Errors
/// A key or certificate is missing or unusable.
pub fn server(directory: &Path, receiver: &str) -> Result<Arc<ServerConfig>, Failure> {
    let (certificate, key) = own(directory)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let receiver = WebPkiClientVerifier::builder_with_provider(only(receiver)?, provider.clone()).build();
    let receiver = receiver.map_err(|error| wrong(&error))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|config| config.with_client_cert_verifier(receiver).with_single_cert(certificate, key));
    config.map(Arc::new).map_err(|error| wrong(&error))
}

/// TLS of an importer with the keys of that directory, for the sender with that certificate.
///
/// # Errors
/// A key or certificate is missing or unusable.
pub fn client(directory: &Path, sender: &str) -> Result<Arc<ClientConfig>, Failure> {
    let (certificate, key) = own(directory)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| wrong(&error))?
        .with_root_certificates(only(sender)?)
        .with_client_auth_cert(certificate, key);
    config.map(Arc::new).map_err(|error| wrong(&error))
}
