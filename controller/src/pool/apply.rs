//! Carries out a pool's plan, and reports.

use super::action::Action;
use super::observed::Observed;
use super::plan::Plan;
use super::status::{self, Failure};
use super::{keep, revision, state};
use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use crate::merge;
use crate::ownership;
use crate::write::FIELD_MANAGER;
use crate::write::{self, Kept};
use barevirt_api::names::{
    ACTION_START, ACTION_STOP, CONDITION_REPLICA_FAILURE, CONDITION_REPLICA_PAUSED, POOL_REVISION_LABEL,
    REASON_FAILED_UPDATE, REASON_SUCCESSFUL_CREATE, REASON_SUCCESSFUL_DELETE, REASON_SUCCESSFUL_PAUSED,
    REASON_SUCCESSFUL_UPDATE,
};
use barevirt_api::pool::{VirtualMachinePool, VirtualMachinePoolStatus};
use barevirt_api::v1::{Condition, VirtualMachine, VirtualMachineInstance};
use barevirt_component::error::response;
use barevirt_component::notes::Note;
use barevirt_component::request::call;
use barevirt_component::request::{Category, Error};
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::time::{Duration, Instant};
use tracing::info;

/// Concurrent requests.
const AT_ONCE: usize = 10;
/// Reason of a failure: machines could not be created.
const FAILED_SCALE_OUT: &str = "FailedScaleOut";
/// Reason of a failure: machines could not be deleted.
const FAILED_SCALE_IN: &str = "FailedScaleIn";
/// Reason of a failure: older generations could not be removed.
const FAILED_PRUNING: &str = "FailedRevisionPruning";
/// Event reason: the pool is not paused any more.
const REASON_RESUMED: &str = "SuccessfulResume";
/// When to look again at the remaining work, without an event.
const AGAIN: Duration = Duration::from_secs(5);

