//! Deployments, the DaemonSet and the services. virt-operator's own deployment has the same form, see [`crate::manifest`].

use crate::images::Images;
use crate::monitoring::{METRICS_LABEL, METRICS_PORT_NAME, METRICS_SERVICE};
use crate::network_policies::policy;
use crate::objects::{PRIORITY_CLASS, metadata, namespaced};
use crate::operator::NAME as OPERATOR;
use barevirt_api::names::{
    APP_LABEL, CA_CONFIG_MAP, INSTALL_NAMESPACE, SERVICE_ACCOUNT_API, SERVICE_ACCOUNT_CONTROLLER,
    SERVICE_ACCOUNT_HANDLER,
};
use serde_json::{Value, json};

/// The operator's service, whose name is in its certificate.
const OPERATOR_SERVICE: &str = "kubevirt-operator-webhook";
/// CPU request of the components that consoles go through: the share of a guest that requests nothing. With a smaller one, a client
/// that floods virt-api would make everybody else's keys wait behind the guests of a busy node.
const CONSOLE_CPU: &str = "100m";
/// Port of virt-api's webhooks and of the aggregated API in its pod. In a former version it was 8443.
const API_PORT: u16 = 8444;
/// Name of that port, which does not depend on its number.
const API_PORT_NAME: &str = "virt-api";
/// Port of uploads, in virt-api's pod and of its service.
pub(crate) const UPLOADS_PORT: u16 = 8445;
/// Name of that port.
const UPLOADS_PORT_NAME: &str = "uploads";
/// Port of `/healthz` and `/metrics` in every component's pod.
const PROBES_PORT: u16 = 8443;
/// Port of the handler's console server in its pod.
const CONSOLE_PORT: u16 = 8186;
/// Port at which a handler receives guests from other handlers.
const MIGRATION_PORT: u16 = 8187;
/// How long a replica stays bound to a node that does not answer.
const AWAY_SECONDS: u32 = 20;

pub(crate) fn objects(images: &Images) -> Vec<Value> {
    vec![
        controller(images),
        budget("virt-controller"),
        policy("virt-controller", &[PROBES_PORT]),
        api(images),
        budget("virt-api"),
        policy("virt-api", &[API_PORT, UPLOADS_PORT, PROBES_PORT]),
        api_service(),
        operator_service(),
        metrics_service(),
        handler(images),
        policy("virt-handler", &[CONSOLE_PORT, PROBES_PORT, MIGRATION_PORT]),
    ]
}

/// A component's pod with the common parts; `container` and `volumes` are its own.
pub(crate) fn pod(component: &str, account: &str, container: Value, volumes: &Value) -> Value {
    json!({
        "metadata": {
            "labels": {
                "app.kubernetes.io/component": component,
                "app.kubernetes.io/part-of": "kubevirt",
                APP_LABEL: component,
                METRICS_LABEL: "true",
            },
            "annotations": {"kubectl.kubernetes.io/default-container": component},
        },
        "spec": {
            "serviceAccountName": account,
            "priorityClassName": PRIORITY_CLASS,
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [
                {"key": "CriticalAddonsOnly", "operator": "Exists"},
                {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "node-role.kubernetes.io/master", "operator": "Exists", "effect": "NoSchedule"},
            ],
            "containers": [container],
            "volumes": volumes,
        },
    })
}

/// Environment variables about the component's own pod.
pub(crate) fn environment() -> Value {
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    json!([
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_IP", "status.podIP"),
        field("NODE_NAME", "spec.nodeName"),
    ])
}

/// The port from which monitoring reads metrics.
fn metrics_port() -> Value {
    json!({"name": METRICS_PORT_NAME, "containerPort": PROBES_PORT, "protocol": "TCP"})
}

/// No privilege of any kind: Pod Security's level `restricted`.
pub(crate) fn unprivileged() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "runAsUser": 1001,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

fn secret(volume: &str, secret: &str) -> Value {
    json!({"name": volume, "secret": {"secretName": secret, "defaultMode": 420}})
}

fn authorities() -> Value {
    json!({"name": "ca", "configMap": {"name": CA_CONFIG_MAP, "defaultMode": 420}})
}

fn mount(volume: &str, path: &str) -> Value {
    json!({"name": volume, "mountPath": path, "readOnly": true})
}

fn selector(component: &str) -> Value {
    json!({"matchLabels": {APP_LABEL: component}})
}

