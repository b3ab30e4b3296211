//! Whether an installation or an upgrade may begin. Pure.

use std::cmp::Ordering;

use serde_json::Value;

use super::bundle::version;
use crate::doctor::condition;

/// What is in the cluster.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The deployment of virt-operator.
    pub(super) operator: Option<Value>,
    /// The `KubeVirt` object.
    pub(super) kubevirt: Option<Value>,
}

/// An argument that only Barevirt's virt-operator has.
const OURS: &str = "--webhook-listen=";
/// Label and value of objects that Helm manages.
const HELM: (&str, &str) = ("app.kubernetes.io/managed-by", "Helm");

impl Found {
    /// The version that was last installed completely.
    pub(super) fn version(&self) -> Option<&str> {
        self.kubevirt.as_ref()?["status"]["observedKubeVirtVersion"].as_str()
    }

    /// The tag that the object sets for all images, whatever virt-operator's own tag is.
    pub(super) fn tag(&self) -> Option<&str> {
        self.kubevirt.as_ref()?["spec"]["imageTag"].as_str().filter(|tag| !tag.is_empty())
    }

    fn is_available(&self) -> bool {
        let available = self.kubevirt.as_ref().and_then(|kubevirt| condition(kubevirt, "Available"));
        available.is_some_and(|available| available["status"] == "True")
    }

