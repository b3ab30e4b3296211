//! The claims of an instance's disks. Others create and fill them: the instance waits until they are ready.
//!
//! Read from the API server, and only for instances that have not started. A claim that waits for its first consumer is
//! bound by the scheduler as it places the launcher; a claim that a DataVolume fills is used once the DataVolume has
//! succeeded. A waiting claim is filled in one of two ways:
//!
//! ```text
//!   PendingPopulation      as soon as a pod is to be placed; the claim is bound when it is filled, and the launcher is the pod
//!   WaitForFirstConsumer   once a pod was placed and the claim is bound: another pod runs before the launcher
//! ```

use super::claim_lock::{self, Opened};
use crate::cluster::Cluster;
use crate::ownership;
use barevirt_api::cdi;
use barevirt_api::names::{
    CONDITION_DATA_VOLUMES_READY, PHASE_PENDING, REASON_CLAIM_IN_USE, REASON_DATA_VOLUME_NOT_READY,
    REASON_DATA_VOLUMES_NOT_READY, REASON_DATA_VOLUMES_READY, REASON_FAILED_DATA_VOLUME_IMPORT,
    REASON_PVC_NOT_FOUND, REASON_UNSCHEDULABLE,
};
use barevirt_api::v1::{
    Condition, PersistentVolumeClaimInfo, VirtualMachineInstance, VolumeStatus, merge_condition,
};
use barevirt_component::request::Error;
use barevirt_component::request::call_opt;
use barevirt_plan::data_volumes::status::{
    FAILED, PENDING_POPULATION, SUCCEEDED, Status, WAIT_FOR_FIRST_CONSUMER,
};
use barevirt_plan::phase;
use barevirt_plan::pod::claims::Mode;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject};
use kube::{Client, Resource as _, ResourceExt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often a claim that is not ready is looked at.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);

/// The claims that volumes name, by their names; and the message about one that another guest has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Claims(BTreeMap<String, Found>, Option<String>);

/// The state of one claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    /// The claim.
    pub(super) claim: Option<PersistentVolumeClaim>,
    /// The DataVolume that fills it, if there is one.
    pub(super) filling: Option<Filling>,
}

/// The state of a DataVolume.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Filling {
    /// Its phase.
    pub(super) phase: String,
    /// Status of its condition `Ready`.
    pub(super) ready: String,
    /// Why the pod that fills it has stopped with an error.
    pub(super) error: Option<String>,
}

impl Filling {
    fn of(volume: &Value) -> Self {
        let status = Status::of(volume);
        let ready = status.condition("Ready").and_then(|ready| ready["status"].as_str());
        Filling {
            phase: status.phase().to_owned(),
            ready: ready.unwrap_or_default().to_owned(),
            error: status.stopped().map(str::to_owned),
        }
    }

    /// Why it is not filled: reason and message.
    fn trouble(&self) -> (&'static str, String) {
        match (self.phase.as_str(), &self.error) {
            (FAILED, _) => (REASON_FAILED_DATA_VOLUME_IMPORT, "Failed".to_owned()),
            (_, Some(error)) => (
                REASON_FAILED_DATA_VOLUME_IMPORT,
                format!("the pod that fills it has stopped with an error: {error}"),
            ),
            ("", None) => (REASON_DATA_VOLUME_NOT_READY, "Pending".to_owned()),
            (phase, None) => (REASON_DATA_VOLUME_NOT_READY, phase.to_owned()),
        }
    }

    /// Whether a pod may have the claim. If the claim is bound only when it is filled, that is before it is filled.
    fn is_done(&self) -> bool {
        [SUCCEEDED, PENDING_POPULATION].contains(&self.phase.as_str())
    }
}

impl Found {
    /// Why a disk cannot use it yet: reason and message.
    pub(super) fn trouble(&self, namespace: &str, name: &str) -> Option<(&'static str, String)> {
        match (&self.claim, &self.filling) {
            (_, Some(filling)) if !filling.is_done() => {
                let (reason, why) = filling.trouble();
                Some((reason, format!("DataVolume {namespace}/{name} is not ready: {why}")))
            }
            (None, _) => {
                let message = format!("PVC {namespace}/{name} does not exist, waiting for it to appear");
                Some((REASON_PVC_NOT_FOUND, message))
            }
            (Some(claim), _) if claim.metadata.deletion_timestamp.is_some() => {
                Some((REASON_PVC_NOT_FOUND, format!("PVC {namespace}/{name} is being deleted")))
            }
            _ => None,
        }
    }

    /// Its mode.
    pub(super) fn mode(&self) -> Mode {
        Mode::of(self.claim.as_ref().and_then(|claim| claim.spec.as_ref()?.volume_mode.as_deref()))
    }

    /// Whether it is not filled yet.
    pub(super) fn is_being_filled(&self) -> bool {
        self.filling.as_ref().is_some_and(|filling| filling.phase != SUCCEEDED)
    }

