//! Recording rules, under KubeVirt's names.
//!
//! They are over metrics of our components, of kube-state-metrics, of the kubelet and of the API server.

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

/// Recordings about machines, nodes and storage. Names without colons are KubeVirt's former names, for dashboards that use them.
const OTHERS: [(&str, &str); 36] = [
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
    (
        "vmi:kubevirt_vmi_swap_traffic_bytes:rate30m",
        "sum by (name, namespace) (rate(kubevirt_vmi_memory_swap_in_traffic_bytes[30m])) \
         + sum by (name, namespace) (rate(kubevirt_vmi_memory_swap_out_traffic_bytes[30m]))",
    ),
    ("kubevirt_vmi_migration_data_total_bytes", "kubevirt_vmi_migration_data_bytes_total"),
    (
        "cluster:kubevirt_non_schedulable_nodes:sum",
        "sum(count by (node) (kube_node_role{role=~'arbiter'})) or vector(0)",
    ),
    (
        "cluster:kubevirt_nodes_allocatable:count",
        "count(count by (node) (kube_node_status_allocatable)) - cluster:kubevirt_non_schedulable_nodes:sum",
    ),
    ("kubevirt_allocatable_nodes", "cluster:kubevirt_nodes_allocatable:count"),
    (
        "cluster:kubevirt_nodes_with_kvm:count",
        "count(kube_node_status_allocatable{resource='devices_kubevirt_io_kvm'} != 0) or vector(0)",
    ),
    ("kubevirt_nodes_with_kvm", "cluster:kubevirt_nodes_with_kvm:count"),
    (
        "cluster:kubevirt_api_request_deprecated_total:sum",
        "group by (group, version, resource, subresource) (apiserver_requested_deprecated_apis{group='kubevirt.io'}) \
         * on(group, version, resource, subresource) group_right() \
         sum by (group, version, resource, subresource, verb) (apiserver_request_total)",
    ),
    ("kubevirt_api_request_deprecated_total", "cluster:kubevirt_api_request_deprecated_total:sum"),
    (
        "pod_container:kubevirt_vm_memory_request_margin_based_on_working_set_bytes:sum",
        "sum by (pod, container, namespace) \
         (kube_pod_container_resource_requests{pod=~'virt-launcher-.*', container='compute', resource='memory'} \
         - on(pod, container, namespace) max by (pod, container, namespace) \
         (container_memory_working_set_bytes{pod=~'virt-launcher-.*', container='compute'}))",
    ),
    (
        "kubevirt_vm_container_memory_request_margin_based_on_working_set_bytes",
        "pod_container:kubevirt_vm_memory_request_margin_based_on_working_set_bytes:sum",
    ),
    (
        "pod_container:kubevirt_vm_memory_request_margin_based_on_rss_bytes:sum",
        "sum by (pod, container, namespace) \
         (kube_pod_container_resource_requests{pod=~'virt-launcher-.*', container='compute', resource='memory'} \
         - on(pod, container, namespace) max by (pod, container, namespace) \
         (container_memory_rss{pod=~'virt-launcher-.*', container='compute'}))",
    ),
    (
        "kubevirt_vm_container_memory_request_margin_based_on_rss_bytes",
        "pod_container:kubevirt_vm_memory_request_margin_based_on_rss_bytes:sum",
    ),
    (
        "pvc:kubevirt_suspected_orphaned_storage_bytes:info",
        "(kube_persistentvolumeclaim_info unless on(namespace, persistentvolumeclaim) \
         (kube_pod_spec_volumes_persistentvolumeclaims_info or kubevirt_vm_disk_allocated_size_bytes)) \
         * on(namespace, persistentvolumeclaim) group_left() \
         kube_persistentvolumeclaim_resource_requests_storage_bytes",
    ),
    ("kubevirt_virt_api_up", "cluster:kubevirt_virt_api_up:sum"),
    ("kubevirt_virt_controller_up", "cluster:kubevirt_virt_controller_up:sum"),
    ("kubevirt_virt_controller_ready", "cluster:kubevirt_virt_controller_ready:sum"),
    ("kubevirt_virt_operator_up", "cluster:kubevirt_virt_operator_up:sum"),
    ("kubevirt_virt_operator_ready", "cluster:kubevirt_virt_operator_ready:sum"),
    ("kubevirt_virt_operator_leading", "cluster:kubevirt_virt_operator_leading:sum"),
    ("kubevirt_virt_handler_up", "cluster:kubevirt_virt_handler_up:sum"),
];

/// Metrics of a container's memory, with the label of their recording.
const USED: [(&str, &str); 2] = [
    ("container_memory_working_set_bytes", "memory_working_set_delta_from_request"),
    ("container_memory_rss", "memory_rss_delta_from_request"),
];

fn record(name: String, expression: String) -> Value {
    json!({"record": name, "expr": expression})
}

/// All recordings, for components in that namespace.
pub(super) fn recordings(namespace: &str) -> Vec<Value> {
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
    rules.extend(OTHERS.map(|(name, expression)| record(name.to_owned(), expression.to_owned())));
    for (component, leading) in LED {
        rules.push(record(
            format!("cluster:kubevirt_virt_{component}_leading:sum"),
            format!("sum({leading}{{namespace='{namespace}'}}) or vector(0)"),
        ));
    }
    rules.extend(USED.map(|(used, reason)| surplus(used, reason)));
    rules
}

/// How much memory the container that exceeds its request most uses above it, for each of our containers.
fn surplus(used: &str, reason: &str) -> Value {
    let containers = "container=~'virt-controller|virt-api|virt-handler|virt-operator|compute'";
    let expression = format!(
        "topk by (container) (1, max by (container, namespace, node, pod) ({used}{{{containers}, pod=~'virt-.*'}} \
         - on(pod, container, namespace) group_left(node) \
         kube_pod_container_resource_requests{{{containers}, resource='memory'}}))"
    );
    let mut rule = record("container:kubevirt_memory_delta_from_requested_bytes:max".to_owned(), expression);
    rule["labels"] = json!({"reason": reason});
    rule
}
