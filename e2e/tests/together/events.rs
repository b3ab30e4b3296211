//! The events of a run in `kubectl describe`: each occurs once.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use barevirt_e2e::command::objects;
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, guest, in_namespace};
use serde_json::json;

/// How often each reason occurred for the instance.
fn event_counts(namespace: &Namespace) -> Result<BTreeMap<String, u64>> {
    let selector = "involvedObject.kind=VirtualMachineInstance,involvedObject.name=vm";
    let events = objects(&["events", "-n", namespace.name(), "--field-selector", selector])?;
    let mut counts = BTreeMap::new();
    for event in events {
        let times = event["series"]["count"].as_u64().or(event["count"].as_u64()).unwrap_or(1).max(1);
        *counts.entry(event["reason"].as_str().unwrap_or_default().to_owned()).or_default() += times;
    }
    Ok(counts)
}

#[test]
fn each_step_of_a_run_causes_one_event() {
    in_namespace("events", |namespace| {
        let mut manifest = guest::without_system(guest::instance("vm"));
        // An event warns about the strategy LiveMigrate of a guest that cannot move.
        manifest["spec"]["evictionStrategy"] = json!("LiveMigrate");
        manifest["spec"]["domain"]["devices"]["clientPassthrough"] = json!({});
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        wait::until_true("the events of a start", SOON, || {
            let counts = event_counts(namespace)?;
            Ok(["SuccessfulCreate", "Created", "Started", "Migrated"]
                .iter()
                .all(|reason| counts.contains_key(*reason)))
        })?;
        namespace.delete("vmi", "vm")?;
        wait::until_true("the events of an end", SOON, || {
            Ok(event_counts(namespace)?.contains_key("ShuttingDown"))
        })?;
        let counts = event_counts(namespace)?;
        ensure!(counts.values().all(|times| *times == 1), "{counts:?}");
        ensure!(!counts.contains_key("SyncFailed"), "{counts:?}");
        Ok(())
    });
}
