//! TLS: the trusted authorities.

use crate::failure::Failure;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::path::Path;
use std::sync::Arc;

/// File of the image with the public authorities.
pub const USUAL: &str = "/etc/ssl/certs/ca-certificates.crt";

/// TLS that trusts the authorities in the file `usual` and in the files of `directory`, as far as they exist, and those of the
/// settings, PEM.
///
/// # Errors
/// The directory or the settings contain something else.
pub fn tls(usual: &Path, directory: &Path, settings: &str) -> Result<ClientConfig, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(settings.as_bytes()) {
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::Final(format!("the authorities for importers in the settings cannot be used: {why}"))
        };
        roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
    }
    if let Ok(certificates) = CertificateDer::pem_file_iter(usual) {
        roots.add_parsable_certificates(certificates.flatten());
    }
    for file in files(directory) {
        let wrong = |why: &dyn std::fmt::Display| {
            let name = file.file_name().unwrap_or_default().display();
            Failure::Final(format!("key {name} of the config map with certificates cannot be used: {why}"))
        };
        let certificates = CertificateDer::pem_file_iter(&file).map_err(|error| wrong(&error))?;
        let mut any = false;
        for certificate in certificates {
            roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
            any = true;
        }
        if !any {
            return Err(wrong(&"it has no certificate in it"));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| Failure::Final(format!("prepare TLS: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The files of a mounted secret or config map: not what the kubelet keeps beside them, whose names begin with dots.
#[must_use]
pub fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    files
}
