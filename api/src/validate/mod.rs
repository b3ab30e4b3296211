//! Validation: pure functions that return every cause at once, each with the path of its field.
//!
//! If KubeVirt has a rule, messages and paths are KubeVirt's, because tools compare them. If KubeVirt's path
//! is not that of a field in the API (`spec.Sound`), ours is the path of the field. A feature that this
//! version does not have yet is refused here by name and never ignored. The rules about such a feature are
//! here as well, and the cause of a broken rule replaces the refusal.

mod access_credentials;
mod architecture;
mod bounds;
mod cards;
mod claims;
mod cloud_init;
mod cpu;
mod data_volume_templates;
mod dedicated;
mod devices;
mod disks;
mod features;
mod filesystems;
mod firmware;
mod gated;
mod host_devices;
mod hotplug;
mod interfaces;
pub mod kinds;
mod launch_security;
mod live_update;
mod memory;
mod mesh;
mod metadata;
mod networks;
mod object_volumes;
mod peripherals;
mod placement;
mod pod;
mod port_ranges;
mod probes;
mod requester;
mod root_complex;
mod sriov;
mod supported;
mod update;
mod vm;
mod vmi;
mod volumes;
mod warnings;

#[cfg(test)]
mod tests;

pub use crate::architecture::is_machine_type_of_amd64;
pub use crate::capacity::memory_cannot_grow;
pub use crate::cause::{Cause, CauseKind, Path};
pub use crate::syntax::{is_dns_label, is_dns_subdomain};
pub use cards::{can_be_plugged, same_card, same_network};
pub use cloud_init::{CLOUD_INIT_LIMIT, NotBase64, decode_base64};
#[cfg(test)]
pub(crate) use hotplug::differs_live;
pub use hotplug::plugged as disk_cannot_be_plugged;
pub use interfaces::{BRIDGE_MAC, MODELS, parse_mac};
pub use requester::Requester;
pub use update::{handler_update, protected_status, vmi_update};
pub use vm::{read, vm, vm_spec, vm_update};
pub use vmi::{spec, vmi, vmi_create};
pub use warnings::{spec_warnings, vm_spec_warnings, vm_warnings};

pub use kinds::selects;
