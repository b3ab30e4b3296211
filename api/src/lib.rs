//! The kubevirt.io API: types, defaults, validation, sizing and names. Pure: no files, no clock, no network.
//!
//! ```text
//! v1::VirtualMachineInstance --defaults--> filled in --validate--> causes, or valid::ValidVmi --> sizing, machine, pod
//! ```

pub mod crd;
pub mod defaults;
pub mod identity;
pub mod names;
pub mod quantity;
pub mod settings;
pub mod sizing;
pub mod v1;
pub mod valid;
pub mod validate;

#[cfg(test)]
mod properties;
