//! What a DataVolume copies: the claim that it names, or the claim that its DataSource refers to.
//!
//! ```text
//!   source.pvc ------------------------------------------> claim
//!   sourceRef --> DataSource --> (others of its namespace) --> claim, recorded on the DataVolume's own claim
//! ```
//!
//! A DataSource may change at any time; a DataVolume copies what it referred to when the claim was made.

use super::facts::Copied;
use crate::data_volumes::status::{FAILED, SUCCEEDED};
use crate::data_volumes::{self, Place};
use barevirt_api::cdi::{DATA_SOURCE, DataSource, DataVolume, DataVolumeSpec};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Annotation on a claim: the claim that it is a copy of.
const SOURCE_ANNOTATION: &str = "import.barevirt.dev/source";

/// How the labels begin from which machines infer their instance types and preferences. A copy has those of its source.
const INFERRED: &str = "instancetype.kubevirt.io/default-";

/// How long a new policy may take until every API server applies it.
const MARGIN: SignedDuration = SignedDuration::from_secs(10);

/// The labels among these from which machines infer their instance types and preferences.
pub fn inferred(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let found = labels.iter().filter(|(label, _)| label.starts_with(INFERRED));
    found.map(|(label, value)| (label.clone(), value.clone())).collect()
}

/// The source that a DataVolume names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// Nothing to copy.
    Nothing,
    /// A claim.
    Claim(Place),
    /// A DataSource.
    DataSource(Place),
    /// An invalid name.
    Wrong(String),
}

/// Whether its source is a claim or a DataSource.
pub(super) fn copies(spec: &DataVolumeSpec) -> bool {
    spec.source_ref.is_some() || spec.source.as_ref().is_some_and(|source| source.pvc.is_some())
}

/// Whether a DataVolume may copy from a namespace. `since`: the time from which admission checks the creators of such
/// DataVolumes ([`barevirt_api::names::COPIES_POLICY`]).
///
/// # Errors
/// The reason why it may not.
pub fn permitted(data_volume: &DataVolume, from: &str, since: Option<&Time>) -> Result<(), String> {
    if data_volume.metadata.namespace.as_deref() == Some(from) {
        return Ok(());
    }
    let spec = &data_volume.spec;
    let named = spec.source.as_ref().and_then(|source| Some(source.pvc.as_ref()?.namespace.as_str()));
    let named = named.or_else(|| spec.source_ref.as_ref()?.namespace.as_deref());
    if named != Some(from) {
        return Err(format!(
            "the {DATA_SOURCE} refers to a claim of a third namespace, {from}: name that claim in spec.source.pvc"
        ));
    }
    let made = data_volume.metadata.creation_timestamp.as_ref();
    let asked = since
        .zip(made)
        .is_some_and(|(since, made)| since.0.checked_add(MARGIN).is_ok_and(|since| since <= made.0));
    if asked {
        return Ok(());
    }
    Err(format!("it was made before copies from namespace {from} were checked: delete it and make it again"))
}

/// Whether it is still to be filled.
pub fn is_waiting(data_volume: &DataVolume) -> bool {
    let phase = data_volume.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some(SUCCEEDED | FAILED))
}

/// Whether it waits for a source, which may be this claim.
pub fn may_copy(data_volume: &DataVolume, claim: &PersistentVolumeClaim) -> bool {
    let named = data_volume.spec.source.as_ref().and_then(|source| source.pvc.as_ref());
    let place = (claim.metadata.namespace.as_ref(), claim.metadata.name.as_ref());
    let names = named.is_some_and(|named| (Some(&named.namespace), Some(&named.name)) == place);
    (names || data_volume.spec.source_ref.is_some()) && is_waiting(data_volume)
}

/// The annotation that names the source of a copy.
pub(super) fn remembered(place: &Place) -> (String, String) {
    (SOURCE_ANNOTATION.to_owned(), place.to_string())
}

/// The source that it names. `claim` is the claim of its name.
pub fn named(data_volume: &DataVolume, claim: Option<&PersistentVolumeClaim>) -> Named {
    let spec = &data_volume.spec;
    if let Some(source) = spec.source.as_ref().and_then(|source| source.pvc.as_ref()) {
        return Place::new("claim", &source.namespace, &source.name).map_or_else(Named::Wrong, Named::Claim);
    }
    let own = data_volume.namespace().unwrap_or_default();
    match data_volumes::data_source(spec, &own) {
        Ok(None) => Named::Nothing,
        Ok(Some(place)) => {
            let known = claim.and_then(|claim| claim.annotations().get(SOURCE_ANNOTATION));
            let known = known.and_then(|known| known.split_once('/'));
            let known = known.and_then(|(namespace, name)| Place::new("claim", namespace, name).ok());
            known.map_or(Named::DataSource(place), Named::Claim)
        }
        Err(why) => Named::Wrong(why),
    }
}

/// The claim that a DataSource refers to, or why there is none to copy.
///
/// # Errors
/// What is then known of the source.
pub fn followed(place: &Place, found: Option<&DataSource>) -> Result<Place, Copied> {
    let unknown = |why: String| Copied::Unknown(why);
    let Some(found) = found else { return Err(unknown(format!("there is no {DATA_SOURCE} {place}"))) };
    let said = &found.spec.source;
    let resolved = found.status.as_ref().map(|status| &status.source);
    let source = if said.data_source.is_some() { resolved } else { Some(said) };
    if source.is_some_and(|source| source.snapshot.is_some()) {
        return Err(Copied::Refused(format!(
            "{DATA_SOURCE} {place} refers to a snapshot, which is served by CDI alone, and this cluster has none"
        )));
    }
    let Some(claim) = source.and_then(|source| source.pvc.as_ref()) else {
        return Err(unknown(format!("{DATA_SOURCE} {place} stands for no claim")));
    };
    let namespace = if claim.namespace.is_empty() { &place.namespace } else { &claim.namespace };
    Place::new("claim", namespace, &claim.name).map_err(unknown)
}
