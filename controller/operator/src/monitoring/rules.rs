//! Alerts about the installation, and all groups of rules. Metrics are those of our components, of kube-state-metrics and of the API server.
//!
//! Names and thresholds are KubeVirt's, so that existing dashboards and on-call rules keep working. KubeVirt's rules over
//! metrics that no component exports here are left out: a rule that can never be true looks like one that never fires.

use super::alert::{Alert, Severity};
use super::{machine_alerts, recordings};
use serde_json::{Value, json};

/// All groups, for components in that namespace, with the address of alerts' pages (`%s`: the alert).
pub(crate) fn groups(namespace: &str, runbooks: &str) -> Value {
    let mut alerts = alerts(namespace);
    alerts.extend(machine_alerts::rules());
    for alert in &mut alerts {
        let page = runbooks.replace("%s", alert["alert"].as_str().unwrap_or_default());
        alert["annotations"]["runbook_url"] = json!(page);
    }
    json!([
        {"name": "recordingRules.rules", "rules": recordings::recordings(namespace)},
        {"name": "alerts.rules", "rules": alerts},
    ])
}

/// An alert that is as serious for the installation as it is urgent.
fn alert(
    name: &'static str,
    namespace: &str,
    severity: Severity,
    minutes: u32,
    summary: &str,
    expression: String,
) -> Value {
    Alert { name, severity, impact: severity.name(), minutes, summary: summary.to_owned(), expression }
        .of_installation(namespace)
}

/// Alerts about the installation.
fn alerts(namespace: &str) -> Vec<Value> {
    use Severity::{Critical, Warning};
    let mut alerts = vec![];
    // KubeVirt's spelling differs from component to component.
    for (component, down, few, unready, none, burst) in [
        (
            "api",
            "VirtAPIDown",
            Some(("LowVirtAPICount", 60)),
            "LowReadyVirtAPICount",
            "NoReadyVirtAPI",
            "VirtApiRESTErrorsBurst",
        ),
        (
            "controller",
            "VirtControllerDown",
            Some(("LowVirtControllersCount", 10)),
            "LowReadyVirtControllersCount",
            "NoReadyVirtController",
            "VirtControllerRESTErrorsBurst",
        ),
        (
            "operator",
            "VirtOperatorDown",
            Some(("LowVirtOperatorCount", 60)),
            "LowReadyVirtOperatorsCount",
            "NoReadyVirtOperator",
            "VirtOperatorRESTErrorsBurst",
        ),
        (
            "handler",
            "VirtHandlerDown",
            None,
            "LowReadyVirtHandlerCount",
            "NoReadyVirtHandler",
            "VirtHandlerRESTErrorsBurst",
        ),
    ] {
        let running = format!("cluster:kubevirt_virt_{component}_pods_running:count");
        let ready = format!("cluster:kubevirt_virt_{component}_ready:sum");
        let mut add = |name: &'static str, severity, minutes, summary: String, expression: String| {
            alerts.push(alert(name, namespace, severity, minutes, &summary, expression));
        };
        add(
            down,
            Critical,
            10,
            format!("No pod of virt-{component} has been running for 10 minutes."),
            format!("{running} == 0"),
        );
        if let Some((few, minutes)) = few {
            add(
                few,
                Warning,
                minutes,
                format!("Less than three quarters of the wanted pods of virt-{component} are running."),
                format!(
                    "{running} / on() kube_deployment_spec_replicas{{deployment='virt-{component}', namespace='{namespace}'}} < 0.75"
                ),
            );
        }
        add(
            unready,
            Warning,
            10,
            format!("Some pods of virt-{component} are running and not ready."),
            format!("{ready} < {running} and {ready} > 0"),
        );
        add(
            none,
            Critical,
            10,
            format!("No pod of virt-{component} has been ready for 10 minutes."),
            format!("{ready} == 0"),
        );
        let requests = format!(
            "kubevirt_rest_client_requests_total{{namespace='{namespace}',pod=~'virt-{component}-.*'"
        );
        add(
            burst,
            Critical,
            5,
            format!(
                "More than 80% of the requests of virt-{component} to the API server have failed for 5 minutes."
            ),
            format!(
                "sum(rate({requests},code=~'(4|5)[0-9][0-9]'}}[5m])) / sum(rate({requests}}}[5m])) >= 0.8"
            ),
        );
    }
    for (component, name) in
        [("controller", "NoLeadingVirtController"), ("operator", "NoLeadingVirtOperator")]
    {
        alerts.push(alert(
            name,
            namespace,
            Critical,
            10,
            &format!("No virt-{component} has been leading for 10 minutes."),
            format!("cluster:kubevirt_virt_{component}_leading:sum == 0"),
        ));
    }
    let handlers = format!("{{namespace='{namespace}', daemonset='virt-handler'}}");
    alerts.push(alert(
        "VirtHandlerDaemonSetRolloutFailing",
        namespace,
        Warning,
        15,
        "Some nodes have had no ready virt-handler for 15 minutes.",
        format!(
            "(kube_daemonset_status_number_ready{handlers} - kube_daemonset_status_desired_number_scheduled{handlers}) != 0"
        ),
    ));
    alerts.push(alert(
        "OrphanedVirtualMachineInstances",
        namespace,
        Warning,
        10,
        "Node {{ $labels.node }} runs instances and has had no ready virt-handler for 10 minutes.",
        "(((max by (node) (kube_pod_status_ready{condition='true',pod=~'virt-handler.*'} * on(pod) group_left(node) \
         max by(pod,node)(kube_pod_info{pod=~'virt-handler.*',node!=''}))) == 1) \
         or (count by (node)(kube_pod_info{pod=~'virt-launcher.*',node!=''})*0)) == 0"
            .to_owned(),
    ));
    alerts.push(alert(
        "VirtLauncherPodsStuckFailed",
        namespace,
        Critical,
        10,
        "At least 200 launcher pods have failed and were not deleted for 10 minutes.",
        "sum(kube_pod_status_phase{phase='Failed', pod=~'virt-launcher-.*'}) >= 200".to_owned(),
    ));
    alerts.extend([low_kvm(), no_nodes(), deprecated()].map(|alert| alert.of_installation(namespace)));
    alerts
}

