//! Objects in caches: compressed, and unpacked when they are used.
//!
//! A decoded instance and its decoded pod take fifty kilobytes of mostly empty fields and tree nodes; packed they take five,
//! and unpacking one takes a few tens of microseconds, far less than the request that most likely follows. The fields that
//! identify an object and its version stay unpacked.
//!
//! Objects of one kind are very similar: most fields are defaults. So an object is compressed against an early one of its
//! kind, the dictionary, and takes a fifth of the space. A dictionary that resembles no other object wastes only its own
//! space.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::any::TypeId;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

/// An object that may not be decodable. Its unpacked metadata contain only name, namespace, UID and resource version.
pub struct Packed<K> {
    meta: ObjectMeta,
    bytes: Arc<[u8]>,
    /// The dictionary that the bytes were compressed with.
    dictionary: Dictionary,
    kind: PhantomData<fn() -> K>,
}

/// JSON of an object; empty before there is a suitable one. Each object stores it as one pointer.
type Dictionary = Arc<Vec<u8>>;

/// Shorter objects have too little in common with others to serve as a dictionary.
const SHORTEST: usize = 1024;
/// LZ4 does not look back further.
const LONGEST: usize = 64 * 1024;

/// The dictionary of a kind: its first object that is long enough, for the life of the process.
fn dictionary<K: 'static>(text: &[u8]) -> Dictionary {
    static KNOWN: Mutex<BTreeMap<TypeId, Dictionary>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let own = known.entry(TypeId::of::<K>()).or_default();
    let former = own.clone();
    if own.is_empty() && (SHORTEST..=LONGEST).contains(&text.len()) {
        *own = Arc::new(text.to_vec());
    }
    former
}

/// Why an object cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the object")]
pub struct Unreadable(#[source] serde_json::Error);

impl<K: DeserializeOwned> Packed<K> {
    /// The whole object except `managedFields`, which is by far the largest part of many objects and not used here.
    ///
    /// # Errors
    /// The object does not match its type; the rest of this process continues without it.
    pub fn unpack(&self) -> Result<K, Unreadable> {
        let text = lz4_flex::block::decompress_size_prepended_with_dict(&self.bytes, &self.dictionary)
            .map_err(|error| Unreadable(serde_json::Error::custom(error)))?;
        serde_json::from_slice(&text).map_err(Unreadable)
    }
}

impl<'de, K: 'static> Deserialize<'de> for Packed<K> {
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
        let dictionary = dictionary::<K>(&text);
        let bytes = lz4_flex::block::compress_prepend_size_with_dict(&text, &dictionary).into();
        Ok(Packed { meta, bytes, dictionary, kind: PhantomData })
    }
}

impl<K> Clone for Packed<K> {
    fn clone(&self) -> Self {
        let dictionary = self.dictionary.clone();
        Packed { meta: self.meta.clone(), bytes: self.bytes.clone(), dictionary, kind: PhantomData }
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
    fn a_packed_object_is_unpacked_without_managed_fields() {
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
    fn an_object_like_an_earlier_one_takes_little_and_comes_out_whole() {
        // A kind that no other test uses: dictionaries belong to kinds.
        use k8s_openapi::api::core::v1::ConfigMap;
        let object = |name: &str, words: std::ops::Range<u32>| {
            let data: serde_json::Map<_, _> =
                words.map(|word| (format!("key-{}", word * 7919), json!(word * 104_729))).collect();
            let data: serde_json::Map<_, _> =
                data.into_iter().map(|(key, value)| (key, value.to_string().into())).collect();
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
        };
        let pack = |object: &Value| -> Packed<ConfigMap> { serde_json::from_value(object.clone()).unwrap() };
        let unpacked = |packed: &Packed<ConfigMap>| serde_json::to_value(packed.unpack().unwrap()).unwrap();
        let (short, first, alike, another) = (
            object("short", 0..1),
            object("first", 1..100),
            object("alike", 1..100),
            object("another", 500..600),
        );
        for one in [&short, &first, &alike, &another] {
            assert_eq!(unpacked(&pack(one)), *one);
        }
        let (first, alike) = (pack(&first), pack(&alike));
        assert!(alike.bytes.len() * 5 < serde_json::to_vec(&unpacked(&first)).unwrap().len(), "{alike:?}");
        assert_eq!(unpacked(&alike.clone()), unpacked(&alike));
    }

    #[test]
    fn an_unreadable_object_keeps_its_name_and_reports_why() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"containers": 3}});
        let packed: Packed<Pod> = serde_json::from_value(object).unwrap();
        assert_eq!(packed.meta().name.as_deref(), Some("a"));
        let Unreadable(why) = packed.unpack().unwrap_err();
        assert!(why.to_string().contains("invalid type"), "{why}");
    }
}
