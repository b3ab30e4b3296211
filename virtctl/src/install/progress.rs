//! How far an installation is, in words. Pure.

use serde_json::Value;

use crate::doctor::{condition, word};

/// The state of something that an installation waits for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is ready.
    Done,
    /// Not ready: a sentence that says what it waits for.
    Waiting(String),
    /// It will never be ready: the reason.
    Never(String),
}

/// Whether a definition is served.
pub(super) fn definition(definition: &Value) -> State {
    match condition(definition, "Established") {
        Some(established) if established["status"] == "True" => State::Done,
        _ => State::Waiting("waiting for the API server to serve the definition".to_owned()),
    }
}

/// Whether all pods of virt-operator are those of its current deployment; `pods` say what keeps them from
/// running.
pub(super) fn operator(deployment: &Value, pods: &[Value]) -> State {
    let number = |at: &str| deployment.pointer(at).and_then(Value::as_u64).unwrap_or_default();
    let wanted = deployment.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
    let seen = number("/status/observedGeneration") >= number("/metadata/generation");
    let (new, ready) = (number("/status/updatedReplicas"), number("/status/readyReplicas"));
    if seen && new == wanted && ready == wanted && number("/status/replicas") == wanted {
        return State::Done;
    }
    let ready = if seen { ready.min(new) } else { 0 };
    let told = pods.iter().find_map(trouble).map(|why| format!(": {why}")).unwrap_or_default();
    State::Waiting(format!("waiting for virt-operator: {ready} of {wanted} pods are ready{told}"))
}

/// Why a pod does not run, if that is known.
fn trouble(pod: &Value) -> Option<String> {
    let name = word(pod, "/metadata/name");
    let containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let waits = containers.filter_map(|container| container.pointer("/state/waiting")).find_map(|waiting| {
        let reason = word(waiting, "/reason");
        let harmless = ["", "ContainerCreating", "PodInitializing"].contains(&reason);
        (!harmless)
            .then(|| format!("pod {name}: {reason} {}", word(waiting, "/message")).trim_end().to_owned())
    });
    waits.or_else(|| {
        let scheduled = condition(pod, "PodScheduled").filter(|scheduled| scheduled["status"] == "False")?;
        Some(format!("pod {name}: {}", word(scheduled, "/message")))
    })
}

/// Whether the installation runs as its object currently says, in that version.
pub(super) fn installation(kubevirt: &Value, version: &str) -> State {
    let status = &kubevirt["status"];
    let is = |name: &str, value: &str| {
        condition(kubevirt, name).is_some_and(|condition| condition["status"] == value)
    };
    let message =
        |name: &str| condition(kubevirt, name).map(|condition| word(condition, "/message").to_owned());
    if let Some(synchronized) = condition(kubevirt, "Synchronized")
        && synchronized["status"] == "False"
        && ["InvalidConfiguration", "ExistingDeployment"].contains(&word(synchronized, "/reason"))
    {
        return State::Never(format!(
            "the KubeVirt object cannot be followed: {}",
            word(synchronized, "/message")
        ));
    }
    let current = status["targetKubeVirtVersion"] == version
        && status["observedKubeVirtVersion"] == version
        && status["observedDeploymentID"] == status["targetDeploymentID"]
        && status["observedGeneration"] == kubevirt["metadata"]["generation"];
    if current && is("Available", "True") && is("Progressing", "False") && is("Degraded", "False") {
        return State::Done;
    }
    let told = if is("Degraded", "True") { message("Degraded") } else { message("Progressing") };
    let told = told.filter(|told| status["targetKubeVirtVersion"] == version && !told.is_empty() && !current);
    State::Waiting(told.unwrap_or_else(|| "waiting for virt-operator to begin".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(generation: u64, updated: u64, ready: u64) -> Value {
        json!({
            "metadata": {"generation": generation}, "spec": {"replicas": 2},
            "status": {"observedGeneration": 2, "replicas": 2, "updatedReplicas": updated, "readyReplicas": ready},
        })
    }

    #[test]
    fn the_operator_is_there_once_all_its_pods_are_new_and_ready() {
        assert_eq!(operator(&deployment(2, 2, 2), &[]), State::Done);
        let words = |state: State| match state {
            State::Waiting(words) => words,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            words(operator(&deployment(3, 2, 2), &[])),
            "waiting for virt-operator: 0 of 2 pods are ready"
        );
        assert_eq!(
            words(operator(&deployment(2, 1, 2), &[])),
            "waiting for virt-operator: 1 of 2 pods are ready"
        );
        let pod = json!({"metadata": {"name": "a"}, "status": {"containerStatuses": [
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
        ]}});
        assert!(
            words(operator(&deployment(2, 0, 0), &[pod]))
                .ends_with(": pod a: ImagePullBackOff no such image")
        );
        let pod = json!({"metadata": {"name": "a"}, "status": {
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}],
        }});
        assert!(words(operator(&deployment(2, 0, 0), &[pod])).contains("0/1 nodes"));
        let pod = json!({"status": {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}});
        assert!(!words(operator(&deployment(2, 0, 0), &[pod])).contains("Creating"));
    }

    fn kubevirt(observed: &str, available: &str, progressing: &str) -> Value {
        json!({
            "metadata": {"generation": 1},
            "status": {
                "observedGeneration": 1, "observedDeploymentID": observed, "targetDeploymentID": "new",
                "observedKubeVirtVersion": "v2", "targetKubeVirtVersion": "v2",
                "conditions": [
                    {"type": "Available", "status": available},
                    {"type": "Progressing", "status": progressing, "message": "waiting for DaemonSet virt-handler"},
                    {"type": "Degraded", "status": "False"},
                ],
            },
        })
    }

    #[test]
    fn an_installation_is_there_once_the_asked_version_runs_whole() {
        assert_eq!(installation(&kubevirt("new", "True", "False"), "v2"), State::Done);
        let told = State::Waiting("waiting for DaemonSet virt-handler".to_owned());
        assert_eq!(installation(&kubevirt("old", "False", "True"), "v2"), told);
        // The conditions are still those of the former version; the new operator has not begun yet.
        let begin = State::Waiting("waiting for virt-operator to begin".to_owned());
        assert_eq!(installation(&kubevirt("new", "True", "False"), "v3"), begin);
        assert_eq!(installation(&json!({"metadata": {"generation": 1}}), "v2"), begin);
    }

    #[test]
    fn an_invalid_object_is_reported_at_once() {
        let mut wrong = kubevirt("old", "True", "False");
        wrong["status"]["conditions"][0] = json!({"type": "Synchronized", "status": "False", "reason": "InvalidConfiguration", "message": "spec.a"});
        let State::Never(why) = installation(&wrong, "v2") else { panic!("it is waited for") };
        assert!(why.ends_with("spec.a"));
        wrong["status"]["conditions"][0]["reason"] = "DeploymentFailed".into();
        assert!(matches!(installation(&wrong, "v2"), State::Waiting(_)));
    }

    #[test]
    fn a_definition_is_there_once_it_is_served() {
        let served = json!({"status": {"conditions": [{"type": "Established", "status": "True"}]}});
        assert_eq!(definition(&served), State::Done);
        assert!(matches!(definition(&json!({})), State::Waiting(_)));
    }
}
