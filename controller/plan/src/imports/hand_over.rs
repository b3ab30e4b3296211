//! What becomes of a DataVolume that is not filled when CDI is installed. Pure.
//!
//! CDI fills a claim that asks for it, by CDI's annotations or by a `dataSourceRef`, and makes one only where there is none.
//! A claim that was made here asks for nothing, so its DataVolume would wait for ever. It is empty, or has a part of a disk:
//! it is deleted, and CDI makes its own.
//!
//! ```text
//!   claim that was made here, not filled --> its importer goes --> it is deleted
//!                                   \-- another pod uses it --> nothing, until that pod has ended
//!                                   \-- its importer has just filled it --> it is marked, as CDI marks it
//!   any other claim: nothing
//! ```

use super::claim::{self, POPULATED_FOR_ANNOTATION, annotated};
use super::importer::{self, End};
use super::origin::is_waiting;
use super::populator;
use super::stage::is_of;
use super::usage::uses;
use crate::data_volumes::status::SUCCEEDED;
use barevirt_api::cdi::{DATA_VOLUME, DataVolume, annotation};
use barevirt_import_job::upload_pod_name;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt;
use serde_json::Value;

/// Annotations of claims that CDI fills. The names of some begin with these.
const ASKS: [&str; 8] = [
    annotation::UPLOAD,
    annotation::CLONE_REQUEST,
    annotation::CLONE_PHASE,
    "cdi.kubevirt.io/storage.import.",
    "cdi.kubevirt.io/storage.populator.",
    "cdi.kubevirt.io/storage.clone.",
    "cdi.kubevirt.io/storage.createdByController",
    "cdi.kubevirt.io/storage.persistentVolumeList",
];

/// A claim that may have to be handed over, with what concerns it.
#[derive(Clone, Debug)]
pub struct Left {
    /// Its DataVolume.
    pub data_volume: DataVolume,
    /// The claim.
    pub claim: PersistentVolumeClaim,
    /// The pods of its namespace.
    pub pods: Vec<Pod>,
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Delete this pod.
    RemovePod {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Merge this into the claim.
    MarkClaim(Value),
    /// Delete the claim, if it has not changed.
    RemoveClaim,
}

/// The plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Steps, in this order.
    pub steps: Vec<Step>,
    /// A pod that uses the claim, which stays until that pod has ended.
    pub used_by: Option<String>,
}

/// The name of the DataVolume of a claim that was made here and is not filled. `manager` is the field manager by which claims
/// are made here.
pub fn unfinished<'a>(claim: &'a PersistentVolumeClaim, manager: &str) -> Option<&'a str> {
    let owner = claim.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    let made = |entry: &ManagedFieldsEntry| {
        let writes = entry.fields_v1.as_ref().is_some_and(|fields| fields.0.get("f:spec").is_some());
        entry.manager.as_deref() == Some(manager) && writes
    };
    let is_made_here = claim.metadata.managed_fields.iter().flatten().any(made);
    let is_filled = annotated(claim, POPULATED_FOR_ANNOTATION).is_some()
        || annotated(claim, annotation::PHASE) == Some(SUCCEEDED);
    (owner.kind == DATA_VOLUME && is_made_here && !is_filled).then_some(owner.name.as_str())
}

/// Plans the steps for a claim that is [`unfinished`].
pub fn plan(left: &Left) -> Plan {
    let Left { data_volume, claim, pods } = left;
    let goes_anyway =
        data_volume.metadata.deletion_timestamp.is_some() || claim.metadata.deletion_timestamp.is_some();
    if goes_anyway || !is_waiting(data_volume) || !is_of(claim.owner_references(), data_volume) {
        return Plan::default();
    }
    let (filler, receiver) = (importer::name(&data_volume.name_any()), upload_pod_name(&claim.name_any()));
    let is_own = |pod: &&Pod| {
        let owners = pod.owner_references();
        let name = pod.name_any();
        name == filler && is_of(owners, data_volume) || name == receiver && is_of(owners, claim)
    };
    let mut steps = vec![];
    let is_filled = pods.iter().filter(is_own).any(|pod| importer::ended(pod) == Some(End::Filled));
    if is_filled {
        let preallocated = data_volume.spec.preallocation == Some(true);
        steps.push(Step::MarkClaim(claim::mark(data_volume, claim, preallocated)));
    }
    let leaving = pods.iter().filter(is_own).filter(|pod| pod.metadata.deletion_timestamp.is_none());
    steps.extend(leaving.filter_map(|pod| Some(Step::RemovePod { name: pod.name_any(), uid: pod.uid()? })));
    if is_filled || !is_ours(data_volume, claim) {
        return Plan { steps, used_by: None };
    }
    let other = pods.iter().find(|pod| !is_own(pod) && uses(pod, &claim.name_any()));
    if other.is_none() {
        steps.push(Step::RemoveClaim);
    }
    Plan { steps, used_by: other.map(ResourceExt::name_any) }
}

/// Whether CDI would leave the claim alone, and can make another one in its place.
fn is_ours(data_volume: &DataVolume, claim: &PersistentVolumeClaim) -> bool {
    let asks = |name: &String| ASKS.iter().any(|asked| name.starts_with(asked));
    let spec = claim.spec.as_ref();
    let has_source = spec.is_some_and(|spec| spec.data_source.is_some() || spec.data_source_ref.is_some());
    let named = [
        data_volume.spec.pvc.as_ref().and_then(|claim| claim.volume_name.as_ref()),
        data_volume.spec.storage.as_ref().and_then(|claim| claim.volume_name.as_ref()),
    ];
    // No other claim gets a volume that had one, and its contents may go with the claim.
    let names_volume = named.into_iter().flatten().any(|name| !name.is_empty());
    // It fills another claim, for which CDI has a claim of its own.
    let fills_another = data_volume.labels().contains_key(populator::LABEL);
    !claim.annotations().keys().any(asks) && !has_source && !names_volume && !fills_another
}