fn low_kvm() -> Alert {
    Alert {
        name: "LowKVMNodesCount",
        severity: Severity::Warning,
        impact: "warning",
        minutes: 5,
        summary: "Less than two nodes have KVM: guests cannot move.".to_owned(),
        expression:
            "cluster:kubevirt_nodes_allocatable:count > 1 and cluster:kubevirt_nodes_with_kvm:count < 2"
                .to_owned(),
    }
}

/// Where kube-state-metrics does not export the label of nodes, nothing is known about it. KubeVirt's alert then fires always.
fn no_nodes() -> Alert {
    Alert {
        name: "KubeVirtNoAvailableNodesToRunVMs",
        severity: Severity::Warning,
        impact: "critical",
        minutes: 5,
        summary: "No node can run guests.".to_owned(),
        expression: "((cluster:kubevirt_nodes_with_kvm:count or on() vector(0)) == 0 \
             and on() (sum(kubevirt_configuration_emulation_enabled) or on() vector(0)) == 0) \
             or ((sum(kube_node_labels{label_kubevirt_io_schedulable='true'} \
             * on(node) group_left() (1 - kube_node_spec_unschedulable)) or on() vector(0)) == 0 \
             and on() count(kube_node_labels{label_kubevirt_io_schedulable!=''}) > 0)"
            .to_owned(),
    }
}

