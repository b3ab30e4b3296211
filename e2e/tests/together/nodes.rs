//! Labels and other reports of nodes, and how they decide where machines are placed.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, objects, try_kubectl_with};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Node, guest, in_namespace};
use serde_json::{Value, json};

const SCHEDULABLE: &str = "kubevirt.io/schedulable";

/// Nodes with a handler.
fn nodes() -> Result<Vec<Value>> {
    let nodes = objects(&["nodes", "-l", SCHEDULABLE])?;
    ensure!(!nodes.is_empty(), "no node has label {SCHEDULABLE}");
    Ok(nodes)
}

fn labels(node: &Value, prefix: &str) -> Vec<String> {
    let labels = node["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.keys().filter_map(|label| label.strip_prefix(prefix)).map(str::to_owned).collect()
}

#[test]
fn nodes_say_what_guests_can_have() -> Result<()> {
    // A handler that has just started writes them within seconds.
    wait::until_true("every node to have its labels", SOON, || {
        Ok(nodes()?.iter().all(|node| !labels(node, "machine-type.node.kubevirt.io/").is_empty()))
    })?;
    for node in nodes()? {
        let name = &node["metadata"]["name"];
        let has = |prefix: &str, what: &str| labels(&node, prefix).iter().any(|one| one == what);
        ensure!(has("machine-type.node.kubevirt.io/", "q35"), "{name}");
        ensure!(!has("machine-type.node.kubevirt.io/", "none"), "{name}");
        ensure!(has("cpu-feature.node.kubevirt.io/", "sse2"), "{name}");
        ensure!(labels(&node, "cpu-vendor.node.kubevirt.io/").len() == 1, "{name}");
        let host = labels(&node, "host-model-cpu.node.kubevirt.io/");
        ensure!(host.len() == 1, "{name}: {host:?}");
        let models = labels(&node, "cpu-model.node.kubevirt.io/");
        ensure!(models.len() > 1, "{name}: {models:?}");
        ensure!(!models.iter().any(|model| model == "qemu64" || model == "pentium3"), "obsolete: {models:?}");
        ensure!(labels(&node, "cpu-model-migration.node.kubevirt.io/").len() > models.len(), "{name}");
        let labels = &node["metadata"]["labels"];
        ensure!(labels[SCHEDULABLE] == "true", "{name}: {}", labels[SCHEDULABLE]);
        ensure!(labels["kubevirt.io/cpumanager"] == "false", "{name}");
        ensure!(labels["cpumanager"] == "false", "{name}");
    }
    Ok(())
}

#[test]
fn a_machine_of_a_model_that_no_node_has_stays_scheduling() {
    in_namespace("nomodel", |namespace| {
        let mut manifest = guest::instance("vm");
        guest::spec_of(&mut manifest)["domain"]["cpu"] = json!({ "model": "Imaginary-v7" });
        namespace.apply(&manifest)?;
        let unscheduled = |vmi: &Value| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| {
                condition["type"] == "PodScheduled"
                    && condition["status"] == "False"
                    && condition["message"]
                        .as_str()
                        .is_some_and(|text| text.contains("didn't match Pod's node affinity/selector"))
            })
        };
        let vmi = namespace.wait("vmi", "vm", "to find no node", SOON, unscheduled)?;
        ensure!(vmi["status"]["phase"] == "Scheduling", "{}", vmi["status"]["phase"]);
        Ok(())
    });
}

#[test]
fn a_machine_of_a_named_model_runs_where_the_model_is() {
    in_namespace("model", |namespace| {
        // A model that every node supports.
        let of = |node: &Value| labels(node, "cpu-model.node.kubevirt.io/");
        let nodes = nodes()?;
        let model = nodes
            .iter()
            .flat_map(of)
            .find(|model| nodes.iter().all(|node| of(node).contains(model)))
            .context("no model is on every node")?;
        let mut manifest = guest::without_system(guest::instance("vm"));
        guest::spec_of(&mut manifest)["domain"]["cpu"] = json!({ "model": model });
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let selector = namespace.launcher("vm")?["spec"]["nodeSelector"].clone();
        ensure!(selector[format!("cpu-model.node.kubevirt.io/{model}")] == "true", "{selector}");
        ensure!(selector["machine-type.node.kubevirt.io/q35"] == "true", "{selector}");
        Ok(())
    });
}

