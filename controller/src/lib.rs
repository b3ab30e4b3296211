//! Virtual machines, their instances and launcher pods, behind a lease.
//!
//! ```text
//!   VirtualMachine --(vm)--> VirtualMachineInstance --(vmi)--> launcher Pod
//!                                    ^                             |
//!        node lost --(node)----------+--------- phases, verdict ---+
//!
//!   VirtualMachineInstanceMigration --(migration)--> a second launcher Pod
//!
//!   VirtualMachinePool --(pool)--> VirtualMachine        VirtualMachineInstanceReplicaSet --(replica_set)--> instances
//! ```
//!
//! Each reconciler takes the same steps: *observe* (caches, and a live look where a stale one would be dangerous), *plan*
//! (pure), *apply*, *report* (status computed whole, written only when it differs). One process of several acts
//! ([`barevirt_component::lease`]).
//!
//! The modules, from the outside in; each names only what stands below it.
//!
//! **What runs**
//!
//! - `main.rs` waits for the lease; [`run`] is all that the leading process does: it starts the caches and a queue for each
//!   reconciler, and tries again what failed.
//!
//! **Reconcilers**, each with *observe*, *plan* and *apply* in files of these names
//!
//! - [`pool`] and [`replica_set`]: a number of machines or instances of one template.
//! - [`vm`]: an instance for each machine that is to run; its template, its revisions, its data volumes.
//! - [`vmi`]: a launcher pod for each instance; claims, volumes that come and go, resizes, the end where no handler tells it.
//! - [`migration`]: a second launcher pod for a guest that moves, and what became of the move; [`evacuation`]: guests that are
//!   to leave their node.
//! - [`data_volumes`]: claims that are filled, where there is no CDI.
//! - [`workloads`]: instances whose launcher is of a former version.
//! - [`node`]: when a node is lost.
//! - [`inventory`]: machines and instances as metrics.
//!
//! **The cluster, as reconcilers see it**
//!
//! - [`cluster`]: the caches, and who is reconciled when something changes; [`packed`]: how the caches keep objects.
//! - [`write`] and [`expectations`]: writes that are waited for until the caches show them; [`adoption`]: who may own others.
//! - [`migrations`]: what moves, and whose turn it is; [`moves`]: migrations that this program asks for.
//! - [`kin`]: what belongs to which set or pool; [`generations`]: what was found done; [`pauses`]: pods that were made a moment
//!   ago; [`births`]: launcher pods that are ours because we made them; [`senders`]: whether claims are sent to other namespaces; [`vsock`]: addresses of guests; [`image_volumes`]: what the cluster can do; [`backlog`]: the queues as metrics.
//!
//! **What others use too**
//!
//! - `barevirt_plan` makes launcher pods, instances of templates, and merges; `barevirt_component` has the lease, events and
//!   requests to the API server.

pub mod adoption;
pub mod backlog;
pub mod births;
pub mod cluster;
pub mod data_volumes;
pub mod evacuation;
pub mod expectations;
pub mod generations;
pub mod image_volumes;
pub mod inventory;
pub mod kin;
pub mod macs;
pub mod migration;
pub mod migrations;
pub mod moves;
pub mod node;
pub mod packed;
pub mod pauses;
pub mod pool;
pub mod replica_set;
pub mod run;
pub mod senders;
pub mod vm;
pub mod vmi;
pub mod vsock;
pub mod workloads;
pub mod write;

pub use barevirt_plan::{config, generated, merge, pod};

/// Name of the component: of its lease, in managed fields and in events.
pub const NAME: &str = "virt-controller";
