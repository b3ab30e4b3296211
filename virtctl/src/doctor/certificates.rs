//! Findings about the installation's certificates: whether each is valid, and whether its renewal is late. Their keys are
//! not kept.

use barevirt_api::rotation::{Lifetime, Rotation};
use k8s_openapi::ByteString;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::Value;
use x509_parser::pem::Pem;

use super::findings::{Facts, Finding, Kept};
use crate::ask;

const AREA: &str = "certificates";
/// Objects of the installation's namespace.
const OBJECTS: &str = "/api/v1/namespaces/kubevirt";
/// Secrets with a certificate, and whose it is.
const SECRETS: [(&str, &str); 4] = [
    ("kubevirt-virt-api-certs", "virt-api"),
    ("kubevirt-controller-certs", "virt-controller"),
    ("kubevirt-operator-certs", "virt-operator"),
    ("kubevirt-virt-handler-certs", "virt-api as a client of virt-handler"),
];
/// Config map with the authorities.
const AUTHORITIES: (&str, &str) = ("kubevirt-ca", "ca-bundle");
const REMEDY: &str = "virt-operator renews it; its log says why it did not: \
                      kubectl -n kubevirt logs -l kubevirt.io=virt-operator; check this machine's clock, too";

/// Reads the certificates.
pub(super) async fn gather(client: &Client) -> Vec<Kept> {
    let mut found = Vec::new();
    let (map, key) = AUTHORITIES;
    let text = |object: Value| object["data"][key].as_str().unwrap_or_default().to_owned();
    let pem = ask::find(client, &format!("{OBJECTS}/configmaps/{map}")).await;
    let pem = pem.map(|object| object.map(text)).map_err(|failure| failure.message);
    found.push(Kept { of: "the authority", is_authority: true, pem });
    for (secret, of) in SECRETS {
        let pem = ask::find(client, &format!("{OBJECTS}/secrets/{secret}")).await;
        let pem = pem.map(|object| object.map(certificate)).map_err(|failure| failure.message);
        found.push(Kept { of, is_authority: false, pem });
    }
    found
}

