//! Objects as they are in the cluster, as far as it matters.

use super::rollout::Rollout;

/// By what a change of an object is noticed: its generation where it has one, which others' reports do not move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `metadata.generation`.
    Generation(i64),
    /// `metadata.resourceVersion`.
    Version(String),
}

/// An object as it is in the cluster, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its identity in time.
    pub uid: String,
    /// Its state.
    pub mark: Mark,
    /// What was applied to it, if it was us.
    pub hash: Option<String>,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// How far its pods are, where it has pods.
    pub rollout: Option<Rollout>,
}
