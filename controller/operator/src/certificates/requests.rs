//! Certificate requests of handlers: whether one is granted, and why not. Pure.
//!
//! A handler's certificate names its node, and its holder can be that node's handler and nothing else. So a request is
//! granted only to the handler's service account, and only for the node of the token's pod, which the API server itself adds
//! to the request: a stolen token of a handler cannot be used for another node.

use super::issue::{Profile, Role};
use barevirt_api::names::{
    HANDLER_COMMON_NAME, HANDLER_SIGNER, INSTALL_NAMESPACE, SERVICE_ACCOUNT_HANDLER, handler_host,
};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use rcgen::{CertificateSigningRequestParams, DistinguishedName, DnType, IsCa, PublicKey, SanType};
use std::time::Duration;

/// The pod's node, which the API server adds to requests made with a token that is bound to a pod.
pub const NODE_EXTRA: &str = "authentication.kubernetes.io/node-name";
/// Usages of a handler's certificate, in the words of the API; sorted.
pub const USAGES: [&str; 2] = ["digital signature", "server auth"];
/// How long a request stays after it was granted: its handler looks at it every second.
const TAKEN: Duration = Duration::from_secs(60);
/// How long a request stays after it was denied, so that users can see why.
const DENIED: Duration = Duration::from_secs(600);
/// Length of a key on the curve P-256.
const P256_POINT: usize = 65;

/// The decision about a request.
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// Approve it: it is valid.
    Approve,
    /// Sign this: it is valid and approved.
    Sign(Box<Granted>),
    /// Deny it.
    Deny(Refusal),
    /// Mark it as failed: another client approved it, but it is not signed.
    Fail(Refusal),
    /// Do nothing until then.
    Leave(Option<Duration>),
    /// Delete it: it is not needed any more.
    Delete,
}

/// The certificate to sign.
#[derive(Debug, PartialEq)]
pub struct Granted {
    /// Its profile.
    pub profile: Profile,
    /// The key that it certifies.
    pub key: PublicKey,
}

/// Why a request is not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another user asks.
    #[error("spec.username is {0:?}, and only handlers get this certificate")]
    Requester(String),
    /// The token is not bound to a pod, or the API server does not name its node.
    #[error("spec.extra[{NODE_EXTRA}] does not name one node: the token is not that of a pod")]
    Node,
    /// It asks for other usages.
    #[error("spec.usages are {0:?}, expected {USAGES:?}")]
    Usages(Vec<String>),
    /// The request cannot be decoded.
    #[error("spec.request: {0}")]
    Unreadable(String),
    /// The key is of another type.
    #[error("spec.request: the key is not one of ECDSA on P-256")]
    Key,
    /// The subject is wrong.
    #[error("spec.request: the subject is not CN={HANDLER_COMMON_NAME} alone")]
    Subject,
    /// The names are wrong.
    #[error("spec.request: the names are {found}, expected DNS:{expected} alone")]
    Names {
        /// The requested names.
        found: String,
        /// The names that this node's handler may have.
        expected: String,
    },
    /// It asks for a certificate authority.
    #[error("spec.request: it is for an authority")]
    Authority,
    /// It asks for other usages in the request itself.
    #[error("spec.request: it is for other uses than a server's")]
    Purpose,
}

impl Refusal {
    /// Reason of the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::Requester(_) => "WrongRequester",
            Refusal::Node => "UnknownNode",
            Refusal::Usages(_) | Refusal::Purpose => "WrongUsages",
            Refusal::Unreadable(_) => "UnreadableRequest",
            Refusal::Key => "WrongKey",
            Refusal::Subject => "WrongSubject",
            Refusal::Names { .. } => "WrongNames",
            Refusal::Authority => "WrongBasicConstraints",
        }
    }
}

