//! Findings of the cluster itself: what Barevirt needs of it.

use serde_json::Value;

use super::findings::{Facts, Finding, condition, word};

/// The oldest minor version of Kubernetes 1 that has everything Barevirt uses: admission policies exist since
/// 1.30.
const OLDEST: u32 = 30;
/// Resource that handlers offer on nodes with hardware virtualization.
const KVM: &str = "devices.kubevirt.io/kvm";
/// Annotation of the default storage class.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found = vec![kubernetes(&facts.version)];
    match &facts.nodes {
        Ok(nodes) => found.extend([ready(nodes), architecture(nodes), network(nodes), kvm(facts, nodes)]),
        Err(why) => found.push(Finding::unknown("nodes", format!("nodes cannot be listed: {why}"))),
    }
    found.push(cgroups(&facts.metrics));
    found.push(storage(&facts.storage_classes));
    found.push(importer(&facts.groups));
    found
}

fn kubernetes(version: &Result<Value, String>) -> Finding {
    let area = "kubernetes";
    let version = match version {
        Ok(version) => version,
        Err(why) => {
            return Finding::unknown(area, format!("the API server does not tell its version: {why}"));
        }
    };
    let name = word(version, "/gitVersion");
    let digits: String = word(version, "/minor").chars().take_while(char::is_ascii_digit).collect();
    match digits.parse::<u32>() {
        Ok(minor) if word(version, "/major") == "1" && minor < OLDEST => Finding::problem(
            area,
            format!("Kubernetes {name} has no admission policies"),
            format!("update it to 1.{OLDEST} or newer"),
        ),
        Ok(_) => Finding::good(area, format!("Kubernetes {name}")),
        Err(_) => Finding::unknown(area, format!("the version {name:?} cannot be read")),
    }
}

fn name(object: &Value) -> &str {
    word(object, "/metadata/name")
}

fn names<'a>(objects: impl IntoIterator<Item = &'a Value>) -> String {
    objects.into_iter().map(name).collect::<Vec<_>>().join(", ")
}

fn ready(nodes: &[Value]) -> Finding {
    let area = "nodes";
    let is_ready = |node: &&Value| condition(node, "Ready").is_some_and(|ready| ready["status"] == "True");
    let (ready, others): (Vec<&Value>, Vec<&Value>) = nodes.iter().partition(is_ready);
    if ready.is_empty() {
        let remedy = "kubectl describe nodes says why";
        return Finding::problem(area, format!("none of {} nodes is ready", nodes.len()), remedy);
    }
    if !others.is_empty() {
        let remedy = format!("kubectl describe node {} says why", name(others[0]));
        return Finding::warning(area, format!("not ready: {}", names(others)), remedy);
    }
    Finding::good(area, format!("{0} of {0} nodes are ready", nodes.len()))
}

fn architecture(nodes: &[Value]) -> Finding {
    let area = "architecture";
    let fits = |node: &&Value| {
        word(node, "/status/nodeInfo/architecture") == "amd64"
            && word(node, "/status/nodeInfo/operatingSystem") == "linux"
    };
    let (fit, others): (Vec<&Value>, Vec<&Value>) = nodes.iter().partition(fits);
    match (fit.len(), others.len()) {
        (0, _) => Finding::problem(
            area,
            "no node is linux on amd64",
            "add one: the images are built only for linux on amd64",
        ),
        (_, 0) => Finding::good(area, "all nodes are linux on amd64"),
        _ => Finding::warning(
            area,
            format!("no guest runs on {}", names(others)),
            "the components have to be kept off these nodes: spec.workloads.nodePlacement of the KubeVirt object",
        ),
    }
}

