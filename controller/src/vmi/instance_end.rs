//! How a launcher pod ended.

use super::progress::is_over;
use barevirt_api::names::{COMPUTE_CONTAINER, PHASE_FAILED, PHASE_SUCCEEDED, REASON_EVICTED};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, Pod, PodStatus};
use serde::Deserialize;

/// Longest termination message that is read; the kubelet keeps 4 KiB.
const MESSAGE_LIMIT: usize = 8 * 1024;
/// Longest text that goes into a status.
pub(super) const TEXT_LIMIT: usize = 1024;

/// The final phase of an instance and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceEnd {
    /// `Succeeded` or `Failed`.
    pub phase: &'static str,
    /// Its reason, one word.
    pub reason: String,
    /// Its message; may be empty.
    pub message: String,
}

impl InstanceEnd {
    /// A failure.
    pub fn failed(reason: impl Into<String>, message: impl Into<String>) -> Self {
        InstanceEnd { phase: PHASE_FAILED, reason: reason.into(), message: message.into() }
    }

    /// How the instance ended, by its pod; `None` while it may still run.
    ///
    /// An eviction by the kubelet counts first, then the launcher's termination message, then its exit code, then the
    /// kubelet's report about the pod.
    pub fn of(pod: &Pod) -> Option<InstanceEnd> {
        let status = pod.status.as_ref()?;
        let over = is_over(pod);
        if over && status.reason.as_deref() == Some("Evicted") {
            return Some(InstanceEnd::failed(
                REASON_EVICTED,
                bounded(status.message.as_deref().unwrap_or_default()),
            ));
        }
        if let Some(end) = compute_end(status) {
            // The kubelet reports an eviction in a condition first, and in the status's reason only once all containers
            // ended.
            return Some(match ended_by_kubelet(status) {
                Some(message) => InstanceEnd::failed(REASON_EVICTED, bounded(message)),
                None => of_launcher(end),
            });
        }
        // The kubelet ended or refused the pod before the launcher could run or report anything.
        over.then(|| {
            let reason = status.reason.as_deref().filter(|reason| is_word(reason)).unwrap_or("PodFailed");
            let message = status.message.clone().or_else(|| failed_helper(status));
            InstanceEnd::failed(reason, bounded(message.as_deref().unwrap_or("the launcher pod failed")))
        })
    }
}

/// The kubelet's message, if it ended the pod by its own decision.
fn ended_by_kubelet(status: &PodStatus) -> Option<&str> {
    let condition = status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "DisruptionTarget"
            && condition.status == "True"
            && condition.reason.as_deref() == Some("TerminationByKubelet")
    })?;
    Some(condition.message.as_deref().unwrap_or_default())
}

fn compute_end(status: &PodStatus) -> Option<&ContainerStateTerminated> {
    let compute =
        status.container_statuses.iter().flatten().find(|container| container.name == COMPUTE_CONTAINER)?;
    compute.state.as_ref()?.terminated.as_ref()
}

/// The last line of the launcher's termination message.
#[derive(Deserialize)]
struct TerminationMessage {
    phase: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

fn of_launcher(end: &ContainerStateTerminated) -> InstanceEnd {
    let message = end.message.as_deref().unwrap_or_default();
    let last_line = message.lines().rev().find(|line| !line.trim().is_empty());
    let report = last_line
        .filter(|line| line.len() <= MESSAGE_LIMIT)
        .and_then(|line| serde_json::from_str::<TerminationMessage>(line).ok());
    if let Some(report) = report {
        let reason = if is_word(&report.reason) { report.reason } else { String::new() };
        let message = bounded(&report.message);
        match report.phase.as_str() {
            PHASE_SUCCEEDED => return InstanceEnd { phase: PHASE_SUCCEEDED, reason, message },
            PHASE_FAILED => return InstanceEnd { phase: PHASE_FAILED, reason, message },
            _ => {}
        }
    }
    match (end.exit_code, end.signal.unwrap_or(0)) {
        (0, 0) => InstanceEnd { phase: PHASE_SUCCEEDED, reason: String::new(), message: String::new() },
        _ if end.reason.as_deref() == Some("OOMKilled") => {
            InstanceEnd::failed("OOMKilled", "the launcher pod used more memory than its limit")
        }
        (code, 0) if code > 128 => {
            InstanceEnd::failed("LauncherKilled", format!("the launcher was ended by signal {}", code - 128))
        }
        (code, 0) => {
            InstanceEnd::failed("LauncherFailed", format!("the launcher ended with exit code {code}"))
        }
        (_, signal) => {
            InstanceEnd::failed("LauncherKilled", format!("the launcher was ended by signal {signal}"))
        }
    }
}

/// The first init container that failed.
fn failed_helper(status: &PodStatus) -> Option<String> {
    let ended = |state: &ContainerState| state.terminated.clone();
    status.init_container_statuses.iter().flatten().find_map(|container| {
        let end = container.state.as_ref().and_then(ended)?;
        (end.exit_code != 0).then(|| {
            let message = end.message.unwrap_or_default();
            format!("container {} ended with exit code {} {message}", container.name, end.exit_code)
                .trim_end()
                .to_owned()
        })
    })
}

/// Whether a text can be a reason: one word of letters and digits.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric())
}

