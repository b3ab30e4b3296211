//! What is known of a DataVolume, and constants that several steps need.

use super::overhead::Overhead;
use super::profile::Profile;
use super::usage::User;
use crate::data_volumes::Place;
use barevirt_api::cdi::{DataVolume, DataVolumeSpec};
use barevirt_api::v1::NodePlacement;
use barevirt_import_job::Network;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// CDI's label, by which claims and pods of DataVolumes are watched.
pub const LABEL: (&str, &str) = ("app", "containerized-data-importer");
/// Annotation on a DataVolume: a claim of its name that exists is taken over with its contents.
pub(super) const ADOPTION_ANNOTATION: &str = "cdi.kubevirt.io/allowClaimAdoption";

/// Phases that no other module defines.
pub(super) mod phase {
    pub(in super::super) const PENDING: &str = "Pending";
    pub(in super::super) const SCHEDULED: &str = "ImportScheduled";
    pub(in super::super) const CLONE_SCHEDULED: &str = "CloneScheduled";
    pub(in super::super) const CLONE_IN_PROGRESS: &str = "CloneInProgress";
    pub(in super::super) const IN_PROGRESS: &str = "ImportInProgress";
    pub(in super::super) const UPLOAD_SCHEDULED: &str = "UploadScheduled";
    pub(in super::super) const UPLOAD_READY: &str = "UploadReady";
}

/// Settings that imports are made with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Installation {
    /// Image of the importer.
    pub image: String,
    /// Pull policy for it.
    pub pull_policy: Option<String>,
    /// Pull secrets of that image, looked up in the DataVolume's namespace.
    pub pull_secrets: Vec<String>,
    /// Whether images can be volumes of pods.
    pub image_volumes: bool,
    /// Registries that are used without TLS, `host` or `host:port`.
    pub insecure_registries: BTreeSet<String>,
    /// How importers reach their servers.
    pub network: Network,
    /// Nodes of pods that fill or send claims.
    pub nodes: NodePlacement,
    /// Requests and limits of these pods.
    pub resources: ResourceRequirements,
    /// The share of a claim that is left to its file system.
    pub overhead: Overhead,
    /// Whether all space is reserved up front, for DataVolumes that do not say so themselves.
    pub preallocation: bool,
}

impl Installation {
    /// Whether all space of a claim is reserved up front.
    pub(super) fn preallocates(&self, spec: &DataVolumeSpec) -> bool {
        spec.preallocation.unwrap_or(self.preallocation)
    }
}

/// Restarts after which an import is given up: more than half an hour, with the kubelet's pauses.
pub(super) const MOST_RESTARTS: i32 = 10;

/// A step of the plan.
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
    /// Tell that pod of another namespace which importer it sends to: its annotation `import.barevirt.dev/receiver`.
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
    /// Not known yet, for this reason.
    Unknown(String),
    /// Must not be copied, for this reason.
    Refused(String),
    /// A claim.
    Claim(Box<SourceClaim>),
}

impl Copied {
    /// The claim, where it is known.
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
    /// Its namespace and name.
    pub place: Place,
    /// The claim, where it exists.
    pub claim: Option<PersistentVolumeClaim>,
    /// A pod that uses it.
    pub used_by: Option<User>,
    /// Labels of the DataSource that refers to it, from which machines infer their instance types and preferences.
    pub inferred: BTreeMap<String, String>,
    /// Its sender, where it is a claim of another namespace.
    pub sender: Option<Sender>,
}

/// The sender of a claim of another namespace.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    /// The pod with the sender's name.
    pub pod: Option<Pod>,
}

/// The parts of the cluster that concern a DataVolume.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The DataVolume.
    pub data_volume: DataVolume,
    /// The claim of its name.
    pub claim: Option<PersistentVolumeClaim>,
    /// A volume that was kept for its claim, with its contents.
    pub kept: Option<PersistentVolume>,
    /// What its storage class advises, where that is asked.
    pub profile: Profile,
    /// What it copies.
    pub copied: Copied,
    /// The pod with its importer's name.
    pub pod: Option<Pod>,
    /// Whether the claim's class binds only once a pod is placed.
    pub waits: bool,
    /// The progress that the importer reports, in per cent.
    pub progress: Option<f64>,
    /// The present time.
    pub now: Time,
}

/// An event to emit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether it is a warning.
    pub warning: bool,
    /// Its reason, one word.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
}
