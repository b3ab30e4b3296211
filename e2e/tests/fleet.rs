//! Many machines at once. The test has its own file, since it uses this whole machine.

use anyhow::ensure;
use barevirt_e2e::wait;
use barevirt_e2e::{alone, guest, in_namespace};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Number of machines.
const MACHINES: usize = 50;
/// Time until all of them run: each takes a second or two of two processors, emulated.
const ALL_RUNNING: Duration = Duration::from_secs(300);

#[test]
fn fifty_machines_created_at_once_all_run() {
    in_namespace("fleet", |namespace| {
        let _alone = alone();
        let machines: Vec<Value> = (0..MACHINES)
            .map(|number| {
                let mut manifest = guest::machine(&format!("vm{number}"), "Always");
                guest::spec_of(&mut manifest)["domain"]["resources"] =
                    json!({ "requests": { "cpu": "10m" } });
                guest::spec_of(&mut manifest)["domain"]["memory"]["guest"] = json!("96Mi");
                manifest
            })
            .collect();
        let began = Instant::now();
        namespace.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": machines }))?;
        let mut seen = 0;
        wait::until_true("all of them to run", ALL_RUNNING, || {
            let instances = namespace.list("vmi")?;
            let phase = |phase: &str| instances.iter().filter(|vmi| vmi["status"]["phase"] == phase).count();
            ensure!(phase("Failed") == 0, "some failed");
            let running = phase("Running");
            if running != seen {
                println!("{:>4} s: {running} run", began.elapsed().as_secs());
                seen = running;
            }
            Ok(running == MACHINES)
        })?;
        // Each machine started at the first try.
        for vm in namespace.list("vm")? {
            ensure!(vm["status"]["startFailure"].is_null(), "{}", vm["status"]);
        }
        let warnings: Vec<String> = namespace
            .list("events")?
            .iter()
            .filter(|event| event["type"] == "Warning" && event["reportingComponent"] != "kubelet")
            .map(|event| format!("{}: {}", event["reason"], event["message"]))
            .collect();
        ensure!(warnings.is_empty(), "{warnings:#?}");
        let began = Instant::now();
        namespace.kubectl(&["delete", "vm", "--all", "--wait=false"])?;
        wait::until_true("all of them to be gone", ALL_RUNNING, || Ok(namespace.list("pod")?.is_empty()))?;
        println!("gone after {} s", began.elapsed().as_secs());
        Ok(())
    });
}