fn deprecated() -> Alert {
    let requests = "cluster:kubevirt_api_request_deprecated_total:sum{verb!~'LIST|WATCH|DELETE'}";
    Alert {
        name: "KubeVirtDeprecatedAPIRequested",
        severity: Severity::Info,
        impact: "none",
        minutes: 0,
        summary: "Clients use {{ $labels.resource }} of the deprecated API {{ $labels.group }}/{{ $labels.version }}."
            .to_owned(),
        expression: format!(
            "sum by (resource, group, version) ((round(increase({requests}[10m])) > 0 and {requests} offset 10m) \
             or ({requests} != 0 unless {requests} offset 10m))"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::expression::metrics;
    use super::*;
    use barevirt_component::metrics::names::is_exported;
    use std::collections::BTreeSet;

    /// Metrics that other programs export.
    const OTHERS: [&str; 19] = [
        "apiserver_request_total",
        "apiserver_requested_deprecated_apis",
        "container_memory_rss",
        "container_memory_working_set_bytes",
        "kube_node_labels",
        "kube_node_role",
        "kube_node_spec_unschedulable",
        "kube_persistentvolumeclaim_info",
        "kube_persistentvolumeclaim_resource_requests_storage_bytes",
        "kube_pod_container_resource_requests",
        "kube_pod_spec_volumes_persistentvolumeclaims_info",
        "kube_node_status_allocatable",
        "up",
        "kube_pod_status_phase",
        "kube_pod_status_ready",
        "kube_pod_info",
        "kube_deployment_spec_replicas",
        "kube_daemonset_status_number_ready",
        "kube_daemonset_status_desired_number_scheduled",
    ];

    fn rules(kind: &str) -> Vec<Value> {
        let groups = groups("kubevirt", super::super::RUNBOOKS);
        let all = groups.as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
        all.filter(|rule| rule[kind].is_string()).cloned().collect()
    }

    #[test]
    fn alert_expressions_use_only_exported_metrics() {
        let recorded: BTreeSet<String> =
            rules("record").iter().map(|rule| rule["record"].as_str().unwrap().to_owned()).collect();
        for rule in rules("record").iter().chain(&rules("alert")) {
            let names = metrics(rule["expr"].as_str().unwrap());
            assert!(!names.is_empty(), "{rule}");
            for name in names {
                let known = is_exported(&name) || OTHERS.contains(&name.as_str()) || recorded.contains(&name);
                assert!(known, "{name} in {rule}");
            }
        }
        let apart: BTreeSet<String> =
            rules("record").iter().map(|rule| format!("{} {}", rule["record"], rule["labels"])).collect();
        assert_eq!(apart.len(), rules("record").len(), "each name with its labels once");
    }

    #[test]
    fn parentheses_and_quotes_are_in_pairs() {
        for rule in rules("record").iter().chain(&rules("alert")) {
            let expression = rule["expr"].as_str().unwrap();
            for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
                assert_eq!(
                    expression.matches(open).count(),
                    expression.matches(close).count(),
                    "{expression}"
                );
            }
            assert_eq!(expression.matches('\'').count() % 2, 0, "{expression}");
        }
    }

    #[test]
    fn alerts_have_distinct_names_and_a_summary() {
        let alerts = rules("alert");
        let name = |alert: &Value| alert["alert"].as_str().unwrap().to_owned();
        let severity = |alert: &Value| alert["labels"]["severity"].as_str().unwrap().to_owned();
        let apart: BTreeSet<(String, String)> =
            alerts.iter().map(|alert| (name(alert), severity(alert))).collect();
        assert_eq!(apart.len(), alerts.len());
        for wanted in ["VirtAPIDown", "NoReadyVirtController", "VirtHandlerDaemonSetRolloutFailing"] {
            assert!(alerts.iter().any(|alert| name(alert) == wanted), "{wanted}");
        }
        for alert in &alerts {
            assert!(alert["annotations"]["summary"].as_str().unwrap().ends_with('.'), "{alert}");
            assert!(["critical", "warning", "info"].contains(&severity(alert).as_str()), "{alert}");
            let impact = alert["labels"]["operator_health_impact"].as_str().unwrap();
            assert!(["critical", "warning", "none"].contains(&impact), "{alert}");
        }
    }

    #[test]
    fn an_alert_about_a_machine_names_the_machine_and_its_namespace() {
        // A label of the rule would replace that of the series.
        for rule in machine_alerts::rules() {
            assert!(rule["labels"]["namespace"].is_null(), "{rule}");
            let about_one = rule["alert"] != "OutdatedVirtualMachineInstanceWorkloads";
            let expression = rule["expr"].as_str().unwrap();
            assert_eq!(
                expression.starts_with("label_replace(") && expression.contains(", 'vm', "),
                about_one
            );
        }
        for rule in alerts("kubevirt") {
            assert_eq!(rule["labels"]["namespace"], "kubevirt", "{rule}");
        }
    }

    #[test]
    fn each_alert_has_a_page_and_each_page_an_alert() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runbooks");
        let entries = std::fs::read_dir(folder).unwrap();
        let mut pages: BTreeSet<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(pages.remove("README.md"));
        let index = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
        let mut seen = BTreeSet::new();
        for alert in rules("alert") {
            let name = alert["alert"].as_str().unwrap();
            // An alert with two severities has one page.
            assert!(
                !seen.insert(name.to_owned()) || pages.remove(&format!("{name}.md")),
                "docs/runbooks has no page {name}.md"
            );
            assert!(
                index.contains(&format!("({name}.md)")),
                "docs/runbooks/README.md does not lead to {name}"
            );
            let address = format!("https://barevirt.dev/runbooks/{name}.html");
            assert_eq!(alert["annotations"]["runbook_url"], json!(address));
        }
        assert_eq!(pages, BTreeSet::new(), "pages without an alert");
    }
}
