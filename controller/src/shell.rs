//! Requests to the API server: each with a deadline, each failure with its operation and subject.

use crate::error::Error;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::future::Future;
use std::time::Duration;

/// How long one request may take.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// Who we are in managed fields.
pub const FIELD_MANAGER: &str = "virt-controller";

/// Makes one request. `operation` is a verb, `subject` kind and name; they appear in the failure.
pub async fn call<T>(
    operation: &'static str,
    subject: impl FnOnce() -> String,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::Api { operation, subject: subject(), source: Box::new(source) }),
        Err(_) => Err(Error::Deadline { operation, subject: subject(), deadline: DEADLINE }),
    }
}

/// The same for something that may be gone: none then.
pub async fn call_opt<T>(
    operation: &'static str,
    subject: impl FnOnce() -> String,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<Option<T>, Error> {
    match call(operation, subject, request).await {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Api { source, .. })
            if crate::error::response(&source).is_some_and(|answer| answer.code == 404) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether an object may adopt others: one that is being deleted adopts nothing, and its cache may not show that yet.
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
