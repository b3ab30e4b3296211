//! The agent of a node: the only component with node privileges.
//!
//! For every VirtualMachineInstance on its node it finds the launcher in the VM's pod ([`launchers`]), makes the guest's
//! network in the pod's namespace ([`network`]), hands the launcher what needs privilege as descriptors, tells it what
//! should run, and reports what does ([`sync`], [`status`]). It forwards consoles from the API server to launchers
//! ([`server`]) and says that the node is alive ([`heartbeat`]) and what guests can have there ([`labels`], [`devices`]).
//!
//! Nothing of a running guest lives in this process. It may be killed at any time: a later one finds the launchers and
//! everything in the pods' namespaces again, and adds what is missing.

pub mod certificate;
pub mod devices;
#[cfg(test)]
mod fake_launcher;
pub mod heartbeat;
pub mod kernel;
pub mod labels;
pub mod launchers;
pub mod metrics;
pub mod network;
pub mod pods;
pub mod real_time;
pub mod server;
pub mod status;
pub mod supervisor;
pub mod sync;
