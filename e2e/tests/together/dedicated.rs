//! Dedicated CPUs of a guest. Few test clusters have a kubelet that gives them. On the others the pod waits
//! for such a node, and the test checks that the pod meets the kubelet's requirements.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::objects;
use barevirt_e2e::wait::{RUNNING, SOON};
use barevirt_e2e::{guest, in_namespace, in_no_namespace};
use serde_json::{Value, json};

const CPU_MANAGER: &str = "kubevirt.io/cpumanager=true";

fn compute(pod: &Value) -> Result<Value> {
    let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    containers.into_iter().find(|container| container["name"] == "compute").context("no compute container")
}

/// A quota requires requests and limits of every container, which such a pod has anyway.
#[test]
fn a_guest_with_cpus_of_its_own_has_a_guaranteed_pod_on_a_node_that_gives_them() {
    in_namespace("dedicated", |namespace| {
        namespace.apply(&json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cpus"},
            "spec": {"hard": {"requests.cpu": "4", "limits.cpu": "4", "requests.memory": "4Gi", "limits.memory": "4Gi"}},
        }))?;
        let mut manifest = guest::instance("vm");
        guest::spec_of(&mut manifest)["domain"]["cpu"] =
            json!({"cores": 1, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true});
        namespace.apply(&manifest)?;
        let nodes = objects(&["nodes", "-l", CPU_MANAGER])?;
        if nodes.is_empty() {
            let waits = |vmi: &Value| {
                let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
                conditions.iter().any(|one| one["type"] == "PodScheduled" && one["status"] == "False")
            };
            namespace.wait("vmi", "vm", "to find no node", SOON, waits)?;
        } else {
            let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
            ensure!(vmi["status"]["qosClass"] == "Guaranteed", "{}", vmi["status"]);
        }
        let pod = namespace.launcher("vm")?;
        ensure!(pod["status"]["qosClass"] == "Guaranteed", "{}", pod["status"]);
        ensure!(
            pod["spec"]["nodeSelector"]["kubevirt.io/cpumanager"] == "true",
            "{}",
            pod["spec"]["nodeSelector"]
        );
        let resources = compute(&pod)?["resources"].clone();
        for name in ["cpu", "memory"] {
            ensure!(resources["requests"][name] == resources["limits"][name], "{resources}");
        }
        ensure!(resources["requests"]["cpu"] == "2", "one for the guest, one for QEMU: {resources}");
        Ok(())
    });
}

#[test]
fn missing_requirements_of_dedicated_cpus_are_refused_by_name() {
    in_no_namespace(|namespace| {
        for (cpu, field) in [
            (json!({"cores": 1, "isolateEmulatorThread": true}), "isolateEmulatorThread"),
            (json!({"cores": 1, "realtime": {}}), "realtime"),
            (
                json!({"cores": 1, "dedicatedCpuPlacement": true, "numa": {"guestMappingPassthrough": {}}}),
                "hugepages",
            ),
            (json!({"threads": 3, "dedicatedCpuPlacement": true}), "threads"),
        ] {
            let mut manifest = guest::instance("vm");
            guest::spec_of(&mut manifest)["domain"]["cpu"] = cpu;
            let refusal = namespace.refusal(&manifest)?;
            ensure!(refusal.contains(field), "{field}: {refusal}");
        }
        Ok(())
    });
}
