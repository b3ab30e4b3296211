//! Observes one pool: from caches that show our latest writes, and reads its older generations where something was made from
//! them.

use super::observed::{BURST, Machine, Observed};
use super::{machine, revision, state};
use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use barevirt_component::error::chain;
use barevirt_component::request::Error;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::time::Instant;
use tracing::warn;

/// The result of a look.
pub(super) enum Observation {
    /// The pool does not exist, or cannot be decoded.
    Nothing,
    /// The caches lag behind our own writes.
    Owed,
    /// The whole observation.
    Whole(Box<Observed>),
}

pub(super) async fn observe(cluster: &Cluster, namespace: &str, name: &str) -> Result<Observation, Error> {
    let Some(mut observed) = cached(cluster, namespace, name) else { return Ok(Observation::Nothing) };
    let now = Instant::now();
    let owes = |kind, name: &str| cluster.expectations.owes(&Key::new(kind, namespace, name), now);
    let names = observed.machines.iter().map(|machine| machine.vm.name_any());
    let owed = owes(Kind::Pool, name)
        || names.into_iter().any(|name| owes(Kind::Vm, &name) || owes(Kind::Vmi, &name))
        || cluster.expectations.owes_any(Kind::Vm, namespace, &format!("{name}-"), now);
    if owed {
        return Ok(Observation::Owed);
    }
    let older = revision::referenced(&observed);
    observed.older = revision::read(cluster, &observed.pool, older).await?;
    Ok(Observation::Whole(Box::new(observed)))
}

fn cached(cluster: &Cluster, namespace: &str, name: &str) -> Option<Observed> {
    let pool = cluster.pools.get(&ObjectRef::new(name).within(namespace))?;
    let pool = match pool.unpack() {
        Ok(pool) => pool,
        Err(error) => {
            // It is logged and left alone; the others go on.
            warn!(namespace, name, error = %chain(&error), "a pool that cannot be read");
            return None;
        }
    };
    let children = cluster.machines.children(&pool.uid().unwrap_or_default());
    let machines = children
        .into_iter()
        .filter_map(|child| {
            let vm = cluster.vms.get(&ObjectRef::new(&child).within(namespace))?.unpack().ok()?;
            let instance = cluster.vmis.get(&ObjectRef::new(&child).within(namespace));
            Some(Machine { vm, instance: instance.and_then(|instance| instance.unpack().ok()) })
        })
        .collect();
    let nobodys = cluster.machines.free(namespace);
    let strays = nobodys
        .into_iter()
        .filter_map(|name| cluster.vms.get(&ObjectRef::new(&name).within(namespace))?.unpack().ok())
        .filter(|vm| state::is_stray(&pool, vm))
        .collect();
    let is_free = |index: &u32| {
        cluster.vms.get(&ObjectRef::new(&machine::name(&pool, *index)).within(namespace)).is_none()
    };
    let free = (0..).filter(is_free).take(BURST).collect();
    let pruned = cluster.pruned.is_done(&pool);
    Some(Observed { pool, machines, strays, free, older: Default::default(), pruned, now: Timestamp::now() })
}
