//! The observation of hotpluggable volumes: their claims, and the pods that offer their disks. Read from the pods'
//! cache, and from the API server where an entry of the status would be removed.

use super::volumes::{Stage, Wanted, entries, pod_of, wanted};
use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use crate::ownership;
use crate::vmi::claim_lock::{self, Opened};
use crate::vmi::claims::{self, Found};
use crate::vmi::consumer;
use crate::vmi::progress::is_over;
use crate::vmi::status::made_for;
use barevirt_api::names::{APP_HOTPLUG_DISK, APP_LABEL};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::request::Error;
use barevirt_component::request::call_opt;
use barevirt_plan::pod::claims::Mode;
use barevirt_plan::pod::first_consumer;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The observation of hotpluggable volumes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attachments {
    /// Claims for which pods are to be made, by the names of their volumes.
    pub(super) claims: BTreeMap<String, Found>,
    /// Messages about claims that other guests have, by the names of the volumes that are to be plugged in.
    pub(super) withheld: BTreeMap<String, String>,
    /// Pods with the names of attachment pods, or of the pods before them.
    pub(super) pods: BTreeMap<String, Pod>,
    /// How long to wait before another pod of that name is made.
    pub(super) pauses: BTreeMap<String, Duration>,
}

/// The state of an attachment pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum PodState<'a> {
    Absent,
    /// Another object has its name.
    Foreign,
    /// It offers its disk.
    Serves(&'a Pod),
    /// It may offer the disk soon, or again.
    Starts(&'a Pod),
    /// It has ended, or is being deleted.
    Ended(&'a Pod),
}

impl Attachments {
    pub(super) fn state(&self, name: &str, vmi: &VirtualMachineInstance, launcher: &Pod) -> PodState<'_> {
        let Some(pod) = self.pods.get(name) else { return PodState::Absent };
        let status = pod.status.as_ref();
        let ready = || {
            let mut containers = status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            containers.any(|container| container.name == APP_HOTPLUG_DISK && container.ready)
        };
        if !is_ours(pod, vmi, launcher) {
            PodState::Foreign
        } else if pod.metadata.deletion_timestamp.is_some() || is_over(pod) {
            PodState::Ended(pod)
        } else if ready() {
            PodState::Serves(pod)
        } else {
            PodState::Starts(pod)
        }
    }

    /// All pods that were found.
    pub(in crate::vmi) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }
}

/// Whether a pod is an attachment pod of exactly this instance and this launcher.
fn is_ours(pod: &Pod, vmi: &VirtualMachineInstance, launcher: &Pod) -> bool {
    let made_for = made_for(pod);
    made_for.is_some()
        && made_for == vmi.metadata.uid.as_deref()
        && launcher.metadata.uid.is_some()
        && ownership::is_controlled_by(&pod.metadata, &launcher.metadata)
}

/// Whether a pod is an attachment pod and not a launcher.
pub(crate) fn is_attachment(pod: &Pod) -> bool {
    pod.labels().get(APP_LABEL).map(String::as_str) == Some(APP_HOTPLUG_DISK)
}

/// Looks; makes no requests for an instance without such volumes. `None` while the pods' cache lags behind our own writes.
pub(in crate::vmi) async fn observe(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    launcher: Option<&Pod>,
) -> Result<Option<Attachments>, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let (wanted, now) = (wanted(vmi), Instant::now());
    let noted = entries(vmi).filter_map(|(entry, _)| pod_of(vmi, entry));
    let names: BTreeSet<String> = wanted.iter().map(|wanted| wanted.pod.clone()).chain(noted).collect();
    let mut found = Attachments::default();
    for name in &names {
        if cluster.expectations.owes(&Key::new(Kind::Pod, &namespace, name), now) {
            return Ok(None);
        }
        let cached = cluster.pods.get(&ObjectRef::new(name).within(&namespace));
        let mut pod = cached.and_then(|pod| pod.unpack().ok());
        if pod.is_none() && launcher.is_some() && wanted.iter().all(|wanted| wanted.pod != *name) {
            // The entry is removed with the pod: only where the API server confirms that nothing is left.
            let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
            pod = call_opt("get", || format!("pod {namespace}/{name}"), pods.get(name)).await?;
        }
        if let Some(pod) = pod {
            found.pods.insert(name.clone(), pod);
        }
        let left = cluster.pauses.left(&namespace, name, now);
        if !left.is_zero() {
            found.pauses.insert(name.clone(), left);
        }
        let name = first_consumer::name_beside(name);
        let Some(consumer) = consumer::find(cluster, &namespace, &name) else { return Ok(None) };
        found.pods.extend(consumer.pod.map(|pod| (name.clone(), pod)));
        if !consumer.pause.is_zero() {
            found.pauses.insert(name, consumer.pause);
        }
    }
    let Some(launcher) = launcher else { return Ok(Some(found)) };
    for wanted in &wanted {
        if !is_asked_for(vmi, wanted, launcher, &found) {
            continue;
        }
        let (name, is_filled) = (wanted.claim.name, wanted.claim.is_filled);
        let claim = claims::look(&cluster.client, &namespace, name, is_filled).await?;
        if claim.mode() == Mode::Block && is_waiting(vmi, wanted) {
            let device = Opened { claim: name, access: wanted.access };
            // The others are looked at only now: they are no older than the instance.
            let holder = claim_lock::withheld(vmi, wanted.name, device, claims::beside(cluster, vmi));
            found.withheld.extend(holder.map(|holder| (wanted.name.to_owned(), holder)));
        }
        found.claims.insert(wanted.name.to_owned(), claim);
    }
    Ok(Some(found))
}

/// Whether the guest cannot have the volume's disk yet.
fn is_waiting(vmi: &VirtualMachineInstance, wanted: &Wanted<'_>) -> bool {
    let mut entries = entries(vmi).filter(|(entry, _)| entry.name == wanted.name);
    entries.all(|(entry, _)| Stage::of(entry) == Stage::Waiting)
}

/// Whether a volume's claim has to be read: not while the guest has the volume and its pod serves.
pub(super) fn is_asked_for(
    vmi: &VirtualMachineInstance,
    wanted: &Wanted<'_>,
    launcher: &Pod,
    found: &Attachments,
) -> bool {
    let entry = entries(vmi).find(|(entry, _)| entry.name == wanted.name);
    let settled = entry.is_some_and(|(entry, _)| {
        Stage::of(entry) != Stage::Waiting
            && entry.persistent_volume_claim_info.is_some()
            && pod_of(vmi, entry).as_deref() == Some(&wanted.pod)
    });
    let state = found.state(&wanted.pod, vmi, launcher);
    !(settled && matches!(state, PodState::Serves(_) | PodState::Starts(_)))
}
