//! Findings of the installation: whether everything runs, and whether the API server trusts it.

use serde_json::Value;

use super::findings::{Facts, Finding, condition, word};
use super::{certificates, versions};

/// Deployments of an installation.
const DEPLOYMENTS: [&str; 3] = ["virt-operator", "virt-api", "virt-controller"];
/// The daemon set that runs on every node.
const HANDLER: &str = "virt-handler";

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let area = "installation";
    let kubevirts = match &facts.installations {
        Ok(kubevirts) => kubevirts,
        Err(_) if is_not_served(facts) => {
            return vec![Finding::unknown(
                area,
                "nothing is installed yet: the API server does not know the kind KubeVirt".to_owned(),
            )];
        }
        Err(why) => return vec![Finding::unknown(area, format!("KubeVirt objects cannot be listed: {why}"))],
    };
    let Some(kubevirt) = kubevirts.first() else {
        let remedy = "apply one, such as manifests/barevirt-cr.yaml";
        return vec![Finding::problem(area, "there is no KubeVirt object, so nothing is installed", remedy)];
    };
    let mut found = vec![installed(kubevirt)];
    found.extend(components(facts));
    found.push(reachable(&facts.api_service));
    found.extend(versions::findings(facts));
    found.extend(certificates::findings(facts));
    found.push(trial(&facts.trial));
    found
}

/// Whether the kinds are unknown to the API server.
fn is_not_served(facts: &Facts) -> bool {
    facts.groups.as_ref().is_ok_and(|groups| groups.iter().all(|group| group["name"] != "kubevirt.io"))
}

fn installed(kubevirt: &Value) -> Finding {
    let area = "installation";
    let why = |name: &str| condition(kubevirt, name).map_or("", |condition| word(condition, "/message"));
    let is = |name: &str, status: &str| {
        condition(kubevirt, name).is_some_and(|condition| condition["status"] == status)
    };
    let describe = "kubectl -n kubevirt describe kubevirt, and the log of virt-operator";
    if is("Synchronized", "False") {
        return Finding::problem(
            area,
            format!("the KubeVirt object cannot be followed: {}", why("Synchronized")),
            describe,
        );
    }
    if is("Degraded", "True") {
        return Finding::problem(
            area,
            format!("the installation is degraded: {}", why("Degraded")),
            describe,
        );
    }
    if !is("Available", "True") {
        let phase = word(kubevirt, "/status/phase");
        return Finding::problem(
            area,
            format!("the installation is not available (phase {phase})"),
            describe,
        );
    }
    let version = word(kubevirt, "/status/observedKubeVirtVersion");
    Finding::good(area, format!("version {version} is available"))
}

fn components(facts: &Facts) -> Vec<Finding> {
    let area = "components";
    let (Ok(deployments), Ok(daemon_sets)) = (&facts.deployments, &facts.daemon_sets) else {
        return vec![Finding::unknown(area, "the workloads of namespace kubevirt cannot be listed")];
    };
    let number = |object: &Value, at: &str| object.pointer(at).and_then(Value::as_u64).unwrap_or_default();
    let find = |objects: &'_ [Value], name: &str| -> Option<Value> {
        objects.iter().find(|object| object["metadata"]["name"] == name).cloned()
    };
    let one = |name: &str, object: Option<Value>, ready: &str, wanted: &str| match object {
        None => Finding::problem(area, format!("{name} is not there"), "the log of virt-operator says why"),
        Some(object) => {
            let (ready, wanted) = (number(&object, ready), number(&object, wanted));
            if ready < wanted {
                let says = format!("{ready} of {wanted} pods of {name} are ready");
                let remedy = format!("kubectl -n kubevirt describe pod -l kubevirt.io={name}");
                if ready == 0 {
                    Finding::problem(area, says, remedy)
                } else {
                    Finding::warning(area, says, remedy)
                }
            } else {
                Finding::good(area, format!("{ready} of {wanted} pods of {name} are ready"))
            }
        }
    };
    let mut found: Vec<Finding> = DEPLOYMENTS
        .iter()
        .map(|name| one(name, find(deployments, name), "/status/readyReplicas", "/spec/replicas"))
        .collect();
    let handler = find(daemon_sets, HANDLER);
    found.push(one(HANDLER, handler, "/status/numberReady", "/status/desiredNumberScheduled"));
    found
}

fn reachable(service: &Result<Value, String>) -> Finding {
    let area = "subresources";
    let service = match service {
        Ok(service) => service,
        Err(why) => {
            let remedy =
                "without them there are no consoles, starts and stops; the log of virt-operator says why";
            return Finding::problem(area, format!("virt-api is not registered: {why}"), remedy);
        }
    };
    match condition(service, "Available") {
        Some(available) if available["status"] == "True" => {
            Finding::good(area, "the API server reaches virt-api")
        }
        Some(available) => Finding::problem(
            area,
            format!("the API server does not reach virt-api: {}", word(available, "/message")),
            "look at the service virt-api, its pods, network policies between the API server and them, and the certificates",
        ),
        None => Finding::unknown(area, "the API server has not looked for virt-api yet"),
    }
}

