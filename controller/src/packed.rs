//! Objects as caches keep them: compressed, and read when they are looked at.
//!
//! A decoded instance and its decoded pod are fifty kilobytes of mostly empty fields and tree nodes; packed they are five,
//! and reading one takes a few tens of microseconds, far less than the request that most likely follows. What finds an
//! object and what tells one state from another is kept aside.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::Arc;

/// An object that may not be decodable. Its own metadata has nothing but name, namespace, identifier and version.
pub struct Packed<K> {
    meta: ObjectMeta,
    bytes: Arc<[u8]>,
    kind: PhantomData<fn() -> K>,
}

/// Why an object cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the object")]
pub struct Unreadable(#[source] serde_json::Error);

impl<K: DeserializeOwned> Packed<K> {
    /// The object whole, but for `managedFields`: by far the largest part of many, and nothing here reads it.
    ///
    /// # Errors
    /// Where its type does not have it so; then everything else of this process goes on without it.
    pub fn unpack(&self) -> Result<K, Unreadable> {
        let text = lz4_flex::decompress_size_prepended(&self.bytes)
            .map_err(|error| Unreadable(serde_json::Error::custom(error)))?;
        serde_json::from_slice(&text).map_err(Unreadable)
    }
}

impl<'de, K> Deserialize<'de> for Packed<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        let mut meta = ObjectMeta::default();
        if let Some(given) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            given.remove("managedFields");
            let text = |field: &str| given.get(field).and_then(Value::as_str).map(str::to_owned);
            meta.name = text("name");
            meta.namespace = text("namespace");
            meta.uid = text("uid");
            meta.resource_version = text("resourceVersion");
        }
        let text = serde_json::to_vec(&object).map_err(D::Error::custom)?;
        Ok(Packed { meta, bytes: lz4_flex::compress_prepend_size(&text).into(), kind: PhantomData })
    }
}

impl<K> Clone for Packed<K> {
    fn clone(&self) -> Self {
        Packed { meta: self.meta.clone(), bytes: self.bytes.clone(), kind: PhantomData }
    }
}

impl<K> std::fmt::Debug for Packed<K> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Packed").field("name", &self.meta.name).field("bytes", &self.bytes.len()).finish()
    }
}

impl<K: Resource> Resource for Packed<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dyntype: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dyntype)
    }

    fn group(dyntype: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dyntype)
    }

    fn version(dyntype: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dyntype)
    }

    fn plural(dyntype: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dyntype)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    #[test]
    fn what_goes_in_comes_out_without_managed_fields() {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "a", "namespace": "b", "uid": "c", "resourceVersion": "7", "labels": {"x": "y"},
                "managedFields": [{"manager": "somebody", "operation": "Apply"}],
            },
            "spec": {"containers": [{"name": "compute"}]}, "status": {"phase": "Running"},
        });
        let packed: Packed<Pod> = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(packed.meta().name.as_deref(), Some("a"));
        assert_eq!(packed.meta().namespace.as_deref(), Some("b"));
        assert_eq!(packed.meta().uid.as_deref(), Some("c"));
        assert_eq!(packed.meta().resource_version.as_deref(), Some("7"));
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(serde_json::to_value(packed.unpack().unwrap()).unwrap(), object);
    }

    #[test]
    fn what_cannot_be_read_has_a_name_and_says_why() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"containers": 3}});
        let packed: Packed<Pod> = serde_json::from_value(object).unwrap();
        assert_eq!(packed.meta().name.as_deref(), Some("a"));
        let Unreadable(why) = packed.unpack().unwrap_err();
        assert!(why.to_string().contains("invalid type"), "{why}");
    }
}
