//! Receives the claim of another namespace from the pod that sends it.

use crate::address::Addresses;
use crate::failure::Failure;
use crate::keys;
use crate::url::Url;
use crate::web::{Ask, Web};
use barevirt_import_job::copy::{DISK_PATH, PEER};
use http::header::HeaderMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// The request to the sender at that address.
///
/// # Errors
/// The address is invalid.
pub fn ask(address: &str, port: u16) -> Result<Ask, Failure> {
    let address: IpAddr = address
        .parse()
        .map_err(|error| Failure::Final(format!("the sender's address {address:?}: {error}")))?;
    let url = Url { tls: true, host: address.to_string(), port, path: DISK_PATH.to_owned(), login: None };
    Ok(Ask { url, private: HeaderMap::new(), headers: HeaderMap::new(), signer: None })
}

/// TLS to the sender with that certificate; no other server is accepted. `web` is the general configuration.
///
/// # Errors
/// The key is missing, or the certificate is invalid.
pub fn web(keys: &Path, certificate: &str, web: Web) -> Result<Web, Failure> {
    // Between two pods there is no proxy, and their network is the cluster's.
    let addresses = Addresses { public_only: false, ..web.addresses };
    let tls = keys::client(keys, certificate)?;
    Ok(Web { tls, name: Some(PEER), addresses, proxies: Arc::default(), ..web })
}
