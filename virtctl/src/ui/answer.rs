//! Answers of the page's server. Pure.

use std::convert::Infallible;

use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::assets::Asset;

/// An answer, complete or streamed.
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// What the page may do: load only its own scripts and make only its own connections. Inline styles are
/// allowed because the terminal uses them.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Why a request failed: a status, and a sentence for the user of the page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl Failure {
    /// A failure that the user can correct.
    pub(super) fn bad(message: impl ToString) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.to_string() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::bad(format!("{error:#}"))
    }
}

/// An answer of these bytes.
pub(super) fn bytes(status: StatusCode, media_type: &'static str, bytes: impl Into<Bytes>) -> Answer {
    with_headers(status, media_type, Full::new(bytes.into()).boxed_unsync())
}

/// An answer with the headers that all answers have.
pub(super) fn with_headers(
    status: StatusCode,
    media_type: &'static str,
    body: UnsyncBoxBody<Bytes, Infallible>,
) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE, media_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// A sentence.
pub(super) fn text(status: StatusCode, text: &str) -> Answer {
    bytes(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

/// An object.
pub(super) fn json(value: &Value) -> Answer {
    bytes(StatusCode::OK, "application/json", value.to_string())
}

/// A file of the page.
pub(super) fn asset(asset: Asset) -> Answer {
    let mut answer = bytes(StatusCode::OK, asset.media_type, Bytes::from_static(asset.bytes));
    answer.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    answer
}

/// A failure, as the page reads it.
pub(super) fn failure(failure: &Failure) -> Answer {
    let mut answer = json(&json!({ "message": failure.message }));
    *answer.status_mut() = failure.status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_page_reads_an_answer() {
        for answer in [text(StatusCode::OK, "a"), json(&json!({})), failure(&Failure::bad("no"))] {
            let headers = answer.headers();
            assert!(headers.keys().all(|name| !name.as_str().starts_with("access-control")), "{headers:?}");
            assert!(
                headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap().contains("default-src 'none'")
            );
            assert_eq!(headers[header::CACHE_CONTROL], "no-store");
        }
    }

    #[test]
    fn a_failure_has_a_message() {
        let error = anyhow::anyhow!("the disk is full").context("save the file");
        assert_eq!(Failure::from(error).message, "save the file: the disk is full");
        assert_eq!(failure(&Failure::bad("no")).status(), StatusCode::BAD_REQUEST);
    }
}
