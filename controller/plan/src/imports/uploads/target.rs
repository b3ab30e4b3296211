//! What is known of an upload.

use barevirt_api::cdi::DataVolume;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use std::fmt;

/// The cluster, as far as an upload is concerned.
#[derive(Clone, Debug)]
pub struct Target {
    /// The claim.
    pub claim: PersistentVolumeClaim,
    /// The DataVolume that controls it.
    pub data_volume: Option<DataVolume>,
    /// The pod of its upload's name.
    pub pod: Option<Pod>,
    /// Another pod that uses it. It is looked for once everything else says that the claim is to be opened.
    pub used_by: Option<String>,
}

/// What the server of one pod shows, and whom it lets in.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// Who signs virt-api's certificate, PEM.
    pub authorities: String,
    /// The pod's certificate, PEM.
    pub certificate: String,
    /// Its key, PEM.
    pub key: String,
}

/// Without the key.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}
