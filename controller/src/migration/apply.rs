//! Carries out a migration's plan, and reports.

use super::action::{About, Action, Plan};
use super::observed::Observed;
use super::status::{REJECTED_BY_QUOTA, condition, copy, enter, of, write as write_status};
use super::subject::subject;
use crate::cluster::Cluster;
use crate::migrations::row::Phase;
use crate::vmi::{attach, is_current, kept, make_pod};
use crate::write;
use barevirt_api::names::{REASON_FAILED_CREATE, REASON_FAILED_DELETE};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_component::error::response;
use barevirt_component::notes::Note;
use barevirt_component::request::{Category, Error, call};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::time::Duration;
use tracing::{info, warn};

/// When to look again at an instance that has changed meanwhile.
const CHANGED: Duration = Duration::from_millis(200);
/// When to retry a pod that a quota refused.
const QUOTA: Duration = Duration::from_secs(10);
/// Text of the API server's error about a quota.
const EXCEEDED_QUOTA: &str = "exceeded quota";

/// Carries out the plan; returns when to look again.
pub(super) async fn apply(
    cluster: &Cluster,
    observed: &Observed,
    plan: Plan,
) -> Result<Option<Duration>, Error> {
    let migration = &observed.migration;
    let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
    let mut version = migration.resource_version();
    for action in plan.actions {
        match action {
            Action::CreateClaim(claim) => {
                if let Err(error) = create_claim(cluster, &namespace, &claim).await {
                    return refused(cluster, observed, version, "PVC", error).await;
                }
            }
            Action::SettleState(moved) => {
                let Some(vmi) = &observed.vmi else { continue };
                kept::settle(cluster, vmi, &moved).await?;
            }
            Action::DiscardState => kept::discard(cluster, migration).await?,
            Action::Create(pod) => {
                if let Some(again) = create(cluster, observed, version.clone(), &pod).await? {
                    return Ok(Some(again));
                }
            }
            Action::Attach { pod, volume } => {
                let Some(vmi) = &observed.vmi else { continue };
                let again = attach(cluster, vmi, &pod, &volume).await?;
                if again.is_some() {
                    return Ok(again);
                }
            }
            Action::Delete { name, uid, grace } => delete(cluster, observed, &name, uid, grace).await?,
            Action::Vmi(body) => {
                let vmi = migration.spec.vmi_name.as_deref().unwrap_or_default();
                write::patch::<VirtualMachineInstance>(cluster, "patch", &namespace, vmi, &body).await?;
            }
            Action::Meta(body) => {
                let kind = "patch";
                write::patch::<VirtualMachineInstanceMigration>(cluster, kind, &namespace, &name, &body)
                    .await?;
            }
            Action::Status(body) => version = report(cluster, &namespace, &name, &body).await?,
            Action::Collect { name, uid } => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
                    ..DeleteParams::default()
                };
                write::delete::<VirtualMachineInstanceMigration>(cluster, &namespace, &name, &params).await?;
                info!(namespace, migration = name, "deleted a migration that ended long ago");
            }
        }
    }
    for (about, note) in plan.notes {
        tell(cluster, observed, about, note);
    }
    Ok(plan.again)
}

fn tell(cluster: &Cluster, observed: &Observed, about: About, note: Note) {
    match (about, &observed.vmi) {
        (About::Vmi, Some(vmi)) => cluster.notes.tell(note, vmi.object_ref(&())),
        (About::Vmi | About::Migration, _) => cluster.notes.tell(note, observed.migration.object_ref(&())),
    }
}

/// Reports the status; returns the migration's new version.
async fn report(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    body: &Value,
) -> Result<Option<String>, Error> {
    let operation = "report the status of";
    let version =
        write::patch_status::<VirtualMachineInstanceMigration>(cluster, operation, namespace, name, body)
            .await?;
    if let Some(phase) = body["status"]["phase"].as_str() {
        info!(namespace, migration = name, phase, "phase changed");
    }
    Ok(version)
}

/// Creates the target pod; returns when to look again, where it was not created. `version` is the migration's.
async fn create(
    cluster: &Cluster,
    observed: &Observed,
    version: Option<String>,
    pod: &Pod,
) -> Result<Option<Duration>, Error> {
    let migration = &observed.migration;
    let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
    let Some(vmi) = &observed.vmi else { return Ok(None) };
    if !is_current(cluster, vmi).await? {
        return Ok(Some(CHANGED));
    }
    match make_pod(cluster, vmi, pod).await {
        Ok(Some(uid)) => {
            cluster.created_pods.note(&uid);
            info!(namespace, migration = name, pod = pod.name_any(), uid, "created the target pod");
            Ok(None)
        }
        // The next reconciliation comes when the cache shows it.
        Ok(None) => Ok(Some(CHANGED)),
        Err(error) => refused(cluster, observed, version, "pod", error).await,
    }
}

/// Creates the claim for state at the target. One that exists is that of an earlier attempt.
async fn create_claim(
    cluster: &Cluster,
    namespace: &str,
    claim: &PersistentVolumeClaim,
) -> Result<(), Error> {
    let name = claim.name_any();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), namespace);
    let params = PostParams { field_manager: Some(write::FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match call("create", || format!("claim {namespace}/{name}"), claims.create(&params, claim)).await {
        Ok(_) => {
            info!(namespace, claim = name, "created the claim for state at the target");
            Ok(())
        }
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// The target pod or its claim was not created: reports why, and returns when to look again. The migration has this version
/// since its settings were recorded.
async fn refused(
    cluster: &Cluster,
    observed: &Observed,
    version: Option<String>,
    what: &str,
    error: Error,
) -> Result<Option<Duration>, Error> {
    let migration = &observed.migration;
    let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
    cluster.migrations.give_back(&namespace, &name);
    if error.category() != Category::Refused {
        return Err(error);
    }
    let message = error.message();
    let note = Note::warning(REASON_FAILED_CREATE, format!("Error creating {what}: {message}"));
    tell(cluster, observed, About::Vmi, note);
    warn!(migration = subject(migration), error = message, what, "creation for the target was refused");
    let mut status = of(observed);
    if Phase::of(migration) == Some(Phase::Unset) {
        enter(&mut status, Phase::Pending, observed.now);
    }
    copy(observed, &mut status);
    let quota = message.contains(EXCEEDED_QUOTA);
    if quota {
        condition(&mut status, REJECTED_BY_QUOTA, "", "", observed.now);
    }
    if let Some(Action::Status(mut body)) = write_status(observed, &status) {
        body["metadata"]["resourceVersion"] = json!(version);
        report(cluster, &namespace, &name, &body).await?;
    }
    if quota { Ok(Some(QUOTA)) } else { Err(error) }
}

async fn delete(
    cluster: &Cluster,
    observed: &Observed,
    name: &str,
    uid: String,
    grace: u32,
) -> Result<(), Error> {
    let migration = &observed.migration;
    let namespace = migration.namespace().unwrap_or_default();
    let params = DeleteParams {
        grace_period_seconds: Some(grace),
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default()
    };
    if let Err(error) = write::delete::<Pod>(cluster, &namespace, name, &params).await {
        if error.category() == Category::Refused {
            let message = format!("Error deleting canceled migration target pod: {}", error.message());
            tell(cluster, observed, About::Migration, Note::warning(REASON_FAILED_DELETE, message));
        }
        return Err(error);
    }
    info!(namespace, migration = migration.name_any(), pod = name, grace, "deleted the target pod");
    Ok(())
}
