//! Findings about versions: of virtctl, of the components, and of the launchers of running instances.

use barevirt_api::release;
use serde_json::Value;

use super::findings::{Facts, Finding, word};

const AREA: &str = "versions";
/// What to do while virt-operator replaces pods.
const WAIT: &str = "virt-operator replaces the pods; what it waits for is in its log: kubectl -n kubevirt logs -l kubevirt.io=virt-operator";

/// What differs; otherwise the versions.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let ours = release::tag();
    let kubevirt = facts.installations.as_ref().ok().and_then(|all| all.first()).unwrap_or(&Value::Null);
    let mut found: Vec<Finding> = Vec::new();
    let server = match &facts.server_version {
        Ok(server) => {
            found.extend(client(ours, word(server, "/gitVersion")));
            word(server, "/gitVersion")
        }
        Err(why) => {
            found.push(Finding::unknown(AREA, format!("virt-api does not report its version: {why}")));
            ""
        }
    };
    found.extend(update(kubevirt).or_else(|| operator(kubevirt, server)));
    found.extend(former_pods(facts));
    found.extend(outdated(kubevirt));
    if found.is_empty() {
        found.push(Finding::good(AREA, format!("virtctl {ours}, virt-api {server}")));
    }
    found
}

/// Major and minor number of `v1.2.3`.
fn minor(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.strip_prefix('v')?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether virtctl is of another version than virt-api. Versions with the same minor number understand each other.
fn client(ours: &str, theirs: &str) -> Option<Finding> {
    let remedy = match (minor(ours), minor(theirs)) {
        (Some(own), Some(other)) if own == other => return None,
        _ if ours == theirs => return None,
        (Some(own), Some(other)) if own < other => {
            format!(
                "use virtctl {theirs}, which is part of that release: an older one lacks commands and checks"
            )
        }
        (Some(_), Some(_)) => {
            format!("use virtctl {theirs}, or bring the installation to {ours}: virtctl upgrade")
        }
        _ => "use the virtctl of the installed version".to_owned(),
    };
    Some(Finding::warning(AREA, format!("virtctl is {ours}, virt-api {theirs}"), remedy))
}

/// Whether another version is being installed.
fn update(kubevirt: &Value) -> Option<Finding> {
    let now = word(kubevirt, "/status/observedKubeVirtVersion");
    let next = word(kubevirt, "/status/targetKubeVirtVersion");
    (!now.is_empty() && !next.is_empty() && now != next)
        .then(|| Finding::warning(AREA, format!("the installation is on its way from {now} to {next}"), WAIT))
}

/// Whether virt-operator is of another version than virt-api.
fn operator(kubevirt: &Value, server: &str) -> Option<Finding> {
    let operator = word(kubevirt, "/status/operatorVersion");
    if operator.is_empty() || server.is_empty() || operator == server {
        return None;
    }
    let remedy = match word(kubevirt, "/spec/imageTag") {
        "" => WAIT.to_owned(),
        tag => format!("spec.imageTag of the KubeVirt object keeps the components at {tag}: remove it"),
    };
    Some(Finding::warning(AREA, format!("virt-operator is {operator}, virt-api {server}"), remedy))
}

/// Components with pods that were not replaced yet.
fn former_pods(facts: &Facts) -> Vec<Finding> {
    let counts = [
        (&facts.deployments, "/status/updatedReplicas", "/spec/replicas"),
        (&facts.daemon_sets, "/status/updatedNumberScheduled", "/status/desiredNumberScheduled"),
    ];
    let number = |object: &Value, at: &str| object.pointer(at).and_then(Value::as_u64).unwrap_or_default();
    let mut found = Vec::new();
    for (objects, updated, wanted) in counts {
        for object in
            objects.iter().flatten().filter(|object| word(object, "/metadata/name").starts_with("virt-"))
        {
            let (updated, wanted) = (number(object, updated), number(object, wanted));
            if updated < wanted {
                let name = word(object, "/metadata/name");
                let says = format!("only {updated} of {wanted} pods of {name} are of the present version");
                found.push(Finding::warning(AREA, says, WAIT));
            }
        }
    }
    found
}

/// Whether instances run with a launcher of a former version.
fn outdated(kubevirt: &Value) -> Option<Finding> {
    let number = kubevirt["status"]["outdatedVirtualMachineInstanceWorkloads"]
        .as_u64()
        .filter(|number| *number > 0)?;
    Some(Finding::warning(
        AREA,
        format!("instances with a launcher of a former version: {number}"),
        "they run on; virtctl migrate or virtctl restart brings the present launcher, and \
         spec.workloadUpdateStrategy of the KubeVirt object does so for all",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::findings::Severity;
    use super::super::installation::tests::facts;
    use super::*;
    use serde_json::json;

    #[test]
    fn the_same_minor_version_is_good() {
        assert_eq!(findings(&facts())[0].severity, Severity::Good);
        assert_eq!(client("v1.2.0", "v1.2.7"), None);
        assert_eq!(client("v0.1.0-devel", "v0.1.0"), None);
        assert_eq!(client("devel", "devel"), None);
    }

    #[test]
    fn another_minor_version_has_a_remedy_for_each_direction() {
        let remedy = |ours, theirs| {
            let found = client(ours, theirs).unwrap();
            assert_eq!(found.severity, Severity::Warning);
            assert!(found.says.contains(ours) && found.says.contains(theirs), "{}", found.says);
            found.remedy.unwrap()
        };
        assert!(remedy("v1.2.0", "v1.10.0").contains("use virtctl v1.10.0"));
        assert!(!remedy("v1.2.0", "v1.10.0").contains("upgrade"));
        assert!(remedy("v2.0.0", "v1.9.0").contains("virtctl upgrade"));
        assert!(remedy("v1.2.0", "devel").contains("installed version"));
    }

    #[test]
    fn components_with_different_versions_are_reported() {
        let says = |change: &dyn Fn(&mut Facts)| {
            let mut facts = facts();
            change(&mut facts);
            let found = findings(&facts);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].severity, Severity::Warning);
            format!("{} -> {}", found[0].says, found[0].remedy.clone().unwrap())
        };
        let status = |facts: &mut Facts, status: Value| {
            let kubevirt = &mut facts.installations.as_mut().unwrap()[0];
            for (name, value) in status.as_object().unwrap() {
                kubevirt["status"][name] = value.clone();
            }
        };
        let told = says(&|facts| {
            status(
                facts,
                json!({"observedKubeVirtVersion": "v1", "targetKubeVirtVersion": "v2", "operatorVersion": "v2"}),
            );
        });
        assert!(told.contains("from v1 to v2") && told.contains("logs"), "{told}");
        let told = says(&|facts| status(facts, json!({"operatorVersion": "v9.9.9"})));
        assert!(told.contains("virt-operator is v9.9.9") && told.contains("logs"), "{told}");
        let told = says(&|facts| {
            status(facts, json!({"operatorVersion": "v9.9.9"}));
            facts.installations.as_mut().unwrap()[0]["spec"] = json!({"imageTag": "v1"});
        });
        assert!(told.contains("keeps the components at v1"), "{told}");
        let told =
            says(&|facts| facts.deployments.as_mut().unwrap()[1]["status"]["updatedReplicas"] = json!(1));
        assert!(told.contains("only 1 of 2 pods of virt-api"), "{told}");
        let told = says(&|facts| {
            facts.daemon_sets.as_mut().unwrap()[0]["status"]["updatedNumberScheduled"] = json!(0);
        });
        assert!(told.contains("only 0 of 1 pods of virt-handler"), "{told}");
        let told = says(&|facts| status(facts, json!({"outdatedVirtualMachineInstanceWorkloads": 3})));
        assert!(told.contains("former version: 3") && told.contains("virtctl restart"), "{told}");
    }

    #[test]
    fn a_silent_server_is_unknown() {
        let mut facts = facts();
        facts.server_version = Err("forbidden".to_owned());
        assert_eq!(findings(&facts)[0].severity, Severity::Unknown);
    }
}
