//! Names of objects in messages.

use kube::{Resource, ResourceExt};

/// Kind, namespace and name.
pub(super) fn subject<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{} {}/{}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any())
}
