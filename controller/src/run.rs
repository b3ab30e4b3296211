//! The work of the leading process.

use crate::backlog::Backlog;
use crate::cluster::{Cluster, Options};
use crate::inventory::Grown;
use crate::{
    data_volumes, evacuation, image_volumes, migration, node, pool, replica_set, vm, vmi, workloads,
};
use barevirt_component::notes::Notes;
use barevirt_component::request::{Category, Error, back_off};
use futures::channel::mpsc::UnboundedReceiver;
use futures::{FutureExt, StreamExt};
use kube::runtime::controller::{self, Action, Config, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource, ResourceExt};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tracing::{debug, info, warn};

/// Concurrent reconciliations of each kind; KubeVirt has ten for instances.
const WORKERS: u16 = 10;
/// How long one reconciliation may take: several requests, each with its own deadline.
const DEADLINE: Duration = Duration::from_secs(60);
/// Objects whose failures are counted.
const FAILURES_KEPT: usize = 4096;
/// Every object is reconciled from time to time, in case an event is missed.
const RESYNC: Duration = Duration::from_secs(600);

/// Runs the controllers; returns only if the watches end.
pub async fn run(client: Client, instance: &str, options: Options) {
    let notes = Notes::new(client.clone(), crate::NAME, instance);
    let (inventory, backlogs) = (options.inventory.clone(), options.backlogs.clone());
    inventory.lead();
    let (cluster, feeds, queues) = Cluster::new(client, notes, options);
    let instances = feeds.instances();
    let vms = drive(
        "virtual machine",
        cluster.clone(),
        cluster.vms.clone(),
        (queues.vms, backlogs.vms),
        |cluster, namespace, name| async move { vm::reconcile(&cluster, &namespace, &name).await }.boxed(),
    );
    let vmis = drive(
        "virtual machine instance",
        cluster.clone(),
        cluster.vmis.clone(),
        (queues.vmis, backlogs.vmis),
        |cluster, namespace, name| async move { vmi::reconcile(&cluster, &namespace, &name).await }.boxed(),
    );
    let sets = drive(
        "replica set",
        cluster.clone(),
        cluster.sets.clone(),
        (queues.sets, backlogs.sets),
        |cluster, namespace, name| {
            async move { replica_set::reconcile(&cluster, &namespace, &name).await }.boxed()
        },
    );
    let pools = drive(
        "pool",
        cluster.clone(),
        cluster.pools.clone(),
        (queues.pools, backlogs.pools),
        |cluster, namespace, name| async move { pool::reconcile(&cluster, &namespace, &name).await }.boxed(),
    );
    let vmims = drive(
        "migration",
        cluster.clone(),
        cluster.vmims.clone(),
        (queues.vmims, backlogs.vmims),
        |cluster, namespace, name| {
            async move { migration::reconcile(&cluster, &namespace, &name).await }.boxed()
        },
    );
    let evacuations = drive(
        "evacuation",
        cluster.clone(),
        cluster.vmis.clone(),
        (queues.evacuations, backlogs.evacuations),
        |cluster, namespace, name| {
            async move { evacuation::reconcile(&cluster, &namespace, &name).await }.boxed()
        },
    );
    let work = async {
        if cluster.ready().await {
            info!(
                vms = cluster.vms.len(),
                instances = cluster.vmis.len(),
                pods = cluster.pods.len(),
                "caches filled"
            );
        }
        // Before the first pod is built.
        let pause = image_volumes::look(&cluster, cluster.namespace()).await;
        let images = image_volumes::run(&cluster, cluster.namespace(), pause);
        let (workloads, nodes) = (workloads::run(cluster.clone()), node::run(cluster.clone()));
        let grown = |grown: &Grown| vmi::queue_grown(&cluster, grown, &instances);
        let sizes = inventory.follow(cluster.client.clone(), cluster.namespace(), grown);
        let volumes = data_volumes::run(cluster.clone());
        tokio::join!(vms, vmis, sets, pools, vmims, evacuations, workloads, nodes, images, sizes, volumes);
    };
    tokio::select! {
        () = feeds.run(cluster.clone()) => warn!("the watches ended"),
        () = work => warn!("the controllers ended"),
    }
}

type Reconciliation = futures::future::BoxFuture<'static, Result<Option<Duration>, Error>>;

/// Reconciles the objects of a queue, until the queue ends.
async fn drive<K>(
    kind: &'static str,
    cluster: Arc<Cluster>,
    store: Store<K>,
    (queue, backlog): (UnboundedReceiver<ObjectRef<K>>, Backlog),
    reconcile: impl Fn(Arc<Cluster>, String, String) -> Reconciliation + Send + Sync + 'static,
) where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let failures: Arc<Mutex<HashMap<Option<String>, u32>>> = Arc::default();
    let count = failures.clone();
    // Other caches must be filled, too, before a missing object means anything.
    let ready = cluster.clone();
    let (added, again, dropped) = (backlog.clone(), backlog.clone(), backlog.clone());
    let queue = async move { ready.ready().await }
        .into_stream()
        .flat_map(|_| futures::stream::empty())
        .chain(queue.map(move |object| {
            added.added(object.namespace.as_deref().unwrap_or_default(), &object.name);
            Ok::<_, Infallible>(object)
        }));
    let work = applier(
        move |object: Arc<K>, cluster: Arc<Cluster>| {
            let failures = failures.clone();
            let uid = object.meta().uid.clone();
            let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
            let running = backlog.begun(&namespace, &name);
            let work = reconcile(cluster, namespace, name);
            async move {
                let _running = running;
                let again = within(DEADLINE, work).await?;
                failures.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
                Ok(Action::requeue(again.unwrap_or(RESYNC)))
            }
            .boxed()
        },
        move |object: Arc<K>, error: &Error, _| {
            let meta = object.meta();
            again.failed();
            let failed = {
                let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
                if count.len() > FAILURES_KEPT {
                    // Most counts belong to deleted objects; the others start again.
                    count.clear();
                }
                let failed = count.entry(meta.uid.clone()).or_default();
                *failed = failed.saturating_add(1);
                *failed
            };
            let category = error.category();
            let pause = match category {
                Category::Conflict | Category::Gone if failed < 5 => Duration::from_millis(100),
                // An event will report its end.
                Category::Ending => RESYNC,
                Category::Conflict | Category::Gone | Category::Refused | Category::Unavailable => {
                    back_off(failed)
                }
            };
            if category == Category::Ending {
                debug!(kind, namespace = meta.namespace, name = meta.name, "the namespace is being deleted");
            } else if category != Category::Conflict {
                warn!(
                    kind,
                    namespace = meta.namespace,
                    name = meta.name,
                    category = category.name(),
                    %error,
                    why = error.message(),
                    ?pause,
                    "reconciliation failed"
                );
            }
            Action::requeue(pause)
        },
        cluster,
        store,
        queue,
        Config::default().concurrency(WORKERS),
    );
    work.for_each(|done| {
        // The policy has handled failures; an object that is gone needs nothing.
        if let Err(controller::Error::ObjectNotFound(object)) = done {
            dropped.dropped(object.namespace.as_deref().unwrap_or_default(), &object.name);
        }
        std::future::ready(())
    })
    .await;
}

async fn within<T>(deadline: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(deadline, work).await.unwrap_or(Err(Error::Overdue(deadline)))
}
