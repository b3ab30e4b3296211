//! Disks that the launcher receives or makes itself.
//!
//! ```text
//!  volume<name> container                      compute container
//!  container-disk ── one packet + descriptor ─► container::collect ─► header::inspect ─► ContainerDisk
//!                                                                                         │ virtual size
//!                                               qcow2::create ◄───────────────────────────┘ (overlay; emptyDisk too)
//! ```
//!
//! An image comes from a user, so its header is parsed here, by a process without privileges and with a
//! bounded parser. QEMU gets the format and never probes it, and an image that names another file is
//! refused. Writes go to an overlay that names no base either; QEMU's command line adds the base.

pub mod block_size;
pub mod claim;
pub mod container;
pub mod growth;
pub mod host;
pub mod late_lock;
#[cfg(test)]
pub(crate) mod loop_device;
pub mod qcow2;

pub use container_disk::header;

pub use container::{ContainerDisk, ContainerDiskError, ContainerDisks};
pub use header::{Format, HeaderError, Image};
