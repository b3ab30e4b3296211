//! Which objects belong to which replica set or pool, and which have no controller: found without a scan of the namespace.
//!
//! The watches report each change. Objects of other owners, mainly instances of machines, take no memory here.

pub use barevirt_plan::owner::owner;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A replica set or a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its name.
    pub name: String,
    /// Its UID: no other object of that name is meant.
    pub uid: String,
}

/// The owner of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// A parent of the expected kind.
    Parent(Parent),
    /// No controller: it may be adopted.
    Unowned,
    /// Another owner.
    Other,
}

impl Ownership {
    /// By the owner that controls the object. `kind` is the parents' kind.
    pub fn of(metadata: &ObjectMeta, kind: &str) -> Self {
        match controller(metadata) {
            None => Ownership::Unowned,
            Some(owner) if owner.kind == kind => {
                Ownership::Parent(Parent { name: owner.name.clone(), uid: owner.uid.clone() })
            }
            Some(_) => Ownership::Other,
        }
    }
}

/// The owner that controls an object.
pub fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether that owner controls the object.
pub fn is_controlled_by(metadata: &ObjectMeta, owner: &ObjectMeta) -> bool {
    controller(metadata).is_some_and(|found| Some(&found.uid) == owner.uid.as_ref())
}

#[derive(Default)]
struct Known {
    /// Children by namespace and name.
    parents: HashMap<(String, String), Parent>,
    /// Names of children by the parent's UID.
    children: HashMap<String, BTreeSet<String>>,
    /// Names of objects without a controller, by namespace.
    free: HashMap<String, BTreeSet<String>>,
}

/// The owners of all objects of one kind.
#[derive(Default)]
pub struct Owners {
    known: Mutex<Known>,
}

impl Owners {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while the lock is held; even then the maps would be intact.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the owner of an object; returns its former parent, where that has changed.
    pub fn saw(&self, namespace: &str, name: &str, ownership: &Ownership) -> Option<Parent> {
        let mut known = self.lock();
        let former = known.forget(namespace, name);
        match ownership {
            Ownership::Parent(parent) => {
                known.children.entry(parent.uid.clone()).or_default().insert(name.to_owned());
                known.parents.insert((namespace.to_owned(), name.to_owned()), parent.clone());
                return former.filter(|former| former != parent);
            }
            Ownership::Unowned => {
                known.free.entry(namespace.to_owned()).or_default().insert(name.to_owned());
            }
            Ownership::Other => {}
        }
        former
    }

    /// Records that an object is gone; returns its parent.
    pub fn gone(&self, namespace: &str, name: &str) -> Option<Parent> {
        self.lock().forget(namespace, name)
    }

    /// The parent of an object.
    pub fn parent(&self, namespace: &str, name: &str) -> Option<Parent> {
        self.lock().parents.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Names of a parent's children, in order.
    pub fn children(&self, uid: &str) -> Vec<String> {
        self.lock().children.get(uid).into_iter().flatten().cloned().collect()
    }

    /// Names of a namespace's objects without a controller, in order.
    pub fn free(&self, namespace: &str) -> Vec<String> {
        self.lock().free.get(namespace).into_iter().flatten().cloned().collect()
    }
}

impl Known {
    fn forget(&mut self, namespace: &str, name: &str) -> Option<Parent> {
        remove(&mut self.free, namespace, name);
        let parent = self.parents.remove(&(namespace.to_owned(), name.to_owned()))?;
        remove(&mut self.children, &parent.uid, name);
        Some(parent)
    }
}

fn remove(sets: &mut HashMap<String, BTreeSet<String>>, key: &str, name: &str) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(name);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(uid: &str) -> Ownership {
        Ownership::Parent(Parent { name: "set".to_owned(), uid: uid.to_owned() })
    }

    #[test]
    fn owners_follow_created_changed_and_deleted_objects() {
        let owners = Owners::default();
        assert_eq!(owners.saw("ns", "a", &of("u1")), None);
        assert_eq!(owners.saw("ns", "b", &of("u1")), None);
        assert_eq!(owners.saw("ns", "c", &Ownership::Unowned), None);
        assert_eq!(owners.saw("ns", "d", &Ownership::Other), None);
        assert_eq!(owners.children("u1"), ["a", "b"]);
        assert_eq!(owners.free("ns"), ["c"]);
        assert_eq!(owners.saw("ns", "a", &of("u1")), None);
        assert_eq!(owners.saw("ns", "a", &of("u2")).unwrap().uid, "u1");
        assert_eq!(owners.saw("ns", "c", &of("u2")), None);
        assert_eq!(owners.parent("ns", "c").unwrap().uid, "u2");
        assert_eq!((owners.free("ns").len(), owners.children("u2").len()), (0, 2));
        assert_eq!(owners.saw("ns", "a", &Ownership::Unowned).unwrap().uid, "u2");
        assert_eq!(owners.gone("ns", "b").unwrap().uid, "u1");
        assert_eq!(owners.gone("ns", "b"), None);
        assert_eq!(owners.children("u1").len(), 0);
        let known = owners.lock();
        assert_eq!((known.children.len(), known.parents.len(), known.free.len()), (1, 1, 1));
    }

    #[test]
    fn the_controlling_owner_counts() {
        let by = |owners| {
            Ownership::of(&serde_json::from_value(json!({ "ownerReferences": owners })).unwrap(), "K")
        };
        let owner = |kind: &str, controller: bool| json!({"apiVersion": "v1", "kind": kind, "name": "set", "uid": "u1", "controller": controller});
        assert_eq!(by(json!([])), Ownership::Unowned);
        assert_eq!(by(json!([owner("K", false)])), Ownership::Unowned);
        assert_eq!(by(json!([owner("K", false), owner("L", true)])), Ownership::Other);
        assert_eq!(by(json!([owner("K", true)])), of("u1"));
    }
}
