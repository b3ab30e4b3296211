//! Disks that the launcher receives or makes itself.
//!
//! ```text
//!  volume<name> container                      compute container
//!  container-disk ── one packet + descriptor ─► container::collect ─► header::inspect ─► ContainerDisk
//!                                                                                         │ virtual size
//!                                               qcow2::create ◄───────────────────────────┘ (overlay; emptyDisk too)
//! ```
//!
//! An image comes from a tenant: its header is read here, by a process without privilege and with a bounded parser,
//! its format is told to QEMU and never probed by it, and an image that names another file is refused. Writes go to an
//! overlay that names no base either; the base is put beneath it on QEMU's command line.

pub mod claim;
pub mod container;
pub mod host;
pub mod qcow2;

pub use container_disk::header;

pub use container::{ContainerDisk, ContainerDiskError, ContainerDisks};
pub use header::{Format, HeaderError, Image};
