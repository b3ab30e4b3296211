//! What is known of a DataVolume, and words that several steps need.

use super::profile::Profile;
use crate::data_volumes::Place;
use barevirt_api::cdi::DataVolume;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;
use std::collections::BTreeSet;

/// Label, by which claims and pods of DataVolumes are watched: CDI's.
pub const LABEL: (&str, &str) = ("app", "containerized-data-importer");
/// Annotation on a DataVolume: a claim of its name that is there is taken over with what it holds.
pub(super) const ADOPTION_ANNOTATION: &str = "cdi.kubevirt.io/allowClaimAdoption";

/// Phases that are no other module's.
pub(super) mod phase {
    pub(in super::super) const PENDING: &str = "Pending";
    pub(in super::super) const SCHEDULED: &str = "ImportScheduled";
    pub(in super::super) const CLONE_SCHEDULED: &str = "CloneScheduled";
    pub(in super::super) const CLONE_IN_PROGRESS: &str = "CloneInProgress";
    pub(in super::super) const IN_PROGRESS: &str = "ImportInProgress";
    pub(in super::super) const UPLOAD_SCHEDULED: &str = "UploadScheduled";
    pub(in super::super) const UPLOAD_READY: &str = "UploadReady";
}

/// What an import is made with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    /// Image of the importer.
    pub image: String,
    /// Pull policy for it.
    pub pull_policy: Option<String>,
    /// Secrets with which it is pulled, looked for in the DataVolume's namespace.
    pub pull_secrets: Vec<String>,
    /// Whether images can be volumes of pods.
    pub image_volumes: bool,
    /// Registries that are spoken to without TLS, `host` or `host:port`.
    pub insecure_registries: BTreeSet<String>,
}

/// Restarts after which an import is given up: more than half an hour, with the kubelet's pauses.
pub(super) const MOST_RESTARTS: i32 = 10;

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make the claim.
    MakeClaim(Box<PersistentVolumeClaim>),
    /// Merge this into the claim.
    PatchClaim(Value),
    /// Make the pod.
    MakePod(Box<Pod>),
    /// Delete the pod with that UID.
    RemovePod(String),
    /// Make the pod that sends a claim of another namespace.
    MakeSender(Box<Pod>),
    /// Tell that pod of another namespace whom it sends to: its annotation `import.barevirt.dev/receiver`.
    Introduce {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The importer's certificate.
        certificate: String,
    },
    /// Delete that pod of another namespace.
    RemoveSender {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
}

/// What a DataVolume copies.
#[derive(Clone, Debug, Default)]
pub enum Copied {
    /// Nothing: its contents come from elsewhere.
    #[default]
    Nothing,
    /// It is not known yet what: why.
    Unknown(String),
    /// What it must not copy: why.
    Refused(String),
    /// A claim.
    Claim(Box<SourceClaim>),
}

impl Copied {
    /// The claim, where it is known which.
    pub(super) fn source(&self) -> Option<&SourceClaim> {
        match self {
            Copied::Claim(source) => Some(source),
            Copied::Nothing | Copied::Unknown(_) | Copied::Refused(_) => None,
        }
    }
}

/// A claim that is copied.
#[derive(Clone, Debug)]
pub struct SourceClaim {
    /// Which one.
    pub place: Place,
    /// It, where it is there.
    pub claim: Option<PersistentVolumeClaim>,
    /// A pod that uses it.
    pub used_by: Option<String>,
    /// What sends it, where it is one of another namespace.
    pub sender: Option<Sender>,
}

/// What sends a claim of another namespace.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    /// The pod of the sender's name.
    pub pod: Option<Pod>,
}

/// The cluster, as far as a DataVolume is concerned.
#[derive(Clone, Debug)]
pub struct Observed {
    /// It.
    pub data_volume: DataVolume,
    /// The claim of its name.
    pub claim: Option<PersistentVolumeClaim>,
    /// What its storage class is good for, where that is asked.
    pub profile: Profile,
    /// What it copies.
    pub copied: Copied,
    /// The pod of its importer's name.
    pub pod: Option<Pod>,
    /// Whether the claim's class binds once a pod is placed.
    pub waits: bool,
    /// How far the importer says it is, in per cent.
    pub progress: Option<f64>,
    /// The time.
    pub now: Time,
}

/// Something to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether it needs somebody's look.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}
