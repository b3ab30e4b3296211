//! Which object may adopt others.

use barevirt_component::request::{Error, call_opt};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// Whether an object may adopt others: an object that is being deleted adopts nothing, and the cache may not show that yet.
pub async fn may_adopt<K>(
    client: &Client,
    subject: impl FnOnce() -> String,
    object: &K,
) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let all: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let fresh = call_opt("get", subject, all.get_metadata(&object.name_any())).await?;
    Ok(fresh.is_some_and(|fresh| {
        fresh.metadata.uid == object.meta().uid && fresh.metadata.deletion_timestamp.is_none()
    }))
}
