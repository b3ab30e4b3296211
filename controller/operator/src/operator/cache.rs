//! The objects in the cluster, from watches: of most only the metadata, and only our own objects.

use super::kind::{Identity, Kind};
use super::observed::{Mark, ObservedObject};
use super::rollout::Rollout;
use super::{APPLIED_ANNOTATION, GENERATION_ANNOTATION, MANAGED_BY_LABEL, NAME};
use barevirt_api::v1::KubeVirt;
use barevirt_component::changes::Changes;
use barevirt_component::error::chain;
use futures::{Stream, StreamExt};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, DynamicResourceScope};
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tracing::{debug, warn};

/// Objects of one kind, in one namespace or everywhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// The kind.
    pub kind: Kind,
    /// The namespace; `None` for all namespaces, or for a cluster-wide kind.
    pub namespace: Option<String>,
}

impl Scope {
    /// A client for its objects.
    pub fn api(&self, client: Client) -> Api<DynamicObject> {
        self.client_for(client)
    }

    /// A client for the metadata of its objects.
    pub fn metadata(&self, client: Client) -> Api<PartialObjectMeta> {
        self.client_for(client)
    }

    fn client_for<K>(&self, client: Client) -> Api<K>
    where
        K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        let resource = self.kind.resource();
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        }
    }

    /// Whether that object belongs to this scope.
    fn covers(&self, identity: &Identity) -> bool {
        identity.kind == self.kind && (self.namespace.is_none() || identity.namespace == self.namespace)
    }

    fn identity(&self, meta: &ObjectMeta) -> Identity {
        Identity {
            kind: self.kind,
            namespace: meta.namespace.clone(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

/// The label selector of our objects.
pub fn selector() -> String {
    format!("{MANAGED_BY_LABEL}={NAME}")
}

/// The observed state of an object.
pub fn seen(meta: &ObjectMeta, rollout: Option<Rollout>) -> ObservedObject {
    let version = || Mark::Version(meta.resource_version.clone().unwrap_or_default());
    let annotation =
        |name: &str| meta.annotations.as_ref().and_then(|annotations| annotations.get(name)).cloned();
    ObservedObject {
        uid: meta.uid.clone().unwrap_or_default(),
        mark: meta.generation.filter(|generation| *generation > 0).map_or_else(version, Mark::Generation),
        hash: annotation(APPLIED_ANNOTATION),
        generation: annotation(GENERATION_ANNOTATION),
        terminating: meta.deletion_timestamp.is_some(),
        rollout,
    }
}

#[derive(Default)]
struct Inner {
    objects: BTreeMap<Identity, ObservedObject>,
    /// Watched scopes that were not listed yet; `None` before anything is watched.
    unlisted: Option<BTreeSet<Scope>>,
    /// `None` until they were listed.
    kubevirts: Option<BTreeMap<String, KubeVirt>>,
}

/// The cluster as this process sees it.
#[derive(Default)]
pub struct Cache {
    inner: Mutex<Inner>,
    changed: Notify,
    looks: Changes,
}

impl Cache {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns after a change that was not yet waited for.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Changes of what is looked at outside the installation, also told by whoever watches it; and of which `KubeVirt` objects
    /// there are.
    pub fn looks(&self) -> &Changes {
        &self.looks
    }

    /// The objects.
    pub fn objects(&self) -> BTreeMap<Identity, ObservedObject> {
        self.lock().objects.clone()
    }

    /// Whether everything watched was listed at least once: what the cache lacks does not exist.
    pub fn is_filled(&self) -> bool {
        self.lock().unlisted.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// All `KubeVirt` objects; `None` while they are not known.
    pub fn kubevirts(&self) -> Option<Vec<KubeVirt>> {
        self.lock().kubevirts.as_ref().map(|known| known.values().cloned().collect())
    }

    /// Stores a `KubeVirt` object as a write to `before` left it; the watch will report the same soon. If the watch was
    /// faster, its state stays: it may be newer than the write's result, and is not reported again.
    pub fn put_kubevirt(&self, before: &KubeVirt, object: KubeVirt) {
        if let Some(known) = &mut self.lock().kubevirts
            && let Some(known) = known.get_mut(&key(object.meta()))
            && known.metadata.resource_version == before.metadata.resource_version
        {
            *known = object;
        }
    }

    /// The newest known state of the object.
    pub fn newest(&self, object: &KubeVirt) -> KubeVirt {
        let inner = self.lock();
        let known = inner.kubevirts.as_ref().and_then(|known| known.get(&key(object.meta())));
        known.filter(|known| known.metadata.uid == object.metadata.uid).unwrap_or(object).clone()
    }

    /// Stores an object as a write to `before` left it; the watch will report the same soon. If the watch was faster, its
    /// state stays: it may be newer than the write's result, and is not reported again.
    pub fn put(&self, identity: &Identity, before: Option<&ObservedObject>, seen: ObservedObject) {
        let mut inner = self.lock();
        if inner.objects.get(identity) == before {
            inner.objects.insert(identity.clone(), seen);
        }
    }

    fn update(&self, identity: Identity, seen: Option<ObservedObject>) {
        let mut inner = self.lock();
        let before = match &seen {
            Some(seen) => inner.objects.insert(identity, seen.clone()),
            None => inner.objects.remove(&identity),
        };
        if before != seen {
            self.changed.notify_one();
        }
    }

    fn replace(&self, scope: &Scope, objects: BTreeMap<Identity, ObservedObject>) {
        let mut inner = self.lock();
        inner.objects.retain(|identity, _| !scope.covers(identity));
        inner.objects.extend(objects);
        inner.unlisted.iter_mut().for_each(|unlisted| {
            unlisted.remove(scope);
        });
        self.changed.notify_one();
    }

    /// Watches these scopes until the future is dropped.
    pub async fn follow(self: Arc<Self>, client: Client, scopes: Vec<Scope>) {
        self.lock().unlisted = Some(scopes.iter().cloned().collect());
        let watches = scopes.into_iter().map(|scope| {
            let (cache, client) = (self.clone(), client.clone());
            async move { cache.follow_scope(client, &scope).await }
        });
        tokio::join!(futures::future::join_all(watches), self.follow_kubevirts(client.clone()));
    }

    async fn follow_scope(&self, client: Client, scope: &Scope) {
        let config = watcher::Config::default().labels(&selector());
        let namespace = scope.namespace.clone().unwrap_or_default();
        if scope.kind == Kind::Deployment {
            let api: Api<Deployment> = Api::namespaced(client, &namespace);
            let rollout = |object: &Deployment| Some(Rollout::of_deployment(object));
            self.fill(scope, watcher(api, config), rollout).await;
        } else if scope.kind == Kind::DaemonSet {
            let api: Api<DaemonSet> = Api::namespaced(client, &namespace);
            let rollout = |object: &DaemonSet| Some(Rollout::of_daemon_set(object));
            self.fill(scope, watcher(api, config), rollout).await;
        } else {
            self.fill(scope, watcher(scope.metadata(client), config), |_| None).await;
        }
    }

    async fn fill<K: Resource>(
        &self,
        scope: &Scope,
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
        rollout: impl Fn(&K) -> Option<Rollout>,
    ) {
        let mut events = std::pin::pin!(events.default_backoff());
        let mut listed = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.insert(scope.identity(object.meta()), seen(object.meta(), rollout(&object)));
                }
                Ok(Event::InitDone) => self.replace(scope, std::mem::take(&mut listed)),
                Ok(Event::Apply(object)) => {
                    self.update(scope.identity(object.meta()), Some(seen(object.meta(), rollout(&object))));
                }
                Ok(Event::Delete(object)) => self.update(scope.identity(object.meta()), None),
                // A kind that is not defined has no objects.
                Err(error) if is_missing(&error) => {
                    debug!(kind = scope.kind.name(), "there is no such kind");
                    self.replace_if_any(scope);
                }
                Err(error) => {
                    warn!(kind = scope.kind.name(), error = %chain(&error), "the watch is interrupted");
                }
            }
        }
    }

    fn replace_if_any(&self, scope: &Scope) {
        let news = {
            let inner = self.lock();
            inner.unlisted.as_ref().is_some_and(|unlisted| unlisted.contains(scope))
                || inner.objects.keys().any(|identity| scope.covers(identity))
        };
        if news {
            self.replace(scope, BTreeMap::new());
        }
    }

    async fn follow_kubevirts(&self, client: Client) {
        let api: Api<DeserializeGuard<KubeVirt>> = Api::all(client);
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        let mut listed = BTreeMap::new();
        let read = |object: DeserializeGuard<KubeVirt>| match object.0 {
            Ok(object) => Some(object),
            Err(invalid) => {
                let meta = &invalid.metadata;
                warn!(
                    namespace = meta.namespace,
                    name = meta.name,
                    error = invalid.error,
                    "cannot read the KubeVirt"
                );
                None
            }
        };
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    let key = key(object.meta());
                    if let Some(object) = read(object) {
                        listed.insert(key, object);
                    }
                }
                Ok(Event::InitDone) => {
                    self.lock().kubevirts = Some(std::mem::take(&mut listed));
                    self.changed.notify_one();
                    self.looks.tell();
                }
                Ok(Event::Apply(object)) => {
                    let key = key(object.meta());
                    if let (Some(object), Some(known)) = (read(object), &mut self.lock().kubevirts)
                        && known.insert(key, object).is_none()
                    {
                        self.looks.tell();
                    }
                    self.changed.notify_one();
                }
                Ok(Event::Delete(object)) => {
                    if let Some(known) = &mut self.lock().kubevirts {
                        known.remove(&key(object.meta()));
                    }
                    self.changed.notify_one();
                    self.looks.tell();
                }
                Err(error) => warn!(error = %chain(&error), "the watch of KubeVirt objects is interrupted"),
            }
        }
    }
}

