use super::*;
use crate::certificates::Authority;
use barevirt_component::certificates::ParsedCertificate;
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
};
use serde_json::{Value, json};

const HANDLER: &str = "system:serviceaccount:kubevirt:kubevirt-handler";

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

/// As a handler of node `one` makes it.
fn params() -> CertificateParams {
    let mut params = CertificateParams::new(vec!["one.virt-handler.kubevirt".to_owned()]).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "virt-handler");
    params
}

fn with(change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
    let mut params = params();
    change(&mut params);
    params
}

fn pem(params: &CertificateParams, key: &KeyPair) -> String {
    params.serialize_request(key).unwrap().pem().unwrap()
}

fn object(pem: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "virt-handler-one-abcde"},
        "spec": {
            "signerName": "barevirt.dev/virt-handler",
            "username": HANDLER,
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "extra": {(NODE_EXTRA): ["one"], "authentication.kubernetes.io/pod-name": ["virt-handler-x"]},
            "usages": ["server auth", "digital signature"],
            "request": ByteString(pem.as_bytes().to_vec()),
        },
    })
}

fn usual() -> Value {
    object(&pem(&params(), &KeyPair::generate().unwrap()))
}

fn decided(object: &Value) -> Decision {
    decide(&serde_json::from_value(object.clone()).unwrap(), now())
}

fn approved(mut object: Value, seconds_ago: i64) -> Value {
    let time = Timestamp::from_second(now().as_second() - seconds_ago).unwrap().to_string();
    object["status"] = json!({"conditions": [{
        "type": "Approved", "status": "True", "reason": "x", "lastUpdateTime": time,
    }]});
    object
}

#[test]
fn a_proper_request_is_approved_and_then_signed() {
    let key = KeyPair::generate().unwrap();
    let object = object(&pem(&params(), &key));
    assert_eq!(decided(&object), Decision::Approve);
    let Decision::Sign(granted) = decided(&approved(object, 1)) else { panic!("not signed") };
    let authority = Authority::generate(now(), Duration::from_secs(3600)).unwrap();
    let life = Duration::from_secs(600);
    let certificate = authority.sign(&granted.profile, &granted.key, now(), life).unwrap();
    let seen = ParsedCertificate::first(certificate.as_bytes()).unwrap();
    assert_eq!(seen.dns_names, ["one.virt-handler.kubevirt"]);
    assert_eq!(
        (seen.common_name.as_str(), seen.for_servers, seen.for_clients),
        ("virt-handler", true, false)
    );
    // It is for the requester's key.
    let pair =
        barevirt_component::certificates::Pair::read(certificate.as_bytes(), key.serialize_pem().as_bytes());
    assert!(pair.is_ok(), "{pair:?}");
}

#[test]
fn uses_may_be_named_in_the_request_too() {
    let params = with(|params| {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.is_ca = IsCa::ExplicitNoCa;
    });
    assert_eq!(decided(&object(&pem(&params, &KeyPair::generate().unwrap()))), Decision::Approve);
}

