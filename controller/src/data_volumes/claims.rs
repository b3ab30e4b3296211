//! Claims that are filled for themselves: those that a client sends an image into ([`uploads`]), and those that name a
//! populator ([`populators`]). Those that only CDI would fill are told of with the former.
//!
//! ```text
//!   claims: those with an annotation of CDI, or a populator ------+
//!   pods of uploads, DataVolumes that fill for a claim -----------+--> the claim --> uploads, populators
//!   populators ---------------------------------------------------+
//! ```
//!
//! No selector finds such claims: an annotation, or the specification, says so. All are watched, and only those are kept.

use super::again::{self, DEADLINE};
use super::{populators, uploads};
use crate::cluster::Cluster;
use barevirt_api::cdi::{
    DataVolume, PopulatorKind as Kind, VolumeCloneSource, VolumeImportSource, VolumeUploadSource, populator,
    prime_name,
};
use barevirt_component::request::Error;
use barevirt_plan::imports::populator::{LABEL as FILLS, is_filled};
use barevirt_plan::imports::uploads::is_target;
use barevirt_plan::imports::{LABEL, unserved};
use futures::stream::{BoxStream, select_all};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Action, Config, applier};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// A claim.
type Claim = PersistentVolumeClaim;
/// Claims to look at.
type Queue = BoxStream<'static, ObjectRef<Claim>>;

/// Reconciliations at the same time.
const WORKERS: u16 = 10;

/// What a reconciliation needs.
struct Work {
    cluster: Arc<Cluster>,
    /// DataVolumes that fill for a claim.
    primes: Store<DataVolume>,
}

/// Works until the future is dropped, or the watches end.
pub(super) async fn work(cluster: Arc<Cluster>) {
    let client = &cluster.client;
    let (claims, writer) = reflector::store();
    let all = watcher(Api::<Claim>::all(client.clone()), watcher::Config::default());
    let ours = all.default_backoff().filter(|event| std::future::ready(concerns(event)));
    let ours = alone(ours.reflect(writer).applied_objects(), "claims");
    let ours: Queue = ours.map(|claim| ObjectRef::from_obj(&claim)).boxed();
    let (primes, writer) = reflector::store();
    let filling = watcher::Config::default().labels(FILLS);
    let filling = watcher(Api::<DataVolume>::all(client.clone()), filling).default_backoff();
    let filling = alone(filling.reflect(writer).touched_objects(), "data volumes that fill for a claim");
    let of_uploads = watcher::Config::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let queue = select_all([
        ours,
        owners(touched::<Pod>(client, of_uploads, "pods of uploads")),
        owners(filling),
        named::<VolumeImportSource>(client, Kind::Import, claims.clone()),
        named::<VolumeCloneSource>(client, Kind::Clone, claims.clone()),
        named::<VolumeUploadSource>(client, Kind::Upload, claims.clone()),
    ]);
    let queue = queue.map(Ok::<_, Infallible>);
    applier(
        |claim, work| Box::pin(reconcile(claim, work)),
        on_error,
        Arc::new(Work { cluster: cluster.clone(), primes }),
        claims,
        queue,
        Config::default().concurrency(WORKERS),
    )
    .for_each(|_| std::future::ready(()))
    .await;
}

/// Whether an event is about a claim that is filled for itself. Others are not kept.
fn concerns(event: &Result<Event<Claim>, watcher::Error>) -> bool {
    match event {
        Ok(Event::Apply(claim) | Event::InitApply(claim)) => {
            is_target(claim.annotations()) || populator(claim).is_some() || unserved(claim).is_some()
        }
        Ok(Event::Delete(_) | Event::Init | Event::InitDone) | Err(_) => true,
    }
}

/// Without the errors of a watch, which begins again by itself.
fn alone<K: Send>(
    objects: impl Stream<Item = Result<K, watcher::Error>> + Send + 'static,
    what: &'static str,
) -> impl Stream<Item = K> + Send {
    objects.filter_map(move |object| {
        std::future::ready(object.inspect_err(|error| warn!(%error, "{what} are not watched")).ok())
    })
}

/// Objects that have changed or gone.
fn touched<K>(
    client: &Client,
    config: watcher::Config,
    what: &'static str,
) -> impl Stream<Item = K> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let objects = watcher(Api::<K>::all(client.clone()), config).default_backoff();
    alone(objects.touched_objects(), what)
}

