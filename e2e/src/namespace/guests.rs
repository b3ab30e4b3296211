//! Guests of a namespace: their pods, their addresses, and their moves.

use super::Namespace;
use crate::condition;
use crate::wait::{MOVED, SOON};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

impl Namespace {
    /// The launcher pod of a VMI that has not ended: that of its node, once it has one, since the pod that a guest has left takes a
    /// moment to end.
    pub fn launcher(&self, vmi: &str) -> Result<Value> {
        let found =
            self.find_launcher(vmi, |pod, node| node.is_null() || pod["spec"]["nodeName"] == *node)?;
        found.with_context(|| format!("VMI {vmi} has no launcher pod"))
    }

    /// The launcher pod that a VMI moves to: it has not ended, and has another node than the VMI.
    ///
    /// # Errors
    /// When there is none, or it has no node yet.
    pub fn target(&self, vmi: &str) -> Result<Value> {
        let is_elsewhere = |pod: &Value, node: &Value| {
            !pod["spec"]["nodeName"].is_null() && pod["spec"]["nodeName"] != *node
        };
        self.find_launcher(vmi, is_elsewhere)?.with_context(|| format!("VMI {vmi} moves to no pod"))
    }

    /// A launcher pod of a VMI that has not ended and that fits the VMI's node.
    fn find_launcher(&self, vmi: &str, fits: impl Fn(&Value, &Value) -> bool) -> Result<Option<Value>> {
        let object = self.need("vmi", vmi)?;
        let (uid, node) = (&object["metadata"]["uid"], &object["status"]["nodeName"]);
        let of_vmi = |pod: &Value| {
            pod["metadata"]["labels"]["kubevirt.io/created-by"] == *uid
                && fits(pod, node)
                && !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        };
        Ok(self.list("pod")?.into_iter().find(of_vmi))
    }

    /// The first address of a running VMI's first interface.
    pub fn address(&self, vmi: &str) -> Result<String> {
        let object = self.wait("vmi", vmi, "to have an address", SOON, |vmi| {
            vmi["status"]["interfaces"][0]["ipAddress"].is_string()
        })?;
        Ok(object["status"]["interfaces"][0]["ipAddress"].as_str().unwrap_or_default().to_owned())
    }

    /// Moves the guest of a machine to another node; returns its instance then. Records of former migrations are deleted.
    pub fn migrate(&self, name: &str) -> Result<Value> {
        let home = self.begin_migration(name)?;
        self.wait_moved(name, &home)
    }

    /// Has the guest of a machine move; returns the node that it is on until then. Records of former migrations are deleted.
    ///
    /// # Errors
    /// When it cannot move.
    pub fn begin_migration(&self, name: &str) -> Result<Value> {
        self.delete_all("vmim")?;
        self.wait("vmi", name, "to be migratable", SOON, |vmi| {
            condition(vmi, "LiveMigratable")["status"] == "True"
        })?;
        let home = self.need("vmi", name)?["status"]["nodeName"].clone();
        self.virtctl(&["migrate", name])?;
        Ok(home)
    }

    /// Waits until a guest has moved away from that node.
    ///
    /// # Errors
    /// When it has not in time, or the migration fails.
    pub fn wait_moved(&self, name: &str, home: &Value) -> Result<Value> {
        let vmi = self.wait("vmi", name, "to have moved", MOVED, |vmi| {
            let state = &vmi["status"]["migrationState"];
            let ended = state["completed"] == true && state["endTimestamp"].is_string();
            ended && (state["failed"] == true || vmi["status"]["nodeName"] != *home)
        })?;
        ensure!(vmi["status"]["nodeName"] != *home, "{}", vmi["status"]["migrationState"]);
        Ok(vmi)
    }
}