/// The test binds the pod instead of the scheduler, to a node whose kubelet refuses it.
#[test]
fn a_pod_that_its_node_refuses_is_replaced() {
    in_namespace("refused", |namespace| {
        let nodes = nodes()?;
        let node = nodes.first().and_then(|node| node["metadata"]["name"].as_str()).context("no node")?;
        let mut manifest = guest::instance("vm");
        let spec = guest::spec_of(&mut manifest);
        spec["schedulerName"] = json!("nobody");
        spec["nodeSelector"] = json!({"e2e.barevirt.dev/none": "has-this"});
        namespace.apply(&manifest)?;
        let launcher = || wait::until("a launcher pod", SOON, || Ok(namespace.launcher("vm").ok()));
        let first = launcher()?;
        let pod = first["metadata"]["name"].as_str().context("a pod without a name")?;
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/binding", namespace.name());
        let bound = try_kubectl_with(&["create", "--raw", &path, "-f", "-"], &binding.to_string())?;
        ensure!(bound.code == 0, "the pod was not bound: {}", bound.text());

        let told = namespace.wait_event("vm", "FailedCreate")?;
        ensure!(told.contains(node) && told.contains("NodeAffinity"), "{told}");
        let next = |pod: &Value| pod["metadata"]["uid"] != first["metadata"]["uid"];
        let second = namespace.wait("pod", pod, "to be another one", SOON, next)?;
        ensure!(second["spec"]["nodeName"].is_null(), "{}", second["spec"]["nodeName"]);
        let vmi = namespace.need("vmi", "vm")?;
        let noted = &vmi["metadata"]["annotations"]["barevirt.dev/refused-pods"];
        ensure!(*noted == first["metadata"]["uid"], "{noted}");
        let phase = vmi["status"]["phase"].as_str().unwrap_or_default();
        ensure!(["Pending", "Scheduling"].contains(&phase), "{phase}");
        Ok(())
    });
}

fn allocatable(node: &str, resource: &str) -> Result<String> {
    let resource = resource.replace('.', "\\.");
    let path = format!("jsonpath={{.status.allocatable.devices\\.kubevirt\\.io/{resource}}}");
    kubectl(&["get", "node", node, "-o", &path])
}

#[test]
fn kubelets_have_the_devices_that_their_nodes_have() -> Result<()> {
    for node in nodes()? {
        let name = node["metadata"]["name"].as_str().context("a node without a name")?;
        for (resource, device) in [("kvm", "/dev/kvm"), ("tun", "/dev/net/tun")] {
            let there = Node::named(name).sh(&format!("test -e {device} && echo yes || echo no"))?;
            let expected = if there.trim() == "yes" { "1k" } else { "0" };
            wait::until_true("the kubelet to tell of the device", SOON, || {
                Ok(allocatable(name, resource)? == expected)
            })?;
        }
    }
    Ok(())
}

/// A kubelet that starts removes the sockets of all plugins and forgets them.
#[test]
fn a_plugin_whose_socket_is_gone_comes_back() -> Result<()> {
    let nodes = nodes()?;
    let name = nodes.first().and_then(|node| node["metadata"]["name"].as_str()).context("no node")?;
    let node = Node::named(name);
    // No pod uses this device.
    let socket = "/var/lib/kubelet/device-plugins/kubevirt-tun.sock";
    node.sh(&format!("rm {socket}"))?;
    wait::until_true("the socket to be back", SOON, || {
        Ok(node.sh(&format!("test -S {socket} && echo yes || echo no"))?.trim() == "yes")
    })?;
    wait::until_true("the kubelet to have the resource again", SOON, || Ok(allocatable(name, "tun")? == "1k"))
}
