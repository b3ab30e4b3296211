//! Why a component's pod is not ready, for people: the pod, its node, and the reason.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use kube::ResourceExt;

/// Reasons of a waiting container that do not resolve themselves within seconds.
const STUCK: [&str; 8] = [
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];

/// A pod that is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProblem {
    /// The explanation.
    pub why: String,
    /// Whether it will most likely not resolve itself.
    pub stuck: bool,
}

/// The problem of a component's pods: stuck ones first, then the newest. `None` where all are ready or being deleted.
pub fn of<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Option<PodProblem> {
    pods.into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none() && !is_ready(pod))
        .map(|pod| {
            let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (created, pod.name_any(), problem(pod))
        })
        .max_by(|(one_created, one_name, one), (other_created, other_name, other)| {
            (one.stuck, one_created, one_name).cmp(&(other.stuck, other_created, other_name))
        })
        .map(|(_, _, problem)| problem)
}

fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|(status, _)| status == "True")
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<(&'a str, Option<&'a str>)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((condition.status.as_str(), condition.message.as_deref()))
}

fn problem(pod: &Pod) -> PodProblem {
    let name = pod.name_any();
    let place = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .map_or_else(|| format!("pod {name}"), |node| format!("pod {name} on node {node}"));
    let status = pod.status.as_ref();
    let containers = status
        .into_iter()
        .flat_map(|status| status.init_container_statuses.iter().chain(&status.container_statuses).flatten());
    for container in containers.filter(|container| !container.ready) {
        if let Some((why, stuck)) = stopped(container) {
            return PodProblem { why: format!("{place}: {why}"), stuck };
        }
    }
    let why = match condition(pod, "PodScheduled") {
        Some(("False", message)) => format!("no node is fit for it: {}", message.unwrap_or_default()),
        _ => "it is not ready yet".to_owned(),
    };
    PodProblem { why: format!("{place}: {why}"), stuck: false }
}

/// Why a container does not run, and whether that lasts. Counts and times are left out: the text is a condition's message,
/// and should change only when there is news.
fn stopped(container: &ContainerStatus) -> Option<(String, bool)> {
    let last = container.last_state.as_ref().and_then(ended);
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or("waiting");
        // The message of a crash loop has only times; the end of the container says more.
        let more = match &last {
            Some(last) => Some(last.as_str()),
            None => waiting.message.as_deref(),
        };
        let more = more.filter(|more| !more.is_empty()).map(|more| format!(" ({more})")).unwrap_or_default();
        return Some((format!("{reason}{more}"), STUCK.contains(&reason)));
    }
    ended(state).map(|ended| (ended, false))
}

fn ended(state: &ContainerState) -> Option<String> {
    let ended = state.terminated.as_ref()?;
    let reason = ended.reason.as_deref().unwrap_or("ended");
    // The last line of the process's output: the message may contain its whole log.
    let said = ended.message.as_deref().and_then(|message| message.trim().lines().last());
    let said: String = said.unwrap_or_default().chars().take(200).collect();
    let said = if said.is_empty() { said } else { format!(": {said}") };
    Some(format!("{reason}, exit code {}{said}", ended.exit_code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, created: &str, ready: bool, state: Value, last: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
                "containerStatuses": [{
                    "name": "c", "image": "i", "imageID": "", "restartCount": 4, "ready": ready,
                    "state": state, "lastState": last,
                }],
            },
        }))
        .unwrap()
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-01T00:01:00Z";

    #[test]
    fn ready_pods_have_no_problem() {
        assert_eq!(of(&[pod("a", EARLY, true, json!({"running": {}}), json!({}))]), None);
        assert_eq!(of(&[]), None);
        let mut going = pod("a", EARLY, false, json!({"running": {}}), json!({}));
        going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
        assert_eq!(of(&[going]), None);
    }

    #[test]
    fn the_message_names_pod_node_and_reason() {
        let waiting =
            |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
        let crashed = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "INFO begin\nERROR no disk\n"}});
        for (state, last, stuck, expected) in [
            (
                waiting("ImagePullBackOff", "Back-off pulling image \"x\""),
                json!({}),
                true,
                "pod a on node n1: ImagePullBackOff (Back-off pulling image \"x\")",
            ),
            (
                waiting("CrashLoopBackOff", "back-off 40s restarting"),
                crashed.clone(),
                true,
                "pod a on node n1: CrashLoopBackOff (Error, exit code 1: ERROR no disk)",
            ),
            (crashed, json!({}), false, "pod a on node n1: Error, exit code 1: ERROR no disk"),
            (json!({"running": {}}), json!({}), false, "pod a on node n1: it is not ready yet"),
            (waiting("ContainerCreating", ""), json!({}), false, "pod a on node n1: ContainerCreating"),
        ] {
            let found = of(&[pod("a", EARLY, false, state, last)]).unwrap();
            assert_eq!((found.why.as_str(), found.stuck), (expected, stuck));
        }
        let nowhere: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes"}]},
        }))
        .unwrap();
        assert_eq!(of(&[nowhere]).unwrap().why, "pod a: no node is fit for it: 0/2 nodes");
    }

    #[test]
    fn a_stuck_pod_is_reported_before_the_newest() {
        let stuck = pod("stuck", EARLY, false, json!({"waiting": {"reason": "CrashLoopBackOff"}}), json!({}));
        let old = pod("old", EARLY, false, json!({"running": {}}), json!({}));
        let new = pod("new", LATE, false, json!({"running": {}}), json!({}));
        assert!(of([&old, &new]).unwrap().why.contains("pod new"));
        assert!(of([&old, &stuck, &new]).unwrap().why.contains("pod stuck"));
    }
}
