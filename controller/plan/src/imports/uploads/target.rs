//! The observation of an upload.

use barevirt_api::cdi::DataVolume;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use std::fmt;

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

/// What the server of one pod presents, and which clients it accepts.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// The authorities that sign virt-api's certificate, PEM.
    pub authorities: String,
    /// The pod's certificate, PEM.
    pub certificate: String,
    /// Its key, PEM.
    pub key: String,
}

/// The key is left out.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}
