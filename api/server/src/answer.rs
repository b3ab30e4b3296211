//! Answers of this server: JSON, and Kubernetes' `Status` for every error.

use barevirt_component::server::bodies::NotRead;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use serde::Serialize;
use serde_json::json;

/// The one body type of this server. Streams go through upgraded connections, not through bodies.
pub type Answer = Response<Full<Bytes>>;

/// A refusal that the client sees as a Kubernetes `Status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub code: StatusCode,
    /// CamelCase word of Kubernetes' StatusReason.
    pub reason: &'static str,
    /// Message for users.
    pub message: String,
}

impl Refusal {
    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { code: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into() }
    }

    /// 401.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self { code: StatusCode::UNAUTHORIZED, reason: "Unauthorized", message: message.into() }
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { code: StatusCode::FORBIDDEN, reason: "Forbidden", message: message.into() }
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self { code: StatusCode::NOT_FOUND, reason: "NotFound", message: message.into() }
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".to_owned();
        Self { code: StatusCode::METHOD_NOT_ALLOWED, reason: "MethodNotAllowed", message }
    }

    /// 409, in the form of Kubernetes' own conflicts.
    pub fn conflict(resource: &str, name: &str, why: impl std::fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource}.kubevirt.io \"{name}\": {why}");
        Self { code: StatusCode::CONFLICT, reason: "Conflict", message }
    }

    /// 413.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self { code: StatusCode::PAYLOAD_TOO_LARGE, reason: "RequestEntityTooLarge", message: message.into() }
    }

    /// 422: admission refuses a change, or would refuse it.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { code: StatusCode::UNPROCESSABLE_ENTITY, reason: "Invalid", message: message.into() }
    }

    /// 429: a limit is reached.
    pub fn too_many(message: impl Into<String>) -> Self {
        Self { code: StatusCode::TOO_MANY_REQUESTS, reason: "TooManyRequests", message: message.into() }
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        let message = format!("Internal error occurred: {}", message.into());
        Self { code: StatusCode::INTERNAL_SERVER_ERROR, reason: "InternalError", message }
    }

    /// 501: a known call that is not supported yet.
    pub fn not_implemented(what: &str) -> Self {
        let message = format!("{what} is not supported yet");
        Self { code: StatusCode::NOT_IMPLEMENTED, reason: "NotImplemented", message }
    }

    /// 503: not ready yet.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { code: StatusCode::SERVICE_UNAVAILABLE, reason: "ServiceUnavailable", message: message.into() }
    }

    /// 504: a component behind this server did not answer in time.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self { code: StatusCode::GATEWAY_TIMEOUT, reason: "Timeout", message: message.into() }
    }

    /// The API server's error in a call that we made for the client.
    pub fn from_kube(what: &str, error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self::internal(format!("{what}: {error}"));
        };
        match status.code {
            404 => Self::not_found(status.message),
            409 => Self { code: StatusCode::CONFLICT, reason: "Conflict", message: status.message },
            // The `test` of a patch failed: another client changed the object first.
            422 => Self { code: StatusCode::CONFLICT, reason: "Conflict", message: status.message },
            _ => Self::internal(format!("{what}: {}", status.message)),
        }
    }
}

impl From<NotRead> for Refusal {
    fn from(why: NotRead) -> Self {
        let message = why.to_string();
        match why {
            NotRead::TooLarge | NotRead::TooHeavy => Self::too_large(message),
            NotRead::Busy => Self::too_many(message),
            NotRead::Late | NotRead::Broken(_) => Self::bad_request(message),
        }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        let body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": refusal.message,
            "reason": refusal.reason,
            "code": refusal.code.as_u16(),
        });
        json_answer(refusal.code, &body)
    }
}

/// 200 with JSON.
pub fn ok(body: &impl Serialize) -> Answer {
    json_answer(StatusCode::OK, body)
}

/// 202 without a body: the request is recorded, and a controller carries it out.
pub fn accepted() -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::ACCEPTED;
    answer
}

/// 200 without a body: it was done.
pub fn done() -> Answer {
    Response::new(Full::default())
}

/// JSON that is already encoded.
pub fn raw(code: StatusCode, body: Bytes) -> Answer {
    typed(code, "application/json", body)
}

/// A body of this content type.
pub fn typed(code: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    answer
}

fn json_answer(code: StatusCode, body: &impl Serialize) -> Answer {
    // All values that are passed here can be encoded; the worst case is an empty body.
    raw(code, serde_json::to_vec(body).unwrap_or_default().into())
}
