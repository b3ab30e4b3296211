//! The generations of a pool, as ControllerRevisions that it owns. Machines and instances are made from them.

use super::generation::{Older, name, of};
use super::observed::Observed;
use super::subject::subject as pool_subject;
use crate::cluster::Cluster;
use crate::ownership;
use crate::write::FIELD_MANAGER;
use barevirt_api::names::{REVISION_OF_LABEL, vmi_id};
use barevirt_api::pool::VirtualMachinePool;
use barevirt_component::error::response;
use barevirt_component::request::Error;
use barevirt_component::request::{call, call_opt};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Resource, ResourceExt};
use std::collections::HashSet;
use tracing::{info, warn};

/// Names of older generations that machines and instances were made from.
pub(super) fn referenced(observed: &Observed) -> HashSet<String> {
    let present = name(&observed.pool);
    let both = observed.machines.iter().flat_map(|machine| {
        let instance = machine.instance.as_ref().and_then(|instance| of(instance.meta()));
        of(machine.vm.meta()).into_iter().chain(instance)
    });
    both.filter(|name| **name != present).cloned().collect()
}

fn api(cluster: &Cluster, pool: &VirtualMachinePool) -> Api<ControllerRevision> {
    Api::namespaced(cluster.client.clone(), &pool.namespace().unwrap_or_default())
}

fn subject(pool: &VirtualMachinePool, name: &str) -> String {
    format!("controller revision {}/{name}", pool.namespace().unwrap_or_default())
}

fn is_ours(pool: &VirtualMachinePool, revision: &ObjectMeta) -> bool {
    ownership::is_controlled_by(revision, pool.meta())
}

/// Reads older generations.
pub(super) async fn read(
    cluster: &Cluster,
    pool: &VirtualMachinePool,
    names: HashSet<String>,
) -> Result<Older, Error> {
    let mut older = Older::new();
    for name in names {
        let revisions = api(cluster, pool);
        let found = call_opt("get", || subject(pool, &name), revisions.get(&name)).await?;
        let spec = found.filter(|revision| is_ours(pool, revision.meta())).and_then(|revision| {
            let data = revision.data.map(|data| data.0).unwrap_or_default();
            serde_json::from_value(data)
                .map_err(|error| warn!(revision = name, %error, "a revision that cannot be read"))
                .ok()
        });
        older.insert(name, spec);
    }
    Ok(older)
}

/// Stores the present generation.
pub(super) async fn keep(cluster: &Cluster, pool: &VirtualMachinePool) -> Result<(), Error> {
    let name = name(pool);
    let revision = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: pool.namespace(),
            labels: Some([(REVISION_OF_LABEL.to_owned(), vmi_id(&pool.name_any()))].into()),
            owner_references: Some(vec![ownership::owner(pool)]),
            ..ObjectMeta::default()
        },
        // Our types always have a JSON form: their maps have only string keys.
        data: Some(RawExtension(serde_json::to_value(&pool.spec).unwrap_or_default())),
        revision: pool.metadata.generation.unwrap_or_default(),
    };
    let revisions = api(cluster, pool);
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match call("create", || subject(pool, &name), revisions.create(&params, &revision)).await {
        Ok(_) => {
            info!(namespace = pool.namespace(), pool = pool.name_any(), revision = name, "kept a generation");
        }
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {
            let existing = call("get", || subject(pool, &name), revisions.get_metadata(&name)).await?;
            if !is_ours(pool, existing.meta()) {
                // Usually it belongs to a deleted pool of the same name, and will be deleted with it.
                let owner = ownership::controller(existing.meta());
                let owner = owner.map_or("nobody".to_owned(), |o| format!("another {} {}", o.kind, o.name));
                return Err(Error::Foreign { subject: subject(pool, &name), owner });
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Removes generations that nothing uses any more.
pub(super) async fn prune(cluster: &Cluster, pool: &VirtualMachinePool) -> Result<(), Error> {
    let revisions = api(cluster, pool);
    let label = format!("{REVISION_OF_LABEL}={}", vmi_id(&pool.name_any()));
    let ours = ListParams::default().labels(&label);
    let list = revisions.list_metadata(&ours);
    let found = call("list", || format!("controller revisions of {}", pool_subject(pool)), list).await?;
    let present = name(pool);
    for old in found.iter().filter(|old| is_ours(pool, old.meta()) && old.name_any() != present) {
        let (old, params) = (old.name_any(), DeleteParams::default());
        call_opt("delete", || subject(pool, &old), revisions.delete(&old, &params)).await?;
        info!(namespace = pool.namespace(), pool = pool.name_any(), revision = old, "removed a generation");
    }
    cluster.pruned.done(pool);
    Ok(())
}