/// The certificate of a secret; empty if it has none.
fn certificate(secret: Value) -> String {
    let encoded = secret.pointer("/data/tls.crt").cloned().unwrap_or_default();
    let bytes = serde_json::from_value::<ByteString>(encoded);
    bytes.ok().and_then(|ByteString(bytes)| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Validity {
    from: Timestamp,
    to: Timestamp,
}

/// The longest validity in a PEM text: a bundle has former authorities, too.
fn validity(pem: &str) -> Option<Validity> {
    let read = |pem: Pem| {
        let certificate = pem.parse_x509().ok()?;
        let time = |at: i64| Timestamp::from_second(at).ok();
        Some(Validity {
            from: time(certificate.validity().not_before.timestamp())?,
            to: time(certificate.validity().not_after.timestamp())?,
        })
    };
    Pem::iter_from_buffer(pem.as_bytes()).filter_map(Result::ok).filter_map(read).max_by_key(|found| found.to)
}

/// What is wrong with certificates; otherwise until when all of them are valid.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let kubevirt = facts.installations.as_ref().ok().and_then(|all| all.first());
    let spec = kubevirt.and_then(|kubevirt| serde_json::from_value(kubevirt["spec"].clone()).ok());
    let rotation = spec.map_or_else(Rotation::default, |spec| Rotation::of(&spec));
    let (mut found, mut unread, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for Kept { of, is_authority, pem } in &facts.certificates {
        match pem {
            Err(why) => unread.push((*of, why)),
            Ok(pem) => {
                let lifetime = if *is_authority { rotation.authority } else { rotation.leaf };
                match wrong(of, pem.as_deref(), lifetime, facts.now) {
                    Ok(end) => ends.push(end),
                    Err(finding) => found.push(finding),
                }
            }
        }
    }
    if let Some((_, why)) = unread.first() {
        let of: Vec<&str> = unread.iter().map(|(of, _)| *of).collect();
        let says = format!("certificates cannot be read ({}): {why}", of.join(", "));
        found.push(Finding::unknown(AREA, says));
    }
    if let (true, Some(first)) = (found.is_empty(), ends.iter().min()) {
        found.push(Finding::good(AREA, format!("{} are valid, the first until {first}", ends.len())));
    }
    found
}

/// The end of a certificate, or what is wrong with it.
fn wrong(of: &str, pem: Option<&str>, lifetime: Lifetime, now: Timestamp) -> Result<Timestamp, Finding> {
    let Some(Validity { from, to }) = pem.and_then(validity) else {
        let says = format!("there is no certificate of {of}");
        return Err(Finding::problem(AREA, says, REMEDY));
    };
    let late = SignedDuration::try_from(lifetime.renew_before / 2).unwrap_or(SignedDuration::ZERO);
    if now < from {
        Err(Finding::problem(AREA, format!("the certificate of {of} is not valid before {from}"), REMEDY))
    } else if now >= to {
        Err(Finding::problem(AREA, format!("the certificate of {of} has expired: {to}"), REMEDY))
    } else if to.duration_since(now) < late {
        let says = format!("the certificate of {of} expires soon, and its renewal is late: {to}");
        Err(Finding::warning(AREA, says, REMEDY))
    } else {
        Ok(to)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::findings::Severity;
    use super::super::installation::tests::facts;
    use super::*;
    use serde_json::json;

    /// A certificate that is valid from and to these seconds since 1970.
    pub(in super::super) fn made(from: i64, to: i64) -> String {
        let time =
            |at: i64| rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(at.unsigned_abs());
        let mut parameters = rcgen::CertificateParams::new(vec!["virt-api".to_owned()]).unwrap();
        (parameters.not_before, parameters.not_after) = (time(from), time(to));
        parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    const HOUR: i64 = 3600;
    const DAY: i64 = 24 * HOUR;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The finding about a certificate of a day, looked at after so many seconds.
    fn after(seconds: i64) -> Finding {
        let mut facts = facts();
        facts.certificates =
            vec![Kept { of: "virt-api", is_authority: false, pem: Ok(Some(made(DAY, 2 * DAY))) }];
        facts.now = at(DAY + seconds);
        let mut found = findings(&facts);
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    #[test]
    fn a_certificate_that_has_expired_or_soon_will_has_a_remedy() {
        assert_eq!(after(HOUR).severity, Severity::Good);
        assert!(after(HOUR).says.contains("1970-01-03T00:00:00Z"), "{}", after(HOUR).says);
        // virt-operator renews it when a fifth of its life is left, 4.8 hours.
        assert_eq!(after(DAY - 4 * HOUR).severity, Severity::Good);
        for (seconds, severity, says) in [
            (DAY - 2 * HOUR, Severity::Warning, "of virt-api expires soon"),
            (DAY, Severity::Problem, "of virt-api has expired"),
            (-1, Severity::Problem, "of virt-api is not valid before"),
        ] {
            let found = after(seconds);
            assert_eq!(found.severity, severity);
            assert!(
                found.says.contains(says) && found.remedy.unwrap().contains("virt-operator"),
                "{}",
                found.says
            );
        }
    }

    #[test]
    fn lifetimes_are_those_of_the_installation() {
        let mut facts = facts();
        facts.certificates =
            vec![Kept { of: "virt-api", is_authority: false, pem: Ok(Some(made(DAY, 2 * DAY))) }];
        facts.now = at(2 * DAY - HOUR);
        assert_eq!(findings(&facts)[0].severity, Severity::Warning);
        facts.installations.as_mut().unwrap()[0]["spec"] = json!({"certificateRotateStrategy": {"selfSigned": {
            "server": {"duration": "24h", "renewBefore": "10m"},
        }}});
        assert_eq!(findings(&facts)[0].severity, Severity::Good);
    }

    #[test]
    fn the_newest_authority_counts() {
        let bundle = format!("{}{}", made(0, DAY), made(DAY, 8 * DAY));
        let kept =
            |pem: &str| Kept { of: "the authority", is_authority: true, pem: Ok(Some(pem.to_owned())) };
        let mut facts = facts();
        facts.now = at(2 * DAY);
        facts.certificates = vec![kept(&bundle)];
        assert_eq!(findings(&facts)[0].severity, Severity::Good);
        facts.certificates = vec![kept(&made(0, DAY))];
        assert_eq!(findings(&facts)[0].severity, Severity::Problem);
    }

    #[test]
    fn what_is_missing_is_a_problem_and_what_may_not_be_read_is_unknown() {
        let mut facts = facts();
        facts.certificates = vec![
            Kept { of: "a", is_authority: false, pem: Ok(None) },
            Kept { of: "b", is_authority: false, pem: Ok(Some("nothing".to_owned())) },
            Kept { of: "c", is_authority: false, pem: Err("secrets is forbidden".to_owned()) },
            Kept { of: "d", is_authority: false, pem: Err("secrets is forbidden".to_owned()) },
        ];
        let found = findings(&facts);
        let severities: Vec<Severity> = found.iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Severity::Problem, Severity::Problem, Severity::Unknown]);
        assert!(found[2].says.contains("(c, d)"), "{}", found[2].says);
    }

    #[test]
    fn the_key_of_a_secret_is_not_kept() {
        let pem = made(0, DAY);
        let encoded = serde_json::to_value(ByteString(pem.clone().into_bytes())).unwrap();
        assert_eq!(certificate(json!({"data": {"tls.crt": encoded, "tls.key": "c2VjcmV0"}})), pem);
        assert_eq!(certificate(json!({"data": {}})), "");
    }
}