/// The refusal names a webhook that cannot be reached or whose certificate is not trusted.
fn trial(trial: &Result<(), String>) -> Finding {
    let area = "admission";
    match trial {
        Ok(()) => Finding::good(area, "a machine passes admission (dry run)"),
        Err(why) if why.contains("x509") => Finding::problem(
            area,
            format!("the API server does not trust a webhook's certificate: {why}"),
            "virt-operator renews certificates and the webhooks' bundles: look at its log",
        ),
        Err(why) if why.contains("forbidden") => {
            Finding::unknown(area, format!("you may not try to make a machine in namespace default: {why}"))
        }
        Err(why) => Finding::problem(
            area,
            format!("a machine does not pass admission (dry run): {why}"),
            "if a webhook was not reached, look at virt-api; else at what refuses machines here",
        ),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::certificates::tests::made;
    use super::super::findings::{Kept, Severity};
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    /// An installation in good order.
    pub(in super::super) fn facts() -> Facts {
        let workload = |name: &str| {
            json!({
                "metadata": {"name": name}, "spec": {"replicas": 2},
                "status": {"readyReplicas": 2, "updatedReplicas": 2},
            })
        };
        Facts {
            version: Ok(json!({})),
            nodes: Ok(vec![]),
            metrics: Ok(String::new()),
            storage_classes: Ok(vec![]),
            groups: Ok(vec![json!({"name": "kubevirt.io"})]),
            installations: Ok(vec![json!({"status": {
                "phase": "Deployed", "observedKubeVirtVersion": "v1",
                "conditions": [{"type": "Available", "status": "True"}],
            }})]),
            deployments: Ok(DEPLOYMENTS.map(workload).into()),
            daemon_sets: Ok(vec![json!({
                "metadata": {"name": HANDLER},
                "status": {"numberReady": 1, "updatedNumberScheduled": 1, "desiredNumberScheduled": 1},
            })]),
            api_service: Ok(json!({"status": {"conditions": [{"type": "Available", "status": "True"}]}})),
            server_version: Ok(json!({"gitVersion": barevirt_api::release::tag()})),
            trial: Ok(()),
            certificates: vec![Kept { of: "virt-api", is_authority: false, pem: Ok(Some(made(0, 86400))) }],
            now: Timestamp::UNIX_EPOCH,
        }
    }

    /// The worst severity of an area.
    fn severity(facts: &Facts, area: &str) -> Severity {
        let of_area = findings(facts).into_iter().filter(|finding| finding.area == area);
        let order = [Severity::Good, Severity::Unknown, Severity::Warning, Severity::Problem];
        let place = |severity: &Severity| order.iter().position(|known| known == severity);
        of_area.map(|finding| finding.severity).max_by_key(place).unwrap()
    }

    #[test]
    fn an_installation_in_good_order_has_nothing_to_mend() {
        let found = findings(&facts());
        assert!(found.iter().all(|finding| finding.severity == Severity::Good), "{found:?}");
        assert_eq!(found.len(), 9);
    }

    #[test]
    fn problems_are_found_in_their_area() {
        let mut wrong = facts();
        wrong.installations = Err("the server could not find the requested resource".to_owned());
        wrong.groups = Ok(vec![]);
        assert_eq!(severity(&wrong, "installation"), Severity::Unknown);
        let mut wrong = facts();
        wrong.installations = Ok(vec![]);
        assert_eq!(severity(&wrong, "installation"), Severity::Problem);
        for (condition, status) in [("Available", "False"), ("Degraded", "True"), ("Synchronized", "False")] {
            let mut wrong = facts();
            let conditions = json!([
                {"type": "Available", "status": "True"},
                {"type": condition, "status": status, "message": "because"},
            ]);
            let conditions = if condition == "Available" { json!([conditions[1]]) } else { conditions };
            wrong.installations = Ok(vec![json!({"status": {"conditions": conditions}})]);
            assert_eq!(severity(&wrong, "installation"), Severity::Problem, "{condition}");
        }
        let mut wrong = facts();
        wrong.deployments = Ok(vec![]);
        assert_eq!(severity(&wrong, "components"), Severity::Problem);
        let mut wrong = facts();
        wrong.daemon_sets.as_mut().unwrap()[0]["status"]["desiredNumberScheduled"] = json!(3);
        assert_eq!(severity(&wrong, "components"), Severity::Warning);
        let mut wrong = facts();
        wrong.api_service = Ok(
            json!({"status": {"conditions": [{"type": "Available", "status": "False", "message": "x509"}]}}),
        );
        assert_eq!(severity(&wrong, "subresources"), Severity::Problem);
        let mut wrong = facts();
        wrong.trial = Err("failed calling webhook: x509: certificate signed by unknown authority".to_owned());
        assert_eq!(severity(&wrong, "admission"), Severity::Problem);
        wrong.trial = Err("virtualmachines is forbidden: User cannot create".to_owned());
        assert_eq!(severity(&wrong, "admission"), Severity::Unknown);
    }
}