/// Carries out the plan and reports; returns when to look again.
pub(super) async fn apply(
    cluster: &Cluster,
    observed: &Observed,
    plan: Plan,
) -> Result<Option<Duration>, Error> {
    let pool = &observed.pool;
    let acting = (!plan.actions.is_empty()).then_some(AGAIN);
    let again = plan.again.into_iter().chain(acting).min();
    let failed = carry_out(cluster, pool, plan.actions).await;
    let failure =
        failed.as_ref().filter(|(error, _)| error.category() == Category::Refused).map(|(error, reason)| {
            let during = match *reason {
                FAILED_SCALE_OUT => "error during scale out",
                FAILED_SCALE_IN => "error during scale in",
                FAILED_PRUNING => "error while pruning vmpool revisions",
                _ => "error during VM update",
            };
            Failure { reason, message: format!("{during}: {}", error.message()) }
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

/// Carries out all actions; returns the first failure, since the others are most likely the same.
async fn carry_out(
    cluster: &Cluster,
    pool: &VirtualMachinePool,
    actions: Vec<Action>,
) -> Option<(Error, &'static str)> {
    // The revision of machines is stored before any machine is made from it.
    if let Some(action) =
        actions.iter().find(|action| matches!(action, Action::Create(_) | Action::Update(..)))
        && let Err(error) = revision::keep(cluster, pool).await
    {
        return Some((error, reason(action)));
    }
    let done: Vec<Result<(), (Error, &'static str)>> = futures::stream::iter(actions)
        .map(|action| async move {
            let reason = reason(&action);
            act(cluster, pool, action).await.map_err(|error| (error, reason))
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    done.into_iter().find_map(Result::err)
}

/// Reason for the failure of an action.
fn reason(action: &Action) -> &'static str {
    match action {
        Action::Create(_) => FAILED_SCALE_OUT,
        Action::Delete(_)
        | Action::Release(_)
        | Action::Guard
        | Action::Unguard
        | Action::Hold(_)
        | Action::Unhold(_)
        | Action::Keep(_) => FAILED_SCALE_IN,
        Action::Update(..)
        | Action::Replace(_)
        | Action::Renew(_)
        | Action::Restart(..)
        | Action::Relabel(..) => REASON_FAILED_UPDATE,
        Action::Prune => FAILED_PRUNING,
    }
}

async fn act(cluster: &Cluster, pool: &VirtualMachinePool, action: Action) -> Result<(), Error> {
    let namespace = pool.namespace().unwrap_or_default();
    let tell = |note| cluster.notes.tell(note, pool.object_ref(&()));
    match action {
        Action::Create(vm) => create(cluster, pool, &vm).await,
        Action::Delete(vm) => {
            let (name, uid) = (vm.name_any(), vm.uid().unwrap_or_default());
            delete::<VirtualMachine>(cluster, vm.meta()).await?;
            let text = format!("Deleted VM {namespace}/{name} with uid {uid} from pool");
            tell(Note::normal(REASON_SUCCESSFUL_DELETE, text));
            info!(namespace, pool = pool.name_any(), vm = name, "deleted a machine");
            Ok(())
        }
        Action::Replace(vm) => {
            let (name, uid) = (vm.name_any(), vm.uid().unwrap_or_default());
            delete_with::<VirtualMachine>(cluster, vm.meta(), Some(PropagationPolicy::Foreground)).await?;
            let text = format!("Deleted VM {namespace}/{name} with uid {uid} from pool");
            tell(Note::normal(REASON_SUCCESSFUL_DELETE, text));
            info!(namespace, pool = pool.name_any(), vm = name, "deleted a machine for its changed volumes");
            Ok(())
        }
        Action::Guard => finalize(cluster, pool, &state::held(pool)).await,
        Action::Unguard => finalize(cluster, pool, &state::free(pool)).await,
        Action::Hold(vm) => finalize(cluster, &*vm, &state::held(&*vm)).await,
        Action::Unhold(vm) => finalize(cluster, &*vm, &state::free(&*vm)).await,
        Action::Keep(vm) => {
            keep::part(cluster, &vm).await?;
            finalize(cluster, &*vm, &state::free(&*vm)).await
        }
        Action::Release(vm) => {
            let owners = vm.owner_references().iter();
            let left: Vec<_> =
                owners.filter(|owner| Some(&owner.uid) != pool.metadata.uid.as_ref()).collect();
            let body = json!({"metadata": {
                "resourceVersion": vm.resource_version(), "uid": vm.uid(), "ownerReferences": left,
                "finalizers": state::free(&*vm),
            }});
            write::patch::<VirtualMachine>(cluster, "patch", &namespace, &vm.name_any(), &body).await?;
            info!(namespace, pool = pool.name_any(), vm = vm.name_any(), "released a machine");
            Ok(())
        }
        Action::Update(name, body) => {
            write::patch::<VirtualMachine>(cluster, "patch", &namespace, &name, &body).await?;
            tell(Note::normal(REASON_SUCCESSFUL_UPDATE, format!("Updated VM {namespace}/{name}")));
            info!(namespace, pool = pool.name_any(), vm = name, "updated a machine");
            Ok(())
        }
        Action::Renew(vmi) => {
            delete::<VirtualMachineInstance>(cluster, vmi.meta()).await?;
            let text = format!("Successfully updated resource {namespace}/{}", vmi.name_any());
            tell(Note::normal(REASON_SUCCESSFUL_DELETE, text));
            info!(
                namespace,
                pool = pool.name_any(),
                vm = vmi.name_any(),
                "restarted a machine by its instance"
            );
            Ok(())
        }
        Action::Restart(vm, uid) => {
            restart(cluster, &vm, &uid).await?;
            let text = format!("Successfully updated resource {namespace}/{}", vm.name_any());
            tell(Note::normal(REASON_SUCCESSFUL_UPDATE, text));
            info!(namespace, pool = pool.name_any(), vm = vm.name_any(), "restarted a machine by a request");
            Ok(())
        }
        Action::Relabel(vmi, revision) => {
            let body = json!({"metadata": {
                "resourceVersion": vmi.resource_version(), "labels": {POOL_REVISION_LABEL: revision}
            }});
            write::patch::<VirtualMachineInstance>(cluster, "patch", &namespace, &vmi.name_any(), &body).await
        }
        Action::Prune => revision::prune(cluster, pool).await,
    }
}

/// Gives an object these finalizers.
async fn finalize<K: Kept>(cluster: &Cluster, object: &K, finalizers: &[String]) -> Result<(), Error> {
    let body = json!({"metadata": {
        "resourceVersion": object.resource_version(), "uid": object.uid(), "finalizers": finalizers
    }});
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    write::patch::<K>(cluster, "patch", &namespace, &name, &body).await
}

async fn create(cluster: &Cluster, pool: &VirtualMachinePool, vm: &VirtualMachine) -> Result<(), Error> {
    let (namespace, name) = (pool.namespace().unwrap_or_default(), vm.name_any());
    let vms: Api<VirtualMachine> = Api::namespaced(cluster.client.clone(), &namespace);
    let subject = || format!("virtual machine {namespace}/{name}");
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let write = cluster.expectations.begin(Key::new(Kind::Vm, &namespace, &name), Instant::now());
    let created = match call("create", subject, vms.create(&params, vm)).await {
        Ok(created) => created,
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {
            // The observation was old; the next look counts the machine, or takes another number.
            let existing = call("get", subject, vms.get_metadata(&name)).await?;
            write.done(existing.metadata.resource_version.as_deref());
            if let Some(owner) = ownership::controller(existing.meta())
                .filter(|owner| Some(&owner.uid) != pool.metadata.uid.as_ref())
            {
                info!(namespace, pool = pool.name_any(), vm = name, owner = owner.name, "the name is taken");
            }
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    write.done(created.metadata.resource_version.as_deref());
    let note = Note::normal(REASON_SUCCESSFUL_CREATE, format!("Created VM {namespace}/{name}"));
    cluster.notes.tell(note, pool.object_ref(&()));
    info!(namespace, pool = pool.name_any(), vm = name, "created a machine");
    Ok(())
}

/// Does the same as the machine's `restart` subresource.
async fn restart(cluster: &Cluster, vm: &VirtualMachine, uid: &str) -> Result<(), Error> {
    if vm.status.as_ref().is_some_and(|status| !status.state_change_requests.is_empty()) {
        // A restart is in progress, or another request comes first.
        return Ok(());
    }
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let body = json!({
        "metadata": {"resourceVersion": vm.resource_version()},
        "status": {"stateChangeRequests": [{"action": ACTION_STOP, "uid": uid}, {"action": ACTION_START}]},
    });
    write::patch_status::<VirtualMachine>(cluster, "restart", &namespace, &name, &body).await.map(drop)
}

/// Deletes exactly that object.
async fn delete<K: Kept>(cluster: &Cluster, metadata: &ObjectMeta) -> Result<(), Error> {
    delete_with::<K>(cluster, metadata, None).await
}

/// The same, with a propagation policy for its dependents.
async fn delete_with<K: Kept>(
    cluster: &Cluster,
    metadata: &ObjectMeta,
    propagation_policy: Option<PropagationPolicy>,
) -> Result<(), Error> {
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let name = metadata.name.clone().unwrap_or_default();
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: metadata.uid.clone(), resource_version: None }),
        propagation_policy,
        ..DeleteParams::default()
    };
    write::delete::<K>(cluster, &namespace, &name, &params).await.map(drop)
}

/// Writes the status where it differs from the stored one, and emits events for changes.
async fn report(cluster: &Cluster, observed: &Observed, failure: Option<&Failure>) -> Result<(), Error> {
    let pool = &observed.pool;
    let before = pool.status.clone().unwrap_or_default();
    let wanted = status::compute(observed, failure);
    // Our types always have a JSON form: their maps have only string keys.
    let (old, new) = (serde_json::to_value(&before), serde_json::to_value(&wanted));
    let Some(change) = merge::difference(&old.unwrap_or_default(), &new.unwrap_or_default()) else {
        return Ok(());
    };
    let body = json!({
        "metadata": {"resourceVersion": pool.metadata.resource_version}, "status": change
    });
    let (namespace, name) = (pool.namespace().unwrap_or_default(), pool.name_any());
    write::patch_status::<VirtualMachinePool>(cluster, "report the status of", &namespace, &name, &body)
        .await?;
    for note in news(&before, &wanted) {
        cluster.notes.tell(note, pool.object_ref(&()));
    }
    Ok(())
}

/// The events of a changed status.
fn news(before: &VirtualMachinePoolStatus, after: &VirtualMachinePoolStatus) -> Vec<Note> {
    let mut notes = vec![];
    let paused =
        |status: &VirtualMachinePoolStatus| Condition::is_set(&status.conditions, CONDITION_REPLICA_PAUSED);
    match (paused(before), paused(after)) {
        (false, true) => notes.push(Note::normal(REASON_SUCCESSFUL_PAUSED, "Pool is paused")),
        (true, false) => notes.push(Note::normal(REASON_RESUMED, "Pool is unpaused")),
        _ => {}
    }
    let failure = |status: &VirtualMachinePoolStatus| {
        Condition::find(&status.conditions, CONDITION_REPLICA_FAILURE)
            .map(|condition| (condition.reason.clone(), condition.message.clone()))
    };
    if let Some((reason, message)) = failure(after).filter(|told| failure(before).as_ref() != Some(told)) {
        notes.push(Note::warning(reason.unwrap_or_default(), message.unwrap_or_default()));
    }
    notes
}
