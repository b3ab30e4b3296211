//! The time from `kubectl apply` to a running instance and to its prompt, against a plain pod of the same
//! image; and the number of writes.

use super::{Figure, Figures, Rounds, median};
use crate::command::{cluster_script, kubectl, succeed};
use crate::namespace::Namespace;
use crate::wait::BOOT;
use crate::{Console, guest};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const WRITES_PER_VMI: f64 = 4.0;
const WRITES_PER_VM: f64 = 6.0;
const RUNNING_RATIO: f64 = 1.5;

/// Measures `vmi_running`, `vmi_prompt`, `api_writes_per_vmi` and `api_writes_per_vm`.
pub fn measure(namespace: &Namespace, rounds: Rounds, figures: &mut Figures) -> Result<()> {
    let (mut instances, mut pods) = (Vec::new(), Vec::new());
    for _ in 0..rounds.starts {
        pods.push(until(namespace, &plain_pod("plain"), "pod/plain", "{.status.phase}=Running")?);
        remove(namespace, "pod", "plain")?;
        instances.push(until(namespace, &guest::instance("bench"), "vmi/bench", "{.status.phase}=Running")?);
        remove(namespace, "vmi", "bench")?;
    }
    let figure = Figure::compared(&instances, &pods, "s");
    figures.insert(
        "vmi_running".to_owned(),
        figure.within("at most 1.5 x a plain pod", |figure| figure.ratio.is_some_and(|r| r <= RUNNING_RATIO)),
    );

    let mut boots = Vec::new();
    for _ in 0..rounds.boots {
        let begun = Instant::now();
        namespace.apply(&guest::instance("bench"))?;
        let mut console = Console::open(namespace, "bench")?;
        console.expect("login:", BOOT)?;
        boots.push(begun.elapsed().as_secs_f64());
        console.leave()?;
        remove(namespace, "vmi", "bench")?;
    }
    figures.insert("vmi_prompt".to_owned(), Figure::plain(median(&boots), "s", rounds.boots));

    let budget = |wanted: f64| move |figure: &Figure| figure.value <= wanted;
    let instance = guest::instance("bench");
    let mut counts = Vec::new();
    for _ in 0..rounds.starts {
        counts.push(count(namespace, &instance, "vmi", "vmi/bench", "{.status.phase}=Running")?);
    }
    let figure =
        Figure::plain(median(&counts), "writes", rounds.starts).within("at most 4", budget(WRITES_PER_VMI));
    figures.insert("api_writes_per_vmi".to_owned(), figure);
    let machine = guest::machine("bench", "Always");
    let mut counts = Vec::new();
    for _ in 0..rounds.starts {
        counts.push(count(namespace, &machine, "vm", "vm/bench", "{.status.printableStatus}=Running")?);
    }
    let figure =
        Figure::plain(median(&counts), "writes", rounds.starts).within("at most 6", budget(WRITES_PER_VM));
    figures.insert("api_writes_per_vm".to_owned(), figure);
    Ok(())
}

/// Seconds from `kubectl apply` until the object meets the condition.
pub(super) fn until(namespace: &Namespace, manifest: &Value, object: &str, so: &str) -> Result<f64> {
    let begun = Instant::now();
    namespace.apply(manifest)?;
    kubectl(&["-n", namespace.name(), "wait", "--timeout=120s", &format!("--for=jsonpath={so}"), object])?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Deletes it at once, and waits until it is gone.
pub(super) fn remove(namespace: &Namespace, kind: &str, name: &str) -> Result<()> {
    kubectl(&["-n", namespace.name(), "delete", kind, name, "--grace-period=0", "--wait=false"])?;
    namespace.wait_gone(kind, name, Duration::from_secs(90))
}

/// The launcher's image, running the QEMU in it without a machine: the same files, no guest.
pub(super) fn plain_pod(name: &str) -> Value {
    let prefix = guest::tiny_image().replace("/guest-tiny:", "/virt-launcher:");
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 107, "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "compute",
                "image": prefix,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/usr/bin/qemu-system-x86_64", "-machine", "none", "-nodefaults", "-display", "none"],
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }],
        },
    })
}

/// Number of writes of our components in the namespace for one start, without Events and Leases.
fn count(namespace: &Namespace, manifest: &Value, kind: &str, object: &str, so: &str) -> Result<f64> {
    let log = audit_log()?;
    let before = writes(&log, namespace.name())?;
    until(namespace, manifest, object, so)?;
    // Writes right after Running count as well.
    std::thread::sleep(Duration::from_secs(3));
    let after = writes(&log, namespace.name())?;
    remove(namespace, kind, "bench")?;
    Ok(after - before)
}

/// The API server's audit log, which has every write.
pub(super) fn audit_log() -> Result<PathBuf> {
    let kubeconfig = succeed(&mut cluster_script("kubeconfig.sh"), None)?;
    let run = Path::new(kubeconfig.trim()).parent().context("kubeconfig has no folder")?;
    Ok(run.join("logs/audit.log"))
}

/// Number of writes of our components in a namespace, in the whole log.
pub(super) fn writes(log: &Path, namespace: &str) -> Result<f64> {
    let text = fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
    let count = text
        .lines()
        .filter(|line| line.contains(namespace))
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|entry| is_our_write(entry, namespace))
        .count();
    Ok(u32::try_from(count)?.into())
}

fn is_our_write(entry: &Value, namespace: &str) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    text(&entry["stage"]) == "ResponseComplete"
        && text(&entry["user"]["username"]).starts_with("system:serviceaccount:kubevirt:")
        && ["create", "update", "patch", "delete"].contains(&text(&entry["verb"]).as_str())
        && text(&entry["objectRef"]["namespace"]) == namespace
        && !["events", "leases"].contains(&text(&entry["objectRef"]["resource"]).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_writes_count() {
        let entry = |user: &str, verb: &str, resource: &str| {
            json!({ "stage": "ResponseComplete", "verb": verb, "user": { "username": user },
                    "objectRef": { "namespace": "a", "resource": resource } })
        };
        let handler = "system:serviceaccount:kubevirt:kubevirt-handler";
        assert!(is_our_write(&entry(handler, "patch", "virtualmachineinstances"), "a"));
        assert!(!is_our_write(&entry(handler, "patch", "virtualmachineinstances"), "b"));
        assert!(!is_our_write(&entry(handler, "create", "events"), "a"));
        assert!(!is_our_write(&entry(handler, "get", "pods"), "a"));
        assert!(!is_our_write(&entry("kubernetes-admin", "create", "pods"), "a"));
    }
}
