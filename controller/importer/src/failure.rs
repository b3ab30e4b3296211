//! Why an import did not succeed.

/// A failure, with operation and subject in its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No other try can help: what was asked for, or what the server has, must change first.
    #[error("{0}")]
    Final(String),
    /// Another try may help.
    #[error("{0}")]
    Passing(String),
}

impl Failure {
    /// Whether no other try can help.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Failure::Final(_))
    }

    /// What the system said to an operation on the claim. A claim without room left stays so.
    pub(crate) fn io(operation: &str, error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Failure::Final(format!(
                "{operation}: no room is left on the claim; ask for a larger one ({error})"
            )),
            _ => Failure::Passing(format!("{operation}: {error}")),
        }
    }
}
