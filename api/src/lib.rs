//! The kubevirt.io API: types, defaults, validation, sizing and names. Pure: no files, no clock, no network.
//!
//! ```text
//! v1::VirtualMachineInstance --defaults--> filled in --validate--> causes, or valid::ValidVmi --> sizing, machine, pod
//! ```

pub mod backup;
pub mod boolean;
pub mod cdi;
pub mod clone;
pub mod cloud_init;
pub mod crd;
pub mod defaults;
pub mod export;
pub mod firmware;
pub mod freeze;
pub mod gates;
pub mod hotplug;
pub mod identity;
pub mod instancetype;
pub mod migrations;
pub mod monitor;
pub mod names;
pub mod object_volume;
pub mod pci;
pub mod pool;
pub mod preference;
pub mod quantity;
pub mod restore;
pub mod rotation;
pub mod settings;
pub mod sizing;
pub mod snapshot;
pub mod unknown;
pub mod v1;
pub mod valid;
pub mod validate;
pub mod vcpu_mask;
pub mod webhooks;
pub mod workload_updates;

#[cfg(test)]
mod properties;
