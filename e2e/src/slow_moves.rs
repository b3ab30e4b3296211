//! Migrations of one namespace that are slow, so that a test can interfere.

use crate::command::kubectl;
use crate::namespace::Namespace;
use anyhow::Result;
use serde_json::{Value, json};

/// A policy that is deleted when this is dropped.
pub struct SlowMoves(String);

impl SlowMoves {
    /// Limits migrations of this namespace to that bandwidth, a quantity of bytes per second.
    ///
    /// # Errors
    /// When the API server refuses the policy.
    pub fn begin(namespace: &Namespace, bandwidth: &str) -> Result<Self> {
        Self::apply(namespace, json!({ "bandwidthPerMigration": bandwidth }))
    }

    /// The same, and allows post-copy after ten seconds.
    ///
    /// # Errors
    /// When the API server refuses the policy.
    pub fn with_post_copy(namespace: &Namespace, bandwidth: &str) -> Result<Self> {
        Self::apply(
            namespace,
            json!({
                "allowPostCopy": true, "bandwidthPerMigration": bandwidth, "completionTimeoutPerGiB": 10,
            }),
        )
    }

    fn apply(namespace: &Namespace, mut spec: Value) -> Result<Self> {
        let name = namespace.name();
        spec["selectors"] = json!({ "namespaceSelector": { "kubernetes.io/metadata.name": name } });
        namespace.apply(&json!({
            "apiVersion": "migrations.kubevirt.io/v1alpha1", "kind": "MigrationPolicy",
            "metadata": { "name": name }, "spec": spec,
        }))?;
        Ok(Self(name.to_owned()))
    }
}

impl Drop for SlowMoves {
    fn drop(&mut self) {
        if let Err(error) = kubectl(&["delete", "migrationpolicy", &self.0, "--ignore-not-found"]) {
            eprintln!("cannot delete the policy {}: {error:#}", self.0);
        }
    }
}