fn network(nodes: &[Value]) -> Finding {
    let area = "network";
    let without =
        |node: &&Value| condition(node, "NetworkUnavailable").is_some_and(|no| no["status"] == "True");
    let cut_off: Vec<&Value> = nodes.iter().filter(without).collect();
    if !cut_off.is_empty() {
        let remedy = "the network plugin of these nodes is not there or not ready";
        return Finding::problem(area, format!("nodes without a pod network: {}", names(cut_off)), remedy);
    }
    let ranges: Vec<&str> = nodes
        .iter()
        .flat_map(|node| node["spec"]["podCIDRs"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .collect();
    let six = ranges.iter().any(|range| range.contains(':'));
    let four = ranges.iter().any(|range| range.contains('.'));
    let families = match (four, six) {
        (true, true) => "pods have IPv4 and IPv6",
        (true, false) => "pods have IPv4",
        (false, true) => "pods have IPv6",
        (false, false) => "the network plugin gives addresses by itself",
    };
    Finding::good(area, families)
}

/// Handlers report KVM; before they run, no one knows which nodes have it.
fn kvm(facts: &Facts, nodes: &[Value]) -> Finding {
    let area = "kvm";
    let amount = |node: &&Value| {
        let amount = node["status"]["allocatable"][KVM].as_str().unwrap_or("0");
        amount.parse::<u64>().unwrap_or_default() > 0
    };
    let with = nodes.iter().filter(amount).count();
    let kubevirt = facts.installations.as_ref().ok().and_then(|all| all.first());
    let Some(kubevirt) = kubevirt else {
        return Finding::unknown(area, "which nodes have KVM is known once virt-handler runs on them");
    };
    let emulation = kubevirt.pointer("/spec/configuration/developerConfiguration/useEmulation")
        == Some(&Value::Bool(true));
    match (with, emulation) {
        (_, true) => Finding::warning(
            area,
            "guests are emulated, which is slow: useEmulation is set",
            "on nodes with KVM, take spec.configuration.developerConfiguration.useEmulation out of the KubeVirt object",
        ),
        (0, false) => Finding::problem(
            area,
            "no node offers KVM, and emulation is not allowed",
            "switch virtualization on in the firmware and load kvm_intel or kvm_amd; for a trial set \
             spec.configuration.developerConfiguration.useEmulation",
        ),
        (with, false) if with < nodes.len() => Finding::warning(
            area,
            format!("{with} of {} nodes offer KVM", nodes.len()),
            "guests run only on these nodes; the others have no /dev/kvm, or no virt-handler",
        ),
        (_, false) => Finding::good(area, "all nodes offer KVM"),
    }
}

fn cgroups(metrics: &Result<String, String>) -> Finding {
    let area = "cgroups";
    let text = match metrics {
        Ok(text) => text,
        Err(why) => return Finding::unknown(area, format!("no kubelet could be asked: {why}")),
    };
    let line = text.lines().find(|line| line.starts_with("kubelet_cgroup_version"));
    let value = line.and_then(|line| line.rsplit_once(' ')).map(|(_, value)| value.trim());
    match value {
        Some("2") => Finding::good(area, "the kubelet works with cgroup v2"),
        Some("1") => Finding::warning(
            area,
            "the kubelet works with cgroup v1, which Kubernetes is phasing out",
            "boot the nodes with cgroup v2; guests run with v1 as well",
        ),
        _ => Finding::unknown(area, "the kubelet does not report its version of cgroups"),
    }
}

fn storage(classes: &Result<Vec<Value>, String>) -> Finding {
    let area = "storage";
    let classes = match classes {
        Ok(classes) => classes,
        Err(why) => return Finding::unknown(area, format!("storage classes cannot be listed: {why}")),
    };
    let default = classes.iter().find(|class| class["metadata"]["annotations"][DEFAULT_CLASS] == "true");
    match (classes.is_empty(), default) {
        (true, _) => Finding::warning(
            area,
            "there is no storage class: machines run only from container disks",
            "install a storage driver",
        ),
        (false, None) => Finding::warning(
            area,
            "no storage class is the default",
            "claims and DataVolumes have to name one; kubectl annotate storageclass NAME \
             storageclass.kubernetes.io/is-default-class=true",
        ),
        (false, Some(class)) => {
            let number = classes.len();
            Finding::good(area, format!("storage classes: {number}, {} by default", name(class)))
        }
    }
}

fn importer(groups: &Result<Vec<Value>, String>) -> Finding {
    let area = "imports";
    match groups {
        Ok(groups) if groups.iter().any(|group| group["name"] == "cdi.kubevirt.io") => {
            Finding::good(area, "DataVolumes are served")
        }
        Ok(_) => Finding::warning(
            area,
            "DataVolumes are not served: images come as container disks or on claims",
            "virt-operator makes the kind DataVolume: its log says why the kind is missing; or install CDI",
        ),
        Err(why) => Finding::unknown(area, format!("API groups cannot be listed: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::Severity;
    use super::*;
    use serde_json::json;

    fn node(name: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut node = json!({
            "metadata": {"name": name}, "spec": {"podCIDRs": ["10.0.0.0/24", "fd00::/64"]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {KVM: "1000"},
                "nodeInfo": {"architecture": "amd64", "operatingSystem": "linux"},
            },
        });
        change(&mut node);
        node
    }

    #[test]
    fn old_versions_of_kubernetes_are_a_problem() {
        let of = |minor: &str| {
            kubernetes(&Ok(json!({"major": "1", "minor": minor, "gitVersion": "v1.x"}))).severity
        };
        assert_eq!(of("29"), Severity::Problem);
        assert_eq!((of("30"), of("34+")), (Severity::Good, Severity::Good));
        assert_eq!(of(""), Severity::Unknown);
        assert_eq!(kubernetes(&Err("forbidden".to_owned())).severity, Severity::Unknown);
    }

    #[test]
    fn nodes_are_ready_of_the_right_kind_and_connected() {
        let good = node("a", |_| {});
        let dead = node("b", |node| node["status"]["conditions"][0]["status"] = json!("Unknown"));
        let arm = node("c", |node| node["status"]["nodeInfo"]["architecture"] = json!("arm64"));
        let alone = node("d", |node| {
            let cut_off = json!({"type": "NetworkUnavailable", "status": "True"});
            node["status"]["conditions"].as_array_mut().unwrap().push(cut_off);
        });
        let nodes = |given: &[&Value]| given.iter().map(|node| (*node).clone()).collect::<Vec<_>>();
        assert_eq!(ready(&nodes(&[&good])).severity, Severity::Good);
        let half = ready(&nodes(&[&good, &dead]));
        assert_eq!((half.severity, half.says.as_str()), (Severity::Warning, "not ready: b"));
        assert_eq!(ready(&nodes(&[&dead])).severity, Severity::Problem);
        assert_eq!(architecture(&nodes(&[&arm])).severity, Severity::Problem);
        assert_eq!(architecture(&nodes(&[&arm, &good])).says, "no guest runs on c");
        assert_eq!(network(&nodes(&[&good])).says, "pods have IPv4 and IPv6");
        assert_eq!(network(&nodes(&[&good, &alone])).severity, Severity::Problem);
    }

    #[test]
    fn the_doctor_checks_cgroups_and_storage_classes() {
        let metrics =
            |value: &str| cgroups(&Ok(format!("# HELP a b\nkubelet_cgroup_version {value}\n"))).severity;
        assert_eq!((metrics("2"), metrics("1")), (Severity::Good, Severity::Warning));
        assert_eq!(cgroups(&Ok(String::new())).severity, Severity::Unknown);
        let class =
            |default: &str| json!({"metadata": {"name": "local", "annotations": {DEFAULT_CLASS: default}}});
        let severity = |classes: Vec<Value>| storage(&Ok(classes)).severity;
        assert_eq!(severity(vec![]), Severity::Warning);
        assert_eq!(severity(vec![class("false")]), Severity::Warning);
        assert_eq!(severity(vec![class("false"), class("true")]), Severity::Good);
        assert_eq!(importer(&Ok(vec![json!({"name": "cdi.kubevirt.io"})])).severity, Severity::Good);
        assert_eq!(importer(&Ok(vec![])).severity, Severity::Warning);
    }
}