    /// Why it will never be filled, if so.
    pub(super) fn failure(&self, namespace: &str, name: &str) -> Option<String> {
        let has_failed = self.filling.as_ref().is_some_and(|filling| filling.phase == FAILED);
        self.trouble(namespace, name).filter(|_| has_failed).map(|(_, message)| message)
    }

    /// Whether it is filled only once a pod that uses it was placed, and none was.
    pub(super) fn waits_for_consumer(&self) -> bool {
        let waits = |filling: &Filling| filling.phase == WAIT_FOR_FIRST_CONSUMER;
        self.filling.as_ref().is_some_and(waits)
            && self.claim.as_ref().is_some_and(|claim| {
                claim.metadata.deletion_timestamp.is_none() && claim_phase(claim) == "Pending"
            })
    }

    /// Whether it is bound only by a pod that is placed.
    fn is_bound_by_pod(&self) -> bool {
        let is_pending = |claim: &PersistentVolumeClaim| claim_phase(claim) == "Pending";
        self.filling.is_some() && self.claim.as_ref().is_some_and(is_pending)
    }
}

/// The phase of a claim.
pub(super) fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    phase.filter(|phase| !phase.is_empty()).unwrap_or("Pending")
}

impl Claims {
    /// Why the instance can have no pod yet: the first of its claims that is not ready and does not wait for a pod.
    pub(super) fn trouble(&self, vmi: &VirtualMachineInstance) -> Option<(&'static str, String)> {
        let namespace = vmi.namespace().unwrap_or_default();
        let mut others = self.0.iter().filter(|(_, found)| !found.waits_for_consumer());
        let missing = others.find_map(|(name, found)| found.trouble(&namespace, name));
        missing.or_else(|| Some((REASON_CLAIM_IN_USE, self.1.clone()?)))
    }

    /// Why no node can be chosen for the pod, where a claim does not exist: reason and message. The condition `PodScheduled` of
    /// KubeVirt's instances says so, too.
    pub(super) fn missing(&self, vmi: &VirtualMachineInstance) -> Option<(String, String)> {
        let (_, message) = self.trouble(vmi).filter(|(reason, _)| *reason == REASON_PVC_NOT_FOUND)?;
        Some((REASON_UNSCHEDULABLE.to_owned(), message))
    }

    /// Message about the first claim that will never be filled.
    pub(super) fn failure(&self, vmi: &VirtualMachineInstance) -> Option<String> {
        let namespace = vmi.namespace().unwrap_or_default();
        self.0.iter().find_map(|(name, found)| found.failure(&namespace, name))
    }

    /// Whether a claim waits for a pod before it is filled.
    pub(super) fn wait_for_consumer(&self) -> bool {
        self.0.values().any(Found::waits_for_consumer)
    }

    /// Whether a claim that is being filled is not bound yet.
    pub(super) fn are_being_bound(&self) -> bool {
        self.0.values().any(Found::is_bound_by_pod)
    }

    /// Sets the instance's condition about all DataVolumes, if there are any.
    pub(super) fn note_filling(&self, conditions: &mut Vec<Condition>, now: Timestamp) {
        if let Some(condition) = self.condition() {
            merge_condition(conditions, condition, &Time(now));
        }
    }

    /// That condition; KubeVirt's words.
    fn condition(&self) -> Option<Condition> {
        let told: Vec<&str> =
            self.0.values().filter_map(|found| Some(found.filling.as_ref()?.ready.as_str())).collect();
        if told.is_empty() {
            return None;
        }
        let (reason, message) = (REASON_DATA_VOLUMES_READY, "All of the VMI's DVs are bound and ready");
        let ready = Condition::new(CONDITION_DATA_VOLUMES_READY, true, reason, message);
        if told.iter().all(|ready| *ready == "True") {
            return Some(ready);
        }
        let status = if told.contains(&"False") { "False" } else { "Unknown" };
        let (reason, message) = (REASON_DATA_VOLUMES_NOT_READY, "Not all of the VMI's DVs are ready");
        Some(Condition {
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..ready
        })
    }

    /// The mode of a claim.
    pub(super) fn mode(&self, name: &str) -> Mode {
        self.0.get(name).map_or(Mode::Filesystem, Found::mode)
    }

    /// The existing claims, with the names of their volumes.
    pub(super) fn of_volumes<'a>(
        &'a self,
        vmi: &'a VirtualMachineInstance,
    ) -> impl Iterator<Item = (&'a str, &'a PersistentVolumeClaim)> {
        vmi.spec.volumes.iter().filter_map(|volume| {
            let found = self.0.get(volume.claim()?.name)?;
            Some((volume.name.as_str(), found.claim.as_ref()?))
        })
    }

    /// Adds the claims to the instance's status, where the launcher finds the sizes of new disks.
    pub(super) fn note(&self, vmi: &VirtualMachineInstance, volumes: &mut Vec<VolumeStatus>) {
        for volume in &vmi.spec.volumes {
            let found = volume.claim().and_then(|claim| self.0.get(claim.name));
            let Some(claim) = found.and_then(|found| found.claim.as_ref()) else { continue };
            let info = Some(info(claim));
            match volumes.iter_mut().find(|known| known.name == volume.name) {
                Some(known) => known.persistent_volume_claim_info = info,
                None => volumes.push(VolumeStatus {
                    name: volume.name.clone(),
                    persistent_volume_claim_info: info,
                    ..VolumeStatus::default()
                }),
            }
        }
    }
}

