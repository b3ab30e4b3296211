//! Requests of handlers for certificates: whether one is granted, and why not. Pure.
//!
//! A handler's certificate names its node, and who has it can be that node's handler and nothing else. So a request is granted
//! only to the handler's service account, and only for the node that the API server itself says the token's pod is on:
//! whoever steals a handler's token cannot become the handler of another node.

use super::issue::{Profile, Role};
use barevirt_api::names::{
    HANDLER_COMMON_NAME, HANDLER_SIGNER, INSTALL_NAMESPACE, SERVICE_ACCOUNT_HANDLER, handler_host,
};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use rcgen::{CertificateSigningRequestParams, DistinguishedName, DnType, IsCa, PublicKey, SanType};
use std::time::Duration;

/// What the API server writes into requests made with a token that is bound to a pod: the pod's node.
pub const NODE_EXTRA: &str = "authentication.kubernetes.io/node-name";
/// What a handler's certificate is for, in the words of the API; sorted.
pub const USAGES: [&str; 2] = ["digital signature", "server auth"];
/// How long a request stays after it was granted: its handler looks every second.
const TAKEN: Duration = Duration::from_secs(60);
/// How long a request stays after it was denied, for people to see why.
const DENIED: Duration = Duration::from_secs(600);
/// Length of a key on the curve P-256.
const P256_POINT: usize = 65;

/// What to do about a request.
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// To approve it: it is as it should be.
    Approve,
    /// To sign this: it is as it should be, and approved.
    Sign(Box<Granted>),
    /// To deny it.
    Deny(Refusal),
    /// It was approved by somebody else, and is not signed.
    Fail(Refusal),
    /// Nothing, until then.
    Leave(Option<Duration>),
    /// To delete it: it has served.
    Delete,
}

/// What is signed.
#[derive(Debug, PartialEq)]
pub struct Granted {
    /// What the certificate says.
    pub profile: Profile,
    /// The key that it is for.
    pub key: PublicKey,
}

/// Why a request is not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Somebody else asks.
    #[error("spec.username is {0:?}, and only handlers get this certificate")]
    Requester(String),
    /// The token was bound to no pod, or the API server does not tell of which node.
    #[error("spec.extra[{NODE_EXTRA}] does not name one node: the token is not that of a pod")]
    Node,
    /// It is asked for other uses.
    #[error("spec.usages are {0:?}, expected {USAGES:?}")]
    Usages(Vec<String>),
    /// The request itself.
    #[error("spec.request: {0}")]
    Unreadable(String),
    /// Its key.
    #[error("spec.request: the key is not one of ECDSA on P-256")]
    Key,
    /// Its subject.
    #[error("spec.request: the subject is not CN={HANDLER_COMMON_NAME} alone")]
    Subject,
    /// Its names.
    #[error("spec.request: the names are {found}, expected DNS:{expected} alone")]
    Names {
        /// What was asked for.
        found: String,
        /// What this node's handler may have.
        expected: String,
    },
    /// It wants to sign others.
    #[error("spec.request: it is for an authority")]
    Authority,
    /// It asks for uses in the request itself, which are others.
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

/// Decides.
pub fn decide(request: &CertificateSigningRequest, now: Timestamp) -> Decision {
    if request.spec.signer_name != HANDLER_SIGNER || request.metadata.deletion_timestamp.is_some() {
        return Decision::Leave(None);
    }
    let after = |since: Option<Timestamp>, stays: Duration| {
        // Without a time it is as good as old.
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

/// What the request may have.
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
    // The algorithm is that of the request's signature, which the length of the key completes.
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
    // Where the request itself says nothing of uses, those of the object stand.
    let only = |usage: &rcgen::ExtendedKeyUsagePurpose| *usage == rcgen::ExtendedKeyUsagePurpose::ServerAuth;
    let signature = |usage: &rcgen::KeyUsagePurpose| *usage == rcgen::KeyUsagePurpose::DigitalSignature;
    if !params.extended_key_usages.iter().all(only) || !params.key_usages.iter().all(signature) {
        return Err(Refusal::Purpose);
    }
    let profile =
        Profile { common_name: HANDLER_COMMON_NAME.to_owned(), dns_names: vec![host], role: Role::Server };
    Ok(Granted { profile, key: public_key })
}

/// For people; what is no name of a host as it comes.
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
