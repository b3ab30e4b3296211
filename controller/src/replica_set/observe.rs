//! Observes one replica set, only from caches, which have to show our latest writes.

use super::plan::{self, Member, Observed};
use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use barevirt_component::error::chain;
use barevirt_plan::pod::target::launcher_name;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::time::Instant;
use tracing::warn;

/// The result of a look.
pub(super) enum Observation {
    /// The set does not exist, or cannot be decoded.
    Nothing,
    /// The caches lag behind our own writes.
    Owed,
    /// The whole observation.
    Whole(Box<Observed>),
}

pub(super) fn observe(cluster: &Cluster, namespace: &str, name: &str) -> Observation {
    let now = Instant::now();
    if cluster.expectations.owes(&Key::new(Kind::Set, namespace, name), now) {
        return Observation::Owed;
    }
    let Some(set) = cluster.sets.get(&ObjectRef::new(name).within(namespace)) else {
        return Observation::Nothing;
    };
    let set = match set.unpack() {
        Ok(set) => set,
        Err(error) => {
            // It is logged and left alone; the others go on.
            warn!(namespace, name, error = %chain(&error), "a replica set that cannot be read");
            return Observation::Nothing;
        }
    };
    let children = cluster.instances.children(&set.uid().unwrap_or_default());
    let owed =
        children.iter().any(|child| cluster.expectations.owes(&Key::new(Kind::Vmi, namespace, child), now))
            || cluster.expectations.owes_any(Kind::Vmi, namespace, &plan::beginning(&set), now);
    if owed {
        return Observation::Owed;
    }
    let candidates = children.into_iter().chain(cluster.instances.free(namespace));
    let members = candidates.filter_map(|child| member(cluster, namespace, &child)).collect();
    Observation::Whole(Box::new(Observed { set, members }))
}

/// An instance that may be the set's; `None` where it cannot be decoded, which its own reconciler logs.
fn member(cluster: &Cluster, namespace: &str, name: &str) -> Option<Member> {
    let vmi = cluster.vmis.get(&ObjectRef::new(name).within(namespace))?.unpack().ok()?;
    let launcher = launcher_name(&vmi);
    let pod = cluster.pods.get(&ObjectRef::new(&launcher).within(namespace));
    let pod_leaves =
        pod.and_then(|pod| pod.unpack().ok()).is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
    Some(Member::new(&vmi, pod_leaves))
}