/// Decides about a request.
pub fn decide(request: &CertificateSigningRequest, now: Timestamp) -> Decision {
    if request.spec.signer_name != HANDLER_SIGNER || request.metadata.deletion_timestamp.is_some() {
        return Decision::Leave(None);
    }
    let after = |since: Option<Timestamp>, stays: Duration| {
        // Without a time it counts as old.
        let age = since.map_or(stays, |since| now.duration_since(since).unsigned_abs());
        match stays.checked_sub(age) {
            Some(rest) if !rest.is_zero() => Decision::Leave(Some(rest)),
            _ => Decision::Delete,
        }
    };
    let condition = |type_: &str| {
        let conditions = request.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().find(|condition| condition.type_ == type_)
    };
    let told = |type_: &str| condition(type_).map(|found| found.last_update_time.as_ref().map(|time| time.0));
    if let Some(since) = told("Denied").or_else(|| told("Failed")) {
        return after(since, DENIED);
    }
    let approved = told("Approved");
    if request.status.as_ref().is_some_and(|status| status.certificate.is_some()) {
        return after(approved.flatten(), TAKEN);
    }
    match (granted(request), approved.is_some()) {
        (Ok(_), false) => Decision::Approve,
        (Ok(granted), true) => Decision::Sign(Box::new(granted)),
        (Err(refusal), false) => Decision::Deny(refusal),
        (Err(refusal), true) => Decision::Fail(refusal),
    }
}

/// The certificate for a valid request.
fn granted(request: &CertificateSigningRequest) -> Result<Granted, Refusal> {
    let spec = &request.spec;
    let handler = format!("system:serviceaccount:{INSTALL_NAMESPACE}:{SERVICE_ACCOUNT_HANDLER}");
    if spec.username.as_ref() != Some(&handler) {
        return Err(Refusal::Requester(spec.username.clone().unwrap_or_default()));
    }
    let nodes = spec.extra.as_ref().and_then(|extra| extra.get(NODE_EXTRA));
    let node = match nodes.map(Vec::as_slice) {
        Some([node]) if !node.is_empty() => node,
        _ => return Err(Refusal::Node),
    };
    let mut usages = spec.usages.clone().unwrap_or_default();
    usages.sort();
    if usages != USAGES {
        return Err(Refusal::Usages(usages));
    }
    let text =
        std::str::from_utf8(&spec.request.0).map_err(|error| Refusal::Unreadable(error.to_string()))?;
    let CertificateSigningRequestParams { params, public_key } =
        CertificateSigningRequestParams::from_pem(text)
            .map_err(|error| Refusal::Unreadable(error.to_string()))?;
    // The algorithm is that of the request's signature; the length of the key confirms the curve.
    let on_p256 = *public_key.algorithm() == rcgen::PKCS_ECDSA_P256_SHA256;
    if !on_p256 || rcgen::PublicKeyData::der_bytes(&public_key).len() != P256_POINT {
        return Err(Refusal::Key);
    }
    if !is_handler(&params.distinguished_name) {
        return Err(Refusal::Subject);
    }
    let host = handler_host(node);
    match params.subject_alt_names.as_slice() {
        [SanType::DnsName(name)] if name.as_str() == host => {}
        names => return Err(Refusal::Names { found: listed(names), expected: host }),
    }
    if matches!(params.is_ca, IsCa::Ca(_)) {
        return Err(Refusal::Authority);
    }
    // If the request itself names no usages, those of the object count.
    let only = |usage: &rcgen::ExtendedKeyUsagePurpose| *usage == rcgen::ExtendedKeyUsagePurpose::ServerAuth;
    let signature = |usage: &rcgen::KeyUsagePurpose| *usage == rcgen::KeyUsagePurpose::DigitalSignature;
    if !params.extended_key_usages.iter().all(only) || !params.key_usages.iter().all(signature) {
        return Err(Refusal::Purpose);
    }
    let profile =
        Profile { common_name: HANDLER_COMMON_NAME.to_owned(), dns_names: vec![host], role: Role::Server };
    Ok(Granted { profile, key: public_key })
}

/// The names for a message; names of other types in their debug form.
fn listed(names: &[SanType]) -> String {
    let words = names.iter().map(|name| match name {
        SanType::DnsName(name) => format!("DNS:{name}"),
        SanType::IpAddress(address) => format!("IP:{address}"),
        other => format!("{other:?}"),
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn is_handler(name: &DistinguishedName) -> bool {
    let mut parts = name.iter();
    let common_name = match parts.next() {
        Some((DnType::CommonName, value)) => value,
        _ => return false,
    };
    let text = match common_name {
        rcgen::DnValue::Utf8String(text) => text.as_str(),
        rcgen::DnValue::PrintableString(text) => text.as_str(),
        _ => return false,
    };
    text == HANDLER_COMMON_NAME && parts.next().is_none()
}

#[cfg(test)]
mod tests;
