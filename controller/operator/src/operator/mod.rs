//! virt-operator: makes the cluster what the `KubeVirt` object asks for, and keeps it so.
//!
//! ```text
//!   KubeVirt --target--> what is to run --desired--> objects --+
//!                                                              +--plan--> writes, waits --reconcile--> cluster
//!   watches --cache--> what there is --------------------------+             |
//!                                                                            +--report--> status of the KubeVirt
//! ```
//!
//! Everything but [`reconcile`], [`cache`], `definition`, `monitors` and [`webhook`] is pure. Nothing is remembered that could not be forgotten: a
//! process that was killed at any step looks again, writes again what it does not know to be right, and goes on. What it
//! remembers (which state of an object it has left behind, [`plan::Left`]) only spares requests.
//!
//! An object is written by server-side apply when it is missing, when what is wanted has changed, or when somebody else
//! wrote it since; what others added to it is taken away ([`foreign`]).

pub mod cache;
pub mod canary;
pub mod customize;
mod data_volumes;
mod definition;
pub mod desired;
mod existing;
pub mod foreign;
pub mod kind;
mod looks;
mod monitors;
pub mod owned;
pub mod placement;
pub mod plan;
pub mod reconcile;
pub mod removal;
pub mod report;
pub mod rollout;
pub mod run;
pub mod seen;
pub mod strategic;
pub mod target;
pub mod trouble;
pub(crate) mod upload_service;
pub mod versions;
pub mod wanted;
pub mod webhook;

pub use barevirt_api::names::{MANAGED_BY_LABEL, OPERATOR as NAME};

/// Annotation of everything that we install: hash of what was asked for.
pub const APPLIED_ANNOTATION: &str = "operator.barevirt.dev/applied";
/// Annotation of pod templates: which images they are made of, where their digests are known.
pub const IMAGES_ANNOTATION: &str = "operator.barevirt.dev/images";
/// Finalizer of the `KubeVirt` object: what was installed is gone before it is.
pub const FINALIZER: &str = "kubevirt.io/foregroundDeleteKubeVirt";
