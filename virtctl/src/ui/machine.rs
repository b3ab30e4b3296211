//! One machine: everything that is known about it, and the actions on it.

use barevirt_api::names::{CREATED_BY_LABEL, DISKS_OF_LABEL};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::answer::Failure;
use super::ask::{Cluster, KUBEVIRT};
use super::route::{Action, Target};
use crate::session::{self, INSTANCES};

/// Plural of machines, as in paths.
const MACHINES: &str = "virtualmachines";
/// Most events that are shown.
const EVENTS: usize = 200;

/// The path of an object of the KubeVirt API.
pub(super) fn path(target: &Target, plural: &str) -> String {
    format!("{KUBEVIRT}/namespaces/{}/{plural}/{}", target.namespace, target.name)
}

/// The machine, its instance, its pods, and the events of all of them, the newest first.
pub(super) async fn show(cluster: &Cluster, target: &Target) -> Result<Value, Failure> {
    let machine = cluster.find(&path(target, MACHINES)).await?;
    let instance = cluster.find(&path(target, INSTANCES)).await?;
    if machine.is_none() && instance.is_none() {
        let message = format!("there is no virtual machine {} in {}", target.name, target.namespace);
        return Err(Failure { status: StatusCode::NOT_FOUND, message });
    }
    let core = format!("/api/v1/namespaces/{}", target.namespace);
    let mut missing: Vec<String> = Vec::new();
    // Parts that the user may not read are left out, and the page says so.
    let mut or_nothing = |listed: Result<Vec<Value>, Failure>| {
        listed.unwrap_or_else(|failure| {
            missing.push(failure.message);
            Vec::new()
        })
    };
    let uid = instance.as_ref().and_then(|instance| instance["metadata"]["uid"].as_str());
    let mut pods = Vec::new();
    for label in [CREATED_BY_LABEL, DISKS_OF_LABEL] {
        let Some(uid) = uid else { break };
        let selected = format!("{core}/pods?labelSelector={label}%3D{uid}&limit=20");
        pods.extend(or_nothing(cluster.list(&selected).await));
    }
    let names = std::iter::once(target.name.as_str())
        .chain(pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()));
    let mut events = Vec::new();
    for name in names {
        let selected = format!("{core}/events?fieldSelector=involvedObject.name%3D{name}&limit={EVENTS}");
        events.extend(or_nothing(cluster.list(&selected).await).into_iter().map(event));
    }
    // Events of the machine or its pods, not of another object with the same name.
    events.retain(|event| {
        matches!(event["of"].as_str(), Some("VirtualMachine" | "VirtualMachineInstance" | "Pod"))
    });
    // Without the final letter, a whole second sorts before its fractions.
    let when = |event: &Value| event["when"].as_str().unwrap_or_default().trim_end_matches('Z').to_owned();
    events.sort_by_key(|event| std::cmp::Reverse(when(event)));
    events.truncate(EVENTS);
    // Both kinds of pods are missing for the same reason.
    missing.dedup();
    let pods: Vec<Value> = pods
        .iter()
        .map(|pod| {
            json!({"name": pod["metadata"]["name"], "phase": pod["status"]["phase"],
                "node": pod["spec"]["nodeName"]})
        })
        .collect();
    Ok(json!({
        "machine": machine.map(without_notes),
        "instance": instance.map(without_notes),
        "pods": pods,
        "events": events,
        "missing": missing,
    }))
}

/// An event as the page shows it. Pure.
fn event(event: Value) -> Value {
    let when = ["lastTimestamp", "eventTime", "firstTimestamp"]
        .iter()
        .map(|field| &event[*field])
        .find(|time| time.is_string())
        .unwrap_or(&event["metadata"]["creationTimestamp"]);
    json!({
        "when": when,
        "type": event["type"],
        "reason": event["reason"],
        "message": event["message"],
        "count": event["count"],
        "of": event["involvedObject"]["kind"],
        "from": event["source"]["component"].as_str().or(event["reportingComponent"].as_str()),
    })
}

/// An object without managed fields.
pub(super) fn without_notes(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

/// Performs the action, and returns a sentence about it.
pub(super) async fn act(cluster: &Cluster, target: &Target, action: Action) -> Result<Value, Failure> {
    let (plural, word) = call(action);
    let path = session::path(&target.namespace, plural, &target.name, word);
    cluster.text(Method::PUT, &path, Some(&json!({}))).await?;
    Ok(json!({ "message": format!("{}: {}", target.name, message(action)) }))
}

/// The subresource of an action: of the machine, or of its instance.
fn call(action: Action) -> (&'static str, &'static str) {
    match action {
        Action::Start => (MACHINES, "start"),
        Action::Stop => (MACHINES, "stop"),
        Action::Restart => (MACHINES, "restart"),
        Action::Migrate => (MACHINES, "migrate"),
        Action::Pause => (INSTANCES, "pause"),
        Action::Unpause => (INSTANCES, "unpause"),
        Action::SoftReboot => (INSTANCES, "softreboot"),
        Action::Reset => (INSTANCES, "reset"),
    }
}

fn message(action: Action) -> &'static str {
    match action {
        Action::Start => "the machine will start",
        Action::Stop => "the guest is asked to shut down",
        Action::Restart => "the machine will restart",
        Action::Migrate => "the guest will move to another node",
        Action::Pause => "the guest is paused",
        Action::Unpause => "the guest runs again",
        Action::SoftReboot => "the guest is asked to reboot",
        Action::Reset => "the guest is reset",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_a_time() {
        let of = |value: Value| event(value)["when"].clone();
        assert_eq!(of(json!({"lastTimestamp": "b", "eventTime": "c"})), "b");
        assert_eq!(of(json!({"lastTimestamp": null, "eventTime": "c"})), "c");
        assert_eq!(of(json!({"metadata": {"creationTimestamp": "d"}})), "d");
        assert_eq!(event(json!({"reportingComponent": "virt-handler"}))["from"], "virt-handler");
    }

    #[test]
    fn a_guest_s_calls_are_the_instance_s() {
        assert_eq!(call(Action::Start), ("virtualmachines", "start"));
        assert_eq!(call(Action::Migrate), ("virtualmachines", "migrate"));
        assert_eq!(call(Action::Pause), ("virtualmachineinstances", "pause"));
    }
}
