//! Failures of an import.

use tokio::task::JoinHandle;

/// A failure, with operation and subject in its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No retry can help: the request, or the contents of the server, must change first.
    #[error("{0}")]
    Final(String),
    /// A retry may help.
    #[error("{0}")]
    Passing(String),
}

impl Failure {
    /// Whether no retry can help.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Failure::Final(_))
    }

    /// A failed operation on the claim. A full claim stays full, so that failure is final.
    pub(crate) fn io(operation: &str, error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Failure::Final(format!(
                "{operation}: no room is left on the claim; ask for a larger one ({error})"
            )),
            _ => Failure::Passing(format!("{operation}: {error}")),
        }
    }
}

/// The result of work on another thread.
pub(crate) async fn joined<T>(work: JoinHandle<Result<T, Failure>>) -> Result<T, Failure> {
    work.await
        .unwrap_or_else(|error| Err(Failure::Passing(format!("the import ended unexpectedly: {error}"))))
}
