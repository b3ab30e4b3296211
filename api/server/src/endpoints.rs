//! The calls of `subresources.kubevirt.io`, one line each: where, with which verb, and what for.
//!
//! Everything else about a call follows from its line: which request it is ([`crate::route`]), its access review,
//! its entry in discovery ([`crate::discovery`]) and in the OpenAPI documents ([`crate::openapi`]). Paths and verbs
//! are KubeVirt's, and so are the operations' names, from which generated clients make their methods; `qmp` is ours.
//!
//! A call that has nothing behind it yet is here too, as [`Call::NotYet`]: who may not make it gets the same answer as
//! for any other, who may is told that it is not supported yet.

mod actions;
mod endpoint;
#[cfg(test)]
mod reference;
mod table;

pub use actions::{Call, Control, InstanceAction, MachineAction, VolumeAction};
pub use endpoint::{Answer, Endpoint, Kind, On, Query, Verb};
pub use table::ENDPOINTS;
pub(crate) use table::KEEP_SESSION;
