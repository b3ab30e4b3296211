//! Objects for a monitoring stack: a service that selects all components' metrics, and, if Prometheus' operator is
//! installed, its objects: scrape targets, the scraping account, and rules.
//!
//! Names are KubeVirt's.

mod alert;
mod dashboard;
mod expression;
mod machine_alerts;
mod recordings;
mod rules;

pub(crate) use rules::groups;

use crate::objects::{metadata, namespaced};
use crate::rbac::{role_ref, rule};
use barevirt_api::names::INSTALL_NAMESPACE;
use serde_json::{Value, json};

/// Label of all pods with metrics, and of monitoring objects.
pub(crate) const METRICS_LABEL: &str = "prometheus.kubevirt.io";
/// Name of the pods' port with metrics.
pub(crate) const METRICS_PORT_NAME: &str = "metrics";
/// The service that selects them.
pub(crate) const METRICS_SERVICE: &str = "kubevirt-prometheus-metrics";
/// Name of the objects of Prometheus' operator.
pub(crate) const NAME: &str = "prometheus-kubevirt-rules";
/// Name of the role of the scraping account.
pub(crate) const ROLE: &str = "kubevirt-monitoring";
/// Address of an alert's page, with `%s` for the alert, unless the operator has another one (`RUNBOOK_URL_TEMPLATE`).
pub const RUNBOOKS: &str = "https://barevirt.dev/runbooks/%s.html";
/// Group of Prometheus' operator.
pub const GROUP: &str = "monitoring.coreos.com";

/// The monitoring stack of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// Service account of Prometheus.
    pub account: String,
    /// Its namespace.
    pub namespace: String,
    /// Namespace in which Prometheus looks for scrape targets, if its operator is installed.
    pub objects_in: Option<String>,
    /// Address of an alert's page, with `%s` for the alert.
    pub runbooks: String,
}

/// All objects for the monitoring stack.
pub(crate) fn objects(monitor: &Monitor) -> Vec<Value> {
    let mut objects = vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": namespaced(ROLE, ""), "rules": rights(),
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": namespaced(ROLE, ""),
            "roleRef": role_ref("Role", ROLE),
            "subjects": [{"kind": "ServiceAccount", "name": monitor.account, "namespace": monitor.namespace}],
        }),
    ];
    if let Some(namespace) = &monitor.objects_in {
        objects.extend([service_monitor(namespace), prometheus_rule(&monitor.runbooks)]);
    }
    objects
}

/// The rights to find the pods.
pub(crate) fn rights() -> Vec<Value> {
    let read = ["get", "list", "watch"];
    vec![
        rule("", &["services", "endpoints", "pods"], &read),
        rule("discovery.k8s.io", &["endpointslices"], &read),
    ]
}

fn service_monitor(namespace: &str) -> Value {
    let mut metadata = metadata(NAME, "");
    metadata["namespace"] = json!(namespace);
    metadata["labels"]["openshift.io/cluster-monitoring"] = json!("");
    metadata["labels"]["k8s-app"] = json!("kubevirt");
    metadata["labels"][METRICS_LABEL] = json!("true");
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ServiceMonitor", "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": {METRICS_LABEL: "true"}},
            "namespaceSelector": {"matchNames": [INSTALL_NAMESPACE]},
            "endpoints": [{
                "port": METRICS_PORT_NAME,
                "scheme": "https",
                // The metrics contain no secrets, and false ones only affect graphs.
                "tlsConfig": {"insecureSkipVerify": true},
                "honorLabels": true,
            }],
        },
    })
}

fn prometheus_rule(runbooks: &str) -> Value {
    let mut metadata = namespaced(NAME, "");
    metadata["labels"]["k8s-app"] = json!("kubevirt");
    metadata["labels"][METRICS_LABEL] = json!("true");
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "PrometheusRule", "metadata": metadata,
        "spec": {"groups": groups(INSTALL_NAMESPACE, runbooks)},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_prometheus_operator_there_is_but_the_right_to_look() {
        let mut monitor = Monitor {
            account: "prometheus-k8s".into(),
            namespace: "monitoring".into(),
            objects_in: None,
            runbooks: RUNBOOKS.into(),
        };
        let kinds = |monitor: &Monitor| -> Vec<String> {
            objects(monitor).iter().map(|object| object["kind"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(kinds(&monitor), ["Role", "RoleBinding"]);
        monitor.objects_in = Some("other".into());
        assert_eq!(kinds(&monitor), ["Role", "RoleBinding", "ServiceMonitor", "PrometheusRule"]);
        let all = objects(&monitor);
        assert_eq!(all[1]["subjects"][0]["namespace"], "monitoring");
        assert_eq!(all[2]["metadata"]["namespace"], "other");
        assert_eq!(all[3]["metadata"]["namespace"], INSTALL_NAMESPACE);
    }
}
