//! Requests to the API server, each with a deadline; failures keep the server's message.

use std::time::Duration;

use http::{Method, Request, StatusCode, header};
use kube::Client;
use serde_json::Value;
use tokio::time::timeout;

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(20);
/// Largest number of objects of one answer.
const MOST: usize = 500;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The status of the answer; none if the server did not answer.
    pub(crate) status: Option<StatusCode>,
    /// What the server said, or why it did not answer.
    pub(crate) message: String,
}

impl Failure {
    fn here(message: impl ToString) -> Self {
        Self { status: None, message: message.to_string() }
    }

    /// Whether the server may answer differently a moment later: it did not answer, it is overloaded, or one
    /// of its webhooks did not answer.
    pub(crate) fn may_pass(&self) -> bool {
        self.status.is_none_or(|status| {
            status.is_server_error()
                || status == StatusCode::TOO_MANY_REQUESTS
                || status == StatusCode::CONFLICT
        })
    }
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        anyhow::anyhow!(failure.message)
    }
}

/// Sends a request with its body.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    media_type: &str,
    body: Vec<u8>,
) -> Result<Value, Failure> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, media_type)
        .body(body)
        .map_err(Failure::here)?;
    match timeout(REQUEST, client.request::<Value>(request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => {
            Err(Failure { status: StatusCode::from_u16(status.code).ok(), message: status.message.clone() })
        }
        Ok(Err(error)) => Err(Failure::here(error)),
        Err(_) => Err(Failure::here(format!("no answer within {} s", REQUEST.as_secs()))),
    }
}

/// An object, or a list.
pub(crate) async fn get(client: &Client, path: &str) -> Result<Value, Failure> {
    send(client, Method::GET, path, "application/json", Vec::new()).await
}

/// An object, or none if there is no such object or no such kind.
pub(crate) async fn find(client: &Client, path: &str) -> Result<Option<Value>, Failure> {
    match get(client, path).await {
        Ok(object) => Ok(Some(object)),
        Err(Failure { status: Some(StatusCode::NOT_FOUND), .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Objects of a kind: at most 500.
pub(crate) async fn list(client: &Client, path: &str) -> Result<Vec<Value>, Failure> {
    let answer = get(client, &format!("{path}?limit={MOST}")).await?;
    Ok(answer["items"].as_array().cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_failures_are_retried_and_refusals_are_not() {
        let of = |code: u16| {
            Failure { status: StatusCode::from_u16(code).ok(), message: String::new() }.may_pass()
        };
        assert!(of(500) && of(503) && of(429) && of(409) && Failure::here("connection refused").may_pass());
        assert!(!of(403) && !of(404) && !of(422));
    }
}
