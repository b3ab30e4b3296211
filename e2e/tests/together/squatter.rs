//! Pods that a user puts in place of a launcher. A user who may make pods in a namespace cannot make one with
//! a launcher's labels; and a pod that only has a launcher's name does no harm, and is reported.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{Output, succeed, try_kubectl_with};
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};
use std::process::Command;

const REFUSAL: &str = "only virt-controller makes pods with the label";

/// A user with only Kubernetes' role `edit` in the namespace.
struct Tenant<'a> {
    namespace: &'a Namespace,
    user: String,
}

impl<'a> Tenant<'a> {
    fn new(namespace: &'a Namespace) -> Result<Self> {
        let user = format!("tenant-of-{}", namespace.name());
        let binding = format!("--user={user}");
        namespace.kubectl(&["create", "rolebinding", "tenant", "--clusterrole=edit", &binding])?;
        let tenant = Self { namespace, user };
        // The role does not take effect at once.
        wait::until_true("the tenant to be allowed to make pods", SOON, || {
            Ok(tenant.kubectl(&["auth", "can-i", "create", "pods"], "")?.code == 0)
        })?;
        Ok(tenant)
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<Output> {
        let user = format!("--as={}", self.user);
        let who = ["-n", self.namespace.name(), &user, "--as-group=system:authenticated"];
        try_kubectl_with(&[&who[..], arguments].concat(), input)
    }

    fn creates(&self, pod: &Value) -> Result<Output> {
        self.kubectl(&["create", "-f", "-"], &pod.to_string())
    }
}

/// A pod that every namespace admits and that is never scheduled.
fn squatter(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "nodeSelector": { "e2e.kubevirt.io/no-such-node": "" },
            "securityContext": {
                "runAsUser": 1000, "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "compute", "image": "localhost/nothing",
                "securityContext": {
                    "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                },
            }],
        },
    })
}

/// The name of an instance's launcher, which users who can read the instance's UID can predict.
fn foretold(vmi: &Value) -> Result<String> {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = |field: &str| vmi["metadata"][field].as_str().with_context(|| format!("no {field}"));
    let digest = succeed(&mut Command::new("sha1sum"), Some(text("uid")?))?;
    let mut name = format!("virt-launcher-{}-", text("name")?);
    for place in 0..5 {
        let byte = digest.get(2 * place..2 * place + 2).context("no digest")?;
        let byte = usize::from(u8::from_str_radix(byte, 16)?);
        name.push(char::from(ALPHABET[byte % ALPHABET.len()]));
    }
    Ok(name)
}

#[test]
fn other_users_cannot_create_pods_that_look_like_launchers() {
    in_namespace("lookalike", |namespace| {
        namespace.apply(&guest::without_system(guest::instance("vm")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let launcher = namespace.launcher("vm")?;
        let real = launcher["metadata"]["name"].as_str().context("no name")?;
        let uid = launcher["metadata"]["labels"]["kubevirt.io/created-by"].clone();
        ensure!(real == foretold(&namespace.need("vmi", "vm")?)?, "{real}");
        let tenant = Tenant::new(namespace)?;
        for labels in [
            json!({ "kubevirt.io": "virt-launcher" }),
            json!({ "kubevirt.io": "hotplug-disk" }),
            json!({ "kubevirt.io": "first-consumer" }),
            json!({ "kubevirt.io/created-by": uid }),
            json!({ "kubevirt.io/migrationJobUID": "x" }),
            json!({ "barevirt.dev/disks-of": uid }),
            json!({ "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": uid }),
        ] {
            let refused = tenant.creates(&squatter("lookalike", &labels))?;
            ensure!(refused.code != 0 && refused.text().contains(REFUSAL), "{labels}: {}", refused.text());
        }
        // Not even an administrator may, which proves that the refusals above were not because of missing
        // rights.
        let refused =
            namespace.try_apply(&squatter("lookalike", &json!({ "kubevirt.io": "virt-launcher" })))?;
        ensure!(refused.code != 0 && refused.text().contains(REFUSAL), "{}", refused.text());

        // A pod is made with other labels, and labelled later.
        let made =
            tenant.creates(&squatter("plain", &json!({ "kubevirt.io/vm": "vm", "kubevirt.io": "x" })))?;
        ensure!(made.code == 0, "{}", made.text());
        let label = |pod: &str, label: &str| tenant.kubectl(&["label", "--overwrite", "pod", pod, label], "");
        for (pod, change) in [
            ("plain", "kubevirt.io=virt-launcher"),
            ("plain", "kubevirt.io/created-by=x"),
            ("plain", "kubevirt.io/migrationJobUID=x"),
            ("plain", "barevirt.dev/disks-of=x"),
            (real, "kubevirt.io/created-by=x"),
            (real, "kubevirt.io/created-by-"),
            (real, "kubevirt.io=mine"),
        ] {
            let refused = label(pod, change)?;
            ensure!(
                refused.code != 0 && refused.text().contains(REFUSAL),
                "{pod} {change}: {}",
                refused.text()
            );
        }
        for (pod, change) in [("plain", "a=b"), (real, "a=b")] {
            let labelled = label(pod, change)?;
            ensure!(labelled.code == 0, "{pod} {change}: {}", labelled.text());
        }
        Ok(())
    });
}

#[test]
fn a_pod_with_a_launchers_name_does_no_harm_and_is_reported() {
    in_namespace("squatter", |namespace| {
        let tenant = Tenant::new(namespace)?;
        // Its launcher waits for a claim, so that the other pod can be made first.
        let mut instance = guest::without_system(guest::instance("vm"));
        let spec = guest::spec_of(&mut instance);
        guest::push(
            &mut spec["domain"]["devices"]["disks"],
            json!({ "name": "data", "disk": { "bus": "virtio" } }),
        );
        let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
        guest::push(&mut spec["volumes"], volume);
        namespace.apply(&instance)?;
        let vmi = namespace.wait("vmi", "vm", "to miss its claim", SOON, |vmi| {
            vmi["status"]["conditions"].as_array().into_iter().flatten().any(|one| one["status"] == "False")
        })?;
        let name = foretold(&vmi)?;
        let labels =
            json!({ "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": vmi["metadata"]["uid"] });
        let refused = tenant.creates(&squatter(&name, &labels))?;
        ensure!(refused.code != 0 && refused.text().contains(REFUSAL), "{}", refused.text());

        // Without the labels it is an ordinary pod.
        let _squatter = pods::client(namespace, &name)?;
        let squatter = namespace.need("pod", &name)?["metadata"]["uid"].clone();
        namespace.claim("data")?;
        let taken = format!("a pod with the name {name} exists and belongs to something else");
        let vmi =
            namespace.wait("vmi", "vm", "to say that its launcher's name is taken", RUNNING, |vmi| {
                let conditions = vmi["status"]["conditions"].as_array().into_iter().flatten();
                conditions.into_iter().any(|one| one["type"] == "Synchronized" && one["message"] == taken)
            })?;
        ensure!(vmi["status"]["activePods"].as_object().is_none_or(|pods| pods.is_empty()), "{vmi}");
        let pod = namespace.need("pod", &name)?;
        ensure!(pod["metadata"]["uid"] == squatter && pod["status"]["phase"] == "Running", "{pod}");

        namespace.delete("pod", &name)?;
        let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
        let active = vmi["status"]["activePods"].as_object().context("no pod is recorded")?;
        ensure!(
            active.len() == 1 && !active.contains_key(squatter.as_str().unwrap_or_default()),
            "{active:?}"
        );
        Ok(())
    });
}
