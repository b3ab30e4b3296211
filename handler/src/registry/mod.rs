//! The guests of this node and their launchers. The supervisor writes the registry; server and metrics read
//! it.

mod subject;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, Recorder};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tracing::warn;

pub use self::subject::Subject;
use crate::launchers::Launcher;

/// Namespace and name of a VMI.
pub type Key = (String, String);

/// Longest time that the API server may take for an event.
const EVENT: Duration = Duration::from_secs(10);

/// How long a request waits for its guest: virt-api may know that a guest has arrived here before the watch says so.
const ARRIVES: Duration = Duration::from_secs(2);

/// The launchers of this node by instance, and a recorder for events about their guests. Cheap to clone.
#[derive(Clone, Default)]
pub struct Launchers {
    all: Arc<RwLock<BTreeMap<Key, Found>>>,
    /// Notified of each new guest.
    added: Arc<Notify>,
    recorder: Option<Recorder>,
}

/// A VMI of this node.
#[derive(Clone)]
struct Found {
    reference: ObjectReference,
    launcher: watch::Receiver<Option<Launcher>>,
    subject: Option<Arc<Subject>>,
}

impl Launchers {
    /// An empty registry, which publishes events with `recorder`.
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder: Some(recorder), ..Self::default() }
    }

    /// The launcher of a VMI, after a short wait for a guest that has just arrived, or for the connection to its
    /// launcher. `None` while the handler is not connected to it.
    pub async fn wait(&self, namespace: &str, name: &str) -> Option<Launcher> {
        let found = async {
            loop {
                let mut added = pin!(self.added.notified());
                // A guest that is added between the look and the wait is noticed.
                added.as_mut().enable();
                if let Some(mut found) = self.found(namespace, name)
                    && let Ok(launcher) = found.launcher.wait_for(Option::is_some).await
                {
                    return launcher.clone();
                }
                added.await;
            }
        };
        timeout(ARRIVES, found).await.ok().flatten()
    }

    fn found(&self, namespace: &str, name: &str) -> Option<Found> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Publishes an event about a VMI. A failure is logged, and there is no retry.
    pub async fn publish(&self, namespace: &str, name: &str, note: Event) {
        let (Some(recorder), Some(found)) = (&self.recorder, self.found(namespace, name)) else { return };
        match timeout(EVENT, recorder.publish(&note, &found.reference)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(namespace, name, reason = note.reason, %error, "event not published"),
            Err(_) => warn!(namespace, name, reason = note.reason, "event not published in time"),
        }
    }

    /// Whether there is such a VMI on this node.
    pub fn knows(&self, namespace: &str, name: &str) -> bool {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.contains_key(&(namespace.to_owned(), name.to_owned()))
    }

    pub(crate) fn insert(
        &self,
        key: Key,
        reference: ObjectReference,
        launcher: watch::Receiver<Option<Launcher>>,
    ) {
        let found = Found { reference, launcher, subject: None };
        self.all.write().unwrap_or_else(PoisonError::into_inner).insert(key, found);
        self.added.notify_waiters();
    }

    /// Sets the labels and facts that metrics of a VMI carry.
    pub(crate) fn describe(&self, key: &Key, subject: Subject) {
        if let Some(found) = self.all.write().unwrap_or_else(PoisonError::into_inner).get_mut(key) {
            found.subject = Some(Arc::new(subject));
        }
    }

    /// All guests whose launcher the handler is connected to.
    pub fn guests(&self) -> Vec<(Arc<Subject>, Launcher)> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let guest = |found: &Found| Some((found.subject.clone()?, found.launcher.borrow().clone()?));
        all.values().filter_map(guest).collect()
    }

    pub(crate) fn remove(&self, key: &Key) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}
