//! Requests to the API server. Each has a deadline, and each failure names its operation and subject and has
//! a category, which decides about the next attempt.

use crate::error::{chain, namespace_ends, response};
use std::time::Duration;

/// Time limit of one request.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Failure of one step of a reconciliation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused the request or could not be reached.
    #[error("cannot {operation} {subject}")]
    Api {
        /// The operation, as a verb.
        operation: &'static str,
        /// Kind and name of the object.
        subject: String,
        /// The error of the client.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("cannot {operation} {subject}: no answer within {} s", .deadline.as_secs())]
    Deadline {
        /// The operation, as a verb.
        operation: &'static str,
        /// Kind and name of the object.
        subject: String,
        /// The time limit.
        deadline: Duration,
    },
    /// An object of another owner has the name that we need.
    #[error("cannot use {subject}: it belongs to {owner}")]
    Foreign {
        /// Kind and name of that object.
        subject: String,
        /// Its owner.
        owner: String,
    },
    /// A whole reconciliation took too long.
    #[error("reconciliation took longer than {} s", .0.as_secs())]
    Overdue(Duration),
}

/// The category of a failure: a label in logs, and the reason for the delay before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Category {
    /// The object changed in the meantime: read it again at once.
    Conflict,
    /// The object no longer exists.
    Gone,
    /// The request is refused (admission, quota, rights). It may be accepted after the user or an
    /// administrator has changed something.
    Refused,
    /// The namespace is being deleted and accepts no new objects: no further attempt is useful.
    Ending,
    /// The API server is busy, unreachable or slow.
    Unavailable,
}

impl Category {
    /// Name for logs.
    pub fn name(self) -> &'static str {
        match self {
            Category::Conflict => "conflict",
            Category::Gone => "gone",
            Category::Refused => "refused",
            Category::Ending => "ending",
            Category::Unavailable => "unavailable",
        }
    }
}

impl Error {
    /// The category of this failure.
    pub fn category(&self) -> Category {
        match self {
            Error::Api { source, .. } if namespace_ends(source) => Category::Ending,
            Error::Api { source, .. } => match response(source).map(|response| response.code) {
                Some(404 | 410) => Category::Gone,
                Some(409) => Category::Conflict,
                Some(429) | None => Category::Unavailable,
                Some(code) if (400..500).contains(&code) => Category::Refused,
                Some(_) => Category::Unavailable,
            },
            Error::Deadline { .. } | Error::Overdue(_) => Category::Unavailable,
            Error::Foreign { .. } => Category::Refused,
        }
    }

    /// The API server's own message if there is one, else the whole chain of errors.
    pub fn message(&self) -> String {
        match self {
            Error::Api { source, .. } => match response(source) {
                Some(response) => response.message.clone(),
                None => chain(self),
            },
            other => chain(other),
        }
    }
}

/// Delay after this many failures in a row: 0.25 s, doubling, at most a minute.
pub fn back_off(failures: u32) -> Duration {
    Duration::from_millis(250)
        .saturating_mul(1u32.checked_shl(failures.saturating_sub(1).min(10)).unwrap_or(u32::MAX))
        .min(Duration::from_secs(60))
}

/// Makes one request. `operation` is a verb, `subject` kind and name of the object; both appear in the
/// failure.
pub async fn call<T>(
    operation: &'static str,
    subject: impl FnOnce() -> String,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::Api { operation, subject: subject(), source: Box::new(source) }),
        Err(_) => Err(Error::Deadline { operation, subject: subject(), deadline: DEADLINE }),
    }
}

/// The same for an object that may be gone: `None` then.
pub async fn call_opt<T>(
    operation: &'static str,
    subject: impl FnOnce() -> String,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<Option<T>, Error> {
    match call(operation, subject, request).await {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|answer| answer.code == 404) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: u16) -> Error {
        let status = serde_json::from_value(serde_json::json!({
            "status": "Failure", "message": "told why", "reason": "X", "code": code
        }))
        .unwrap();
        Error::Api {
            operation: "create",
            subject: "pod a/b".to_owned(),
            source: Box::new(kube::Error::Api(status)),
        }
    }

    #[test]
    fn codes_have_categories() {
        for (code, category) in [
            (404, Category::Gone),
            (409, Category::Conflict),
            (403, Category::Refused),
            (422, Category::Refused),
            (429, Category::Unavailable),
            (500, Category::Unavailable),
        ] {
            assert_eq!(api(code).category(), category, "{code}");
        }
        assert_eq!(api(422).message(), "told why");
    }

    #[test]
    fn a_namespace_that_ends_is_no_refusal() {
        let status = serde_json::from_value(serde_json::json!({
            "status": "Failure", "reason": "Forbidden", "code": 403,
            "message": "pods \"a\" is forbidden: unable to create new content in namespace b because it is being terminated",
            "details": {"name": "a", "kind": "pods", "causes": [
                {"reason": "NamespaceTerminating", "message": "namespace b is being terminated", "field": "metadata.namespace"}
            ]},
        }))
        .unwrap();
        let (operation, subject) = ("create", "pod b/a".to_owned());
        let error = Error::Api { operation, subject, source: Box::new(kube::Error::Api(status)) };
        assert_eq!(error.category(), Category::Ending);
    }

    #[test]
    fn back_off_grows_to_a_minute() {
        assert_eq!(back_off(1), Duration::from_millis(250));
        assert_eq!(back_off(3), Duration::from_secs(1));
        assert_eq!(back_off(40), Duration::from_secs(60));
    }
}
