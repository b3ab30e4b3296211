//! A pod that claims wait for before they are filled: its observation and its deletion.

use super::action::Action;
use super::progress::is_over;
use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use barevirt_api::names::{APP_FIRST_CONSUMER, APP_LABEL};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_plan::pod::first_consumer;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::time::{Duration, Instant};

/// The observation of such a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Consumer {
    /// The pod with its name.
    pub(super) pod: Option<Pod>,
    /// How long to wait before another one is made.
    pub(super) pause: Duration,
}

/// Whether claims wait for this pod: it goes before a launcher or an attachment pod.
pub(crate) fn is_first_consumer(pod: &Pod) -> bool {
    pod.labels().get(APP_LABEL).map(String::as_str) == Some(APP_FIRST_CONSUMER)
}

/// Deletes the pod, unless it is being deleted. If it has ended, nothing runs any more.
pub(super) fn release(pod: &Pod) -> Option<Action> {
    let grace = u32::from(!is_over(pod));
    let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
    pod.metadata.deletion_timestamp.is_none().then_some(Action::Release { name, uid, grace })
}

/// Looks only into the cache. `None` while the cache lags behind our own writes.
pub(super) fn observe(cluster: &Cluster, vmi: &VirtualMachineInstance) -> Option<Consumer> {
    let name = first_consumer::name(&vmi.name_any(), &vmi.uid().unwrap_or_default());
    find(cluster, &vmi.namespace().unwrap_or_default(), &name)
}

/// Looks for a pod by its name.
pub(super) fn find(cluster: &Cluster, namespace: &str, name: &str) -> Option<Consumer> {
    let now = Instant::now();
    if cluster.expectations.owes(&Key::new(Kind::Pod, namespace, name), now) {
        return None;
    }
    let cached = cluster.pods.get(&ObjectRef::new(name).within(namespace));
    let pod = cached.and_then(|pod| pod.unpack().ok());
    Some(Consumer { pod, pause: cluster.pauses.left(namespace, name, now) })
}
