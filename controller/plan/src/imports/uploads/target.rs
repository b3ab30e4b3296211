//! The observation of an upload.

use barevirt_api::cdi::DataVolume;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};

/// The parts of the cluster that concern an upload.
#[derive(Clone, Debug)]
pub struct Target {
    /// The claim.
    pub claim: PersistentVolumeClaim,
    /// The DataVolume that controls it.
    pub data_volume: Option<DataVolume>,
    /// The pod with the name of its upload.
    pub pod: Option<Pod>,
    /// Another pod that uses it. It is looked up only when everything else allows the claim to be opened.
    pub used_by: Option<String>,
}
