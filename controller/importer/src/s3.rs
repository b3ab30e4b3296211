//! Objects of S3: the canonical address, and the signature of each request (AWS signature, version 4).
//!
//! ```text
//!   request --canonical--> its SHA-256 --with time and region--> text --HMAC, by a key derived from the secret--> Authorization
//! ```
//!
//! Each request is signed when it is made: a signature is valid for minutes, a transfer may take hours.

use crate::checksum::hexadecimal as hex;
use crate::failure::Failure;
use crate::url::Url;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ring::hmac;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// SHA-256 of an empty body.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const DIGEST: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
/// Region of servers whose names contain none.
const USUAL_REGION: &str = "us-east-1";
/// Domain of servers whose names contain their region.
const AMAZON: &str = ".amazonaws.com";

/// Signs requests.
#[derive(Clone)]
pub struct Signer {
    access_key: String,
    secret_key: String,
    region: String,
}

/// The secret is left out.
impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("region", &self.region).finish_non_exhaustive()
    }
}

impl Signer {
    /// A signer with the keys of a secret, for the server of that address.
    ///
    /// # Errors
    /// The keys cannot be sent in a header.
    pub fn new(url: &Url, (access_key, secret_key): (&str, &str)) -> Result<Self, Failure> {
        let (access_key, secret_key) = (access_key.trim(), secret_key.trim());
        if access_key.is_empty() || !access_key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::Final("the access key in the secret cannot be sent".to_owned()));
        }
        Ok(Signer {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            region: region(&url.host).to_owned(),
        })
    }

    /// Signs a request for that address with these header lines and without a body.
    pub(crate) fn sign(&self, headers: &mut HeaderMap, url: &Url, now: SystemTime) {
        let time = Time::of(now);
        headers.insert(DIGEST, HeaderValue::from_static(EMPTY));
        if let Ok(value) = HeaderValue::from_str(&time.long) {
            headers.insert(DATE, value);
        }
        let names = [header::HOST, header::RANGE, DIGEST, DATE];
        let signed: Vec<(&str, &str)> = names
            .iter()
            .filter_map(|name| Some((name.as_str(), headers.get(name)?.to_str().ok()?)))
            .collect();
        let names = signed.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let lines: String = signed.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let (path, query) = url.path.split_once('?').unwrap_or((&url.path, ""));
        let canonical = format!("GET\n{path}\n{query}\n{lines}\n{names}\n{EMPTY}");
        let scope = format!("{}/{}/s3/aws4_request", time.day(), self.region);
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", time.long, hex(&Sha256::digest(canonical)));
        let mut key = format!("AWS4{}", self.secret_key).into_bytes();
        for part in [time.day(), &self.region, "s3", "aws4_request"] {
            key = mac(&key, part);
        }
        let signature = hex(&mac(&key, &text));
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}",
            self.access_key
        );
        // [`Signer::new`] has checked the only part that is not ours.
        if let Ok(mut value) = HeaderValue::from_str(&value) {
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
    }
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

/// The region of a server: Amazon's names contain it.
fn region(host: &str) -> &str {
    let Some(name) = host.strip_suffix(AMAZON) else { return USUAL_REGION };
    let mut labels = name.rsplit('.');
    match (labels.next(), labels.next()) {
        (Some(region), Some("s3" | "dualstack")) => region,
        // `s3-eu-west-1` in older names.
        (Some(last), _) => last.strip_prefix("s3-").unwrap_or(USUAL_REGION),
        (None, _) => USUAL_REGION,
    }
}

/// The address as it is signed: everything but a few characters escaped, the query sorted. A user may have written it with
/// or without escapes.
#[must_use]
pub fn canonical(url: &Url) -> Url {
    let (path, query) = url.path.split_once('?').unwrap_or((&url.path, ""));
    let path = path.split('/').map(escaped).collect::<Vec<_>>().join("/");
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (escaped(name), escaped(value)))
        .collect();
    pairs.sort();
    let query = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&");
    Url { path: if query.is_empty() { path } else { format!("{path}?{query}") }, ..url.clone() }
}

fn escaped(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut escaped = String::new();
    while let Some(byte) = bytes.next() {
        let byte = if byte == b'%' { unescaped(&mut bytes).unwrap_or(byte) } else { byte };
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// The value of two hexadecimal digits, which are consumed if they are valid.
fn unescaped(bytes: &mut std::str::Bytes<'_>) -> Option<u8> {
    let mut ahead = bytes.clone();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (high, low) = (digit(ahead.next()?)?, digit(ahead.next()?)?);
    *bytes = ahead;
    Some(high << 4 | low)
}

/// A time in the form that is signed: `20130524T000000Z`.
struct Time {
    long: String,
}

impl Time {
    fn of(now: SystemTime) -> Self {
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let (days, rest) = (seconds / 86400, seconds % 86400);
        // Days since 1 March of the year 0; with years that begin in March, leap days are at their ends.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        Time { long: format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z") }
    }

    fn day(&self) -> &str {
        self.long.split('T').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Amazon's documentation, "Example: GET Object".
    #[test]
    fn a_request_is_signed_as_amazon_signs_it() {
        let url = canonical(&Url::parse("https://examplebucket.s3.amazonaws.com/test.txt").unwrap());
        let keys = ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\n");
        let signer = Signer::new(&url, keys).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(&url.authority()).unwrap());
        headers.insert(header::RANGE, HeaderValue::from_static("bytes=0-9"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static("is not signed"));
        let may_2013 = SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        signer.sign(&mut headers, &url, may_2013);
        assert_eq!(headers[DATE], "20130524T000000Z");
        assert_eq!(
            headers[header::AUTHORIZATION],
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        assert!(!format!("{signer:?}").contains("wJalr"));
    }

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, expected) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_735_689_599, "20241231T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(Time::of(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).long, expected);
        }
    }

    #[test]
    fn regions_are_in_amazons_names() {
        for (host, expected) in [
            ("s3.amazonaws.com", "us-east-1"),
            ("bucket.s3.amazonaws.com", "us-east-1"),
            ("s3.eu-west-3.amazonaws.com", "eu-west-3"),
            ("bucket.s3.eu-west-3.amazonaws.com", "eu-west-3"),
            ("s3.dualstack.eu-west-3.amazonaws.com", "eu-west-3"),
            ("bucket.s3-eu-west-3.amazonaws.com", "eu-west-3"),
            ("minio.example", "us-east-1"),
            ("10.0.0.1", "us-east-1"),
        ] {
            assert_eq!(region(host), expected, "{host}");
        }
    }

    #[test]
    fn addresses_are_escaped_once() {
        for (path, expected) in [
            ("/bucket/a.img", "/bucket/a.img"),
            ("/bucket/a%20b%2Bc", "/bucket/a%20b%2Bc"),
            ("/bucket/a+b=c", "/bucket/a%2Bb%3Dc"),
            ("/bucket/100%", "/bucket/100%25"),
            ("/b/a?versionId=x/y&a", "/b/a?a=&versionId=x%2Fy"),
        ] {
            let url = Url { tls: false, host: "h".to_owned(), port: 80, path: path.to_owned(), login: None };
            assert_eq!(canonical(&url).path, expected);
        }
    }

    #[test]
    fn keys_that_cannot_be_sent_are_refused() {
        let url = Url::parse("http://h/b/a").unwrap();
        for bad in ["", "a\nb", "a b"] {
            assert!(Signer::new(&url, (bad, "secret")).unwrap_err().is_final(), "{bad:?}");
        }
    }
}