/// The claims that own them.
fn owners<K: ResourceExt + Send + 'static>(objects: impl Stream<Item = K> + Send + 'static) -> Queue {
    let owner = |object: K| {
        let owners = object.owner_references().iter();
        let mut claims =
            owners.filter(|owner| owner.controller == Some(true) && owner.kind == Claim::kind(&()));
        let found = claims.next().map(|owner| ObjectRef::new(&owner.name));
        found.zip(object.namespace()).map(|(claim, namespace)| claim.within(&namespace))
    };
    objects.filter_map(move |object| std::future::ready(owner(object))).boxed()
}

/// The claims that name a populator.
fn named<K>(client: &Client, kind: Kind, claims: Store<Claim>) -> Queue
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let naming = move |source: K| {
        let (namespace, name) = (source.namespace(), source.name_any());
        let all = claims.state();
        let names = all.iter().filter(|claim| {
            claim.metadata.namespace == namespace && populator(claim) == Some((kind, name.as_str()))
        });
        futures::stream::iter(names.map(|claim| ObjectRef::from_obj(&**claim)).collect::<Vec<_>>())
    };
    touched::<K>(client, watcher::Config::default(), kind.name()).flat_map(naming).boxed()
}

async fn reconcile(claim: Arc<Claim>, work: Arc<Work>) -> Result<Action, Error> {
    let done = tokio::time::timeout(DEADLINE, reconcile_one(&work, &claim)).await;
    let again = done.unwrap_or(Err(Error::Overdue(DEADLINE)))?;
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

async fn reconcile_one(work: &Work, claim: &Claim) -> Result<Option<Duration>, Error> {
    let (cluster, namespace, name) = (&work.cluster, claim.namespace().unwrap_or_default(), claim.name_any());
    if populator(claim).is_none() {
        return uploads::reconcile(cluster, &namespace, &name).await;
    }
    // A claim stays filled. A DataVolume that is not known here yet leads to the claim once it is.
    let prime = ObjectRef::new(&prime_name(claim)).within(&namespace);
    if is_filled(claim) && work.primes.get(&prime).is_none() {
        return Ok(None);
    }
    populators::reconcile(cluster, &namespace, &name).await
}

fn on_error(claim: Arc<Claim>, error: &Error, _: Arc<Work>) -> Action {
    let (namespace, name) = (claim.namespace(), claim.name_any());
    again::after(error, || {
        warn!(namespace, name, %error, why = error.message(), "a claim could not be reconciled");
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(annotations: &Value, reference: &Value) -> Claim {
        let metadata = json!({ "name": "root", "annotations": annotations });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "dataSourceRef": reference } }))
            .unwrap()
    }

    #[test]
    fn other_claims_are_not_kept() {
        let none = json!({});
        let source = json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "image" });
        let snapshot =
            json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s" });
        for (claim, wanted) in [
            (claim(&none, &Value::Null), false),
            (claim(&none, &snapshot), false),
            (claim(&none, &source), true),
            (claim(&json!({ "cdi.kubevirt.io/storage.upload.target": "" }), &Value::Null), true),
            (claim(&json!({ "cdi.kubevirt.io/storage.import.endpoint": "http://a" }), &Value::Null), true),
        ] {
            assert_eq!(concerns(&Ok(Event::Apply(claim.clone()))), wanted, "{claim:?}");
            assert_eq!(concerns(&Ok(Event::InitApply(claim.clone()))), wanted);
            assert!(concerns(&Ok(Event::Delete(claim))));
        }
        assert!(concerns(&Ok(Event::Init)) && concerns(&Ok(Event::InitDone)));
    }

    #[tokio::test]
    async fn an_object_leads_to_the_claim_that_controls_it() {
        let pod = |kind: &str, controls: bool| -> Pod {
            serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "ns", "ownerReferences": [
                { "apiVersion": "v1", "kind": kind, "name": "root", "uid": "c1", "controller": controls },
            ] } }))
            .unwrap()
        };
        let pods = [
            pod("PersistentVolumeClaim", true),
            pod("PersistentVolumeClaim", false),
            pod("DataVolume", true),
        ];
        let found: Vec<_> = owners(futures::stream::iter(pods)).collect().await;
        assert_eq!(found, [ObjectRef::<Claim>::new("root").within("ns")]);
    }
}
