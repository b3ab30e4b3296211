//! The client that requests a change.

/// The client that requests a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// One of our own components, by its service account.
    Component,
    /// Any other client.
    User,
}
