//! Recording rules and alerts over metrics of our components and of kube-state-metrics.
//!
//! Names and thresholds are KubeVirt's, so that existing dashboards and on-call rules keep working. KubeVirt's rules over
//! metrics that no component exports here are left out: a rule that can never be true looks like one that never fires.

use serde_json::{Value, json};

/// Components, with the metric that shows whether a pod of theirs is ready.
const COMPONENTS: [(&str, &str); 4] = [
    ("api", "kubevirt_virt_api_ready_status"),
    ("controller", "kubevirt_virt_controller_ready_status"),
    ("operator", "kubevirt_virt_operator_ready_status"),
    ("handler", "kubevirt_virt_handler_ready_status"),
];
/// Components of which one pod leads.
const LED: [(&str, &str); 2] = [
    ("controller", "kubevirt_virt_controller_leading_status"),
    ("operator", "kubevirt_virt_operator_leading_status"),
];

/// Recordings about machines and nodes. Names without colons are KubeVirt's former names, for dashboards that use them.
const GUESTS: [(&str, &str); 19] = [
    ("namespace:kubevirt_vm:sum", "sum by (namespace) (count by (name, namespace) (kubevirt_vm_info))"),
    ("kubevirt_number_of_vms", "namespace:kubevirt_vm:sum"),
    ("kubevirt_vm_created_total", "sum by (namespace) (kubevirt_vm_created_by_pod_total)"),
    (
        "node:kubevirt_vmi_phase:sum",
        "sum by (node, phase, os, workload, flavor, instance_type, preference, guest_os_kernel_release, \
         guest_os_machine, guest_os_arch, guest_os_name, guest_os_version_id) (kubevirt_vmi_info)",
    ),
    ("kubevirt_vmi_phase_count", "node:kubevirt_vmi_phase:sum"),
    (
        "vmi:kubevirt_vmi_memory_used_bytes:sum",
        "kubevirt_vmi_memory_available_bytes - kubevirt_vmi_memory_usable_bytes",
    ),
    ("kubevirt_vmi_memory_used_bytes", "vmi:kubevirt_vmi_memory_used_bytes:sum"),
    ("vmi:kubevirt_vmi_vcpu:count", "count by (namespace, name, node) (kubevirt_vmi_vcpu_seconds_total)"),
    (
        "vmi:kubevirt_vmi_guest_queue_length:sum",
        "sum by (name, namespace) (clamp_min(kubevirt_vmi_guest_load_1m \
         - on(name, namespace, node) group_left() vmi:kubevirt_vmi_vcpu:count, 0))",
    ),
    ("kubevirt_vmi_guest_vcpu_queue", "vmi:kubevirt_vmi_guest_queue_length:sum"),
    (
        "vmi:kubevirt_vmi_memory_available_bytes:sum",
        "sum by (name, namespace) (kubevirt_vmi_memory_available_bytes)",
    ),
    (
        "vmi:kubevirt_vmi_memory_headroom_ratio:sum",
        "sum by (name, namespace) (kubevirt_vmi_memory_usable_bytes) \
         / sum by (name, namespace) (kubevirt_vmi_memory_available_bytes)",
    ),
    (
        "vmi:kubevirt_vmi_pgmajfaults:rate5m",
        "sum by (name, namespace) (rate(kubevirt_vmi_memory_pgmajfault_total[5m]))",
    ),
    (
        "vmi:kubevirt_vmi_pgmajfaults:rate30m",
        "sum by (name, namespace) (rate(kubevirt_vmi_memory_pgmajfault_total[30m]))",
    ),
    (
        "vmi:kubevirt_vmi_swap_traffic_bytes:rate5m",
        "sum by (name, namespace) (rate(kubevirt_vmi_memory_swap_in_traffic_bytes[5m])) \
         + sum by (name, namespace) (rate(kubevirt_vmi_memory_swap_out_traffic_bytes[5m]))",
    ),
    ("cluster:kubevirt_nodes_allocatable:count", "count(count(kube_node_status_allocatable) by (node))"),
    ("kubevirt_allocatable_nodes", "cluster:kubevirt_nodes_allocatable:count"),
    (
        "cluster:kubevirt_nodes_with_kvm:count",
        "count(kube_node_status_allocatable{resource='devices_kubevirt_io_kvm'} != 0) or vector(0)",
    ),
    ("kubevirt_nodes_with_kvm", "cluster:kubevirt_nodes_with_kvm:count"),
];

/// The severity of an alert.
#[derive(Clone, Copy)]
enum Severity {
    Critical,
    Warning,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
        }
    }
}

/// All groups, for components in that namespace, with the address of alerts' pages (`%s`: the alert).
pub(crate) fn groups(namespace: &str, runbooks: &str) -> Value {
    let mut alerts = alerts(namespace);
    for alert in &mut alerts {
        let page = runbooks.replace("%s", alert["alert"].as_str().unwrap_or_default());
        alert["annotations"]["runbook_url"] = json!(page);
    }
    json!([
        {"name": "recordingRules.rules", "rules": recordings(namespace)},
        {"name": "alerts.rules", "rules": alerts},
    ])
}

