//! Who requests a change.

/// Who requests a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// One of our own components, by its service account.
    Component,
    /// Anyone else.
    User,
}
