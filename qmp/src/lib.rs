//! A QMP and guest agent client on a unix stream, without any reference to Kubernetes.
//!
//! The types of commands and events come from the [`qapi`] crate. The transport is this crate's own, because
//! a VM whose monitor no longer answers cannot be controlled any more:
//!
//! ```text
//!   caller ──┐  line + descriptors   ┌────────┐  sendmsg   ┌──────┐
//!   caller ──┼──────── queue ───────>│ writer │───────────>│      │
//!            │                       └────────┘            │ QEMU │
//!            │   oneshot by id       ┌────────┐   read     │      │
//!   caller <─┴───────────────────────│ reader │<───────────│      │
//!   events <─────── broadcast ───────└────────┘            └──────┘
//! ```
//!
//! * Every command carries an id, and several may be in flight.
//! * A [`Deadline`] ends the caller's wait, never the stream; an answer that comes later is dropped by its id.
//! * Only the writer task writes, whole lines: a caller that is dropped leaves no half line behind.
//! * The reader always reads. It waits for no consumer: events go to a broadcast channel that overwrites.
//! * Data that does not fit the schema this crate was built with (an event, an enum value, a line of garbage)
//!   is data, not an error of the connection.
//! * At the end of the stream every waiting caller gets an error.
//! * Of a list, entries that the schema does not know are left out; the others are kept.
//!
//! [`codec`] is pure (bytes to messages and back); [`Qmp`] and [`Agent`] are thin shells around it.
//!
//! The modules, from the outside in. Each module uses only modules that are listed below it.
//!
//! - [`Qmp`] (`monitor`) and [`Agent`] (`agent`): a session with QEMU's monitor, and one with the guest agent.
//!   The agent has no greeting: its session begins when it repeats a number that we chose.
//! - [`newer`]: commands of QEMU that the [`qapi`] crate does not have, or has in an incompatible form.
//! - `connection`: the two tasks of a stream, and the table of callers that wait for an answer; [`Events`]
//!   (`event`) go to the listeners.
//! - [`message`]: the meaning of a line; [`codec`]: bytes to lines, with limits. Both are pure.
//! - [`quiet`]: a limit on log lines that a guest causes.
//! - [`Deadline`] (`deadline`): the moment at which a wait ends; [`Error`] (`error`): how a command fails.

pub mod agent;
pub mod codec;
mod connection;
mod deadline;
mod error;
mod event;
#[cfg(test)]
mod fuzz_targets;
pub mod message;
mod monitor;
pub mod newer;
pub mod quiet;

// Names that the fuzz targets import from.
#[cfg(test)]
extern crate self as barevirt_qmp;
#[cfg(test)]
extern crate self as libfuzzer_sys;

pub use agent::Agent;
pub use connection::Options;
pub use deadline::Deadline;
pub use error::Error;
pub use event::{Event, EventGap, Events};
pub use message::Greeting;
pub use monitor::Qmp;
pub use qapi;
