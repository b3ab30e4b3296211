//! Virtual machines, their instances and launcher pods, behind a lease.
//!
//! ```text
//!   VirtualMachine --(vm)--> VirtualMachineInstance --(vmi)--> launcher Pod
//!                                    ^                             |
//!        node lost --(node)----------+----- phases, failures ------+
//!
//!   VirtualMachineInstanceMigration --(migration)--> a second launcher Pod
//!
//!   VirtualMachinePool --(pool)--> VirtualMachine        VirtualMachineInstanceReplicaSet --(replica_set)--> instances
//! ```
//!
//! Each reconciler takes the same steps: *observe* (caches, and the API server where a stale answer would be dangerous),
//! *plan* (pure), *apply*, *report* (status computed whole, written only when it differs). Of several processes one is
//! active ([`barevirt_component::lease`]).
//!
//! The modules, from the outside in; each depends only on modules below it.
//!
//! **What runs**
//!
//! - `main.rs` waits for the lease; [`run`] is the work of the leading process: it starts the caches and a queue for each
//!   reconciler, and retries after errors.
//!
//! **Reconcilers**, each with *observe*, *plan* and *apply* in files of these names
//!
//! - [`pool`] and [`replica_set`]: a number of machines or instances of one template.
//! - [`vm`]: an instance for each machine that is to run; its template, its revisions, its data volumes.
//! - [`vmi`]: a launcher pod for each instance; claims, hotpluggable volumes, resizes, and the end of an instance that
//!   no handler reports.
//! - [`migration`]: a second launcher pod for a guest that moves, and the result of the move; [`evacuation`]: guests that
//!   have to leave their node.
//! - [`data_volumes`]: claims that are filled, where there is no CDI.
//! - [`workloads`]: instances whose launcher has an older version.
//! - [`node`]: decides when a node is lost.
//! - [`inventory`]: machines and instances as metrics.
//!
//! **The cluster, as reconcilers see it**
//!
//! - [`cluster`]: the caches, and the objects to reconcile after a change; [`packed`]: how the caches keep objects.
//! - [`write`] and [`expectations`]: writes that the caches have to show; [`adoption`]: objects that may own others.
//! - [`migrations`]: running migrations, and which one may start next; [`moves`]: migrations that this program creates.
//! - [`ownership`]: children of sets and pools; [`generations`]: work that is known to be done; [`pauses`]: pods that were made a
//!   moment ago; [`created_pods`]: launcher pods that this process made; [`senders`]: whether claims are sent to other
//!   namespaces; [`vsock`]: vsock addresses of guests; [`image_volumes`]: whether images can be volumes; [`macs`]: duplicate
//!   MAC addresses; [`backlog`]: the queues as metrics.
//!
//! **Shared with other programs**
//!
//! - `barevirt_plan` makes launcher pods, instances of templates, and merges; `barevirt_component` has the lease, events and
//!   requests to the API server.

pub mod adoption;
pub mod backlog;
pub mod cluster;
pub mod created_pods;
pub mod data_volumes;
pub mod evacuation;
pub mod expectations;
pub mod generations;
pub mod image_volumes;
pub mod inventory;
pub mod macs;
pub mod migration;
pub mod migrations;
pub mod moves;
pub mod node;
pub mod ownership;
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
