//! virt-operator: makes the cluster what the `KubeVirt` object asks for, and keeps it so.
//!
//! ```text
//!   KubeVirt --target--> what is to run --desired--> objects --+
//!                                                              +--plan--> writes, waits --reconcile--> cluster
//!   watches --cache--> what exists ----------------------------+             |
//!                                                                            +--report--> status of the KubeVirt
//! ```
//!
//! Everything except [`reconcile`], [`cache`], `definition`, `monitors` and [`webhook`] is pure. No memory is required: a
//! process that was killed at any step looks again, writes everything that it does not know to be correct, and continues.
//! Its memory (the state in which it left each object, [`plan::Left`]) only saves requests.
//!
//! An object is written by server-side apply when it is missing, when the wanted contents have changed, or when another
//! client wrote it since; additions of others are removed ([`foreign`]).

pub mod cache;
pub mod canary;
pub mod customize;
mod data_volumes;
mod definition;
pub mod desired;
mod existing;
pub mod foreign;
mod identify;
pub mod kind;
mod looks;
mod monitors;
pub mod observed;
pub mod owned;
pub mod placement;
pub mod plan;
pub mod pod_problem;
pub mod reconcile;
pub mod removal;
pub mod report;
pub mod rollout;
mod rule_of_copies;
pub mod run;
pub mod strategic;
pub mod target;
pub(crate) mod upload_service;
pub mod versions;
pub mod wanted;
pub mod webhook;

pub use barevirt_api::names::{MANAGED_BY_LABEL, OPERATOR as NAME};

/// Annotation of all installed objects: hash of the applied contents.
pub const APPLIED_ANNOTATION: &str = "operator.barevirt.dev/applied";
/// Annotation of all installed objects: generation of the `KubeVirt` object that they were last written for.
pub const GENERATION_ANNOTATION: &str = "kubevirt.io/generation";
/// Annotation of pod templates: digests of their images, where they are known.
pub const IMAGES_ANNOTATION: &str = "operator.barevirt.dev/images";
/// Finalizer of the `KubeVirt` object: it stays until the installation is gone.
pub const FINALIZER: &str = "kubevirt.io/foregroundDeleteKubeVirt";
