//! Carries out a replica set's plan, and reports.

use super::plan::{self, Action, Member, Observed, Plan};
use super::status::{self, Failure};
use super::subject;
use crate::adoption::may_adopt;
use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use crate::merge;
use crate::ownership;
use crate::write;
use crate::write::FIELD_MANAGER;
use barevirt_api::names::{
    CONDITION_REPLICA_FAILURE, CONDITION_REPLICA_PAUSED, REASON_FAILED_CREATE, REASON_FAILED_DELETE,
    REASON_SUCCESSFUL_CREATE, REASON_SUCCESSFUL_DELETE, REASON_SUCCESSFUL_PAUSED,
};
use barevirt_api::v1::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceReplicaSet,
    VirtualMachineInstanceReplicaSetStatus,
};
use barevirt_component::error::response;
use barevirt_component::notes::Note;
use barevirt_component::request::call;
use barevirt_component::request::{Category, Error};
use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tracing::info;

/// Concurrent requests.
const AT_ONCE: usize = 10;
/// Event reason: the set is not paused any more.
const REASON_RESUMED: &str = "SuccessfulResumed";
/// When to look again at the remaining work, without an event.
const AGAIN: Duration = Duration::from_secs(5);

/// Carries out the plan and reports; returns when to look again.
pub(super) async fn apply(
    cluster: &Cluster,
    observed: &Observed,
    plan: Plan,
) -> Result<Option<Duration>, Error> {
    let set = &observed.set;
    let again = (!plan.actions.is_empty()).then_some(AGAIN);
    let done: Vec<Result<(), (Error, &'static str)>> = futures::stream::iter(plan.actions)
        .map(|action| act(cluster, set, action))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    // The first failure is reported; the others are most likely the same.
    let failed = done.into_iter().find_map(Result::err);
    let failure =
        failed.as_ref().filter(|(error, _)| error.category() == Category::Refused).map(|(error, reason)| {
            Failure {
                reason,
                message: match *reason {
                    REASON_FAILED_CREATE => {
                        format!("Error creating virtual machine instance: {}", error.message())
                    }
                    _ => format!("Error deleting virtual machine instance: {}", error.message()),
                },
            }
        });
    // A temporary failure does not clear the earlier one.
    if failed.is_none() || failure.is_some() {
        report(cluster, observed, failure.as_ref()).await?;
    }
    match failed {
        Some((error, _)) => Err(error),
        None => Ok(again),
    }
}

async fn act(
    cluster: &Cluster,
    set: &VirtualMachineInstanceReplicaSet,
    action: Action,
) -> Result<(), (Error, &'static str)> {
    match action {
        Action::Create(instance) => {
            create(cluster, set, &instance).await.map_err(|error| (error, REASON_FAILED_CREATE))
        }
        Action::Delete(member) => {
            let text = format!(
                "Stopped the virtual machine by deleting the virtual machine instance {}",
                member.uid
            );
            delete(cluster, set, &member, text).await.map_err(|error| (error, REASON_FAILED_DELETE))
        }
        Action::Clear(member) => {
            let text = format!("Deleted finished virtual machine: {}", member.uid);
            delete(cluster, set, &member, text).await.map_err(|error| (error, REASON_FAILED_DELETE))
        }
        Action::Adopt(member) => {
            adopt(cluster, set, &member).await.map_err(|error| (error, REASON_FAILED_CREATE))
        }
        Action::Release(member) => {
            release(cluster, set, &member).await.map_err(|error| (error, REASON_FAILED_DELETE))
        }
    }
}

fn api(cluster: &Cluster, set: &VirtualMachineInstanceReplicaSet) -> Api<VirtualMachineInstance> {
    Api::namespaced(cluster.client.clone(), &set.namespace().unwrap_or_default())
}

fn key(set: &VirtualMachineInstanceReplicaSet, name: &str) -> Key {
    Key::new(Kind::Vmi, &set.namespace().unwrap_or_default(), name)
}

fn instance_subject(set: &VirtualMachineInstanceReplicaSet, name: &str) -> String {
    format!("virtual machine instance {}/{name}", set.namespace().unwrap_or_default())
}

async fn create(
    cluster: &Cluster,
    set: &VirtualMachineInstanceReplicaSet,
    instance: &VirtualMachineInstance,
) -> Result<(), Error> {
    let name = instance.name_any();
    let (vmis, subject) = (api(cluster, set), || instance_subject(set, &name));
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let write = cluster.expectations.begin(key(set, &name), Instant::now());
    let created = match call("create", subject, vmis.create(&params, instance)).await {
        Ok(created) => created,
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {
            // It is ours, and the observation was old; or another object has this name by chance.
            let existing = call("get", subject, vmis.get(&name)).await?;
            if plan::owns(set, existing.meta()) {
                write.done(existing.metadata.resource_version.as_deref());
                return Ok(());
            }
            return Err(Error::Foreign { subject: subject(), owner: "somebody else".to_owned() });
        }
        Err(error) => return Err(error),
    };
    write.done(created.metadata.resource_version.as_deref());
    let text = format!("Started the virtual machine by creating the new virtual machine instance {name}");
    cluster.notes.tell(Note::normal(REASON_SUCCESSFUL_CREATE, text), set.object_ref(&()));
    info!(namespace = set.namespace(), set = set.name_any(), vmi = name, "created an instance");
    Ok(())
}

async fn delete(
    cluster: &Cluster,
    set: &VirtualMachineInstanceReplicaSet,
    member: &Member,
    text: String,
) -> Result<(), Error> {
    let name = &member.name;
    // Exactly the observed version: it may have been released, or become ready, a moment ago.
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(member.uid.clone()),
            resource_version: member.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    let namespace = set.namespace().unwrap_or_default();
    write::delete::<VirtualMachineInstance>(cluster, &namespace, name, &params).await?;
    cluster.notes.tell(Note::normal(REASON_SUCCESSFUL_DELETE, text), set.object_ref(&()));
    info!(namespace = set.namespace(), set = set.name_any(), vmi = name, "deleted an instance");
    Ok(())
}

/// Becomes the controller of an instance without one.
async fn adopt(
    cluster: &Cluster,
    set: &VirtualMachineInstanceReplicaSet,
    member: &Member,
) -> Result<(), Error> {
    if !may_adopt(&cluster.client, || subject(set), set).await? {
        return Ok(());
    }
    let mut owners = member.owners.clone();
    owners.push(ownership::owner(set));
    patch_owners(cluster, set, member, json!(owners)).await?;
    info!(namespace = set.namespace(), set = set.name_any(), vmi = member.name, "adopted an instance");
    Ok(())
}

/// Releases an instance that is no longer selected.
async fn release(
    cluster: &Cluster,
    set: &VirtualMachineInstanceReplicaSet,
    member: &Member,
) -> Result<(), Error> {
    let left: Vec<_> =
        member.owners.iter().filter(|owner| Some(&owner.uid) != set.metadata.uid.as_ref()).collect();
    patch_owners(cluster, set, member, json!(left)).await?;
    info!(namespace = set.namespace(), set = set.name_any(), vmi = member.name, "released an instance");
    Ok(())
}

async fn patch_owners(
    cluster: &Cluster,
    set: &VirtualMachineInstanceReplicaSet,
    member: &Member,
    owners: Value,
) -> Result<(), Error> {
    let body = json!({"metadata": {
        "resourceVersion": member.resource_version, "uid": member.uid, "ownerReferences": owners
    }});
    let namespace = set.namespace().unwrap_or_default();
    write::patch::<VirtualMachineInstance>(cluster, "patch", &namespace, &member.name, &body).await
}

/// Writes the status where it differs from the stored one, and emits events for changes.
async fn report(cluster: &Cluster, observed: &Observed, failure: Option<&Failure>) -> Result<(), Error> {
    let set = &observed.set;
    let before = set.status.clone().unwrap_or_default();
    let wanted = status::compute(observed, failure, Timestamp::now());
    // Our types always have a JSON form: their maps have only string keys.
    let (old, new) = (serde_json::to_value(&before), serde_json::to_value(&wanted));
    let Some(change) = merge::difference(&old.unwrap_or_default(), &new.unwrap_or_default()) else {
        return Ok(());
    };
    let body = json!({
        "metadata": {"resourceVersion": set.metadata.resource_version}, "status": change
    });
    let (namespace, name) = (set.namespace().unwrap_or_default(), set.name_any());
    write::patch_status::<VirtualMachineInstanceReplicaSet>(
        cluster,
        "report the status of",
        &namespace,
        &name,
        &body,
    )
    .await?;
    for note in news(&before, &wanted) {
        cluster.notes.tell(note, set.object_ref(&()));
    }
    Ok(())
}

/// The events of a changed status.
fn news(
    before: &VirtualMachineInstanceReplicaSetStatus,
    after: &VirtualMachineInstanceReplicaSetStatus,
) -> Vec<Note> {
    let mut notes = vec![];
    let paused = |status: &VirtualMachineInstanceReplicaSetStatus| {
        Condition::is_set(&status.conditions, CONDITION_REPLICA_PAUSED)
    };
    match (paused(before), paused(after)) {
        (false, true) => notes.push(Note::normal(REASON_SUCCESSFUL_PAUSED, "Paused")),
        (true, false) => notes.push(Note::normal(REASON_RESUMED, "Resumed")),
        _ => {}
    }
    let failure = |status: &VirtualMachineInstanceReplicaSetStatus| {
        Condition::find(&status.conditions, CONDITION_REPLICA_FAILURE)
            .map(|condition| (condition.reason.clone(), condition.message.clone()))
    };
    if let Some((reason, message)) = failure(after).filter(|told| failure(before).as_ref() != Some(told)) {
        notes.push(Note::warning(reason.unwrap_or_default(), message.unwrap_or_default()));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_conditions_cause_one_event_each() {
        let status = |conditions: Value| -> VirtualMachineInstanceReplicaSetStatus {
            serde_json::from_value(json!({ "conditions": conditions })).unwrap()
        };
        let none = status(json!([]));
        let paused = status(json!([{"type": "ReplicaPaused", "status": "True"}]));
        let failed = status(json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
            "message": "quota"}]));
        assert_eq!(news(&none, &paused)[0].reason, "SuccessfulPaused");
        assert_eq!(news(&paused, &none)[0].reason, "SuccessfulResumed");
        assert_eq!(news(&none, &failed)[0].message, "quota");
        assert_eq!(news(&failed, &failed), []);
    }
}
