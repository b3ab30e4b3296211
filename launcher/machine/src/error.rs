//! Why a machine cannot be planned.

use crate::layout::LayoutError;
use crate::pinning::PinningError;
use thiserror::Error;

/// Why a machine cannot be planned. Nothing has been started then; `field` is the path in the manifest.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// A value that this version cannot build.
    #[error("{field}: {value:?} is not supported: {why}")]
    Unsupported {
        /// Path of the field.
        field: String,
        /// What it holds.
        value: String,
        /// Why not, or what is.
        why: &'static str,
    },
    /// A disk whose volume has not been opened.
    #[error("{field}: volume {volume} has not been prepared")]
    VolumeMissing {
        /// Path of the disk.
        field: String,
        /// The volume.
        volume: String,
    },
    /// A disk that the guest may write to, on an image that nobody may.
    #[error("{field}: volume {volume} is read-only and the disk is not")]
    VolumeReadOnly {
        /// Path of the disk.
        field: String,
        /// The volume.
        volume: String,
    },
    /// A LUN on what is no device.
    #[error("{field}: volume {volume} is not a block device")]
    NoDevice {
        /// Path of the disk's target.
        field: String,
        /// The volume.
        volume: String,
    },
    /// An interface for which no network has been made.
    #[error("{field}: interface {interface} has not been prepared")]
    InterfaceMissing {
        /// Path of the interface.
        field: String,
        /// The interface.
        interface: String,
    },
    /// Something that the launcher has to find or start, and has not.
    #[error("{field}: the {what} has not been prepared")]
    Unprepared {
        /// Path of the field that asks for it.
        field: String,
        /// What it is.
        what: &'static str,
    },
    /// More devices of a kind than there are places.
    #[error("{field}: at most {limit} devices fit on the {bus} bus")]
    BusFull {
        /// Path of the device that does not fit.
        field: String,
        /// The bus.
        bus: &'static str,
        /// How many do.
        limit: u16,
    },
    /// More CPUs than the machine can have.
    #[error("{field}: {cpus} virtual CPUs are more than the {limit} that a q35 machine can have")]
    TooManyCpus {
        /// Path of the topology.
        field: String,
        /// CPUs asked for, those for hotplug included.
        cpus: u32,
        /// What is possible.
        limit: u32,
    },
    /// A CPU model that is more than this node's CPU.
    #[error("{field}: {model:?} cannot be had on this node, whose CPU lacks {features}")]
    CpuLacks {
        /// Path of the model.
        field: String,
        /// The model.
        model: String,
        /// What is missing.
        features: String,
    },
    /// No CPUs for all threads.
    #[error("{field}: cannot give every thread a CPU: {source}")]
    Pinning {
        /// Path of what asks for it.
        field: String,
        /// Why not.
        source: PinningError,
    },
    /// No addresses for all devices.
    #[error("{field}: cannot give every device an address")]
    Layout {
        /// Path of the devices.
        field: String,
        /// Why not.
        #[source]
        source: LayoutError,
    },
}

impl PlanError {
    /// Path of the field in the manifest.
    #[must_use]
    pub fn field(&self) -> &str {
        match self {
            PlanError::Unsupported { field, .. }
            | PlanError::VolumeMissing { field, .. }
            | PlanError::VolumeReadOnly { field, .. }
            | PlanError::NoDevice { field, .. }
            | PlanError::InterfaceMissing { field, .. }
            | PlanError::Unprepared { field, .. }
            | PlanError::BusFull { field, .. }
            | PlanError::TooManyCpus { field, .. }
            | PlanError::CpuLacks { field, .. }
            | PlanError::Pinning { field, .. }
            | PlanError::Layout { field, .. } => field,
        }
    }
}
