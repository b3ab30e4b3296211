//! The observed state of objects in the cluster.

use super::rollout::Rollout;

/// Shows whether an object has changed: its generation if it has one, which status reports do not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `metadata.generation`.
    Generation(i64),
    /// `metadata.resourceVersion`.
    Version(String),
}

/// The observed state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedObject {
    /// Its UID.
    pub uid: String,
    /// Its generation or version.
    pub mark: Mark,
    /// Hash of the applied contents, if we applied it.
    pub hash: Option<String>,
    /// Generation of the `KubeVirt` object that we last wrote it for.
    pub generation: Option<String>,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// The progress of its pods, if it has pods.
    pub rollout: Option<Rollout>,
}