/// One of the replicas leads.
fn controller(images: &Images) -> Value {
    let name = "virt-controller";
    let probe = json!({"path": "/healthz", "port": PROBES_PORT, "scheme": "HTTPS"});
    let container = json!({
        "name": name,
        "image": images.reference(name),
        "imagePullPolicy": images.pull_policy,
        "args": [
            format!("--launcher-image={}", images.reference("virt-launcher")),
            format!("--importer-image={}", images.reference("virt-importer")),
            format!("--passt-image={}", images.reference("virt-passt")),
            format!("--image-pull-policy={}", images.pull_policy),
            format!("--namespace={INSTALL_NAMESPACE}"),
            format!("--listen=[::]:{PROBES_PORT}"),
        ],
        "env": environment(),
        "ports": [metrics_port()],
        "readinessProbe": {"httpGet": probe, "periodSeconds": 2, "timeoutSeconds": 5},
        "livenessProbe": {"httpGet": probe, "initialDelaySeconds": 15, "periodSeconds": 10, "timeoutSeconds": 10},
        // It keeps every machine and instance in memory: some kilobytes each.
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": unprivileged(),
        "volumeMounts": [mount("certificates", "/etc/virt-controller/certificates")],
    });
    let volumes = json!([secret("certificates", "kubevirt-controller-certs")]);
    two_replicas(name, pod(name, SERVICE_ACCOUNT_CONTROLLER, container, &volumes))
}

/// A deployment of two, on different nodes if there are several, so that one of them survives the loss of a node. The other
/// one moves after [`AWAY_SECONDS`]: Kubernetes' default of five minutes is too long for a component that every machine
/// depends on.
pub(crate) fn two_replicas(name: &str, mut pod: Value) -> Value {
    pod["spec"]["affinity"] = json!({"podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "podAffinityTerm": {
                "labelSelector": selector(name),
                // During a rollout the old pods do not count.
                "matchLabelKeys": ["pod-template-hash"],
                "topologyKey": "kubernetes.io/hostname",
            },
        }],
    }});
    if let Some(tolerations) = pod["spec"]["tolerations"].as_array_mut() {
        tolerations.extend(["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"].map(|key| {
            json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": AWAY_SECONDS})
        }));
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": namespaced(name, name),
        "spec": {"replicas": 2, "selector": selector(name), "template": pod},
    })
}

/// A drain leaves one of two.
fn budget(name: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": namespaced(&format!("{name}-pdb"), name),
        "spec": {"minAvailable": 1, "selector": selector(name)},
    })
}

/// The operator makes its certificates; the kubelet delays the pod's start until they exist.
fn api(images: &Images) -> Value {
    let name = "virt-api";
    let probe = |path: &str| json!({"path": path, "port": PROBES_PORT, "scheme": "HTTPS"});
    let container = json!({
        "name": name,
        "image": images.reference(name),
        "imagePullPolicy": images.pull_policy,
        "args": [
            format!("--listen=[::]:{API_PORT}"),
            format!("--uploads-listen=[::]:{UPLOADS_PORT}"),
            format!("--probes-listen=[::]:{PROBES_PORT}"),
            format!("--namespace={INSTALL_NAMESPACE}"),
        ],
        "env": environment(),
        "ports": [
            {"name": API_PORT_NAME, "containerPort": API_PORT, "protocol": "TCP"},
            {"name": UPLOADS_PORT_NAME, "containerPort": UPLOADS_PORT, "protocol": "TCP"},
            metrics_port(),
        ],
        "readinessProbe": {"httpGet": probe("/readyz"), "periodSeconds": 2, "timeoutSeconds": 5},
        "livenessProbe": {"httpGet": probe("/healthz"), "initialDelaySeconds": 15, "periodSeconds": 10, "timeoutSeconds": 10},
        // The memory that clients can make it use is bounded well below.
        "resources": {"requests": {"cpu": CONSOLE_CPU, "memory": "32Mi"}, "limits": {"memory": "768Mi"}},
        "securityContext": unprivileged(),
        "volumeMounts": [
            mount("certificates", "/etc/virt-api/certificates"),
            mount("client-certificates", "/etc/virt-handler/clientcertificates"),
            mount("ca", "/etc/virt-api/ca"),
        ],
    });
    let volumes = json!([
        secret("certificates", "kubevirt-virt-api-certs"),
        secret("client-certificates", "kubevirt-virt-handler-certs"),
        authorities(),
    ]);
    two_replicas(name, pod(name, SERVICE_ACCOUNT_API, container, &volumes))
}

/// Monitoring selects all components by it.
fn metrics_service() -> Value {
    let mut metadata = namespaced(METRICS_SERVICE, "");
    metadata["labels"][METRICS_LABEL] = json!("true");
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "selector": {METRICS_LABEL: "true"},
            // By number: virt-api of a former version has one port for all, under another name. Headless, since metrics are
            // read from each pod.
            "clusterIP": "None",
            "ports": [{
                "name": METRICS_PORT_NAME, "port": 443, "targetPort": PROBES_PORT, "protocol": "TCP",
            }],
        },
    })
}

fn api_service() -> Value {
    let name = "virt-api";
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": namespaced(name, name),
        "spec": {
            "selector": {APP_LABEL: name},
            // By name: during a rollout, pods of another version have another number.
            "ports": [
                {"name": "https", "port": 443, "targetPort": API_PORT_NAME, "protocol": "TCP"},
                {"name": UPLOADS_PORT_NAME, "port": UPLOADS_PORT, "targetPort": UPLOADS_PORT_NAME, "protocol": "TCP"},
            ],
        },
    })
}

