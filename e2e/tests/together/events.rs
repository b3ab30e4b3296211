//! The events of a run in `kubectl describe`: each occurs once.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use barevirt_e2e::command::objects;
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, guest, in_namespace};
use serde_json::json;

/// How often each reason occurred for the instance.
fn told(namespace: &Namespace) -> Result<BTreeMap<String, u64>> {
    let selector = "involvedObject.kind=VirtualMachineInstance,involvedObject.name=vm";
    let events = objects(&["events", "-n", namespace.name(), "--field-selector", selector])?;
    let mut told = BTreeMap::new();
    for event in events {
        let times = event["series"]["count"].as_u64().or(event["count"].as_u64()).unwrap_or(1).max(1);
        *told.entry(event["reason"].as_str().unwrap_or_default().to_owned()).or_default() += times;
    }
    Ok(told)
}

#[test]
fn each_step_of_a_run_is_told_once() {
    in_namespace("events", |namespace| {
        let mut manifest = guest::instance("vm");
        // An event warns about the strategy LiveMigrate of a guest that cannot move.
        manifest["spec"]["evictionStrategy"] = json!("LiveMigrate");
        manifest["spec"]["domain"]["devices"]["clientPassthrough"] = json!({});
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        wait::until_true("the events of a start", SOON, || {
            let told = told(namespace)?;
            Ok(["SuccessfulCreate", "Started", "Migrated"].iter().all(|reason| told.contains_key(*reason)))
        })?;
        namespace.kubectl(&["delete", "vmi", "vm"])?;
        wait::until_true("the events of an end", SOON, || Ok(told(namespace)?.contains_key("ShuttingDown")))?;
        let told = told(namespace)?;
        ensure!(told.values().all(|times| *times == 1), "{told:?}");
        ensure!(!told.contains_key("SyncFailed"), "{told:?}");
        Ok(())
    });
}
