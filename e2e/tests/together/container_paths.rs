//! Directories that webhooks put into a launcher's pod and that its guest mounts (`containerPath`). The test runs a
//! webhook on this machine, which acts like those of clouds and vaults.

use crate::https::{Answer, Request, Server};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, try_kubectl_with};
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Console, Namespace, changes, guest, in_namespace, pods};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The directory in which the webhook mounts a token and the name of a region.
const CLOUD: &str = "/var/run/secrets/cloud.example";

/// A webhook that changes the launchers of one namespace, until it is dropped.
struct Injector {
    name: String,
    _server: Server,
}

impl Injector {
    fn start(namespace: &Namespace) -> Result<Self> {
        let called = Arc::new(AtomicBool::new(false));
        let calls = called.clone();
        let server = Server::start(move |request| {
            calls.store(true, Ordering::Relaxed);
            answer(request)
        })?;
        // By its name it is called after Barevirt's webhook, which must see the mount nevertheless.
        let name = format!("zz-{}", namespace.name());
        let webhook = json!({
            "name": "cloud.example.com",
            "clientConfig": {
                "url": format!("{}/inject", server.url()),
                "caBundle": STANDARD.encode(server.certificate()),
            },
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name()}},
            "objectSelector": {"matchLabels": {"kubevirt.io": "virt-launcher"}},
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        });
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name}, "webhooks": [webhook],
        });
        // Dropped, it removes what may have been applied.
        let injector = Self { name, _server: server };
        let applied = try_kubectl_with(&["apply", "-f", "-"], &configuration.to_string())?;
        ensure!(applied.code == 0, "{}", applied.text());
        // The API server learns of a webhook a moment later. Only virt-controller may make such a pod, but that is looked at after
        // all webhooks were called.
        let mut pod = pods::pod("asked", &["true"]);
        pod["metadata"]["labels"] = json!({"kubevirt.io": "virt-launcher"});
        wait::until_true("the API server to call the webhook", SOON, || {
            changes::apply(namespace.name(), &pod, false)?;
            Ok(called.load(Ordering::Relaxed))
        })?;
        Ok(injector)
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        if let Err(error) =
            kubectl(&["delete", "mutatingwebhookconfiguration", &self.name, "--ignore-not-found"])
        {
            eprintln!("cannot remove the webhook: {error:#}");
        }
    }
}

/// An answer that adds a volume to the pod, mounted only in the container `compute`.
fn answer(request: Request) -> Result<Answer> {
    let review: Value = serde_json::from_slice(&request.body).context("a review")?;
    let containers =
        review["request"]["object"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let compute = containers.iter().position(|container| container["name"] == "compute").unwrap_or_default();
    let sources = json!([
        {"serviceAccountToken": {"path": "token", "audience": "sts.cloud.example"}},
        {"configMap": {"name": "cloud"}},
    ]);
    let patch = json!([
        {"op": "add", "path": "/spec/volumes/-", "value": {"name": "cloud", "projected": {"sources": sources}}},
        {"op": "add", "path": format!("/spec/containers/{compute}/volumeMounts/-"),
            "value": {"name": "cloud", "mountPath": CLOUD, "readOnly": true}},
    ]);
    let reviewed = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {
            "uid": review["request"]["uid"], "allowed": true,
            "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string()),
        },
    });
    Ok(("200 OK", reviewed.to_string()))
}

/// A guest that mounts that directory of its pod.
fn with_path(name: &str, path: &str) -> Value {
    let mut manifest = guest::with_debians_kernel(guest::instance(name));
    let spec = guest::spec_of(&mut manifest);
    guest::push(&mut spec["domain"]["devices"]["filesystems"], json!({"name": "cloud", "virtiofs": {}}));
    guest::push(&mut spec["volumes"], json!({"name": "cloud", "containerPath": {"path": path}}));
    manifest
}

#[test]
fn a_guest_reads_what_a_webhook_puts_into_its_pod() {
    in_namespace("containerpath", |namespace| {
        namespace.kubectl(&["create", "configmap", "cloud", "--from-literal=region=north"])?;
        let _injector = Injector::start(namespace)?;
        let mut console = Console::boot(namespace, &with_path("vm", CLOUD))?;
        console.ok("mkdir -p /mnt/cloud && mount -t virtiofs cloud /mnt/cloud", SOON)?;
        let region = console.ok("cat /mnt/cloud/region", SOON)?;
        ensure!(region.trim() == "north", "{region}");
        let token = console.ok("wc -c </mnt/cloud/token", SOON)?;
        ensure!(token.trim().parse::<usize>()? > 100, "{token}");
        let owner = console.ok("stat -L -c %u /mnt/cloud/token", SOON)?;
        ensure!(owner.trim() == "0", "the token is user {owner}'s");
        let (said, code) = console.run("echo x >/mnt/cloud/new", SOON)?;
        ensure!(code != 0, "it was written: {said}");
        console.leave()?;
        let pod = namespace.launcher("vm")?;
        let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
        let serves = containers.iter().find(|container| container["name"] == "virtiofs-cloud");
        let mounts =
            serves.context("no container serves it")?["volumeMounts"].as_array().cloned().unwrap_or_default();
        ensure!(
            mounts.iter().any(|mount| mount["name"] == "cloud" && mount["readOnly"] == true),
            "{mounts:?}"
        );
        Ok(())
    });
}

#[test]
fn a_missing_shared_directory_is_reported() {
    in_namespace("containerpathnone", |namespace| {
        namespace.apply(&with_path("vm", "/etc"))?;
        let vmi = namespace.wait("vmi", "vm", "to say what is missing", SOON, |vmi| {
            vmi["status"]["conditions"].to_string().contains("MissingVirtiofsContainers")
        })?;
        let conditions = vmi["status"]["conditions"].to_string();
        let words = "pod is missing virtiofs containers for ContainerPath volumes: [virtiofs-cloud]";
        ensure!(
            conditions.contains(words) && conditions.contains("in container compute at /etc"),
            "{conditions}"
        );
        ensure!(vmi["status"]["phase"] == "Scheduling", "{}", vmi["status"]);
        namespace.wait_event("vm", "MissingVirtiofsContainers").map(drop)
    });
}
