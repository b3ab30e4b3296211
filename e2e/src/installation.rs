//! The installation itself: the `KubeVirt` object, and the objects that the operator makes for it.

use crate::Node;
use crate::command::{kubectl, object, objects, repository};
use crate::wait;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::time::Duration;

/// Namespace of the installation.
pub const NAMESPACE: &str = "kubevirt";
/// Until a change of the `KubeVirt` object is in effect: pods are replaced one after the other, on a busy machine.
pub const ROLLOUT: Duration = Duration::from_secs(240);
/// Label of the operator's objects.
pub const MANAGED: &str = "app.kubernetes.io/managed-by=virt-operator";
/// Kinds of an installation's objects that are in no namespace.
pub const CLUSTER_KINDS: &str = "crd,clusterrole,clusterrolebinding,validatingadmissionpolicy,\
     validatingadmissionpolicybinding,mutatingwebhookconfiguration,validatingwebhookconfiguration,apiservice";
/// Kinds of an installation's objects in a namespace.
pub const LOCAL_KINDS: &str =
    "serviceaccount,role,rolebinding,service,poddisruptionbudget,networkpolicy,deployment,daemonset";

/// The `KubeVirt` object, if there is one.
pub fn kubevirt() -> Result<Option<Value>> {
    object(&["kubevirt", "kubevirt", "-n", NAMESPACE])
}

/// Status and reason of one of its conditions.
pub fn condition(kubevirt: &Value, type_: &str) -> Option<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let conditions = kubevirt["status"]["conditions"].as_array()?;
    let condition = conditions.iter().find(|condition| condition["type"] == type_)?;
    Some((text(&condition["status"]), text(&condition["reason"])))
}

/// Whether everything runs as the object currently says.
pub fn is_available(kubevirt: &Value) -> bool {
    let status = |type_| condition(kubevirt, type_).map(|(status, _)| status);
    kubevirt["status"]["observedGeneration"] == kubevirt["metadata"]["generation"]
        && status("Available").as_deref() == Some("True")
        && status("Progressing").as_deref() == Some("False")
}

/// Waits until everything runs as the object currently says.
pub fn wait_available() -> Result<Value> {
    wait::until("the KubeVirt to be available", ROLLOUT, || Ok(kubevirt()?.filter(is_available)))
}

/// Merges into the object's spec.
pub fn patch(spec: &Value) -> Result<()> {
    let patch = json!({"spec": spec}).to_string();
    kubectl(&["patch", "kubevirt", "kubevirt", "-n", NAMESPACE, "--type=merge", "-p", &patch]).map(drop)
}

/// Applies the test cluster's `KubeVirt`, and waits until everything runs.
pub fn install() -> Result<Value> {
    let file = repository().join("cluster-up/kubevirt-cr.yaml");
    let file = file.to_str().context("the path is text")?;
    kubectl(&["apply", "--server-side", "--force-conflicts", "--field-manager=cluster-up", "-f", file])?;
    wait_available()
}

/// The operator's objects, as lines of kind, namespace and name.
pub fn made() -> Result<Vec<String>> {
    let mut lines = vec![];
    for arguments in [vec![CLUSTER_KINDS, "-l", MANAGED], vec![LOCAL_KINDS, "-A", "-l", MANAGED]] {
        for object in objects(&arguments)? {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            lines.push(format!(
                "{} {}/{}",
                text(&object["kind"]),
                text(&object["metadata"]["namespace"]),
                text(&object["metadata"]["name"])
            ));
        }
    }
    lines.sort();
    Ok(lines)
}

fn is_leaving(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

/// Kills a component's process in all its pods, once all of them run.
pub fn kill(component: &str) -> Result<()> {
    let selector = format!("kubevirt.io={component}");
    // The kubelet restarts a killed container after a pause, which grows each time.
    let running = wait::until(&format!("all of {component} to run"), ROLLOUT, || {
        let pods = objects(&["pod", "-n", NAMESPACE, "-l", &selector])?;
        let pods: Vec<_> =
            pods.into_iter().filter(|pod| pod["status"]["phase"] == "Running" && !is_leaving(pod)).collect();
        let runs = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["running"].is_object();
        Ok((!pods.is_empty() && pods.iter().all(runs)).then_some(pods))
    })?;
    for pod in &running {
        Node::of(pod)?.kill(pod, component, "KILL")?;
    }
    Ok(())
}

/// Deletes the leading pod of a component without a grace period, and waits until another pod leads.
pub fn replace_leader(component: &str) -> Result<()> {
    let leader = || -> Result<String> {
        let lease = object(&["lease", component, "-n", NAMESPACE])?
            .with_context(|| format!("no lease {component}"))?;
        Ok(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
    };
    let before = wait::until("one to lead", ROLLOUT, || Ok(Some(leader()?).filter(|name| !name.is_empty())))?;
    kubectl(&[
        "delete",
        "pod",
        &before,
        "-n",
        NAMESPACE,
        "--ignore-not-found",
        "--force",
        "--grace-period=0",
    ])?;
    wait::until_true("another one to lead", ROLLOUT, || {
        let now = leader()?;
        Ok(!now.is_empty() && now != before)
    })
}

/// A change of the object during a test; dropping it restores the object.
pub struct Changed {
    spec: Value,
}

impl Changed {
    /// Merges into the object's spec.
    pub fn begin(change: &Value) -> Result<Changed> {
        let spec = kubevirt()?.context("there is no KubeVirt")?["spec"].clone();
        let changed = Changed { spec };
        patch(change)?;
        Ok(changed)
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let patch = json!([{"op": "replace", "path": "/spec", "value": self.spec}]).to_string();
        let restored =
            kubectl(&["patch", "kubevirt", "kubevirt", "-n", NAMESPACE, "--type=json", "-p", &patch])
                .and_then(|_| wait_available());
        if let Err(error) = restored {
            eprintln!("the KubeVirt is not as it was: {error:#}");
        }
    }
}