/// An untrusted text, cut to the size for a status.
pub(super) fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_LIMIT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    fn ended(terminated: Value) -> Option<InstanceEnd> {
        InstanceEnd::of(&pod(json!({
            "phase": "Running",
            "containerStatuses": [{"name": "compute", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"terminated": terminated}}]
        })))
    }

    #[test]
    fn an_instance_has_no_end_while_its_pod_may_run() {
        for phase in ["Pending", "Running", "Unknown"] {
            assert_eq!(InstanceEnd::of(&pod(json!({"phase": phase}))), None);
        }
        assert_eq!(InstanceEnd::of(&Pod::default()), None);
    }

    #[test]
    fn the_termination_message_decides_the_phase() {
        let word = r#"{"phase":"Failed","reason":"QemuKilled","message":"qemu was ended by signal 9"}"#;
        let end = ended(json!({"exitCode": 1, "message": format!("noise\n{word}\n")})).unwrap();
        assert_eq!(end, InstanceEnd::failed("QemuKilled", "qemu was ended by signal 9"));
        let end = ended(json!({"exitCode": 0, "message": r#"{"phase":"Succeeded"}"#})).unwrap();
        assert_eq!(end.phase, PHASE_SUCCEEDED);
    }

    #[test]
    fn without_a_termination_message_the_exit_code_decides() {
        assert_eq!(ended(json!({"exitCode": 0})).unwrap().phase, PHASE_SUCCEEDED);
        assert_eq!(ended(json!({"exitCode": 137})).unwrap().message, "the launcher was ended by signal 9");
        assert_eq!(ended(json!({"exitCode": 137, "reason": "OOMKilled"})).unwrap().reason, "OOMKilled");
        assert_eq!(ended(json!({"exitCode": 3, "message": "garbage {"})).unwrap().reason, "LauncherFailed");
        let odd = r#"{"phase":"Running","reason":"x y"}"#;
        assert_eq!(ended(json!({"exitCode": 3, "message": odd})).unwrap().reason, "LauncherFailed");
    }

    #[test]
    fn an_evicted_pod_says_so() {
        let end = InstanceEnd::of(&pod(json!({
            "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."
        })));
        assert_eq!(end.unwrap(), InstanceEnd::failed("Evicted", "The node was low on resource: memory."));
    }

    #[test]
    fn an_eviction_by_the_kubelet_is_the_reason_once_compute_has_ended() {
        let mut pod =
            pod(json!({"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True",
            "reason": "TerminationByKubelet", "message": "The node was low on resource: memory."}]}));
        assert_eq!(InstanceEnd::of(&pod), None);
        let ended = json!([{"name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "message": "{\"phase\":\"Succeeded\"}"}}}]);
        pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(ended).unwrap();
        assert_eq!(InstanceEnd::of(&pod).unwrap().reason, "Evicted");
        // Evictions through the API are deletions: the launcher reports how the guest ended.
        pod.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].reason =
            Some("EvictionByEvictionAPI".to_owned());
        assert_eq!(InstanceEnd::of(&pod).unwrap().phase, PHASE_SUCCEEDED);
    }

    #[test]
    fn a_failed_helper_is_named() {
        let end = InstanceEnd::of(&pod(json!({"phase": "Failed",
            "initContainerStatuses": [{"name": "container-disk-binary", "image": "", "imageID": "",
                "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 2}}}]})));
        let end = end.unwrap();
        assert_eq!(end.reason, "PodFailed");
        assert!(end.message.contains("container-disk-binary"), "{}", end.message);
    }

    #[test]
    fn long_texts_are_cut() {
        let word = json!({"phase": "Failed", "reason": "A".repeat(500), "message": "m".repeat(5000)});
        let end = ended(json!({"exitCode": 1, "message": word.to_string()})).unwrap();
        assert_eq!((end.reason.len(), end.message.len()), (0, TEXT_LIMIT));
    }
}