#[test]
fn every_wrong_field_is_denied() {
    let refused = |what: &str, object: &Value, reason: &str, words: &str| {
        let Decision::Deny(refusal) = decided(object) else { panic!("{what}: {:?}", decided(object)) };
        assert_eq!(refusal.reason(), reason, "{what}: {refusal}");
        assert!(refusal.to_string().contains(words), "{what}: {refusal}");
        // A manual approval does not get it signed.
        let by_hand = decided(&approved(object.clone(), 1));
        assert_eq!(by_hand, Decision::Fail(refusal), "{what}");
    };
    let many: [(&str, &str, Value, &str, &str); 15] = [
        ("nobody", "/spec/username", json!(""), "WrongRequester", "spec.username"),
        ("an admin", "/spec/username", json!("kubernetes-admin"), "WrongRequester", "kubernetes-admin"),
        (
            "another component",
            "/spec/username",
            json!("system:serviceaccount:kubevirt:kubevirt-controller"),
            "WrongRequester",
            "kubevirt-controller",
        ),
        (
            "another namespace",
            "/spec/username",
            json!("system:serviceaccount:default:kubevirt-handler"),
            "WrongRequester",
            "default",
        ),
        ("no extra", "/spec/extra", json!({}), "UnknownNode", "not that of a pod"),
        ("no node", "/spec/extra", json!({(NODE_EXTRA): []}), "UnknownNode", NODE_EXTRA),
        ("an empty node", "/spec/extra", json!({(NODE_EXTRA): [""]}), "UnknownNode", NODE_EXTRA),
        ("two nodes", "/spec/extra", json!({(NODE_EXTRA): ["one", "two"]}), "UnknownNode", NODE_EXTRA),
        (
            "another node",
            "/spec/extra",
            json!({(NODE_EXTRA): ["two"]}),
            "WrongNames",
            "two.virt-handler.kubevirt",
        ),
        (
            "a node of a longer name",
            "/spec/extra",
            json!({(NODE_EXTRA): ["one.virt-handler.kubevirt"]}),
            "WrongNames",
            "one.virt-handler.kubevirt.virt-handler.kubevirt",
        ),
        ("no usage", "/spec/usages", json!([]), "WrongUsages", "spec.usages"),
        ("less usages", "/spec/usages", json!(["server auth"]), "WrongUsages", "spec.usages"),
        (
            "client auth",
            "/spec/usages",
            json!(["client auth", "digital signature", "server auth"]),
            "WrongUsages",
            "client auth",
        ),
        (
            "client auth alone",
            "/spec/usages",
            json!(["client auth", "digital signature"]),
            "WrongUsages",
            "client",
        ),
        ("no request", "/spec/request", json!(""), "UnreadableRequest", "spec.request"),
    ];
    for (what, pointer, value, reason, words) in many {
        let mut object = usual();
        *object.pointer_mut(pointer).unwrap() = value;
        refused(what, &object, reason, words);
    }
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let own = "one.virt-handler.kubevirt";
    let subject = |parts: &[(DnType, &str)]| {
        with(|params| {
            params.distinguished_name = DistinguishedName::new();
            for (kind, text) in parts {
                params.distinguished_name.push(kind.clone(), *text);
            }
        })
    };
    let handler = (DnType::CommonName, "virt-handler");
    let organization = (DnType::OrganizationName, "system:masters");
    let many: [(&str, CertificateParams, &str); 14] = [
        (
            "another node's name",
            with(|params| params.subject_alt_names = vec![dns("two.virt-handler.kubevirt")]),
            "WrongNames",
        ),
        (
            "two names",
            with(|params| params.subject_alt_names.push(dns("virt-api.kubevirt.svc"))),
            "WrongNames",
        ),
        ("no name", with(|params| params.subject_alt_names.clear()), "WrongNames"),
        (
            "a wildcard",
            with(|params| params.subject_alt_names = vec![dns("*.virt-handler.kubevirt")]),
            "WrongNames",
        ),
        (
            "other letters",
            with(|params| params.subject_alt_names = vec![dns("ONE.virt-handler.kubevirt")]),
            "WrongNames",
        ),
        (
            "an address",
            with(|params| params.subject_alt_names.push(SanType::IpAddress("10.0.0.1".parse().unwrap()))),
            "WrongNames",
        ),
        (
            "a URI",
            with(|params| params.subject_alt_names = vec![SanType::URI(own.try_into().unwrap())]),
            "WrongNames",
        ),
        (
            "another subject",
            subject(&[(DnType::CommonName, "kubevirt.io:system:client:virt-handler")]),
            "WrongSubject",
        ),
        ("no subject", subject(&[]), "WrongSubject"),
        ("an organization", subject(&[handler.clone(), organization.clone()]), "WrongSubject"),
        ("an organization first", subject(&[organization, handler]), "WrongSubject"),
        (
            "an authority",
            with(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            "WrongBasicConstraints",
        ),
        (
            "a client's use",
            with(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]),
            "WrongUsages",
        ),
        (
            "a signer's use",
            with(|params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign]),
            "WrongUsages",
        ),
    ];
    for (what, params, reason) in many {
        refused(what, &object(&pem(&params, &KeyPair::generate().unwrap())), reason, "spec.request");
    }
    for (what, algorithm) in [("P-384", &PKCS_ECDSA_P384_SHA384), ("Ed25519", &PKCS_ED25519)] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        refused(what, &object(&pem(&params(), &key)), "WrongKey", "P-256");
    }
    // Signed with another key than the one in it.
    let text = pem(&params(), &KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap());
    let middle = text.len() / 2;
    let letter = if text.as_bytes()[middle] == b'A' { "B" } else { "A" };
    let broken = format!("{}{letter}{}", &text[..middle], &text[middle + 1..]);
    let Decision::Deny(_) = decided(&object(&broken)) else { panic!("a broken signature") };
}

#[test]
fn certificate_requests_of_other_signers_are_ignored() {
    let mut object = usual();
    object["spec"]["signerName"] = json!("kubernetes.io/kube-apiserver-client");
    assert_eq!(decided(&object), Decision::Leave(None));
    let mut object = usual();
    object["metadata"]["deletionTimestamp"] = json!("2026-11-21T12:00:00Z");
    assert_eq!(decided(&object), Decision::Leave(None));
}

#[test]
fn requests_are_deleted_once_they_are_answered() {
    let seconds = Duration::from_secs;
    let with = |mut object: Value, field: &str, value: Value| {
        object["status"][field] = value;
        object
    };
    let signed = |ago| with(approved(usual(), ago), "certificate", json!("eA=="));
    assert_eq!(decided(&signed(10)), Decision::Leave(Some(seconds(50))));
    assert_eq!(decided(&signed(60)), Decision::Delete);
    for type_ in ["Denied", "Failed"] {
        let denied = |time: &str| {
            with(usual(), "conditions", json!([{"type": type_, "status": "True", "lastUpdateTime": time}]))
        };
        assert_eq!(decided(&denied("2026-11-21T11:59:00Z")), Decision::Leave(Some(seconds(540))));
        assert_eq!(decided(&denied("2026-11-21T11:50:00Z")), Decision::Delete);
    }
}
