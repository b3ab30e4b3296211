//! The claim of another namespace, from the pod that sends it.

use crate::failure::Failure;
use crate::keys;
use crate::url::Url;
use crate::web::{Ask, Web};
use barevirt_import_job::copy::{DISK_PATH, PEER};
use http::header::HeaderMap;
use std::net::IpAddr;
use std::path::Path;

/// What is asked of the sender at that address.
///
/// # Errors
/// When it is none.
pub fn ask(address: &str, port: u16) -> Result<Ask, Failure> {
    let address: IpAddr = address
        .parse()
        .map_err(|error| Failure::Final(format!("the sender's address {address:?}: {error}")))?;
    let url = Url { tls: true, host: address.to_string(), port, path: DISK_PATH.to_owned(), login: None };
    Ok(Ask { url, private: HeaderMap::new(), headers: HeaderMap::new(), signer: None })
}

/// The way to the sender with that certificate: nobody else is believed to be it. `web` is the usual way.
///
/// # Errors
/// When there is no key, or the certificate is none.
pub fn web(keys: &Path, certificate: &str, web: Web) -> Result<Web, Failure> {
    Ok(Web { tls: keys::client(keys, certificate)?, name: Some(PEER), ..web })
}
