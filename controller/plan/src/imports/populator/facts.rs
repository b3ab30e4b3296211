//! What is known of a claim that names a populator, and what can be done for it.

use super::super::claim::annotated;
use super::super::facts::Event;
use crate::data_volumes::status::SUCCEEDED;
use barevirt_api::cdi::{DataVolume, VolumeCloneSource, VolumeImportSource, VolumeUploadSource};
use barevirt_api::validate::is_dns_subdomain;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::Value;
use std::time::Duration;

/// Annotation on a claim: the volume that was filled for it.
pub(super) const VOLUME_ANNOTATION: &str = "populator.barevirt.dev/volume";

/// A populator.
#[derive(Clone, Debug)]
pub enum Source {
    /// An image.
    Import(Box<VolumeImportSource>),
    /// A claim to copy.
    Clone(Box<VolumeCloneSource>),
    /// What a client sends.
    Upload(Box<VolumeUploadSource>),
}

/// What is known of a claim's storage class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// The claim names none yet: Kubernetes writes the default class into it.
    #[default]
    NotNamed,
    /// It does not exist.
    Missing,
    /// It makes a volume at once.
    Immediate,
    /// It makes a volume once a pod is placed.
    Waits,
}

/// What concerns a claim that names a populator.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The claim.
    pub claim: PersistentVolumeClaim,
    /// The populator, where it exists; looked up only where no DataVolume fills the claim yet.
    pub source: Option<Source>,
    /// Its class; looked up as `source`.
    pub class: Class,
    /// The DataVolume that fills it.
    pub prime: Option<DataVolume>,
    /// The claim of that DataVolume.
    pub prime_claim: Option<PersistentVolumeClaim>,
    /// The volume of [`volume_name`].
    pub volume: Option<PersistentVolume>,
}

/// The volume to look up: that of the DataVolume's claim once it is filled, else the one noted on the claim. Users can write both,
/// and the name becomes part of a request's path.
pub fn volume_name<'a>(
    claim: &'a PersistentVolumeClaim,
    prime: Option<&DataVolume>,
    prime_claim: Option<&'a PersistentVolumeClaim>,
) -> Option<&'a str> {
    let filled = prime.is_some_and(|prime| phase(prime) == SUCCEEDED);
    let of_prime =
        prime_claim.filter(|_| filled).and_then(|claim| claim.spec.as_ref()?.volume_name.as_deref());
    let noted = || annotated(claim, VOLUME_ANNOTATION);
    of_prime.or_else(noted).filter(|name| is_dns_subdomain(name))
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Merge this into the claim, if it has not changed.
    Note(Value),
    /// Make the DataVolume that fills it.
    MakePrime(Box<DataVolume>),
    /// Give the volume of that name to the claim: merge this into it, if it has not changed.
    Rebind(String, Value),
    /// Delete the DataVolume with that UID.
    RemovePrime(String),
}

/// The plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The step.
    pub step: Option<Step>,
    /// An event about the claim, once the step is done.
    pub event: Option<Event>,
    /// When to look again, where no watch reports a change.
    pub again: Option<Duration>,
}

/// Phase of a DataVolume; empty before it has one.
pub(super) fn phase(prime: &DataVolume) -> &str {
    prime.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}
