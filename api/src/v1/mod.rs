//! `kubevirt.io/v1`: wire types, field for field as KubeVirt has them, one file per area.
//!
//! These types say what can be written down, not what is right: enumerations are strings, so that an unknown value is a
//! validation cause ([`crate::validate`]) and never an object that cannot be decoded. A field is here only when some
//! component acts on it or validation refuses it by name; any other field is unknown to the API server, which names it.
//! Work happens on [`crate::valid::ValidVmi`], which cannot be invalid.

mod condition;
mod cpu;
mod devices;
mod disks;
mod domain;
mod firmware;
mod interfaces;
mod kubevirt;
mod memory;
mod networks;
mod status;
mod vm;
mod vmi;
mod volumes;

pub use condition::{Condition, merge_condition};
pub use cpu::{Cpu, CpuTopology};
pub use devices::{Devices, Rng};
pub use disks::{CdRomTarget, Disk, DiskTarget};
pub use domain::{DomainSpec, FeatureState, Features, Machine, ResourceRequirements};
pub use firmware::{Bios, Bootloader, Firmware};
pub use interfaces::{DhcpOptions, DhcpPrivateOption, Interface, InterfaceBridge, InterfaceMasquerade, Port};
pub use kubevirt::{DeveloperConfiguration, KubeVirt, KubeVirtConfiguration, KubeVirtSpec, KubeVirtStatus};
pub use memory::{Memory, MemoryStatus};
pub use networks::{Network, PodNetwork};
pub use status::{
    GuestOsInfo, NetworkInterfaceStatus, PhaseTransitionTimestamp, VirtualMachineInstanceStatus,
    record_phase_transition,
};
pub use vm::{
    StartFailure, StateChangeRequest, VirtualMachine, VirtualMachineInstanceTemplateSpec, VirtualMachineSpec,
    VirtualMachineStatus,
};
pub use vmi::{VirtualMachineInstance, VirtualMachineInstanceSpec};
pub use volumes::{CloudInitNoCloudSource, ContainerDiskSource, EmptyDiskSource, LocalSecret, Volume};

/// API group of all kinds in this module.
pub const GROUP: &str = "kubevirt.io";
/// The stored version.
pub const VERSION: &str = "v1";
/// The older version, served with the same schema.
pub const VERSION_V1ALPHA3: &str = "v1alpha3";
