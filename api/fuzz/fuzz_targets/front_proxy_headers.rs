//! Headers in which the API server's aggregator names a user. Users choose names and attributes, and a request that bypassed
//! the aggregator may have any header.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::ConfigMap;
use libfuzzer_sys::fuzz_target;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls_pki_types::CertificateDer;
use virt_api::front_proxy::FrontProxy;

thread_local!(static PROXY: (FrontProxy, CertificateDer<'static>) = proxy());

/// An aggregator, and the certificate that it presents.
fn proxy() -> (FrontProxy, CertificateDer<'static>) {
    let key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&key).expect("a certificate").pem();
    let data = [
        ("requestheader-client-ca-file", pem.as_str()),
        ("requestheader-allowed-names", "[]"),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ];
    let data = data.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let map = ConfigMap { data: Some(data), ..ConfigMap::default() };
    let mut leaf = CertificateParams::default();
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let own = KeyPair::generate().expect("a key");
    let leaf = leaf.signed_by(&own, &Issuer::new(authority, key)).expect("a certificate");
    (FrontProxy::from_config_map(&map).expect("a config map"), leaf.der().clone())
}

fuzz_target!(|bytes: &[u8]| {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { continue };
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    PROXY.with(|(proxy, certificate)| {
        assert!(proxy.user(&[], &headers).is_err());
        if let Ok(user) = proxy.user(std::slice::from_ref(certificate), &headers) {
            let said = |name: &str| headers.get_all(name).iter().filter(|value| !value.is_empty()).count();
            assert!(!user.name.is_empty() && said("x-remote-user") > 0);
            assert_eq!(user.groups.len(), said("x-remote-group"));
        }
    });
});
