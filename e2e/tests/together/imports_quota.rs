//! Imports that a quota of the namespace refuses.

use super::imports::{FILLED, SERVER, condition, data_volume, filled, host, publish, small, without_cdi};
use anyhow::{Result, ensure};
use barevirt_e2e::cdi::DATA_VOLUMES;
use barevirt_e2e::wait::SOON;
use barevirt_e2e::{Namespace, pods};
use serde_json::{Value, json};

/// The reason of CDI's condition and event.
const REASON: &str = "ErrExceededQuota";

/// Waits until that condition of the import says that the quota for a resource is used up.
fn refused(namespace: &Namespace, type_: &str, resource: &str) -> Result<Value> {
    let quota = format!("exceeded quota: {resource}");
    let what = format!("to name the quota of {resource}");
    namespace.wait(DATA_VOLUMES, "late", &what, SOON, |volume| {
        let said = condition(volume, type_);
        said["status"] == "False"
            && said["reason"] == REASON
            && said["message"].as_str().is_some_and(|message| message.contains(&quota))
    })
}

#[test]
fn an_import_that_a_quota_refuses_names_it_and_goes_on_once_it_is_raised() {
    without_cdi("importsquota", |namespace| {
        pods::server(namespace, SERVER, "images")?;
        let work = tempfile::tempdir()?;
        publish(namespace, "small.qcow2", &small(work.path())?.0)?;
        pods::limit_to(namespace, "persistentvolumeclaims", "0")?;
        // The web server is the one pod.
        pods::limit(namespace, "1")?;
        let url = format!("http://{}/small.qcow2", host(namespace));
        namespace.apply(&data_volume("late", &json!({ "http": { "url": url } }), "16Mi"))?;
        let without_claim = refused(namespace, "Bound", "persistentvolumeclaims")?;
        ensure!(without_claim["status"]["phase"] == "Pending", "{}", without_claim["status"]);
        let event = namespace.wait_event("late", REASON)?;
        ensure!(event.contains("exceeded quota"), "{event}");
        ensure!(namespace.get("pvc", "late")?.is_none(), "there is a claim");

        pods::limit_to(namespace, "persistentvolumeclaims", "1")?;
        refused(namespace, "Running", "pods")?;
        ensure!(namespace.get("pvc", "late")?.is_some(), "there is no claim");
        ensure!(namespace.get("pod", "importer-late")?.is_none(), "there is a pod");

        pods::limit(namespace, "2")?;
        let filled = filled(namespace, "late", FILLED)?;
        ensure!(condition(&filled, "Ready")["status"] == "True", "{}", filled["status"]);
        ensure!(condition(&filled, "Bound")["reason"] == "Bound", "{}", filled["status"]);
        Ok(())
    });
}