    /// Why virt-operator must not be changed.
    fn refusal_to_change(&self) -> Option<String> {
        if self
            .kubevirt
            .as_ref()
            .is_some_and(|kubevirt| kubevirt["metadata"]["deletionTimestamp"].is_string())
        {
            return Some(
                "the installation is being removed: wait until the KubeVirt object is gone".to_owned(),
            );
        }
        let operator = self.operator.as_ref()?;
        let (label, helm) = HELM;
        if operator["metadata"]["labels"][label] == helm {
            return Some(
                "virt-operator was installed by Helm: use helm upgrade, and helm uninstall".to_owned(),
            );
        }
        let arguments = operator["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
        let ours =
            arguments.into_iter().flatten().filter_map(Value::as_str).any(|word| word.starts_with(OURS));
        (!ours).then(|| {
            "the virt-operator of this cluster is not Barevirt's, and a cluster can have only one: \
             docs/moving-from-kubevirt.md says how to move"
                .to_owned()
        })
    }
}

/// Why an installation must not begin. An installation that was begun before may go on.
pub(super) fn refuse_install(found: &Found, wanted: &str, has_kubevirt: bool) -> Vec<String> {
    let mut why: Vec<String> = found.refusal_to_change().into_iter().collect();
    if let Some(installed) = found.version().filter(|installed| *installed != wanted && found.tag().is_none())
    {
        why.push(format!("version {installed} is installed: virtctl upgrade installs {wanted}"));
    }
    if found.kubevirt.is_none() && !has_kubevirt {
        why.push(
            "neither the files nor the cluster have a KubeVirt object: add barevirt-cr.yaml with --from"
                .to_owned(),
        );
    }
    why
}

/// Why an upgrade must not begin: reasons that --force does not override, and reasons that it does.
pub(super) fn refuse_upgrade(found: &Found, wanted: &str) -> (Vec<String>, Vec<String>) {
    let mut never: Vec<String> = found.refusal_to_change().into_iter().collect();
    if found.operator.is_none() || found.kubevirt.is_none() {
        never.push("nothing is installed here: use virtctl install".to_owned());
        return (never, Vec::new());
    }
    let mut forced = Vec::new();
    if !found.is_available() {
        forced.push("what is installed is not available: virtctl status says why".to_owned());
    }
    if let Some(tag) = found.tag() {
        forced.push(format!(
            "spec.imageTag of the KubeVirt object keeps the components at {tag}: remove it, or set it to the new version"
        ));
    }
    if let Some(installed) = found.version()
        && order(installed, wanted) == Some(Ordering::Greater)
    {
        forced.push(format!("{wanted} is older than {installed}, which is installed"));
    }
    (never, forced)
}

/// The order of two versions, if both are semantic: `v1.2.3`, `v1.2.3-rc.1`.
fn order(one: &str, other: &str) -> Option<Ordering> {
    Some(parts(one)?.cmp(&parts(other)?))
}

/// A part of a pre-release; numbers come before words.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Number(u64),
    Word(&'a str),
}

/// Its numbers, whether it is a final release, and its pre-release parts: in the order in which versions are
/// compared.
fn parts(version: &str) -> Option<([u64; 3], bool, Vec<Part<'_>>)> {
    let version = version.strip_prefix('v')?.split('+').next()?;
    let (numbers, before) = version.split_once('-').unwrap_or((version, ""));
    let numbers: Vec<u64> = numbers.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    let part = |text| str::parse(text).map_or(Part::Word(text), Part::Number);
    let before_parts = before.split('.').filter(|text| !text.is_empty()).map(part).collect();
    Some((numbers.try_into().ok()?, before.is_empty(), before_parts))
}

/// The version that is installed at the end.
pub(super) fn expected(found: &Found, bundle: &str) -> String {
    found.tag().unwrap_or(bundle).to_owned()
}

/// The version of the virt-operator that runs.
pub(super) fn operator_version(found: &Found) -> Option<String> {
    version(found.operator.as_ref()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(version: &str) -> Found {
        Found {
            operator: Some(json!({"spec": {"template": {"spec": {"containers": [{
                "image": format!("r/virt-operator:{version}"), "args": ["--webhook-listen=[::]:8444"],
            }]}}}})),
            kubevirt: Some(json!({"spec": {}, "status": {
                "observedKubeVirtVersion": version, "conditions": [{"type": "Available", "status": "True"}],
            }})),
        }
    }

    #[test]
    fn an_empty_cluster_takes_an_installation_and_no_upgrade() {
        let nothing = Found::default();
        assert_eq!(refuse_install(&nothing, "v1.0.0", true), Vec::<String>::new());
        assert!(refuse_install(&nothing, "v1.0.0", false)[0].contains("barevirt-cr.yaml"));
        let (never, _) = refuse_upgrade(&nothing, "v1.0.0");
        assert!(never[0].contains("virtctl install"));
    }

    #[test]
    fn an_installation_that_is_there_is_upgraded() {
        let there = found("v1.0.0");
        assert_eq!(operator_version(&there).as_deref(), Some("v1.0.0"));
        assert_eq!(refuse_install(&there, "v1.0.0", true), Vec::<String>::new());
        assert!(refuse_install(&there, "v1.1.0", true)[0].contains("virtctl upgrade"));
        assert_eq!(refuse_upgrade(&there, "v1.1.0"), (vec![], vec![]));
        let (never, forced) = refuse_upgrade(&there, "v0.9.0");
        assert!(never.is_empty() && forced[0].contains("older"));
    }

    #[test]
    fn a_broken_or_pinned_installation_is_upgraded_by_force_only() {
        let mut there = found("v1.0.0");
        there.kubevirt.as_mut().unwrap()["status"]["conditions"][0]["status"] = "False".into();
        there.kubevirt.as_mut().unwrap()["spec"]["imageTag"] = "v0.8.0".into();
        let (never, forced) = refuse_upgrade(&there, "v1.1.0");
        assert!(never.is_empty() && forced.len() == 2, "{forced:?}");
        assert_eq!(expected(&there, "v1.1.0"), "v0.8.0");
        assert_eq!(expected(&found("v1"), "v1.1.0"), "v1.1.0");
    }

    #[test]
    fn installations_by_other_tools_are_refused() {
        let mut helm = found("v1.0.0");
        helm.operator.as_mut().unwrap()["metadata"]["labels"] =
            json!({"app.kubernetes.io/managed-by": "Helm"});
        assert!(refuse_upgrade(&helm, "v1.1.0").0[0].contains("helm upgrade"));
        let mut leaving = found("v1.0.0");
        leaving.kubevirt.as_mut().unwrap()["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(refuse_install(&leaving, "v1.0.0", true)[0].contains("being removed"));
        let mut kubevirt = found("v1.0.0");
        kubevirt.operator.as_mut().unwrap()["spec"]["template"]["spec"]["containers"][0]["args"] =
            json!(["--port", "8443"]);
        assert!(refuse_install(&kubevirt, "v1.0.0", true)[0].contains("moving-from-kubevirt"));
    }

    #[test]
    fn versions_are_compared_as_semantic_versions() {
        let less = |one, other| order(one, other) == Some(Ordering::Less);
        assert!(
            less("v1.2.0", "v1.10.0") && less("v1.0.0-rc.2", "v1.0.0-rc.10") && less("v1.0.0-rc.1", "v1.0.0")
        );
        assert!(less("v1.0.0-1", "v1.0.0-rc") && less("v1.0.0-rc", "v1.0.0-rc.1"));
        assert_eq!(order("v1.0.0", "v1.0.0+build"), Some(Ordering::Equal));
        assert_eq!(order("devel", "v1.0.0"), None);
        assert_eq!(order("v1.0", "v1.0.0"), None);
    }
}
