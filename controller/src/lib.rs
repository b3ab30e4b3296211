//! Virtual machines, their instances and launcher pods, behind a lease.
//!
//! ```text
//!   VirtualMachine --(vm)--> VirtualMachineInstance --(vmi)--> launcher Pod
//!                                    ^                             |
//!        node lost --(node)----------+--------- phases, verdict ---+
//!
//!   VirtualMachinePool --(pool)--> VirtualMachine        VirtualMachineInstanceReplicaSet --(replica_set)--> instances
//! ```
//!
//! Each reconciler takes the same steps: *observe* (caches, and a live look where a stale one would be dangerous), *plan*
//! (pure), *apply*, *report* (status computed whole, written only when it differs). One process of several acts
//! ([`barevirt_component::lease`]).

pub mod adoption;
pub mod backlog;
pub mod cluster;
pub mod expectations;
pub mod generations;
pub mod image_volumes;
pub mod inventory;
pub mod kin;
pub mod node;
pub mod packed;
pub mod pauses;
pub mod pool;
pub mod replica_set;
pub mod run;
pub mod vm;
pub mod vmi;
pub mod vsock;
pub mod workloads;
pub mod write;

pub use barevirt_plan::{config, generated, merge, pod};

/// Name of the component: of its lease, in managed fields and in events.
pub const NAME: &str = "virt-controller";
