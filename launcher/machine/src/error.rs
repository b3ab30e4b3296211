//! Why a machine cannot be planned.

use crate::layout::LayoutError;
use crate::pinning::PinningError;
use thiserror::Error;

/// Why a machine cannot be planned. Nothing was started yet; `field` is the path in the manifest.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// A value that this version cannot build.
    #[error("{field}: {value:?} is not supported: {why}")]
    Unsupported {
        /// Path of the field.
        field: String,
        /// The value.
        value: String,
        /// The reason, or the supported values.
        why: &'static str,
    },
    /// A disk whose volume is not open.
    #[error("{field}: volume {volume} has not been prepared")]
    VolumeMissing {
        /// Path of the disk.
        field: String,
        /// The volume.
        volume: String,
    },
    /// A writable disk on a read-only image.
    #[error("{field}: volume {volume} is read-only and the disk is not")]
    VolumeReadOnly {
        /// Path of the disk.
        field: String,
        /// The volume.
        volume: String,
    },
    /// A LUN on a volume that is not a device.
    #[error("{field}: volume {volume} is not a block device")]
    NoDevice {
        /// Path of the disk's target.
        field: String,
        /// The volume.
        volume: String,
    },
    /// A volume here with larger blocks than the guest's disk has had since its start.
    #[error(
        "{field}: the device of volume {volume} reads and writes blocks of {here} bytes here, and the guest was started with {started}; its volume has to be one with blocks of at most {started} bytes, or the guest started anew"
    )]
    LargerBlocks {
        /// Path of the setting.
        field: String,
        /// The volume.
        volume: String,
        /// Size of the device's blocks.
        here: u32,
        /// Size of the guest's.
        started: u32,
    },
    /// A disk whose guest was started elsewhere, with sizes that nobody knows.
    #[error("{field}: the block sizes of volume {volume} with which the guest was started are not known")]
    UnknownBlocks {
        /// Path of the setting.
        field: String,
        /// The volume.
        volume: String,
    },
    /// An interface without a network.
    #[error("{field}: interface {interface} has not been prepared")]
    InterfaceMissing {
        /// Path of the interface.
        field: String,
        /// The interface.
        interface: String,
    },
    /// A part that the launcher should have found or started.
    #[error("{field}: the {what} has not been prepared")]
    Unprepared {
        /// Path of the field that requests it.
        field: String,
        /// The part.
        what: &'static str,
    },
    /// More devices of a kind than there are places.
    #[error("{field}: at most {limit} devices fit on the {bus} bus")]
    BusFull {
        /// Path of the device that does not fit.
        field: String,
        /// The bus.
        bus: &'static str,
        /// Number of places.
        limit: u16,
    },
    /// More CPUs than the machine can have.
    #[error("{field}: {cpus} virtual CPUs are more than the {limit} that a q35 machine can have")]
    TooManyCpus {
        /// Path of the topology.
        field: String,
        /// Requested CPUs, including those for hotplug.
        cpus: u32,
        /// The largest possible number.
        limit: u32,
    },
    /// A CPU model with features that this node's CPU lacks.
    #[error("{field}: {model:?} is not available on this node, whose CPU lacks {features}")]
    CpuLacks {
        /// Path of the model.
        field: String,
        /// The model.
        model: String,
        /// What is missing.
        features: String,
    },
    /// A device to plug in, and no root port for it.
    #[error(
        "{field}: nothing is plugged into the root complex, where kubevirt.io/placePCIDevicesOnRootComplex puts devices"
    )]
    NothingPlugged {
        /// Path of the device.
        field: String,
    },
    /// There are no CPUs for all threads.
    #[error("{field}: cannot give every thread a CPU: {source}")]
    Pinning {
        /// Path of the field that requests them.
        field: String,
        /// The reason.
        source: PinningError,
    },
    /// There are no addresses for all devices.
    #[error("{field}: cannot give every device an address")]
    Layout {
        /// Path of the devices.
        field: String,
        /// The reason.
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
            | PlanError::LargerBlocks { field, .. }
            | PlanError::UnknownBlocks { field, .. }
            | PlanError::InterfaceMissing { field, .. }
            | PlanError::Unprepared { field, .. }
            | PlanError::BusFull { field, .. }
            | PlanError::TooManyCpus { field, .. }
            | PlanError::CpuLacks { field, .. }
            | PlanError::NothingPlugged { field }
            | PlanError::Pinning { field, .. }
            | PlanError::Layout { field, .. } => field,
        }
    }
}
