//! The calls of `subresources.kubevirt.io`, one line each: path, verb and purpose.
//!
//! Everything else about a call follows from its line: its route ([`crate::route`]), its access review, its
//! entry in discovery ([`crate::discovery`]) and in the OpenAPI documents ([`crate::openapi`]). Paths and
//! verbs are KubeVirt's. So are the operations' names, which generated clients use for their methods. `qmp`
//! is our own.
//!
//! A call that is not supported yet is listed as well, as [`Call::NotYet`]: a user without permission gets
//! the same answer as for any other call, and a user with permission gets the answer that it is not supported yet.

mod actions;
mod endpoint;
#[cfg(test)]
mod reference;
mod table;

pub use actions::{Call, Control, InstanceAction, MachineAction, VolumeAction};
pub use endpoint::{Answer, Endpoint, Kind, On, Query, Verb};
pub use table::ENDPOINTS;
pub(crate) use table::KEEP_SESSION;
