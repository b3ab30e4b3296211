//! Settings about the labels of nodes.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, object, objects};
use barevirt_e2e::installation::{Changed, wait_available};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{alone, guest, in_namespace};
use serde_json::json;

fn node_names() -> Result<Vec<String>> {
    let nodes = objects(&["nodes", "-l", "kubevirt.io/schedulable"])?;
    Ok(nodes.iter().filter_map(|node| node["metadata"]["name"].as_str()).map(str::to_owned).collect())
}

fn has_label(node: &str, label: &str) -> Result<bool> {
    let node = object(&["node", node])?.context("the node is gone")?;
    Ok(node["metadata"]["labels"].get(label).is_some())
}

/// Removes from a node what the test added.
struct Marked<'a>(&'a str);

const IMAGINARY: &str = "cpu-model.node.kubevirt.io/imaginary";
const SKIP: &str = "node-labeller.kubevirt.io/skip-node";

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        kubectl(&["annotate", "node", self.0, &format!("{SKIP}-")]).ok();
        kubectl(&["label", "node", self.0, &format!("{IMAGINARY}-")]).ok();
    }
}

#[test]
fn nodes_do_not_offer_an_obsolete_model_and_take_no_host_model_if_it_is_their_own() {
    in_namespace("obsolete", |namespace| {
        let _alone = alone();
        wait_available()?;
        let names = node_names()?;
        let first = names.first().context("no node")?;
        let host = object(&["node", first])?.context("the node is gone")?["metadata"]["labels"].clone();
        let host = host.as_object().and_then(|labels| {
            labels.keys().find_map(|label| label.strip_prefix("host-model-cpu.node.kubevirt.io/"))
        });
        let model = host.context("the node does not tell its model")?.to_owned();
        let offered = format!("cpu-model.node.kubevirt.io/{model}");
        ensure!(has_label(first, &offered)?, "{first} does not offer {model}");

        // Wrong labels are removed, except on a node with the annotation to skip it.
        let _marked: Vec<Marked> = names.iter().map(|name| Marked(name)).collect();
        for name in &names {
            kubectl(&["label", "node", name, &format!("{IMAGINARY}=true"), "--overwrite"])?;
        }
        let left_alone = names.get(1);
        if let Some(name) = left_alone {
            kubectl(&["annotate", "node", name, &format!("{SKIP}=true"), "--overwrite"])?;
        }
        let obsolete = json!({"configuration": {"obsoleteCPUModels": {model.clone(): true}}});
        let changed = Changed::begin(&obsolete)?;
        wait::until_true("the node not to offer the model any more", SOON, || {
            Ok(!has_label(first, &offered)?
                && !has_label(first, IMAGINARY)?
                && has_label(first, "node-labeller.kubevirt.io/obsolete-host-model")?)
        })?;
        if let Some(name) = left_alone {
            ensure!(has_label(name, IMAGINARY)? && has_label(name, &offered)?, "{name} was not left alone");
        }
        let events = ["get", "events", "-A", "--field-selector", "reason=HostModelIsObsolete", "-o", "name"];
        wait::until_true("the event", SOON, || Ok(!kubectl(&events)?.trim().is_empty()))?;

        // A machine rather than an instance: a kubelet that does not know yet that its node offers the model
        // again refuses the pod for good.
        let mut manifest = guest::without_system(guest::machine("vm", "Always"));
        guest::spec_of(&mut manifest)["nodeSelector"] = json!({"kubernetes.io/hostname": first});
        namespace.apply(&manifest)?;
        namespace.wait("vmi", "vm", "to find no node", SOON, |vmi| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| {
                one["type"] == "PodScheduled"
                    && one["status"] == "False"
                    && one["message"]
                        .as_str()
                        .is_some_and(|text| text.contains("didn't match Pod's node affinity/selector"))
            })
        })?;
        drop(changed);
        wait::until_true("the node to offer the model again", SOON, || {
            Ok(has_label(first, &offered)?
                && !has_label(first, "node-labeller.kubevirt.io/obsolete-host-model")?)
        })?;
        namespace.wait_phase("vm", "Running", RUNNING).map(drop)
    });
}
