//! Writes that the caches have to show: before that, nothing is concluded from a cache.

use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use barevirt_api::pool::VirtualMachinePool;
use barevirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceReplicaSet,
};
use barevirt_component::request::Error;
use barevirt_component::request::{call, call_opt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Debug;
use std::time::Instant;

/// Our name in managed fields.
pub const FIELD_MANAGER: &str = crate::NAME;

/// A kind with a cache, whose writes are tracked.
pub trait Kept:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
    /// The kind in expectations.
    const KIND: Kind;
    /// The kind in messages.
    const NOUN: &'static str;
}

impl Kept for VirtualMachine {
    const KIND: Kind = Kind::Vm;
    const NOUN: &'static str = "virtual machine";
}

impl Kept for VirtualMachineInstance {
    const KIND: Kind = Kind::Vmi;
    const NOUN: &'static str = "virtual machine instance";
}

impl Kept for Pod {
    const KIND: Kind = Kind::Pod;
    const NOUN: &'static str = "pod";
}

impl Kept for VirtualMachineInstanceReplicaSet {
    const KIND: Kind = Kind::Set;
    const NOUN: &'static str = "replica set";
}

impl Kept for VirtualMachineInstanceMigration {
    const KIND: Kind = Kind::Vmim;
    const NOUN: &'static str = "migration";
}

impl Kept for VirtualMachinePool {
    const KIND: Kind = Kind::Pool;
    const NOUN: &'static str = "pool";
}

fn merge() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Merges `body` into an object, but not into a status that is a subresource. `operation` is a verb for the error.
///
/// # Errors
/// The API server's error, also where the object does not exist.
pub async fn patch<K: Kept>(
    cluster: &Cluster,
    operation: &'static str,
    namespace: &str,
    name: &str,
    body: &Value,
) -> Result<(), Error> {
    let objects: Api<K> = Api::namespaced(cluster.client.clone(), namespace);
    let write = cluster.expectations.begin(Key::new(K::KIND, namespace, name), Instant::now());
    let (params, patch) = (merge(), Patch::Merge(body));
    let request = objects.patch_metadata(name, &params, &patch);
    let answer = call(operation, || format!("{} {namespace}/{name}", K::NOUN), request).await?;
    write.done(answer.metadata.resource_version.as_deref());
    Ok(())
}

/// Merges `body` into the status of an object; returns the object's new version.
///
/// # Errors
/// As [`patch`].
pub async fn patch_status<K: Kept>(
    cluster: &Cluster,
    operation: &'static str,
    namespace: &str,
    name: &str,
    body: &Value,
) -> Result<Option<String>, Error> {
    let objects: Api<K> = Api::namespaced(cluster.client.clone(), namespace);
    let write = cluster.expectations.begin(Key::new(K::KIND, namespace, name), Instant::now());
    let (params, patch) = (merge(), Patch::Merge(body));
    let request = objects.patch_status(name, &params, &patch);
    let answer = call(operation, || format!("{} {namespace}/{name}", K::NOUN), request).await?;
    let version = answer.meta().resource_version.clone();
    write.done(version.as_deref());
    Ok(version)
}

/// Deletes an object; returns its last state, or `None` where it is gone already.
///
/// # Errors
/// The API server's error.
pub async fn delete<K: Kept>(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    params: &DeleteParams,
) -> Result<Option<K>, Error> {
    let objects: Api<K> = Api::namespaced(cluster.client.clone(), namespace);
    let write = cluster.expectations.begin(Key::new(K::KIND, namespace, name), Instant::now());
    let subject = || format!("{} {namespace}/{name}", K::NOUN);
    let answer = call_opt("delete", subject, objects.delete(name, params)).await?;
    let deleted = answer.and_then(|answer| answer.left());
    write.done(deleted.as_ref().and_then(|deleted| deleted.meta().resource_version.as_deref()));
    Ok(deleted)
}
