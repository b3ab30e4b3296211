//! A QMP and guest agent client on a unix stream. Knows no Kubernetes.
//!
//! The types of commands and events come from the [`qapi`] crate; the transport is this crate's own, because
//! a VM that cannot be asked any more is a VM that is lost:
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
//! * What does not fit the schema this crate was built with (an event, an enum value, a line of garbage) is
//!   data, not an error of the connection.
//! * At the end of the stream every waiter is told.
//! * Of a list, the entries that the schema does not know are left out; the others are there.
//!
//! [`codec`] is pure (bytes to messages and back); [`Qmp`] and [`Agent`] are thin shells around it.
//!
//! The modules, from the outside in; each names only what stands below it.
//!
//! - [`Qmp`] (`monitor`) and [`Agent`] (`agent`): a session with QEMU's monitor, and one with the guest agent. The agent has no
//!   greeting: its session begins when it repeats a number that we chose.
//! - [`newer`]: commands that QEMU has and the [`qapi`] crate does not, or not so.
//! - `connection`: the two tasks of a stream, and the table of those who wait for an answer; [`Events`] (`event`) goes to whoever
//!   listens.
//! - [`message`]: what a line means; [`codec`]: bytes to lines, within bounds. Both are pure.
//! - [`quiet`]: a bound for log lines that a guest decides on.
//! - [`Deadline`] (`deadline`): the moment at which a wait ends; [`Error`] (`error`): how a command fails.

pub mod agent;
pub mod codec;
mod connection;
mod deadline;
mod error;
mod event;
pub mod message;
mod monitor;
pub mod newer;
pub mod quiet;

pub use agent::Agent;
pub use connection::Options;
pub use deadline::Deadline;
pub use error::Error;
pub use event::{Event, EventGap, Events};
pub use message::Greeting;
pub use monitor::Qmp;
pub use qapi;