fn key(meta: &ObjectMeta) -> String {
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn is_missing(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source) => {
            barevirt_component::error::response(source).is_some_and(|answer| answer.code == 404)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(why: &str) -> ObservedObject {
        let rollout = Rollout::Going { why: why.to_owned(), serves: true, proven: false };
        ObservedObject {
            uid: "1".to_owned(),
            mark: Mark::Generation(2),
            hash: None,
            generation: None,
            terminating: false,
            rollout: Some(rollout),
        }
    }

    #[test]
    fn a_writes_answer_does_not_replace_a_newer_watch_event() {
        let cache = Cache::default();
        let identity =
            Identity { kind: Kind::Deployment, namespace: Some("ns".to_owned()), name: "api".to_owned() };
        cache.put(&identity, None, state("written"));
        assert_eq!(cache.objects().get(&identity), Some(&state("written")));
        // The next write: the watch reports its result before its answer arrives.
        let before = cache.objects().get(&identity).cloned();
        cache.update(identity.clone(), Some(state("done")));
        cache.put(&identity, before.as_ref(), state("its change is not seen yet"));
        assert_eq!(cache.objects().get(&identity), Some(&state("done")));
    }

    #[test]
    fn a_watched_kubevirt_is_not_replaced_by_the_result_of_an_older_write() {
        let object = |version: &str| {
            let mut object = KubeVirt::default();
            object.metadata.name = Some("kubevirt".to_owned());
            object.metadata.resource_version = Some(version.to_owned());
            object
        };
        let cache = Cache::default();
        cache.lock().kubevirts = Some(BTreeMap::from([(key(object("1").meta()), object("1"))]));
        cache.put_kubevirt(&object("1"), object("2"));
        let version = || cache.kubevirts().unwrap()[0].metadata.resource_version.clone();
        assert_eq!(version().as_deref(), Some("2"));
        cache.lock().kubevirts = Some(BTreeMap::from([(key(object("4").meta()), object("4"))]));
        cache.put_kubevirt(&object("2"), object("3"));
        assert_eq!(version().as_deref(), Some("4"));
    }
}
