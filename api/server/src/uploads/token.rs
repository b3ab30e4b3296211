//! Tokens, each of which lets a client send an image into one claim for a few minutes. Pure.
//!
//! A token contains the namespace, the claim and its end of validity, and a tag that only replicas of
//! virt-api can make, with the key of their certificate ([`Pair::tag`]). So nothing is stored, each replica
//! accepts the tokens of the others, and a token becomes invalid at its end or with the certificate,
//! whichever comes first.

use barevirt_component::certificates::Pair;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Lifetime of a token, in seconds; the same as CDI's.
const LIFE: i64 = 300;
/// Longest token that is parsed, in bytes: two names of 253 bytes and the rest.
const LONGEST: usize = 2048;

/// Content of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claims {
    /// Namespace of the claim.
    pub(super) namespace: String,
    /// Name of the claim.
    pub(super) claim: String,
    /// End of validity, in seconds since 1970.
    until: i64,
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// There is none.
    #[error("a token is needed: Authorization: Bearer, from an UploadTokenRequest")]
    Missing,
    /// Its tag is not ours.
    #[error("the token is not from this cluster")]
    Forged,
    /// It has expired.
    #[error("the token has expired: request another one")]
    Expired,
}

/// The token of a request.
pub(super) fn bearer(headers: &HeaderMap) -> Result<&str, Refused> {
    let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).ok_or(Refused::Missing)?;
    let (scheme, token) = value.split_once(' ').ok_or(Refused::Missing)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(token.trim()) } else { Err(Refused::Missing) }
}

/// A token for this claim.
pub(super) fn issue(pair: &Pair, namespace: &str, claim: &str, now: Timestamp) -> String {
    let until = now.as_second().saturating_add(LIFE);
    let claims = Claims { namespace: namespace.to_owned(), claim: claim.to_owned(), until };
    // Names and numbers always have a JSON form.
    let said = BASE64.encode(serde_json::to_vec(&claims).unwrap_or_default());
    let tag = BASE64.encode(pair.tag(said.as_bytes()));
    format!("{said}.{tag}")
}

/// The content of a token, if it is valid and its tag is ours.
pub(super) fn read(pair: &Pair, token: &str, now: Timestamp) -> Result<Claims, Refused> {
    let (said, tag) = token.split_once('.').filter(|_| token.len() <= LONGEST).ok_or(Refused::Forged)?;
    let tag = BASE64.decode(tag).map_err(|_| Refused::Forged)?;
    if !pair.has_tagged(said.as_bytes(), &tag) {
        return Err(Refused::Forged);
    }
    let said = BASE64.decode(said).map_err(|_| Refused::Forged)?;
    let claims: Claims = serde_json::from_slice(&said).map_err(|_| Refused::Forged)?;
    if claims.until < now.as_second() { Err(Refused::Expired) } else { Ok(claims) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Pair {
        barevirt_component::tls::self_made("virt-api").unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_token_is_for_one_claim_and_five_minutes() {
        let pair = pair();
        let token = issue(&pair, "shop", "disk", at(1000));
        let read = |second| read(&pair, &token, at(second));
        let claims = read(1000).unwrap();
        assert_eq!((claims.namespace.as_str(), claims.claim.as_str()), ("shop", "disk"));
        assert!(read(1300).is_ok());
        assert_eq!(read(1301), Err(Refused::Expired));
    }

    #[test]
    fn forged_tokens_are_refused() {
        let ours = pair();
        let token = issue(&ours, "shop", "disk", at(1000));
        assert_eq!(read(&pair(), &token, at(1000)), Err(Refused::Forged), "of another cluster");
        let (said, tag) = token.split_once('.').unwrap();
        // The content of another token with the same tag.
        let other = issue(&ours, "shop", "other", at(1000));
        let (other, _) = other.split_once('.').unwrap();
        let later = BASE64.encode(br#"{"namespace":"shop","claim":"disk","until":9000000000}"#);
        for forged in [
            format!("{other}.{tag}"),
            format!("{later}.{tag}"),
            format!("{said}."),
            format!("{said}.{}", &tag[..40]),
            format!("{said}.{tag}A"),
            said.to_owned(),
            ".".to_owned(),
            String::new(),
            "x".repeat(1 << 20),
        ] {
            assert_eq!(read(&ours, &forged, at(1000)), Err(Refused::Forged), "{forged:.80}");
        }
    }

    #[test]
    fn only_a_bearer_has_one() {
        let headers = |value: &str| HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(bearer(&headers("Bearer abc")), Ok("abc"));
        assert_eq!(bearer(&headers("bearer abc")), Ok("abc"));
        assert_eq!(bearer(&headers("Basic abc")), Err(Refused::Missing));
        assert_eq!(bearer(&headers("abc")), Err(Refused::Missing));
        assert_eq!(bearer(&HeaderMap::new()), Err(Refused::Missing));
    }
}
