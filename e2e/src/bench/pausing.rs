//! Pauses of a guest, until its status says so.

use crate::condition;
use crate::namespace::Namespace;
use crate::wait::SOON;
use anyhow::Result;
use serde_json::Value;

/// `virtctl pause`, until the status says that the guest is paused.
pub(super) fn pause(namespace: &Namespace, name: &str) -> Result<()> {
    namespace.virtctl(&["pause", "vmi", name])?;
    is_paused(namespace, name, true)
}

/// `virtctl unpause`, until the status says that the guest runs.
pub(super) fn unpause(namespace: &Namespace, name: &str) -> Result<()> {
    namespace.virtctl(&["unpause", "vmi", name])?;
    is_paused(namespace, name, false)
}

/// Waits until the instance's status says that the guest is paused, or that it is not. By a watch: a pause between two
/// questions would be longer than what is measured.
fn is_paused(namespace: &Namespace, name: &str, wanted: bool) -> Result<()> {
    let so = |vmi: &Value| (condition(vmi, "Paused")["status"] == "True") == wanted;
    let what = if wanted { "to be reported paused" } else { "to be reported running" };
    namespace.wait("vmi", name, what, SOON, so).map(drop)
}