/// The claim as an instance's status shows it.
pub(crate) fn info(claim: &PersistentVolumeClaim) -> PersistentVolumeClaimInfo {
    let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
    let requests = spec.and_then(|spec| spec.resources.as_ref()?.requests.clone());
    PersistentVolumeClaimInfo {
        claim_name: Some(claim.name_any()),
        access_modes: spec.and_then(|spec| spec.access_modes.clone()).unwrap_or_default(),
        capacity: status.and_then(|status| status.capacity.clone()).unwrap_or_default(),
        requests: requests.unwrap_or_default(),
        volume_mode: spec.and_then(|spec| spec.volume_mode.clone()),
        preallocated: is_preallocated(claim).then_some(true),
        ..PersistentVolumeClaimInfo::default()
    }
}

/// Whether the claim says that all its space is allocated.
fn is_preallocated(claim: &PersistentVolumeClaim) -> bool {
    claim.annotations().iter().any(|(name, value)| {
        value == "true" && cdi::annotation::PREALLOCATED_NAMES.iter().any(|known| name.contains(known))
    })
}

/// Looks up the claims that the pod is to have.
pub(super) async fn observe(cluster: &Cluster, vmi: &VirtualMachineInstance) -> Result<Claims, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let mut claims = Claims::default();
    for volume in vmi.spec.volumes.iter().filter(|volume| !volume.is_hotpluggable()) {
        let Some(wanted) = volume.claim() else { continue };
        let found = look(&cluster.client, &namespace, wanted.name, wanted.is_filled).await?;
        claims.0.insert(wanted.name.to_owned(), found);
    }
    if phase(vmi) == PHASE_PENDING {
        claims.1 = in_use(cluster, vmi, &claims);
    }
    Ok(claims)
}

/// Message about a device that another guest has, unless both only read it. Other instances are looked at only if there is a device.
fn in_use(cluster: &Cluster, vmi: &VirtualMachineInstance, claims: &Claims) -> Option<String> {
    let devices: Vec<Opened<'_>> =
        claim_lock::opened(vmi).filter(|opened| claims.mode(opened.claim) == Mode::Block).collect();
    if devices.is_empty() {
        return None;
    }
    claim_lock::taken(vmi, &devices, beside(cluster, vmi))
}

/// The instances of its namespace, as they are in the cache now.
pub(super) fn beside(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
) -> impl Iterator<Item = VirtualMachineInstance> {
    let all = cluster.vmis.state().into_iter();
    let beside = all.filter(move |other| other.meta().namespace == vmi.metadata.namespace);
    // An instance that cannot be read was logged when it arrived.
    beside.filter_map(|other| other.unpack().ok())
}

/// Looks up a claim and its DataVolume. `is_filled`: a DataVolume fills it, whatever the owner of the claim.
pub(super) async fn look(
    client: &Client,
    namespace: &str,
    name: &str,
    is_filled: bool,
) -> Result<Found, Error> {
    let claim = look_for_claim(client, namespace, name).await?;
    if !is_filled && !claim.as_ref().is_some_and(is_of_data_volume) {
        return Ok(Found { claim, filling: None });
    }
    // Where the kind is not installed, there is no DataVolume.
    let all: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &cdi::resource(cdi::DATA_VOLUME));
    let found = call_opt("get", || format!("data volume {namespace}/{name}"), all.get(name)).await?;
    Ok(Found { claim, filling: found.map(|found| Filling::of(&found.data)) })
}

/// Looks up only the claim.
pub(crate) async fn look_for_claim(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<PersistentVolumeClaim>, Error> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    call_opt("get", || format!("claim {namespace}/{name}"), claims.get(name)).await
}

/// Whether the DataVolume of its name controls the claim.
fn is_of_data_volume(claim: &PersistentVolumeClaim) -> bool {
    ownership::controller(&claim.metadata).is_some_and(|owner| {
        owner.kind == cdi::DATA_VOLUME
            && owner.api_version.split('/').next() == Some(cdi::GROUP)
            && Some(&owner.name) == claim.metadata.name.as_ref()
    })
}

#[cfg(test)]
impl Claims {
    /// Builds claims for tests.
    pub(super) fn of(all: impl IntoIterator<Item = (String, Found)>) -> Self {
        Claims(all.into_iter().collect(), None)
    }
}

#[cfg(test)]
mod tests;
