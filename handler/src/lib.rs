//! The agent of a node, and the only component with privileges on the node.
//!
//! For every VirtualMachineInstance on its node it finds the launcher in the VM's pod, sets up the guest's
//! network in the pod's namespace, hands the launcher privileged resources as descriptors, tells it what to
//! run, and reports what runs. No state of a running guest lives in this process. It may be killed at any
//! time: the next handler finds the launchers and everything in the pods' namespaces again, and adds what is
//! missing. `main.rs` describes the modules and their order.

pub mod certificate;
pub mod devices;
pub mod exclusive;
#[cfg(test)]
mod fake_launcher;
#[cfg(test)]
mod fuzz_targets;
pub mod heartbeat;
pub mod kernel;
pub mod labels;
pub mod launchers;
pub mod metrics;
pub mod migration;
pub mod network;
pub mod pods;
pub mod real_time;
pub mod registry;
pub mod server;
pub mod status;
pub mod supervisor;
pub mod sync;

// Names that the fuzz targets import from.
#[cfg(test)]
extern crate self as libfuzzer_sys;
#[cfg(test)]
extern crate self as virt_handler;

/// The field manager of what this component writes to the API server.
pub const FIELD_MANAGER: &str = "virt-handler";
