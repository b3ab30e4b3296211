//! Answers: text, JSON, and errors in the form that Kubernetes clients read.

use http::{Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::json;

/// Body of every answer.
pub type Body = Full<Bytes>;

/// A line of text.
pub fn text(code: StatusCode, text: &'static str) -> Response<Body> {
    answer(code, "text/plain", Bytes::from_static(text.as_bytes()))
}

/// An answer of encoded JSON.
pub fn json(code: StatusCode, json: Vec<u8>) -> Response<Body> {
    answer(code, "application/json", Bytes::from(json))
}

/// An error, as a `Status` of the Kubernetes API.
pub fn refuse(code: StatusCode, reason: &str, message: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code.as_u16(),
    });
    json(code, status.to_string().into_bytes())
}

fn answer(code: StatusCode, kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}