/// The only component with node privileges: it enters the network namespaces of launcher pods and opens their sockets.
///
/// A list of capabilities would not be enough. The runtime lets an unprivileged container open only a few harmless devices,
/// and a device plugin, the usual way to more, is this container itself; `/proc/sys`, with the settings of the pods'
/// networks, is read-only in such a container; and its profiles (AppArmor, SELinux) keep it from the processes and sockets
/// of other pods. Where it is possible, rights are removed: its own root is read-only, and whatever a launcher makes it do
/// is bounded by its resource limits.
///
/// It runs on every node that can run pods, tainted or not, since guests on a node outlive its taints.
fn handler(images: &Images) -> Value {
    let name = "virt-handler";
    let probe = |path: &str, port: u16| json!({"path": path, "port": port, "scheme": "HTTPS"});
    let container = json!({
        "name": name,
        "image": images.reference(name),
        "imagePullPolicy": images.pull_policy,
        "args": [
            "--node-name=$(NODE_NAME)",
            "--kubelet-dir=/kubelet",
            "--pods-dir=/kubelet/pods",
            "--capabilities-dir=/var/lib/kubevirt-node-labeller",
            format!("--listen=[::]:{CONSOLE_PORT}"),
            format!("--migration-listen=[::]:{MIGRATION_PORT}"),
            format!("--probes-listen=[::]:{PROBES_PORT}"),
        ],
        "env": environment(),
        "ports": [
            {"name": "console", "containerPort": CONSOLE_PORT, "protocol": "TCP"},
            {"name": "migration", "containerPort": MIGRATION_PORT, "protocol": "TCP"},
            metrics_port(),
        ],
        // It is ready when the server of consoles has its certificate. A client that floods that server must not cause a restart.
        "readinessProbe": {"httpGet": probe("/readyz", CONSOLE_PORT), "periodSeconds": 2, "timeoutSeconds": 5},
        "livenessProbe": {
            "httpGet": probe("/healthz", PROBES_PORT), "initialDelaySeconds": 15, "periodSeconds": 10, "timeoutSeconds": 10,
        },
        "resources": {"requests": {"cpu": CONSOLE_CPU, "memory": "32Mi"}, "limits": {"cpu": "2", "memory": "512Mi"}},
        "securityContext": {"privileged": true, "runAsUser": 0, "readOnlyRootFilesystem": true},
        "volumeMounts": [
            // Volumes that are mounts of their own come and go beneath it.
            {"name": "kubelet", "mountPath": "/kubelet", "mountPropagation": "HostToContainer"},
            mount("capabilities", "/var/lib/kubevirt-node-labeller"),
            mount("ca", "/etc/virt-handler/ca"),
        ],
    });
    let volumes = json!([
        {"name": "kubelet", "hostPath": {"path": "/var/lib/kubelet", "type": "Directory"}},
        {"name": "capabilities", "emptyDir": {"sizeLimit": "4Mi"}},
        authorities(),
    ]);
    let mut pod = pod(name, SERVICE_ACCOUNT_HANDLER, container, &volumes);
    pod["spec"]["initContainers"] = json!([node_capabilities(images)]);
    pod["spec"]["hostPID"] = json!(true);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(15);
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": namespaced(name, name),
        "spec": {
            "selector": selector(name),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": pod,
        },
    })
}

/// The capabilities of the node for guests, according to its QEMU, which is only in the launcher's image. It is privileged
/// for `/dev/kvm`.
fn node_capabilities(images: &Images) -> Value {
    json!({
        "name": "virt-launcher",
        "image": images.reference("virt-launcher"),
        "imagePullPolicy": images.pull_policy,
        "command": ["/usr/bin/virt-launcher", "node-capabilities"],
        "args": ["--folder=/var/lib/kubevirt-node-labeller"],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "512Mi"}},
        "securityContext": {"privileged": true, "runAsUser": 0, "readOnlyRootFilesystem": true},
        "volumeMounts": [{"name": "capabilities", "mountPath": "/var/lib/kubevirt-node-labeller"}],
    })
}

/// The service of the operator's webhook for the `KubeVirt` object, which does not depend on virt-api.
fn operator_service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": namespaced(OPERATOR_SERVICE, OPERATOR),
        "spec": {
            "selector": {APP_LABEL: OPERATOR},
            "ports": [{"name": "webhooks", "port": 443, "targetPort": "webhooks", "protocol": "TCP"}],
        },
    })
}

/// Reference to virt-operator's service.
pub(crate) fn operator_reference() -> Value {
    json!({"name": OPERATOR_SERVICE, "namespace": INSTALL_NAMESPACE, "port": 443})
}

/// Reference to virt-api's service.
pub(crate) fn api_reference() -> Value {
    json!({"name": "virt-api", "namespace": INSTALL_NAMESPACE, "port": 443})
}

/// Metadata of a cluster-wide object that belongs to virt-api.
pub(crate) fn api_metadata(name: &str) -> Value {
    metadata(name, "virt-api")
}
