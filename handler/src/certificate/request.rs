//! A certificate request, the answer to it, and when another one is due. Pure.

use barevirt_api::names::{HANDLER_COMMON_NAME, HANDLER_SIGNER, handler_host};
use barevirt_component::certificates::{CertificateError, Pair, ParsedCertificate};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};

/// What the certificate is for, in the words of the API.
const USAGES: [&str; 2] = ["digital signature", "server auth"];
/// How long the bundle may lag behind the authority that signed our certificate, in seconds: the kubelet
/// updates the mounted bundle later.
const BEHIND: i64 = 120;

/// A key and the certificate request made with it.
pub(super) struct Request {
    key: KeyPair,
    pem: String,
}

impl Request {
    /// Makes a new key and a request for the handler of `node`.
    pub(super) fn new(node: &str) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::new(vec![handler_host(node)])?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, HANDLER_COMMON_NAME);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let pem = params.serialize_request(&key)?.pem()?;
        Ok(Request { key, pem })
    }

    /// The object that is sent. It does not contain the key. The API server shortens a long name and makes it
    /// unique.
    pub(super) fn object(&self, node: &str) -> CertificateSigningRequest {
        CertificateSigningRequest {
            metadata: ObjectMeta {
                generate_name: Some(format!("virt-handler-{node}-")),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                signer_name: HANDLER_SIGNER.to_owned(),
                usages: Some(USAGES.map(str::to_owned).to_vec()),
                request: ByteString(self.pem.clone().into_bytes()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        }
    }

    /// Combines the key with its certificate.
    pub(super) fn with(&self, certificate: &[u8]) -> Result<Pair, CertificateError> {
        Pair::read(certificate, self.key.serialize_pem().as_bytes())
    }
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// There is no answer yet.
    None,
    /// The request was denied or could not be signed, for this reason.
    Refused(String),
    /// The certificate, as PEM.
    Issued(Vec<u8>),
}

pub(super) fn answer(request: &CertificateSigningRequest) -> Answer {
    let Some(status) = &request.status else { return Answer::None };
    let mut conditions = status.conditions.iter().flatten();
    if let Some(refused) = conditions.find(|found| matches!(found.type_.as_str(), "Denied" | "Failed")) {
        let words = [&refused.reason, &refused.message].map(|text| text.clone().unwrap_or_default());
        return Answer::Refused(words.join(": "));
    }
    match &status.certificate {
        Some(certificate) if !certificate.0.is_empty() => Answer::Issued(certificate.0.clone()),
        Some(_) | None => Answer::None,
    }
}

/// Whether a new certificate is due. `newest` is the key of the authority that signs now, as far as the
/// bundle shows. `changed` says whether the bundle has changed since the current certificate was received,
/// `age` seconds ago.
pub(super) fn is_due(
    own: &ParsedCertificate,
    newest: Option<&[u8]>,
    changed: bool,
    age: i64,
    now: i64,
) -> bool {
    let signed_by_newest = newest.is_none_or(|newest| newest == own.issuer_key_id);
    now >= own.last_fifth() || !signed_by_newest && (changed || age >= BEHIND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateSigningRequestParams, SanType};
    use serde_json::{Value, json};

    #[test]
    fn a_certificate_request_names_the_node_and_contains_no_key() {
        let request = Request::new("node-1.example").unwrap();
        let object = request.object("node-1.example");
        assert_eq!(object.metadata.generate_name.as_deref(), Some("virt-handler-node-1.example-"));
        assert_eq!(object.spec.signer_name, "barevirt.dev/virt-handler");
        let text = String::from_utf8(object.spec.request.0.clone()).unwrap();
        assert!(text.starts_with("-----BEGIN CERTIFICATE REQUEST-----"));
        assert!(!serde_json::to_string(&object).unwrap().contains("PRIVATE"));
        let params = CertificateSigningRequestParams::from_pem(&text).unwrap().params;
        let name = "node-1.example.virt-handler.kubevirt".try_into().unwrap();
        assert_eq!(params.subject_alt_names, [SanType::DnsName(name)]);
        // Each request has a key of its own.
        assert_ne!(Request::new("a").unwrap().pem, Request::new("a").unwrap().pem);
    }

    #[test]
    fn a_certificate_requests_result_is_read() {
        let of = |status: Value| {
            let mut object = serde_json::to_value(Request::new("a").unwrap().object("a")).unwrap();
            object["status"] = status;
            answer(&serde_json::from_value(object).unwrap())
        };
        let approved = json!({"type": "Approved", "status": "True", "reason": "x"});
        assert_eq!(of(json!({})), Answer::None);
        assert_eq!(of(json!({"conditions": [approved]})), Answer::None);
        assert_eq!(
            of(json!({"conditions": [approved], "certificate": "eA=="})),
            Answer::Issued(b"x".to_vec())
        );
        for type_ in ["Denied", "Failed"] {
            let refused =
                json!({"type": type_, "status": "True", "reason": "WrongNames", "message": "told why"});
            let wanted = Answer::Refused("WrongNames: told why".to_owned());
            assert_eq!(of(json!({"conditions": [approved, refused]})), wanted);
        }
    }

    #[test]
    fn another_is_due_in_the_last_fifth_or_when_another_authority_signs() {
        let own = ParsedCertificate {
            not_before: 0,
            not_after: 1000,
            issuer_key_id: vec![1],
            ..ParsedCertificate::default()
        };
        for (newest, changed, age, now, due) in [
            (Some([1]), false, 0, 799, false),
            (Some([1]), false, 0, 800, true),
            (Some([1]), true, 500, 500, false),
            (None, true, 500, 500, false),
            (Some([2]), true, 0, 10, true),
            // The bundle lags behind the authority that signed.
            (Some([2]), false, 119, 200, false),
            (Some([2]), false, 120, 200, true),
        ] {
            let newest = newest.as_ref().map(|key| key.as_slice());
            assert_eq!(is_due(&own, newest, changed, age, now), due, "{newest:?} {changed} {age} {now}");
        }
    }
}