fn record(name: String, expression: String) -> Value {
    json!({"record": name, "expr": expression})
}

fn recordings(namespace: &str) -> Vec<Value> {
    let mut rules = vec![];
    for (component, ready) in COMPONENTS {
        let pods = format!("pod=~'virt-{component}-.*', namespace='{namespace}'");
        rules.push(record(
            format!("cluster:kubevirt_virt_{component}_up:sum"),
            format!("sum(up{{{pods}}}) or vector(0)"),
        ));
        rules.push(record(
            format!("cluster:kubevirt_virt_{component}_pods_running:count"),
            format!("count(kube_pod_status_phase{{{pods}, phase='Running'}} == 1) or vector(0)"),
        ));
        rules.push(record(
            format!("cluster:kubevirt_virt_{component}_ready:sum"),
            format!(
                "sum(kube_pod_status_ready{{{pods}, condition='true'}} * on(pod, namespace) {ready}{{namespace='{namespace}'}}) \
                 or vector(0)"
            ),
        ));
    }
    rules.extend(GUESTS.map(|(name, expression)| record(name.to_owned(), expression.to_owned())));
    for (component, leading) in LED {
        rules.push(record(
            format!("cluster:kubevirt_virt_{component}_leading:sum"),
            format!("sum({leading}{{namespace='{namespace}'}}) or vector(0)"),
        ));
    }
    rules
}

/// An alert about the installation, not about single machines.
fn alert(
    name: &str,
    namespace: &str,
    severity: Severity,
    minutes: u32,
    summary: &str,
    expression: String,
) -> Value {
    json!({
        "alert": name,
        "expr": expression,
        "for": format!("{minutes}m"),
        "annotations": {"summary": summary},
        "labels": {
            "severity": severity.name(),
            "operator_health_impact": severity.name(),
            "kubernetes_operator_part_of": "kubevirt",
            "kubernetes_operator_component": "kubevirt",
            "namespace": namespace,
        },
    })
}

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
        let mut add = |name: &str, severity, minutes, summary: String, expression: String| {
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
    let outdated = alert(
        "OutdatedVirtualMachineInstanceWorkloads",
        namespace,
        Warning,
        24 * 60,
        "Instances have been running with a launcher of a former version for a day.",
        "kubevirt_vmi_number_of_outdated{namespace!=''} != 0".to_owned(),
    );
    // These are about machines: the installation is healthy.
    let stays = alert(
        "VMCannotBeEvicted",
        namespace,
        Warning,
        1,
        "The eviction strategy of instance {{ $labels.name }} on node {{ $labels.node }} is live migration, and it cannot be migrated.",
        "kubevirt_vmi_non_evictable * on(name, namespace) group_left() \
         topk by(name, namespace) (1, kubevirt_vmi_info{phase='running'}) == 1"
            .to_owned(),
    );
    let stuck = alert(
        "VirtualMachineStuckInUnhealthyState",
        namespace,
        Warning,
        10,
        "Machine {{ $labels.name }} has been {{ $labels.status }} for 10 minutes and has no instance.",
        "sum by (name, namespace, status)(kubevirt_vm_info{status='provisioning'} == 1 \
         or kubevirt_vm_info{status='starting'} == 1 or kubevirt_vm_info{status='terminating'} == 1 \
         or kubevirt_vm_info{status_group='error'} == 1) unless on(name, namespace) kubevirt_vmi_info"
            .to_owned(),
    );
    for mut alert in [outdated, stays, stuck] {
        alert["labels"]["operator_health_impact"] = json!("none");
        alerts.push(alert);
    }
    alerts
}

#[cfg(test)]
mod tests {
    use super::super::expression::metrics;
    use super::*;
    use barevirt_component::metrics::names::is_exported;
    use std::collections::BTreeSet;

    /// Metrics that other programs export.
    const OTHERS: [&str; 8] = [
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
        // Each recorded name exists once.
        assert_eq!(recorded.len(), rules("record").len(), "each name once");
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
    fn alerts_are_told_apart_and_say_what_is_wrong() {
        let alerts = rules("alert");
        let names: BTreeSet<&str> = alerts.iter().map(|alert| alert["alert"].as_str().unwrap()).collect();
        assert_eq!(names.len(), alerts.len());
        for name in ["VirtAPIDown", "NoReadyVirtController", "VirtHandlerDaemonSetRolloutFailing"] {
            assert!(names.contains(name), "{name}");
        }
        for alert in &alerts {
            assert!(alert["annotations"]["summary"].as_str().unwrap().ends_with('.'), "{alert}");
            assert!(["critical", "warning"].contains(&alert["labels"]["severity"].as_str().unwrap()));
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
        for alert in rules("alert") {
            let name = alert["alert"].as_str().unwrap();
            assert!(pages.remove(&format!("{name}.md")), "docs/runbooks has no page {name}.md");
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
